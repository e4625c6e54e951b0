//! Boxes, masks, keypoints and polygons of a batch match its pixels.

use forebay_batch::{Batch, FLAG_FAILED};
use forebay_image::{BatchTransform, Compose, Mixing, Transform, encode_png, ops};
use forebay_loader::{Loader, OnError, Options};
use forebay_shard::{Column, ColumnValue, ExampleBuilder, Schema, Split};
use serde_json::{Value, json};

use crate::columns::{epoch, json as document, options, write};

/// Width and height of the images: powers of two, so that relative coordinates are exact in binary32.
const SIZE: (usize, usize) = (64, 32);
const RECORDS: u64 = 48;
const BACKGROUND: [u8; 3] = [10, 20, 30];
const BOX: [u8; 3] = [200, 0, 0];
const POINT: [u8; 3] = [0, 200, 0];

/// Returns the box of record `i` in pixels. A crop cuts some boxes, and leaves others outside.
fn corners(i: u64) -> [usize; 4] {
    let (x, y) = ((i * 7 % 58) as usize, (i * 5 % 25) as usize);
    [x, y, x + 2 + i as usize % 4, y + 3]
}

/// Returns the pixel of the keypoint of record `i`, which is beside its box.
fn point(i: u64) -> [usize; 2] {
    let [x, _, _, _] = corners(i);
    [(x + 15) % SIZE.0, (i as usize * 11) % SIZE.1]
}

/// Draws a picture whose box and keypoint have their own colors. The same file is also its mask.
fn picture(i: u64) -> Vec<u8> {
    let ([x0, y0, x1, y1], [px, py]) = (corners(i), point(i));
    let mut pixels = Vec::new();
    for y in 0..SIZE.1 {
        for x in 0..SIZE.0 {
            let inside = (x0..x1).contains(&x) && (y0..y1).contains(&y);
            pixels.extend(match (x, y) {
                _ if (x, y) == (px, py) => POINT,
                _ if inside => BOX,
                _ => BACKGROUND,
            });
        }
    }
    encode_png(&pixels, SIZE.0 as u32, SIZE.1 as u32)
}

fn schema() -> Schema {
    let columns = [
        ("image", "image"),
        ("boxes", "boxes"),
        ("mask", "mask"),
        ("points", "keypoints"),
        ("outlines", "polygons"),
    ];
    let column = |(name, text): (&str, &str)| Column::new(name, text.parse().unwrap());
    Schema::new(columns.into_iter().map(column).collect()).unwrap()
}

/// Encodes a record with the given mask, which may be truncated.
fn record(i: u64, mask: Vec<u8>) -> Vec<u8> {
    let image = picture(i);
    let part = |at: usize, side: usize| at as f32 / side as f32;
    let sides = [SIZE.0, SIZE.1, SIZE.0, SIZE.1];
    let own = corners(i);
    let [x, y] = point(i);
    let [x0, y0, x1, y1] = own;
    let outline = format!("[[{x0}, {y0}, {x1}, {y0}, {x1}, {y1}, {x0}, {y1}], [1, 2]]");
    let values = [
        ColumnValue::Bytes(&image),
        ColumnValue::Boxes {
            boxes: vec![
                std::array::from_fn(|n| part(own[n], sides[n])),
                [0.5, 0.5, 0.51, 0.9],
            ],
            labels: vec![i as i64 + 1, 900],
        },
        ColumnValue::Bytes(&mask),
        ColumnValue::Keypoints {
            points: vec![[part(x, SIZE.0), part(y, SIZE.1)]],
            visibility: vec![2],
        },
        ColumnValue::List(vec![
            outline.as_bytes(),
            br#"{"counts": [], "size": [32, 64]}"#,
        ]),
    ];
    let schema = schema();
    let features: Vec<_> = schema.columns().iter().map(Column::features).collect();
    let mut builder = ExampleBuilder::new();
    for ((column, features), value) in schema.columns().iter().zip(&features).zip(&values) {
        column.add(features, value, &mut builder).unwrap();
    }
    builder.to_vec()
}

fn split(bad_mask: u64, mask: &[u8]) -> (tempfile::TempDir, Split) {
    let directory = tempfile::tempdir().unwrap();
    let records = (0..RECORDS).map(|i| match i == bad_mask {
        true => record(i, mask.to_vec()),
        false => record(i, picture(i)),
    });
    let split = write(directory.path(), records, schema());
    (directory, split)
}

