//! Compares transforms with torchvision on PIL images (testdata/golden-augment, made by
//! tools/golden/make_golden_augment.py).

use std::path::PathBuf;

use super::*;
use crate::geometry::{Mask, MaskIds, SpatialMap, SpatialStep, Tracking};
use crate::ops::*;
use crate::output::{Converter, Normalize};
use crate::pixels::{AffineParams, PixelBuffer};
use forebay_jpeg::Limits;

mod geometry;

fn testdata(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../testdata", path]
        .iter()
        .collect()
}

fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(testdata(&format!("golden-augment/{name}"))).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect()
}

/// The CRC-32 of zip and PNG.
fn crc32(bytes: &[u8]) -> String {
    let crc = !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg())
        })
    });
    format!("{crc:08x}")
}

fn operation(name: &str) -> Option<Operation> {
    Operation::DRAWN
        .into_iter()
        .find(|operation| format!("{operation:?}") == name)
}

fn whole() -> RgbImage {
    let path = testdata("images/train/n02782093/n02782093_11.JPEG");
    let bytes = std::fs::read(path).unwrap();
    Decoder::new(Limits::default()).decode(&bytes).unwrap()
}

/// Returns the part of an image between two corners.
fn part(whole: &RgbImage, corners: &[String]) -> PixelBuffer {
    let [x, y, x1, y1] = [0, 1, 2, 3].map(|i| corners[i].parse::<usize>().unwrap());
    let mut picture = PixelBuffer::default();
    let to = picture.reset(x1 - x, y1 - y);
    for (to, y) in to.chunks_exact_mut((x1 - x) * 3).zip(y..) {
        let start = (y * whole.width as usize + x) * 3;
        to.copy_from_slice(&whole.data[start..][..to.len()]);
    }
    picture
}

#[test]
fn moved_images_match_torchvision() {
    let whole = whole();
    let rows = table("motions.txt");
    assert_eq!(rows.len(), 1890);
    for row in rows {
        let mut picture = part(&whole, &row[6..10]);
        let affine = AffineParams {
            interpolation: serde_json::from_value(row[2].as_str().into()).unwrap(),
            fill: [3, 4, 5].map(|i| row[i].parse().unwrap()),
        };
        let operation = operation(&row[0]).unwrap();
        operation.apply(&mut picture, row[1].parse().unwrap(), &affine);
        assert_eq!(crc32(picture.data()), row[10], "{row:?}");
    }
}

/// Applies whole transforms to whole images: checks the decoded region and the black border around it.
#[test]
fn center_crops_match_torchvision_also_beyond_the_image() {
    let whole = whole();
    let mut decoder = Decoder::new(Limits::default());
    let rows = table("crops.txt");
    assert_eq!(rows.len(), 21);
    for row in rows {
        let picture = part(&whole, &row[..4]);
        let png = crate::encode_png(picture.data(), picture.width as u32, picture.height as u32);
        let [height, width] = [4, 5].map(|i| row[i].parse().unwrap());
        let list = Compose::new(vec![Op::CenterCrop(CenterCrop {
            size: (height, width),
        })])
        .unwrap();
        let transform = Transform::List(list);
        let mut out = vec![7; transform.output_values()];
        let (seed, output) = (sample(0), Output::default());
        transform
            .apply(&mut decoder, &png, seed, &output, &mut out)
            .unwrap();
        assert_eq!(crc32(&out), row[6], "{row:?}");
        let planes = Output::from(Layout::Nchw);
        let mut other = vec![7; out.len()];
        transform
            .apply(&mut decoder, &png, seed, &planes, &mut other)
            .unwrap();
        let plane = out.len() / 3;
        let same = |(i, &byte): (usize, &u8)| other[i % 3 * plane + i / 3] == byte;
        assert!(out.iter().enumerate().all(same), "{row:?}");
    }
}

#[test]
fn every_operation_matches_torchvision() {
    let whole = whole();
    let still = &AffineParams::default();
    let rows = table("operations.txt");
    assert_eq!(rows.len(), 807);
    for row in rows {
        let mut picture = part(&whole, &row[2..6]);
        let magnitude: f64 = row[1].parse().unwrap();
        match (row[0].as_str(), operation(&row[0])) {
            (_, Some(operation)) => operation.apply(&mut picture, magnitude, still),
            ("brightness", _) => picture.brightness(magnitude),
            ("contrast", _) => picture.contrast(magnitude),
            ("saturation", _) => picture.saturation(magnitude),
            ("hue", _) => picture.hue(magnitude),
            ("grayscale", _) => picture.grayscale(),
            (other, _) => panic!("{other}"),
        }
        assert_eq!(crc32(picture.data()), row[6], "{row:?}");
    }
}

