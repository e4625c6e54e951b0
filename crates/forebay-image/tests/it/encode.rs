//! Compares encoded JPEGs with those of libjpeg-turbo for the same pixels (testdata/golden-encode,
//! made by tools/golden/make_dirty_images.py with Pillow), so that packs that shrink images stay
//! reproducible.

use forebay_image::{Decoder, Limits, RgbImage, Shrink, encode_jpeg, probe};
use std::path::PathBuf;

fn testdata(path: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../testdata", path]
        .iter()
        .collect();
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the same pixels as `pixels` in the script.
fn pixels(width: u32, height: u32, gray: bool) -> RgbImage {
    let mut data = Vec::new();
    for y in 0..height {
        for x in 0..width {
            let edge = if (x / 8 + y / 5) % 2 == 1 { 90 } else { 0 };
            let pixel = [(x * 3 + edge) % 256, (y * 5 + edge) % 256, (x * y) % 256];
            data.extend((0..3).map(|c| pixel[if gray { 0 } else { c }] as u8));
        }
    }
    RgbImage {
        width,
        height,
        data,
    }
}

#[test]
fn known_pixels_give_the_bytes_of_libjpeg_turbo() {
    for (name, quality, gray) in [
        ("rgb-67x45-q75.jpg", 75, false),
        ("rgb-67x45-q100.jpg", 100, false),
        ("grey-67x45-q95.jpg", 95, true),
    ] {
        let encoded = encode_jpeg(&pixels(67, 45, gray), quality, gray).unwrap();
        assert!(
            encoded == testdata(&format!("golden-encode/{name}")),
            "{name}"
        );
    }
}

#[test]
fn shrunk_images_equal_pillows() {
    let source = testdata("images/train/n02782093/n02782093_11.JPEG");
    let header = probe(&source, &Limits::default()).unwrap();
    let shrink = Shrink {
        short: Some(64),
        long: None,
    };
    let (width, height) = shrink.size(header.width, header.height).unwrap();
    let mut decoder = Decoder::new(Limits::default());
    let small = decoder
        .decode_shrunk(&source, &header, width, height)
        .unwrap();
    let encoded = encode_jpeg(&small, 95, false).unwrap();
    assert!(encoded == testdata("golden-encode/shrunk-85x64-q95.jpg"));
}
