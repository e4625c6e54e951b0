//! JPEGs that common encoders do not write: errors give the reason, and no check accepts a file
//! that the decoder refuses.

use forebay_jpeg::{
    ColorModel, Error, ImagePart, JpegDecoder, Limits, Region, SeekDensity, SeekPointBuilder,
    check_structure, read_header,
};
use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../testdata/jpeg-kinds"]
        .iter()
        .collect()
}

fn kind(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn kinds() -> Vec<(String, Vec<u8>)> {
    let mut found: Vec<_> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".jpg"))
        .map(|name| (name.clone(), kind(&name)))
        .collect();
    found.sort();
    assert!(found.len() >= 80, "{} files", found.len());
    found
}

/// Returns a baseline file.
fn plain() -> Vec<u8> {
    let pixels: Vec<u8> = (0..60 * 50 * 3).map(|n| (n % 251) as u8).collect();
    let encoder = Encoder::new(&pixels, 60, 50, PixelFormat::Rgb);
    let encoder = encoder.quality(90).subsampling(Subsampling::S420);
    encoder.encode().unwrap()
}

/// Returns the offset of the first segment with this marker.
fn place(bytes: &[u8], marker: u8) -> usize {
    let mut at = 2;
    while bytes[at + 1] != marker {
        at += 2 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
    }
    at
}

fn without(bytes: &[u8], marker: u8) -> Vec<u8> {
    let at = place(bytes, marker);
    let length = usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
    let mut out = bytes.to_vec();
    out.drain(at..at + 2 + length);
    out
}

/// Returns a file with one byte of its frame header changed; offset 1 is the marker itself.
fn frame(offset: usize, value: u8) -> Vec<u8> {
    let mut bytes = plain();
    let at = place(&bytes, 0xc0);
    bytes[at + offset] = value;
    bytes
}

/// Returns a file that contains its last scan `times` times.
fn repeated(bytes: &[u8], times: usize) -> Vec<u8> {
    let last = bytes.windows(2).rposition(|w| w == [0xff, 0xda]).unwrap();
    let (before, scan) = bytes[..bytes.len() - 2].split_at(last);
    [before, &scan.repeat(times), &[0xff, 0xd9]].concat()
}

/// Returns the error of a file that the decoder and every check refuse.
#[track_caller]
fn refusal(bytes: &[u8]) -> Error {
    let mut decoder = JpegDecoder::new(Limits::default());
    let error = decoder.decode(bytes).unwrap_err();
    assert_eq!(
        check_structure(bytes, &Limits::default()),
        Err(error.clone())
    );
    assert_eq!(decoder.check_codes(bytes), Err(error.clone()));
    let mut builder = SeekPointBuilder::default();
    assert_eq!(builder.build(bytes, SeekDensity::Rows), None);
    assert!(!builder.has_read_all());
    error
}

#[test]
fn undecodable_kinds_are_unsupported() {
    for (bytes, what) in [
        (frame(1, 0xc3), "lossless coding"),
        (frame(1, 0xcb), "lossless coding"),
        (frame(1, 0xc5), "hierarchical coding"),
        (frame(1, 0xc6), "hierarchical coding"),
        (frame(1, 0xcf), "hierarchical coding"),
        (frame(1, 0xc9), "arithmetic coding"),
        (frame(1, 0xca), "arithmetic coding"),
        (frame(4, 12), "12 bits a sample"),
        (
            without(&plain(), 0xdb),
            "quantization table 0 is not in the file",
        ),
        (
            without(&plain(), 0xc4),
            "Huffman table 0 is not in the file",
        ),
    ] {
        let error = refusal(&bytes);
        assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("unsupported JPEG: {what}"));
    }
    // The file begins like a hierarchical one, so its first frame does not matter.
    let whole = [&[0xff, 0xd8, 0xff, 0xde, 0, 2], &plain()[2..]].concat();
    assert_eq!(
        refusal(&whole).to_string(),
        "unsupported JPEG: hierarchical coding"
    );
    let sampled = |factors: [u8; 3]| {
        let mut bytes = plain();
        let at = place(&bytes, 0xc0);
        for (i, factors) in factors.into_iter().enumerate() {
            bytes[at + 11 + 3 * i] = factors;
        }
        bytes
    };
    assert_eq!(
        refusal(&sampled([0x44, 0x11, 0x11])).to_string(),
        "unsupported JPEG: more than 10 blocks in an MCU"
    );
    assert_eq!(
        refusal(&sampled([0x31, 0x21, 0x11])).to_string(),
        "unsupported JPEG: sampling factors of 2x1 beside 3x1, which they do not divide"
    );
}

