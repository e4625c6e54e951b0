//! Kinds of JPEG: images that loaders refuse are bad images, and all packed images can be decoded.

use crate::support;

use forebay_image::{Decoder, Limits, SeekDensity};
use forebay_pack::{Action, Finding, OnBad, Reason};
use std::path::Path;
use support::*;

/// Name, bytes, reason and a part of the detail.
type Bad = (&'static str, Vec<u8>, Reason, &'static str);

fn report(dst: &Path) -> Vec<Finding> {
    let text = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Returns the offset of the first segment of a kind.
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
    [&bytes[..at], &bytes[at + 2 + length..]].concat()
}

fn scans(name: &str, times: usize) -> Vec<u8> {
    let bytes = testdata(name);
    let last = bytes.windows(2).rposition(|w| w == [0xff, 0xda]).unwrap();
    let (before, scan) = bytes[..bytes.len() - 2].split_at(last);
    [before, &scan.repeat(times), &[0xff, 0xd9]].concat()
}

/// Returns files whose headers and scans show that they cannot be decoded.
fn refused() -> Vec<Bad> {
    let plain = picture(60, 50);
    let frame = |offset: usize, value: u8| {
        let mut bytes = plain.clone();
        bytes[place(&plain, 0xc0) + offset] = value;
        bytes
    };
    let unsupported = |name, bytes, detail| (name, bytes, Reason::Unsupported, detail);
    let scan_limit = "scans, the limit is 100";
    vec![
        unsupported(
            "lossless",
            frame(1, 0xc3),
            "unsupported JPEG: lossless coding",
        ),
        unsupported(
            "hierarchical",
            frame(1, 0xc5),
            "unsupported JPEG: hierarchical coding",
        ),
        unsupported(
            "arithmetic",
            frame(1, 0xc9),
            "unsupported JPEG: arithmetic coding",
        ),
        unsupported(
            "12-bits",
            frame(4, 12),
            "unsupported JPEG: 12 bits a sample",
        ),
        unsupported(
            "no-steps",
            without(&plain, 0xdb),
            "unsupported JPEG: quantization table 0 is not in the file",
        ),
        unsupported(
            "no-codes",
            without(&plain, 0xc4),
            "unsupported JPEG: Huffman table 0 is not in the file",
        ),
        unsupported(
            "fraction",
            {
                let mut bytes = frame(11, 0x31);
                let at = place(&bytes, 0xc0);
                bytes[at + 14] = 0x21;
                bytes
            },
            "unsupported JPEG: sampling factors of 2x1 beside 3x1",
        ),
        (
            "101-scans",
            scans("jpeg-kinds/baseline-scans-0-1-2.jpg", 99),
            Reason::BadHeader,
            scan_limit,
        ),
        (
            "10000-scans",
            scans("jpeg-kinds/scans-10-of-mozjpeg.jpg", 9_991),
            Reason::BadHeader,
            scan_limit,
        ),
    ]
}

/// Returns files with intact headers and damaged data.
fn damaged() -> Vec<Bad> {
    let cut = |bytes: Vec<u8>, lost: usize| [&bytes[..bytes.len() - lost], &[0xff, 0xd9]].concat();
    let kind = |name: &str| testdata(&format!("jpeg-kinds/{name}"));
    let bad = |name, bytes| (name, bytes, Reason::BadData, "");
    vec![
        bad("plain", cut(picture(200, 100), 300)),
        bad("restarts", cut(testdata("formats/420-restarts.jpg"), 300)),
        bad("progressive", cut(kind("scans-10-of-mozjpeg.jpg"), 300)),
        bad("several-scans", cut(kind("baseline-scans-0-12.jpg"), 60)),
    ]
}

#[test]
fn images_that_loaders_refuse_are_bad_under_every_policy() {
    for (density, bad) in [
        (None, refused()),
        (Some(SeekDensity::Auto), [refused(), damaged()].concat()),
        (Some(SeekDensity::Fine), damaged()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (src, aside) = (dir.path().join("src"), dir.path().join("aside"));
        put(&src, b"a/good.jpg", &picture(40, 30));
        for (name, bytes, ..) in &bad {
            let error = Decoder::new(Limits::default()).decode(bytes);
            assert!(error.is_err(), "{name} can be decoded");
            put(&src, format!("a/{name}.jpg").as_bytes(), bytes);
        }
        for (policy, action) in [
            (OnBad::Skip, Action::Skipped),
            (OnBad::Quarantine(aside.clone()), Action::Quarantined),
        ] {
            let dst = dir.path().join(format!("{action:?}"));
            let mut options = options(&src, &dst);
            (options.on_bad, options.seek_points) = (policy, density);
            let summary = run(&options).unwrap();
            assert_eq!(
                (summary.records(), summary.skipped()),
                (1, bad.len() as u64)
            );
            let found = report(&dst);
            for (name, _, reason, detail) in &bad {
                let path = format!("a/{name}.jpg");
                let line = found.iter().find(|line| line.path == path).unwrap();
                assert_eq!((line.action, line.reason), (action, *reason), "{line}");
                assert!(line.detail.contains(detail), "{line}");
                let says_corrupt = line.to_string().contains("corrupt");
                assert!(*reason == Reason::BadData || !says_corrupt, "{line}");
            }
        }
        for (name, bytes, ..) in &bad {
            assert!(std::fs::read(aside.join(format!("a/{name}.jpg"))).unwrap() == *bytes);
        }
        let mut options = options(&src, &dir.path().join("fail"));
        (options.on_bad, options.seek_points) = (OnBad::Fail, density);
        run(&options).unwrap_err();
    }
}

#[test]
fn every_packed_kind_can_be_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/jpeg-kinds");
    let copy = dir.path().join("src");
    let mut names = 0;
    for entry in std::fs::read_dir(src).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "jpg") {
            let name = path.file_name().unwrap().to_str().unwrap();
            let bytes = std::fs::read(&path).unwrap();
            put(&copy, format!("a/{name}").as_bytes(), &bytes);
            names += 1;
        }
    }
    assert!(names >= 80, "{names} files");
    for density in [None, Some(SeekDensity::Auto), Some(SeekDensity::Rows)] {
        let dst = dir.path().join(format!("{density:?}"));
        let mut options = options(&copy, &dst);
        (options.seek_points, options.on_bad) = (density, OnBad::Fail);
        let summary = run(&options).unwrap();
        assert_eq!((summary.records(), summary.skipped()), (names, 0));
        let mut decoder = Decoder::new(Limits::default());
        for (key, seen) in records(&dst, "train") {
            let decoded = decoder.decode(&seen.image);
            decoded.unwrap_or_else(|e| panic!("{}: {e}", String::from_utf8_lossy(&key)));
        }
    }
}
