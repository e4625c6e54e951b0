//! The example bytes of seek points and fast images in docs/format equal those that the code produces.

use forebay_jpeg::{FastCoding, FastEncoder, Limits, restore_fast};
use forebay_jpeg::{SeekDensity, SeekPointBuilder, build_seek_points};
use std::path::Path;

const SEEK_POINTS: &str = "seek-points.md";
const FAST_IMAGES: &str = "fast-images.md";

/// Returns the bytes of a page's code block "```hex NAME".
fn worked(page: &str, name: &str) -> Vec<u8> {
    let pages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/format");
    let document = std::fs::read_to_string(pages.join(page)).unwrap();
    let head = format!("```hex {name}\n");
    let (_, fence) = document.split_once(&head).unwrap();
    let (fence, _) = fence.split_once("```").unwrap();
    bytes(fence)
}

/// Parses lines of `OFFSET  BYTES | meaning`.
fn bytes(dump: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in dump.lines() {
        let (line, _) = line.split_once('|').unwrap();
        let (offset, hex) = line.split_once("  ").unwrap();
        assert_eq!(usize::from_str_radix(offset, 16), Ok(bytes.len()), "{line}");
        let values = hex.split_whitespace();
        bytes.extend(values.map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    bytes
}

#[test]
fn seek_points_have_the_bytes_of_the_document() {
    let (jpeg, points) = (
        worked(SEEK_POINTS, "seek-points.jpeg"),
        worked(SEEK_POINTS, "image/seek_points"),
    );
    assert_eq!(build_seek_points(&jpeg).unwrap(), points);
    let mut builder = SeekPointBuilder::default();
    assert!(builder.is_right(&jpeg, &points));
    // A row of two MCUs cannot have eight points.
    let fine = builder.build(&jpeg, SeekDensity::Fine).unwrap();
    assert_eq!((fine[6], fine[7]), (1, 2));
    // 22 bytes are more than a hundredth of the file.
    assert_eq!(builder.build(&jpeg, SeekDensity::Auto), None);
}

#[test]
fn fast_images_have_the_bytes_of_the_document() {
    let (jpeg, raw, coded) = (
        worked(SEEK_POINTS, "seek-points.jpeg"),
        worked(FAST_IMAGES, "image/fast"),
        bytes(include_str!(
            "../../../../testdata/format/fast-image-coded.hex"
        )),
    );
    let limits = Limits::default();
    let mut encoder = FastEncoder::default();
    assert_eq!(
        encoder.encode(&jpeg, FastCoding::Raw, &limits),
        Some(raw.clone())
    );
    assert_eq!(encoder.encode(&jpeg, FastCoding::Coded, &limits), None);
    for fast in [raw, coded] {
        assert_eq!(restore_fast(&fast, &limits).unwrap(), jpeg);
    }
}