fn list(ops: &[(&str, Value)]) -> Transform {
    let ops = ops
        .iter()
        .map(|(name, params)| ops::parse(name, params.clone()).unwrap());
    Transform::List(Compose::new(ops.collect()).unwrap())
}

/// Returns a transform that moves pixels without changing their values: a crop and flips.
fn moving() -> Transform {
    list(&[
        ("CenterCrop", json!({"size": [24, 28]})),
        ("RandomVerticalFlip", json!({})),
        ("RandomHorizontalFlip", json!({})),
    ])
}

fn detection() -> Transform {
    list(&[
        ("RandomIoUCrop", json!({})),
        ("Resize", json!({"size": [16, 20]})),
        ("RandomHorizontalFlip", json!({})),
    ])
}

/// Returns the rows of sample `i` in the first array of a column, each of `N` values of four bytes.
fn rows<const N: usize>(batch: &Batch, name: &str, i: usize) -> Vec<[[u8; 4]; N]> {
    let column = batch.column(name).unwrap();
    let offsets = column.offsets.as_ref().unwrap();
    let (bytes, _) = batch.array(&column.arrays[0]).unwrap().as_chunks::<4>();
    let (rows, _) = bytes.as_chunks::<N>();
    rows[offsets[i] as usize..offsets[i + 1] as usize].to_vec()
}

fn floats<const N: usize>(row: &[[u8; 4]; N]) -> [f32; N] {
    row.map(f32::from_le_bytes)
}

/// Returns the values of sample `i` in the second array of a column: labels or visibility.
fn integers(batch: &Batch, name: &str, i: usize) -> Vec<i64> {
    let column = batch.column(name).unwrap();
    let offsets = column.offsets.as_ref().unwrap();
    let (values, _) = batch.array(&column.arrays[1]).unwrap().as_chunks::<8>();
    let values = &values[offsets[i] as usize..offsets[i + 1] as usize];
    values
        .iter()
        .map(|value| i64::from_le_bytes(*value))
        .collect()
}

/// Returns the smallest box around the pixels of a color, in coordinates between pixels.
fn around(pixels: &[[u8; 3]], width: usize, color: [u8; 3]) -> Option<[f32; 4]> {
    let found = |at: &(usize, &[u8; 3])| *at.1 == color;
    let places = pixels.iter().enumerate().filter(found);
    let places: Vec<_> = places.map(|(at, _)| (at % width, at / width)).collect();
    let (x0, y0) = (
        places.iter().map(|p| p.0).min()?,
        places.iter().map(|p| p.1).min()?,
    );
    let (x1, y1) = (
        places.iter().map(|p| p.0).max()?,
        places.iter().map(|p| p.1).max()?,
    );
    Some([x0 as f32, y0 as f32, x1 as f32 + 1.0, y1 as f32 + 1.0])
}

