//! Boxes, masks and keypoints follow the pixels, as in torchvision.

use super::*;

fn geometry_table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(testdata(&format!("golden-geometry/{name}"))).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect()
}

fn detection() -> Transform {
    let op = |name: &str, params| crate::ops::parse(name, params).unwrap();
    let list = Compose::new(vec![
        op("RandomIoUCrop", serde_json::json!({})),
        op("Resize", serde_json::json!({"size": [48, 64]})),
        op("RandomHorizontalFlip", serde_json::json!({})),
        op("RandomPhotometricDistort", serde_json::json!({})),
        op("RandomRotation", serde_json::json!({"degrees": 10})),
    ]);
    Transform::List(list.unwrap())
}

fn boxes_of(text: &str) -> Vec<[f32; 4]> {
    let corners = |row: &str| {
        let numbers: Vec<f32> = row.split(',').map(|n| n.parse().unwrap()).collect();
        numbers.try_into().unwrap()
    };
    text.split(';').map(corners).collect()
}

#[test]
fn a_detection_list_matches_torchvision() {
    let mut decoder = Decoder::new(Limits::default());
    let transform = detection();
    let rows = geometry_table("detection.txt");
    assert_eq!(rows.len(), 60);
    let mut cropped = 0;
    for (number, row) in rows.iter().enumerate() {
        let bytes = std::fs::read(testdata("images").join(&row[0])).unwrap();
        let boxes = boxes_of(&row[1]);
        let mut tracking = Tracking {
            boxes: Some(&boxes),
            map: SpatialMap::default(),
        };
        let mut out = vec![0; transform.output_values()];
        let (seed, output) = (sample(number), Output::default());
        transform
            .apply_tracked(
                &mut decoder,
                &bytes[..],
                seed,
                &output,
                &mut out,
                &mut tracking,
            )
            .unwrap();
        let map = &tracking.map;
        assert_eq!(map.output_size(), (48, 64));
        let crop = match map.steps()[0] {
            SpatialStep::Crop {
                x,
                y,
                width,
                height,
                centers: true,
            } => format!("{x},{y},{width},{height}"),
            _ => "-".to_owned(),
        };
        assert_eq!(crop, row[2], "{row:?}");
        cropped += usize::from(crop != "-");
        let placed = map.boxes(&boxes, true);
        let expected = boxes_of(&row[3]);
        for ((_, placed), expected) in placed.iter().zip(&expected) {
            let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
            assert!(placed.iter().zip(expected).all(close), "{placed:?} {row:?}");
        }
        assert_eq!(placed.len(), expected.len());
        let kept: Vec<_> = map
            .boxes(&boxes, false)
            .iter()
            .map(|b| b.0.to_string())
            .collect();
        let listed = if kept.is_empty() {
            "-".to_owned()
        } else {
            kept.join(",")
        };
        assert_eq!(listed, row[4], "{row:?}");
        let (height, width) = map.input_size();
        let id = |i: u32| {
            let (x, y) = (i % width, i / width);
            ((x * 7 + y * 13 + x * y / 5) % 251) as u8
        };
        let mask = Mask {
            width,
            height,
            ids: MaskIds::Uint8((0..width * height).map(id).collect()),
        };
        let MaskIds::Uint8(ids) = map.mask(&mask).unwrap().ids else {
            panic!("numbers of one byte")
        };
        assert_eq!(crc32(&ids), row[5], "{row:?}");
        assert_eq!(crc32(&out), row[6], "{row:?}");
    }
    assert!(cropped > 30, "{cropped}");
}

#[test]
fn a_tracked_transform_gives_the_same_pixels() {
    let path = testdata("images/train/n02782093/n02782093_11.JPEG");
    let bytes = std::fs::read(path).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let flips = Compose::new(vec![
        Op::CenterCrop(CenterCrop { size: (901, 30) }),
        Op::RandomHorizontalFlip(RandomHorizontalFlip { p: 1.0 }),
        Op::RandomVerticalFlip(RandomVerticalFlip { p: 0.5 }),
    ]);
    for transform in [
        Transform::Train(TrainTransform::new(40)),
        Transform::Eval(EvalTransform::new(64, 40)),
        Transform::List(flips.unwrap()),
    ] {
        for number in 0..4 {
            let (seed, output) = (sample(number), Output::default());
            let mut out = vec![0; transform.output_values()];
            let mut tracked = out.clone();
            let mut tracking = Tracking::default();
            transform
                .apply(&mut decoder, &bytes[..], seed, &output, &mut out)
                .unwrap();
            transform
                .apply_tracked(
                    &mut decoder,
                    &bytes[..],
                    seed,
                    &output,
                    &mut tracked,
                    &mut tracking,
                )
                .unwrap();
            assert_eq!(out, tracked);
            assert_eq!(tracking.map.output_size(), transform.output_size());
        }
    }
}