#[test]
fn every_bin_matches_torchvision() {
    let rows = table("bins.txt");
    assert_eq!(rows.len(), 2 * 3 * 14);
    for row in rows {
        let space = match row[0].as_str() {
            "RandAugment" => Space::RandAugment,
            _ => Space::TrivialWide,
        };
        let operation = operation(&row[1]).unwrap();
        let [bins, width, height] = [2, 3, 4].map(|i| row[i].parse::<u32>().unwrap());
        let size = (width as usize, height as usize);
        assert_eq!(row.len() as u32, 5 + bins);
        for (bin, value) in row[5..].iter().enumerate() {
            let got = space.magnitude(operation, bin as u32, bins, size);
            let expected: f64 = value.parse().unwrap();
            assert_eq!(got, expected, "{row:?}: bin {bin}");
        }
    }
}

#[test]
fn output_values_match_torchvision_bit_for_bit() {
    let source: Vec<u8> = (0..=255).flat_map(|v| [v; 3]).collect();
    let convert = |dtype: Dtype, normalize| {
        let output = Output {
            layout: Layout::Nhwc,
            dtype,
            normalize,
        };
        let mut out = vec![0; source.len() * dtype.bytes()];
        Converter::default().run(&output, (&source, Layout::Nhwc), &mut out);
        out
    };
    let imagenet = Some(Normalize {
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
    });
    let scaled = convert(Dtype::Float32, None);
    let single = convert(Dtype::Float32, imagenet);
    let half = convert(Dtype::Float16, imagenet);
    let brain = convert(Dtype::Bfloat16, imagenet);
    let hex = |bytes: &[u8]| -> String { bytes.iter().rev().map(|b| format!("{b:02x}")).collect() };
    let rows = table("numbers.txt");
    assert_eq!(rows.len(), 256);
    for (v, row) in rows.iter().enumerate() {
        let at = v * 3;
        let mut got = vec![v.to_string(), hex(&scaled[at * 4..][..4])];
        got.extend((0..3).map(|c| hex(&single[(at + c) * 4..][..4])));
        got.extend([hex(&half[at * 2..][..2]), hex(&brain[at * 2..][..2])]);
        assert_eq!(&got, row);
    }
}

fn train() -> Transform {
    let part = Some((0.6, 1.4));
    Transform::List(
        Compose::new(vec![
            Op::RandomResizedCrop(RandomResizedCrop {
                size: (48, 64),
                scale: (0.08, 1.0),
                ratio: (3.0 / 4.0, 4.0 / 3.0),
            }),
            Op::RandomHorizontalFlip(RandomHorizontalFlip { p: 0.5 }),
            Op::RandomVerticalFlip(RandomVerticalFlip { p: 0.5 }),
            Op::ColorJitter(ColorJitter {
                brightness: part,
                contrast: part,
                saturation: part,
                hue: Some((-0.1, 0.1)),
            }),
            Op::RandomGrayscale(RandomGrayscale { p: 0.2 }),
            Op::RandAugment(RandAugment {
                num_ops: 2,
                magnitude: 9,
                num_magnitude_bins: 31,
                ..Default::default()
            }),
            Op::RandomHorizontalFlip(RandomHorizontalFlip { p: 0.5 }),
        ])
        .unwrap(),
    )
}

fn evaluate() -> Transform {
    Transform::List(
        Compose::new(vec![
            Op::Resize(Resize {
                size: ResizeTo::Short(80),
            }),
            Op::CenterCrop(CenterCrop { size: (64, 72) }),
            Op::TrivialAugmentWide(TrivialAugmentWide {
                num_magnitude_bins: 31,
                ..Default::default()
            }),
        ])
        .unwrap(),
    )
}

fn sample(sample: usize) -> SampleSeed {
    SampleSeed {
        seed: 1,
        epoch: 2,
        sample: sample as u64,
        occurrence: 0,
    }
}

#[test]
fn lists_match_torchvision_for_documented_draws() {
    let mut decoder = Decoder::new(Limits::default());
    let rows = table("lists.txt");
    assert_eq!(rows.len(), 60);
    for (number, row) in rows.iter().enumerate() {
        let bytes = std::fs::read(testdata("images").join(&row[0])).unwrap();
        for (transform, expected) in [(train(), &row[1]), (evaluate(), &row[2])] {
            let mut out = vec![0; transform.output_values()];
            let output = Output::default();
            transform
                .apply(&mut decoder, &bytes[..], sample(number), &output, &mut out)
                .unwrap();
            assert_eq!(crc32(&out), *expected, "{}: {transform:?}", row[0]);
        }
    }
}

