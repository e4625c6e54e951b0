//! Compares every format and variant with Pillow's pixels (testdata/formats, made by
//! tools/golden/make_format_corpus.py).

use forebay_image::{
    DecodeError, DecodeOptions, Decoder, EvalTransform, Format, ImageError, Layout, Limits, Region,
    SampleSeed, TrainTransform, Transform, ending, probe, trailing_bytes,
};
use forebay_image::{Ending, RgbImage, encode_png};
use proptest::prelude::*;
use std::path::PathBuf;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../testdata/formats"]
        .iter()
        .collect()
}

fn file(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn table(name: &str) -> Vec<Vec<String>> {
    let text = String::from_utf8(file(name)).unwrap();
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

fn described(image: &RgbImage) -> [String; 3] {
    let crc = crc32(&image.data);
    [
        image.width.to_string(),
        image.height.to_string(),
        format!("{crc:08x}"),
    ]
}

fn oriented() -> Decoder {
    let mut options = DecodeOptions::new(Limits::default());
    options.exif = true;
    Decoder::with_options(options)
}

fn part(image: &RgbImage, region: Region) -> Vec<u8> {
    let (x, width) = (region.x as usize * 3, region.width as usize * 3);
    let rows = image.data.chunks_exact(image.width as usize * 3);
    rows.skip(region.y as usize)
        .take(region.height as usize)
        .flat_map(|row| row[x..x + width].iter().copied())
        .collect()
}

#[test]
fn every_variant_equals_pillow() {
    let (mut plain, mut turned) = (Decoder::new(Limits::default()), oriented());
    let rows = table("pixels.txt");
    assert!(rows.len() >= 58, "{}", rows.len());
    for row in rows {
        let name = &row[0];
        let bytes = file(name);
        let header = probe(&bytes, &Limits::default()).unwrap();
        let image = plain
            .decode(&bytes)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(described(&image), row[1..4], "{name}");
        assert_eq!((header.width, header.height), (image.width, image.height));
        assert_eq!(
            described(&turned.decode(&bytes).unwrap()),
            row[4..7],
            "{name}"
        );
        let region = Region {
            x: header.width / 3,
            y: header.height / 4,
            width: header.width.div_ceil(2),
            height: header.height.div_ceil(3),
        };
        let got = plain.decode_region(&bytes, &header, region).unwrap();
        assert!(got.data == part(&image, region), "{name}: {region:?}");
    }
}

/// A crop of an oriented image equals the crop of an image whose pixels were oriented before.
#[test]
fn crops_are_planned_in_the_oriented_image() {
    let transforms = [
        Transform::Train(TrainTransform::new(24)),
        Transform::Eval(EvalTransform::new(28, 24)),
    ];
    let names = (1..=8).map(|i| format!("orientation-{i}.jpg"));
    let others = [
        "orientation-6.png",
        "orientation-8.webp",
        "orientation-5-progressive.jpg",
    ];
    for name in names.chain(others.map(str::to_owned)) {
        let bytes = file(&name);
        let image = oriented().decode(&bytes).unwrap();
        let png = encode_png(&image.data, image.width, image.height);
        for transform in &transforms {
            for sample in 0..8 {
                let seed = SampleSeed {
                    seed: 3,
                    epoch: 1,
                    sample,
                    occurrence: 0,
                };
                let mut expected = vec![0; transform.output_values()];
                let mut got = expected.clone();
                let mut plain = Decoder::new(Limits::default());
                transform
                    .apply(&mut plain, &png, seed, &Layout::Nchw.into(), &mut expected)
                    .unwrap();
                transform
                    .apply(
                        &mut oriented(),
                        &bytes,
                        seed,
                        &Layout::Nchw.into(),
                        &mut got,
                    )
                    .unwrap();
                assert!(got == expected, "{name}: {transform:?} {sample}");
            }
        }
    }
}

#[test]
fn webp_headers_are_probed() {
    for (name, channels) in [
        ("lossy.webp", 3),
        ("lossless.webp", 3),
        ("lossy-alpha.webp", 4),
        ("lossless-alpha.webp", 4),
    ] {
        let bytes = file(name);
        let whole = probe(&bytes, &Limits::default()).unwrap();
        assert_eq!(
            (whole.format, whole.width, whole.height),
            (Format::WebP, 61, 45)
        );
        assert_eq!(whole.channels, channels, "{name}");
        for length in 0..whole.header_bytes as usize {
            match probe(&bytes[..length], &Limits::default()) {
                Err(ImageError::Image(DecodeError::Incomplete { needed, .. })) => {
                    assert!(needed > length as u64 && needed <= whole.header_bytes.max(24));
                }
                other => panic!("{name} at {length}: {other:?}"),
            }
        }
        assert_eq!(
            probe(&bytes[..whole.header_bytes as usize], &Limits::default()),
            Ok(whole)
        );
        assert_eq!(trailing_bytes(&bytes), Some(0), "{name}");
        assert_eq!(ending(&bytes[..bytes.len() - 2], &whole), Ending::Cut);
        let longer = [&bytes[..], b"tail"].concat();
        assert_eq!(ending(&longer, &whole), Ending::Trailing(4));
        assert!(Decoder::new(Limits::default()).decode(&longer).is_ok());
    }
}

#[test]
fn webp_bombs_are_refused_before_allocation() {
    let mut decoder = Decoder::new(Limits::default());
    // The extended header says 61x45, the image inside 16,383x16,383.
    let mut bytes = file("lossy-alpha.webp");
    let picture = bytes.windows(4).position(|w| w == b"VP8 ").unwrap();
    bytes[picture + 14..picture + 18].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    let error = decoder.decode(&bytes).unwrap_err().to_string();
    assert!(error.contains("16383x16383"), "{error}");
    // A file with only a header.
    let mut bytes = file("lossless.webp");
    bytes[21..25].copy_from_slice(&[0xff, 0xff, 0xff, 0x0f]);
    let error = decoder.decode(&bytes).unwrap_err().to_string();
    assert_eq!(error, "image has 268435456 pixels, the limit is 67108864");
    // An animation.
    let mut bytes = file("lossy-alpha.webp");
    bytes[20] |= 2;
    let error = decoder.decode(&bytes).unwrap_err().to_string();
    assert_eq!(error, "unsupported WEBP: an animation");
}

#[test]
fn truncated_webp_is_an_error() {
    let mut decoder = oriented();
    for name in ["lossy.webp", "lossless.webp", "lossy-alpha.webp"] {
        let bytes = file(name);
        for cut in 0..bytes.len() {
            assert!(decoder.decode(&bytes[..cut]).is_err(), "{name} at {cut}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn decoder_panics_on_damage_become_errors(
        which in 0usize..6,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let names = [
            "lossy.webp", "lossless.webp", "lossy-alpha.webp", "orientation-8.webp", "orientation-6.jpg",
            "lossless-few-colours.webp",
        ];
        let mut bytes = file(names[which]);
        for (at, value) in damage {
            let range = if value % 2 == 0 { bytes.len() } else { 60 };
            bytes[at.index(range)] = value;
        }
        let outcome = oriented().decode(&bytes);
        // A panic inside the WebP crate is caught and becomes an error of that image; the JPEG
        // decoders have none.
        if names[which].ends_with("jpg") {
            prop_assert!(!matches!(outcome, Err(ImageError::Decoder { .. })), "{:?}", outcome.err());
        }
        let _ = trailing_bytes(&bytes);
    }
}