/// A mask that equals the red channel moves like the image, in all orientations; no resize
/// interpolates here.
#[test]
fn masks_move_like_the_pixels() {
    let pixels: Vec<u8> = (0..23 * 17u32)
        .flat_map(|i| [(i % 251) as u8, 1, 2])
        .collect();
    let mut mask = Mask {
        width: 23,
        height: 17,
        ids: MaskIds::Uint8(pixels.iter().step_by(3).copied().collect()),
    };
    let options = crate::DecodeOptions {
        exif: true,
        ..crate::DecodeOptions::default()
    };
    let mut decoder = Decoder::with_options(options);
    let image = RgbImage {
        width: 23,
        height: 17,
        data: pixels,
    };
    let plain = crate::encode_jpeg(&image, 100, false).unwrap();
    let decoded = Decoder::default().decode(&plain).unwrap();
    mask.ids = MaskIds::Uint8(decoded.data.iter().step_by(3).copied().collect());
    for tag in 1..=8 {
        let mut turned = plain.clone();
        crate::set_orientation(&mut turned, tag);
        for size in [(11, 9), (20, 20), (30, 28)] {
            let list = Compose::new(vec![
                Op::CenterCrop(CenterCrop { size }),
                Op::RandomVerticalFlip(RandomVerticalFlip { p: 0.5 }),
                Op::RandomHorizontalFlip(RandomHorizontalFlip { p: 0.5 }),
            ]);
            let transform = Transform::List(list.unwrap());
            let mut out = vec![0; transform.output_values()];
            let mut tracking = Tracking::default();
            let (seed, output) = (sample(tag.into()), Output::default());
            transform
                .apply_tracked(
                    &mut decoder,
                    &turned,
                    seed,
                    &output,
                    &mut out,
                    &mut tracking,
                )
                .unwrap();
            let red: Vec<u8> = out.iter().step_by(3).copied().collect();
            let moved = tracking.map.mask(&mask).unwrap();
            assert_eq!(
                moved.ids,
                MaskIds::Uint8(red),
                "orientation {tag}, {size:?}"
            );
        }
    }
}

#[test]
fn missing_boxes_and_unsupported_ops_are_refused() {
    let png = crate::encode_png(&[9; 30 * 20 * 3], 30, 20);
    let mut decoder = Decoder::new(Limits::default());
    let (seed, output) = (sample(0), Output::default());
    let transform = detection();
    let mut out = vec![0; transform.output_values()];
    let refused = transform.apply(&mut decoder, &png, seed, &output, &mut out);
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("ask for a column of boxes")
    );
    let mut run = |transform: &Transform, boxes| {
        let mut tracking = Tracking {
            boxes,
            map: SpatialMap::default(),
        };
        transform.apply_tracked(&mut decoder, &png, seed, &output, &mut out, &mut tracking)
    };
    let error = run(&transform, None).unwrap_err().to_string();
    assert!(error.contains("RandomIoUCrop"), "{error}");
    run(&transform, Some(&[])).unwrap();
    for op in [
        Op::RandAugment(RandAugment::default()),
        Op::TrivialAugmentWide(TrivialAugmentWide::default()),
        Op::AutoAugment(AutoAugment::default()),
    ] {
        let crop = RandomResizedCrop {
            size: (48, 64),
            ..RandomResizedCrop::default()
        };
        let transform = Transform::List(Compose::new(vec![crop.into(), op.clone()]).unwrap());
        let error = run(&transform, Some(&[])).unwrap_err().to_string();
        assert!(
            error.contains(op.name()) && error.contains("cannot move"),
            "{error}"
        );
    }
}