#[test]
fn a_list_of_crop_and_flip_equals_the_train_transform() {
    let path = testdata("images/train/n02782093/n02782093_11.JPEG");
    let bytes = std::fs::read(path).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let train = TrainTransform::new(40);
    let list = Compose::new(vec![
        Op::RandomResizedCrop(RandomResizedCrop {
            size: (40, 40),
            scale: train.scale,
            ratio: train.ratio,
        }),
        Op::RandomHorizontalFlip(RandomHorizontalFlip { p: train.flip }),
    ]);
    let (a, b) = (Transform::Train(train), Transform::List(list.unwrap()));
    for dtype in [Dtype::Uint8, Dtype::Float16] {
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let output = Output {
                layout,
                dtype,
                normalize: None,
            };
            for number in 0..8 {
                let mut run = |transform: &Transform| {
                    let mut out = vec![0; transform.output_values() * dtype.bytes()];
                    transform
                        .apply(&mut decoder, &bytes[..], sample(number), &output, &mut out)
                        .unwrap();
                    out
                };
                assert_eq!(run(&a), run(&b));
            }
        }
    }
}

#[test]
fn layouts_and_types_hold_the_same_changed_image() {
    let path = testdata("images/train/n02782093/n02782093_11.JPEG");
    let bytes = std::fs::read(path).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let transform = train();
    let mut run = |layout, dtype: Dtype| {
        let output = Output {
            layout,
            dtype,
            normalize: None,
        };
        let mut out = vec![0; transform.output_values() * dtype.bytes()];
        transform
            .apply(&mut decoder, &bytes[..], sample(5), &output, &mut out)
            .unwrap();
        out
    };
    let pixels = run(Layout::Nhwc, Dtype::Uint8);
    let planes = run(Layout::Nchw, Dtype::Uint8);
    let wide = run(Layout::Nchw, Dtype::Float32);
    let plane = 48 * 64;
    for (i, &pixel) in pixels.iter().enumerate() {
        let at = i % 3 * plane + i / 3;
        assert_eq!(planes[at], pixel);
        let number = f32::from_le_bytes(wide[at * 4..][..4].try_into().unwrap());
        assert_eq!(number, f32::from(pixel) * (1.0 / 255.0));
    }
}

fn apply(op: impl Into<Op>, bytes: &[u8], number: usize) -> Vec<u8> {
    let crop = CenterCrop { size: (48, 64) };
    let list = Compose::new(vec![crop.into(), op.into()]).unwrap();
    let transform = Transform::List(list);
    let mut out = vec![0; transform.output_values()];
    let mut decoder = Decoder::new(Limits::default());
    let (seed, output) = (sample(number), Output::default());
    transform
        .apply(&mut decoder, bytes, seed, &output, &mut out)
        .unwrap();
    out
}

#[test]
fn every_pair_of_auto_augment_matches_torchvision() {
    let whole = whole();
    let rows = table("auto-pairs.txt");
    assert_eq!(rows.len(), 3 * 25 * 2);
    for row in rows {
        let mut picture = part(&whole, &row[3..7]);
        let policy: Policy = serde_json::from_value(row[0].as_str().into()).unwrap();
        let pair = policy.pairs()[row[1].parse::<usize>().unwrap()];
        let negative = row[2] == "1";
        for (operation, _, bin) in pair {
            let drawn = (operation, negative);
            Space::RandAugment.apply(&mut picture, (bin, 10), drawn, &AffineParams::default());
        }
        assert_eq!(crc32(picture.data()), row[7], "{row:?}");
    }
}

#[test]
fn auto_augment_matches_torchvision_for_documented_draws() {
    let rows = table("auto-lists.txt");
    assert_eq!(rows.len(), 60);
    for (number, row) in rows.iter().enumerate() {
        let bytes = std::fs::read(testdata("images").join(&row[0])).unwrap();
        let policies = [Policy::ImageNet, Policy::Cifar10, Policy::Svhn];
        for (policy, expected) in policies.into_iter().zip(&row[1..]) {
            let op = AutoAugment {
                policy,
                ..AutoAugment::default()
            };
            assert_eq!(
                crc32(&apply(op, &bytes, number)),
                *expected,
                "{row:?}: {policy:?}"
            );
        }
    }
}

