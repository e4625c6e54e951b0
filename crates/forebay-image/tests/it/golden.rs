//! Compares pixels and crops with those of Pillow and of an independent implementation of the
//! random numbers (testdata/golden-pixels, made by tools/golden/make_golden_pixels.py).

use forebay_image::{
    DecodeOptions, Decoder, EvalTransform, Layout, Limits, Region, ResizeLike, SampleSeed,
    TrainTransform, Transform, probe,
};
use std::path::PathBuf;

fn testdata(path: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../testdata", path]
        .iter()
        .collect()
}

fn table(name: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(testdata(&format!("golden-pixels/{name}"))).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect()
}

/// The CRC-32 of zip and PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg())
        })
    })
}

#[test]
fn repository_images_equal_pillow() {
    let mut decoder = Decoder::new(Limits::default());
    let rows = table("images.txt");
    assert_eq!(rows.len(), 60);
    for (sample, row) in rows.iter().enumerate() {
        let bytes = std::fs::read(testdata("images").join(&row[0])).unwrap();
        let image = decoder.decode(&bytes).unwrap();
        assert_eq!(
            [image.width, image.height].map(|n| n.to_string()),
            row[1..3],
            "{}",
            row[0]
        );
        assert_eq!(
            format!("{:08x}", crc32(&image.data)),
            row[3],
            "{}: full picture",
            row[0]
        );
        let seed = SampleSeed {
            seed: 1,
            epoch: 2,
            sample: sample as u64,
            occurrence: 0,
        };
        let train = Transform::Train(TrainTransform::new(224));
        let eval = Transform::Eval(EvalTransform::new(256, 224));
        for (transform, expected) in [(train, &row[4]), (eval, &row[5])] {
            let mut pixels = vec![0; transform.output_values()];
            transform
                .apply(
                    &mut decoder,
                    &bytes,
                    seed,
                    &Layout::Nhwc.into(),
                    &mut pixels,
                )
                .unwrap();
            assert_eq!(
                format!("{:08x}", crc32(&pixels)),
                *expected,
                "{}: {transform:?}",
                row[0]
            );
            let mut planes = vec![0; transform.output_values()];
            transform
                .apply(
                    &mut decoder,
                    &bytes,
                    seed,
                    &Layout::Nchw.into(),
                    &mut planes,
                )
                .unwrap();
            let plane = planes.len() / 3;
            let same = (0..planes.len()).all(|i| planes[i % 3 * plane + i / 3] == pixels[i]);
            assert!(same, "{}: both layouts hold the same pixels", row[0]);
        }
    }
}

#[test]
fn small_resizes_equal_pillow() {
    let mut decoder = Decoder::new(Limits::default());
    let source = std::fs::read(testdata("images/train/n02782093/n02782093_11.JPEG")).unwrap();
    let header = probe(&source, &Limits::default()).unwrap();
    let mut seen = 0;
    for entry in std::fs::read_dir(testdata("golden-pixels")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Some(rest) = name.strip_prefix("resize-") else {
            continue;
        };
        let numbers: Vec<u32> = rest
            .split('-')
            .skip(1)
            .map(|n| n.parse().unwrap())
            .collect();
        let [x, y, x1, y1, width, height] = numbers[..] else {
            panic!("{name}")
        };
        let region = Region {
            x,
            y,
            width: x1 - x,
            height: y1 - y,
        };
        let picture = decoder.decode_region(&source, &header, region).unwrap();
        let golden = decoder.decode(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!((golden.width, golden.height), (width, height), "{name}");
        let got = forebay_image::resize(&picture, width, height).unwrap();
        assert!(got == golden, "{name}");
        seen += 1;
    }
    assert_eq!(seen, 4);
}

#[test]
fn crops_match_torchvision_for_documented_draws() {
    let rows = table("crops.txt");
    assert_eq!(rows.len(), 200);
    for row in rows {
        let n: Vec<u64> = row.iter().map(|n| n.parse().unwrap()).collect();
        let seed = SampleSeed {
            seed: n[2],
            epoch: n[3],
            sample: n[4],
            occurrence: 0,
        };
        let (crop, flip) = TrainTransform::new(224).crop(n[0] as u32, n[1] as u32, seed);
        let got = [crop.x, crop.y, crop.width, crop.height, u32::from(flip)].map(u64::from);
        assert_eq!(got, n[5..], "{row:?}");
    }
}

/// Compares two transforms of the repository's images, decoded with modified options, with a table
/// in testdata/golden-pixels.
fn check_profile(name: &str, change: impl Fn(&mut DecodeOptions), transforms: [Transform; 2]) {
    let mut options = DecodeOptions::new(Limits::default());
    change(&mut options);
    let mut decoder = Decoder::with_options(options);
    let rows = table(name);
    assert_eq!(rows.len(), 60);
    for (sample, row) in rows.iter().enumerate() {
        let bytes = std::fs::read(testdata("images").join(&row[0])).unwrap();
        let seed = SampleSeed {
            seed: 1,
            epoch: 2,
            sample: sample as u64,
            occurrence: 0,
        };
        for (transform, expected) in transforms.iter().zip(&row[1..]) {
            let mut pixels = vec![0; transform.output_values()];
            transform
                .apply(
                    &mut decoder,
                    &bytes,
                    seed,
                    &Layout::Nhwc.into(),
                    &mut pixels,
                )
                .unwrap();
            assert_eq!(
                format!("{:08x}", crc32(&pixels)),
                *expected,
                "{name}: {} {transform:?}",
                row[0]
            );
        }
    }
}

fn at_224() -> [Transform; 2] {
    [
        Transform::Train(TrainTransform::new(224)),
        Transform::Eval(EvalTransform::new(256, 224)),
    ]
}

#[test]
fn resize_like_opencv_equals_opencv() {
    check_profile(
        "opencv.txt",
        |o| o.resize_like = ResizeLike::OpenCv,
        at_224(),
    );
}

#[test]
fn resize_like_tensorflow_equals_tensorflow_rounded() {
    let tensorflow = |o: &mut DecodeOptions| o.resize_like = ResizeLike::TensorFlow;
    check_profile("tensorflow.txt", tensorflow, at_224());
}

#[test]
fn scaled_decoding_equals_pillows_draft_mode() {
    let transforms = [
        Transform::Train(TrainTransform::new(64)),
        Transform::Eval(EvalTransform::new(72, 64)),
    ];
    check_profile("scaled.txt", |o| o.scaled = true, transforms);
}