#[test]
fn boxes_masks_and_keypoints_are_where_the_pixels_are() {
    let (_directory, split) = split(RECORDS, &[]);
    let options = options(moving(), &["boxes", "mask", "points"]);
    let (mut cut, mut gone, mut hidden) = (0, 0, 0);
    for batch in epoch(&mut Loader::new(split, options).unwrap()) {
        let (pixels, _) = batch.images().as_chunks::<3>();
        let mask = batch.column("mask").unwrap();
        assert_eq!(mask.offsets, None);
        assert_eq!(mask.arrays[0].shape, [8, 24, 28]);
        assert_eq!(mask.arrays[0].element.name(), "int32");
        let (ids, _) = batch.array(&mask.arrays[0]).unwrap().as_chunks::<4>();
        for (pixel, id) in pixels.iter().zip(ids) {
            let [r, g, b] = *pixel;
            assert_eq!(*id, [r, g, b, 0]);
        }
        for (i, &sample) in batch.samples.iter().enumerate() {
            let pixels = &pixels[i * 24 * 28..][..24 * 28];
            let boxes: Vec<[f32; 4]> = rows(&batch, "boxes", i).iter().map(floats).collect();
            let labels = integers(&batch, "boxes", i);
            // The keypoint may cover a pixel of the box, but never a whole side.
            let seen = around(pixels, 28, BOX);
            match seen {
                Some(place) => {
                    assert_eq!((labels[0], labels.len()), (sample as i64, boxes.len()));
                    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-4;
                    assert!(
                        boxes[0].iter().zip(&place).all(close),
                        "{boxes:?} {place:?}"
                    );
                    let [x0, y0, x1, y1] = corners(sample);
                    let area = ((x1 - x0) * (y1 - y0)) as f32;
                    cut += usize::from((place[2] - place[0]) * (place[3] - place[1]) < area);
                }
                None => {
                    assert!(!labels.contains(&(sample as i64)));
                    gone += 1;
                }
            }
            // The second box is narrower than a pixel, so it is dropped.
            assert!(!labels.contains(&899));
            let [x, y] = floats(&rows(&batch, "points", i)[0]);
            match (around(pixels, 28, POINT), integers(&batch, "points", i)[0]) {
                (Some([x0, y0, ..]), 2) => {
                    assert!((x - x0).abs() < 1e-4 && (y - y0).abs() < 1e-4, "{x} {y}");
                }
                (None, 0) => hidden += 1,
                other => panic!("{other:?} {x} {y}"),
            }
        }
    }
    assert!(cut > 2 && gone > 2 && hidden > 2, "{cut} {gone} {hidden}");
}

/// Returns the polygons of each object of sample `i`.
fn outlines(batch: &Batch, i: usize) -> Vec<Vec<Vec<f32>>> {
    serde_json::from_value(document(batch, "outlines", i)).unwrap()
}

#[test]
fn polygons_are_where_their_boxes_are() {
    let (_directory, split) = split(RECORDS, &[]);
    let turned = list(&[
        ("Resize", json!({"size": [48, 48]})),
        ("RandomHorizontalFlip", json!({"p": 1.0})),
        ("RandomRotation", json!({"degrees": [90, 90]})),
    ]);
    for transform in [moving(), detection(), turned] {
        let load = |names: &[&str], keep| {
            let mut options = options(transform.clone(), names);
            options.keep_empty_boxes = keep;
            epoch(&mut Loader::new(split.clone(), options).unwrap())
        };
        let (mut left, mut gone) = (0, 0);
        let names = &["outlines", "boxes"];
        for (batch, all) in load(names, false).iter().zip(load(names, true)) {
            for i in 0..batch.samples.len() {
                let [whole, crowd] = <[_; 2]>::try_from(outlines(&all, i)).unwrap();
                assert_eq!((whole.len(), whole[1].len(), crowd.len()), (2, 2, 0));
                // Those of boxes that are left out are left out.
                let boxes: Vec<[f32; 4]> = rows(batch, "boxes", i).iter().map(floats).collect();
                let labels = integers(batch, "boxes", i);
                let kept = outlines(batch, i);
                assert_eq!(kept.len(), boxes.len());
                if labels.first() != Some(&(batch.samples[i] as i64)) {
                    gone += 1;
                    continue;
                }
                assert_eq!(kept[0], whole);
                let (points, _) = kept[0][0].as_chunks::<2>();
                let (width, height) = transform.output_size();
                for (axis, side) in [(0, height), (1, width)] {
                    let side = side as f32;
                    let along = points.iter().map(|point| point[axis].clamp(0.0, side));
                    let (least, most) = (
                        along.clone().fold(side, f32::min),
                        along.fold(0.0, f32::max),
                    );
                    let [from, to] = [boxes[0][axis], boxes[0][axis + 2]];
                    assert!((least - from).abs() < 1e-3, "{points:?} {boxes:?}");
                    assert!((most - to).abs() < 1e-3, "{points:?} {boxes:?}");
                }
                left += 1;
            }
        }
        assert!(left > 10 && gone + left == 48, "{left} {gone}");
    }
    // Without boxes all objects are there, and encoded images keep the numbers of the record.
    for batch in epoch(&mut Loader::new(split.clone(), options(moving(), &["outlines"])).unwrap()) {
        assert!((0..8).all(|i| outlines(&batch, i).len() == 2));
    }
    let options = options(Transform::KeepEncoded, &["outlines", "boxes"]);
    for batch in epoch(&mut Loader::new(split, options).unwrap()) {
        for (i, &sample) in batch.samples.iter().enumerate() {
            let [x0, y0, x1, y1] = corners(sample).map(|at| at as f32);
            let outline = vec![x0, y0, x1, y0, x1, y1, x0, y1];
            assert_eq!(outlines(&batch, i), [vec![outline, vec![1.0, 2.0]], vec![]]);
        }
    }
}

