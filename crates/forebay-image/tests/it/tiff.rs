//! Compares TIFF with Pillow's pixels (testdata/tiff, made by tools/golden/make_tiff_corpus.py), and tests
//! damaged files.

use forebay_image::{
    DecodeError, Decoder, Ending, Format, ImageError, Limits, Region, encode_png, ending, probe,
    sniff,
};
use proptest::prelude::*;
use std::path::PathBuf;

const NAMES: [&str; 5] = [
    "gray",
    "rgb-lzw",
    "rgba-deflate",
    "palette-lzw",
    "rgb-big-endian",
];

fn file(name: &str) -> Vec<u8> {
    let folder: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../testdata/tiff"]
        .iter()
        .collect();
    std::fs::read(folder.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn tiff(name: &str) -> Vec<u8> {
    file(&format!("{name}.tif"))
}

/// The CRC-32 of zip and PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg())
        })
    })
}

/// Sets the value of a tag in the first directory of a little-endian file.
fn set(bytes: &mut [u8], tag: u16, value: u32) {
    let start = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
    let count = u16::from_le_bytes(bytes[start..start + 2].try_into().unwrap()) as usize;
    let entries = bytes[start + 2..].chunks_exact_mut(12).take(count);
    let mut found = entries.filter(|entry| entry[..2] == tag.to_le_bytes());
    found.next().expect("the tag")[8..].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn pixels_equal_pillow() {
    let text = String::from_utf8(file("pixels.txt")).unwrap();
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(' ').collect())
        .collect();
    assert_eq!(rows.len(), 14);
    let mut decoder = Decoder::new(Limits::default());
    for row in rows {
        let bytes = tiff(row[0]);
        assert_eq!(sniff(&bytes), Some(Format::Tiff));
        let found = probe(&bytes, &Limits::default()).unwrap();
        let whole = decoder.decode(&bytes).unwrap();
        assert_eq!((whole.width, whole.height), (found.width, found.height));
        let described = [
            whole.width.to_string(),
            whole.height.to_string(),
            found.channels.to_string(),
            format!("{:08x}", crc32(&whole.data)),
        ];
        assert_eq!(described[..], row[1..], "{}", row[0]);
        assert_eq!(ending(&bytes, &found), Ending::Whole);
        // A region equals the same part of the whole image.
        let png = encode_png(&whole.data, whole.width, whole.height);
        let header = probe(&png, &Limits::default()).unwrap();
        let region = Region {
            x: 5,
            y: 7,
            width: 20,
            height: 22,
        };
        let expected = decoder.decode_region(&png, &header, region).unwrap();
        let part = decoder.decode_region(&bytes, &found, region).unwrap();
        assert!(part == expected, "{}", row[0]);
    }
}

#[test]
fn truncated_files_are_errors() {
    let mut decoder = Decoder::new(Limits::default());
    for name in NAMES {
        let bytes = tiff(name);
        let found = probe(&bytes, &Limits::default()).unwrap();
        for cut in 0..bytes.len() {
            let part = &bytes[..cut];
            // Only padding after the last strip is missing.
            if decoder.decode(part).is_ok() {
                assert_eq!(ending(part, &found), Ending::Whole, "{name} at {cut}");
            }
            if let Err(ImageError::Image(DecodeError::Incomplete { needed, .. })) =
                probe(part, &Limits::default())
            {
                assert!(needed > cut as u64, "{name} at {cut}");
            }
        }
        assert_eq!(ending(&bytes[..bytes.len() / 2], &found), Ending::Cut);
    }
}

#[test]
fn bombs_are_refused_before_allocation() {
    let mut decoder = Decoder::new(Limits::default());
    let mut refused = |tag, value| {
        let mut bytes = tiff("rgb-lzw");
        set(&mut bytes, tag, value);
        decoder.decode(&bytes).unwrap_err()
    };
    assert!(matches!(
        refused(256, 60_000),
        ImageError::Image(DecodeError::OverLimit { .. })
    ));
    assert!(matches!(
        refused(257, u32::MAX),
        ImageError::Image(DecodeError::OverLimit { .. })
    ));
    // The strips contain fewer rows than the header states.
    assert!(!matches!(
        refused(257, 16_000),
        ImageError::Image(DecodeError::OverLimit { .. })
    ));
    assert!(refused(256, 0).to_string().contains("no width"));
}

#[test]
fn unsupported_kinds_are_refused_with_a_reason() {
    let mut decoder = Decoder::new(Limits::default());
    for (tag, value, what) in [
        (262, 6, "photometric interpretation 6"),
        (277, 5, "5 channels"),
        (284, 2, "a plane for each channel"),
        (259, 7, "compression 7"),
    ] {
        let mut bytes = tiff("rgb-lzw");
        set(&mut bytes, tag, value);
        let error = decoder.decode(&bytes).unwrap_err().to_string();
        assert_eq!(error, format!("unsupported TIFF: {what}"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn damage_is_an_error_or_other_pixels(
        which in 0usize..NAMES.len(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = tiff(NAMES[which]);
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let limits = Limits { max_decoded_bytes: 1 << 20, ..Limits::default() };
        if let Ok(image) = Decoder::new(limits).decode(&bytes) {
            prop_assert!(image.data.len() <= 1 << 20);
        }
    }
}