#[test]
fn blurs_differ_from_torchvision_in_few_values_by_one() {
    let whole = whole();
    let rows = table("blurs.txt");
    assert_eq!(rows.len(), 12);
    let (mut values, mut different) = (0, 0);
    for row in rows {
        let mut picture = part(&whole, &row[..4]);
        let [width, height] = [4, 5].map(|i| row[i].parse().unwrap());
        picture.gaussian_blur((width, height), row[6].parse().unwrap());
        let png = std::fs::read(testdata("golden-augment").join(&row[7])).unwrap();
        let expected = Decoder::new(Limits::default()).decode(&png).unwrap();
        for (&a, &b) in picture.data().iter().zip(&expected.data) {
            assert!(a.abs_diff(b) <= 1, "{row:?}: {a} and {b}");
            different += usize::from(a != b);
        }
        values += expected.data.len();
        assert_eq!(picture.data().len(), expected.data.len());
    }
    assert!(different * 10_000 <= values, "{different} of {values}");
}

#[test]
fn a_blur_draws_its_standard_deviation() {
    let path = testdata("images/train/n02782093/n02782093_11.JPEG");
    let bytes = std::fs::read(path).unwrap();
    let blur = |sigma| GaussianBlur {
        kernel_size: (9, 5),
        sigma,
    };
    let drawn = |number| apply(blur((0.1, 2.0)), &bytes, number);
    assert_ne!(drawn(0), drawn(1));
    let unit = crate::random::Draws::new(sample(1), crate::random::Purpose(11)).unit();
    let sigma = 0.1 + (2.0 - 0.1) * unit;
    assert_eq!(drawn(1), apply(blur((sigma, sigma)), &bytes, 1));
}

#[test]
fn affine_maps_match_torchvision() {
    let whole = whole();
    let rows = table("affines.txt");
    assert_eq!(rows.len(), 198);
    for row in rows {
        let mut picture = part(&whole, &row[10..14]);
        let [degrees, x, y, scale, shear_x, shear_y] =
            [0, 1, 2, 3, 4, 5].map(|i| row[i].parse::<f64>().unwrap());
        let affine = AffineParams {
            interpolation: serde_json::from_value(row[6].as_str().into()).unwrap(),
            fill: [7, 8, 9].map(|i| row[i].parse().unwrap()),
        };
        let size = (picture.width as f64, picture.height as f64);
        let matrix = inverse_matrix(size, degrees, (x, y), scale, (shear_x, shear_y));
        picture.transform(matrix, &affine);
        assert_eq!(crc32(picture.data()), row[14], "{row:?}");
    }
}

#[test]
fn rotations_and_affine_maps_draw_their_numbers() {
    let path = testdata("images/train/n02782093/n02782093_11.JPEG");
    let bytes = std::fs::read(path).unwrap();
    let op = |name: &str, params| crate::ops::parse(name, params).unwrap();
    let rotation =
        |degrees: (f64, f64)| op("RandomRotation", serde_json::json!({"degrees": degrees}));
    let unit = crate::random::Draws::new(sample(1), crate::random::Purpose(13)).unit();
    let drawn = -30.0 + 60.0 * unit;
    assert_eq!(
        apply(
            op("RandomRotation", serde_json::json!({"degrees": 30})),
            &bytes,
            1
        ),
        apply(rotation((drawn, drawn)), &bytes, 1)
    );
    assert_ne!(
        apply(rotation((-30.0, 30.0)), &bytes, 0),
        apply(rotation((-30.0, 30.0)), &bytes, 1)
    );

    let mut draws = crate::random::Draws::new(sample(1), crate::random::Purpose(14));
    let every = serde_json::json!({
        "degrees": 20, "translate": [0.1, 0.3], "scale": [0.8, 1.2], "shear": [-5, 5, 2, 9],
        "interpolation": "bilinear", "fill": 9,
    });
    let random = apply(op("RandomAffine", every), &bytes, 1);
    let angle = draws.uniform(-20.0, 20.0);
    let unchanged = op("RandomHorizontalFlip", serde_json::json!({"p": 0}));
    let mut picture = PixelBuffer::default();
    picture
        .reset(64, 48)
        .copy_from_slice(&apply(unchanged, &bytes, 1));
    let (width, height) = (picture.width as f64, picture.height as f64);
    let moved =
        [0.1 * width, 0.3 * height].map(|most| draws.uniform(-most, most).round_ties_even());
    let scale = draws.uniform(0.8, 1.2);
    let shear = (draws.uniform(-5.0, 5.0), draws.uniform(2.0, 9.0));
    let matrix = inverse_matrix((width, height), angle, moved.into(), scale, shear);
    let affine = AffineParams {
        interpolation: crate::pixels::Interpolation::Bilinear,
        fill: [9; 3],
    };
    picture.transform(matrix, &affine);
    assert_eq!(random, picture.data());
}