#[test]
fn too_many_scans_are_refused_quickly() {
    let started = Instant::now();
    for name in [
        "scans-10-of-mozjpeg.jpg",
        "scans-8-of-slow.jpg",
        "baseline-scans-0-1-2.jpg",
    ] {
        for times in [101, 10_000] {
            let many = repeated(&kind(name), times);
            let error = JpegDecoder::new(Limits::default())
                .decode(&many)
                .unwrap_err();
            assert!(
                matches!(error, Error::OverLimit { what: "scans", .. }),
                "{name}: {error}"
            );
            let structure = check_structure(&many, &Limits::default()).unwrap_err();
            assert!(
                matches!(structure, Error::OverLimit { what: "scans", .. }),
                "{name}: {structure}"
            );
        }
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn coefficients_of_several_scans_count_as_memory() {
    let mut wide = kind("baseline-scans-0-12.jpg");
    let at = place(&wide, 0xc0);
    // 16,384 x 4,096 pixels.
    wide[at + 5..at + 9].copy_from_slice(&[0x10, 0, 0x40, 0]);
    let started = Instant::now();
    for error in [
        JpegDecoder::new(Limits::default())
            .decode(&wide)
            .unwrap_err(),
        check_structure(&wide, &Limits::default()).unwrap_err(),
    ] {
        let what = "bytes when decoded";
        assert!(
            matches!(error, Error::OverLimit { what: found, .. } if found == what),
            "{error}"
        );
    }
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn unusual_kinds_pass_all_checks_without_seek_points() {
    let mut decoder = JpegDecoder::new(Limits::default());
    let mut builder = SeekPointBuilder::default();
    for (name, bytes) in kinds() {
        check_structure(&bytes, &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        decoder
            .check_codes(&bytes)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        decoder
            .decode(&bytes)
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(builder.build(&bytes, SeekDensity::Rows), None, "{name}");
    }
    let plain = plain();
    assert!(builder.build(&plain, SeekDensity::Auto).is_none() && builder.has_read_all());
    assert!(builder.build(&plain, SeekDensity::Rows).is_some() && builder.has_read_all());
}

#[test]
fn adobes_transform_decides_between_cmyk_and_ycck() {
    let color = |name| read_header(&kind(name)).unwrap().color;
    assert_eq!(color("cmyk-420.jpg"), ColorModel::Cmyk);
    assert_eq!(color("cmyk-without-adobe-420.jpg"), ColorModel::Cmyk);
    assert_eq!(color("ycck-420.jpg"), ColorModel::Ycck);
    // libjpeg treats every transform but 0 as YCCK.
    assert_eq!(color("ycck-transform-1.jpg"), ColorModel::Ycck);
}

#[test]
fn a_progressive_file_without_end_marker_needs_all_bits() {
    let complete = kind("scans-10-of-mozjpeg.jpg");
    let endless = &complete[..complete.len() - 2];
    let mut decoder = JpegDecoder::new(Limits::default());
    assert_eq!(decoder.decode(endless), decoder.decode(&complete));
    let partial = kind("scans-8-of-mozjpeg.jpg");
    let error = decoder.decode(&partial[..partial.len() - 2]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "JPEG data end early: the file ends inside the image data"
    );
}

#[test]
fn a_truncated_scan_before_the_end_marker_is_an_error() {
    let mut decoder = JpegDecoder::new(Limits::default());
    for name in [
        "scans-10-of-mozjpeg.jpg",
        "baseline-scans-0-12.jpg",
        "cmyk-420.jpg",
        "sampling-1x1-2x2-2x2-progressive.jpg",
    ] {
        let bytes = kind(name);
        let scan = bytes.windows(2).rposition(|w| w == [0xff, 0xda]).unwrap();
        let half = (scan + 14 + bytes.len()) / 2;
        let short = [&bytes[..half], &[0xff, 0xd9]].concat();
        let error = decoder.decode(&short).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { .. } | Error::Corrupt { .. }),
            "{name}: {error}"
        );
        assert!(decoder.check_codes(&short).is_err(), "{name}");
        assert_eq!(
            check_structure(&short, &Limits::default()),
            Ok(()),
            "{name}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn damage_never_panics_and_checks_agree_with_decoding(
        which in any::<prop::sample::Index>(),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let all = kinds();
        let mut bytes = all[which.index(all.len())].1.clone();
        for (at, value) in damage {
            let range = if value % 2 == 0 { bytes.len() } else { bytes.len().min(400) };
            bytes[at.index(range)] = value;
        }
        // A damaged header may claim a huge image.
        let limits = Limits { max_pixels: 1 << 18, ..Limits::default() };
        let mut decoder = JpegDecoder::new(limits);
        let whole = decoder.decode(&bytes);
        let codes = decoder.check_codes(&bytes);
        prop_assert!(codes.is_err() || whole.is_ok(), "{:?} {:?}", codes, whole.err());
        let structure = check_structure(&bytes, &limits);
        prop_assert!(structure.is_ok() || codes.is_err(), "{:?}", structure);
        let mut builder = SeekPointBuilder::default();
        let _ = builder.build(&bytes, SeekDensity::Auto);
        prop_assert!(!builder.has_read_all() || whole.is_ok() || structure.is_err());
        if let (Ok(whole), Ok(())) = (whole, codes) {
            let header = read_header(&bytes).unwrap();
            let region = Region {
                x: header.width / 3,
                y: header.height / 4,
                width: header.width.div_ceil(2),
                height: header.height.div_ceil(3),
            };
            let part = ImagePart {
                region: Some(region),
                ..ImagePart::default()
            };
            let part = decoder.decode_part(&bytes, &part).unwrap();
            let row = region.width as usize * 3;
            for (i, line) in part.data.chunks_exact(row).enumerate() {
                let at = ((region.y as usize + i) * whole.width as usize + region.x as usize) * 3;
                prop_assert!(line == &whole.data[at..at + row]);
            }
        }
    }
}