#[test]
fn a_detection_list_selects_by_the_boxes_of_each_sample() {
    let (_directory, split) = split(RECORDS, &[]);
    let load = |keep| {
        let mut options = options(detection(), &["boxes", "mask"]);
        options.keep_empty_boxes = keep;
        epoch(&mut Loader::new(split.clone(), options).unwrap())
    };
    let mut left = 0;
    for (batch, all) in load(false).iter().zip(load(true)) {
        assert_eq!(batch.images(), all.images());
        for (i, &sample) in batch.samples.iter().enumerate() {
            assert_eq!(integers(&all, "boxes", i), [sample as i64, 899]);
            assert_eq!(rows::<4>(&all, "boxes", i).len(), 2);
            for row in rows(batch, "boxes", i) {
                let [x0, y0, x1, y1] = floats(&row);
                assert!(0.0 <= x0 && x0 + 1.0 <= x1 && x1 <= 20.0, "{x0} {x1}");
                assert!(0.0 <= y0 && y0 + 1.0 <= y1 && y1 <= 16.0, "{y0} {y1}");
                left += 1;
            }
        }
    }
    assert!(left > 20, "{left}");
}

fn refused(split: &Split, options: Options) -> String {
    Loader::new(split.clone(), options).unwrap_err().to_string()
}

#[test]
fn transforms_that_cannot_move_boxes_are_refused() {
    let (_directory, split) = split(RECORDS, &[]);
    let augment = list(&[
        ("RandomResizedCrop", json!({"size": 16})),
        ("RandAugment", json!({})),
    ]);
    for name in ["boxes", "mask", "points", "outlines"] {
        let error = refused(&split, options(augment.clone(), &[name]));
        assert!(error.contains("RandAugment cannot move"), "{error}");
        let mut mixed = options(moving(), &[name]);
        let mixup = BatchTransform::new(vec![(Mixing::Mixup { alpha: 0.5 }, 1.0)]);
        mixed.batch_transform = Some(mixup.unwrap());
        let error = refused(&split, mixed);
        assert!(error.contains("Mixup and CutMix cannot mix"), "{error}");
    }
    for columns in [&[][..], &["mask"]] {
        let error = refused(&split, options(detection(), columns));
        let said = "option transform is RandomIoUCrop: expected a column of boxes";
        assert!(error.starts_with(said), "{error}");
    }
}

#[test]
fn a_damaged_mask_is_a_damaged_sample() {
    let small = encode_png(&[0; 3 * 20], 5, 4);
    for (mask, said) in [
        (&picture(3)[..60], "column \"mask\": PNG data end early"),
        (b"no image", "column \"mask\": not a JPEG"),
        (&small, "column \"mask\": mask is 5x4, its image is 64x32"),
    ] {
        let (_directory, split) = split(9, mask);
        let load = |on_error| {
            let mut options = options(moving(), &["mask"]);
            options.shuffle = forebay_loader::Shuffle::NONE;
            options.on_error = on_error;
            Loader::new(split.clone(), options).unwrap()
        };
        let mut loader = load(OnError::Raise);
        let error = loader.next_batch().and_then(|_| loader.next_batch());
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains(said) && error.contains("record 9"),
            "{error}"
        );
        let batch = &epoch(&mut load(OnError::Skip))[1];
        assert_eq!((batch.flags[1], batch.samples[1]), (FLAG_FAILED, 10));
        let mask = batch.column("mask").unwrap();
        let ids = batch.array(&mask.arrays[0]).unwrap();
        let bytes = 24 * 28 * 4;
        assert_eq!(ids[bytes..2 * bytes], ids[2 * bytes..3 * bytes]);
        let batch = &epoch(&mut load(OnError::Zero))[1];
        let ids = batch.array(&mask.arrays[0]).unwrap();
        assert!(ids[bytes..2 * bytes].iter().all(|&byte| byte == 0));
    }
}
