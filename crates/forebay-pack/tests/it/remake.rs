//! Transcoded images: shrunk images, and nonstandard ones as plain JPEG.

use crate::support;

use forebay_image::{Decoder, Limits, RgbImage, encode_jpeg, probe};
use forebay_pack::{
    Action, Cancel, DatasetFormat, Error, Finding, Observer, OnBad, PackOptions, Reason, ShardDone,
    Sharding, pack,
};
use forebay_shard::manifest::Manifest;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::*;

fn report(dst: &Path) -> Vec<Finding> {
    let text = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Creates images of many sizes, some of them below every limit in the tests.
fn pictures(src: &Path) {
    for n in 0..30u32 {
        let (width, height) = match n % 3 {
            0 => (90 + n, 61),
            1 => (50, 70 + n),
            _ => (30 + n % 7, 20),
        };
        let path = format!("n{:08}/{n}.JPEG", n % 2);
        put(src, path.as_bytes(), &picture(width, height));
    }
}

fn small(src: &Path, dst: &Path) -> PackOptions {
    let mut options = options(src, dst);
    options.resize_short = Some(40);
    options.max_side = Some(64);
    options
}

#[test]
fn only_large_images_are_shrunk() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    pictures(&src);
    let png = forebay_image::encode_png(&vec![128; 100 * 80 * 3], 100, 80);
    put(&src, b"n00000000/honest.png", &png);
    let grey = RgbImage {
        width: 100,
        height: 80,
        data: vec![90; 100 * 80 * 3],
    };
    let grey = encode_jpeg(&grey, 90, true).unwrap();
    put(&src, b"n00000000/grey.jpg", &grey);
    let summary = run(&small(&src, &dst)).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (32, 0));
    let mut decoder = Decoder::new(Limits::default());
    let mut smaller = Vec::new();
    for (key, seen) in records(&dst, "train") {
        let path = String::from_utf8(key).unwrap();
        let file = std::fs::read(src.join(&path)).unwrap();
        let header = probe(&file, &Limits::default()).unwrap();
        let (short, long) = (
            header.width.min(header.height),
            header.width.max(header.height),
        );
        if short <= 40 && long <= 64 {
            assert!(seen.image == file, "{path} stays as it is");
            continue;
        }
        let now = probe(&seen.image, &Limits::default()).unwrap();
        let size = [now.width, now.height, now.channels.into()].map(i64::from);
        assert_eq!(seen.size, size.into(), "{path}");
        assert!(now.width.max(now.height) <= 64 && now.width.min(now.height) <= 40);
        assert!(now.width.max(now.height) == 64 || now.width.min(now.height) == 40);
        let picture = decoder
            .decode_shrunk(&file, &header, now.width, now.height)
            .unwrap();
        let is_gray = path.ends_with("grey.jpg");
        assert_eq!(
            (seen.format.as_str(), seen.colorspace.as_str()),
            ("JPEG", if is_gray { "Grayscale" } else { "RGB" })
        );
        assert!(
            seen.image == encode_jpeg(&picture, 95, is_gray).unwrap(),
            "{path}"
        );
        smaller.push(path);
    }
    assert_eq!(smaller.len(), 22);
    let mut reported: Vec<String> = report(&dst)
        .into_iter()
        .map(|found| {
            assert_eq!(
                (found.action, found.reason),
                (Action::Resized, Reason::LargerThanAsked)
            );
            found.path
        })
        .collect();
    reported.sort();
    assert_eq!(reported, smaller);
    let manifest = Manifest::load(&dst).unwrap();
    assert_eq!(manifest.pack["resize_short"], "40");
    assert_eq!(manifest.pack["max_side"], "64");
    let bytes: u64 = records(&dst, "train")
        .values()
        .map(|seen| seen.image.len() as u64)
        .sum();
    assert_eq!(summary.image_bytes, bytes);
}

#[test]
fn the_output_does_not_depend_on_threads_or_interruptions() {
    /// Cancels after this number of shards.
    struct Stopper<'a>(&'a Cancel, AtomicUsize);
    impl Observer for Stopper<'_> {
        fn shard_done(&self, _shard: &ShardDone) {
            if self.1.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.0.cancel();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    pictures(&src);
    put(&src, b"n00000000/bad.jpg", &{
        let mut cut = picture(190, 190);
        cut.truncate(cut.len() / 2);
        cut
    });
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let packed = |name: &str, jobs, shards| {
            let mut options = small(&src, &dir.path().join(format!("{name}-{format:?}")));
            options.format = format;
            options.jobs = Some(jobs);
            options.sharding = Sharding::Count(shards);
            options
        };
        let one = packed("one", 1, 6);
        assert_eq!(run(&one).unwrap().skipped(), 1);
        let many = packed("many", 7, 6);
        run(&many).unwrap();
        let (one, many) = (
            one.dst.local_path().unwrap(),
            many.dst.local_path().unwrap(),
        );
        assert_same(one, many);
        // All threads work on one shard.
        assert_eq!(run(&packed("single", 5, 1)).unwrap().records(), 30);
        let stopped = packed("stopped", 1, 6);
        let cancel = Cancel::new();
        let stopper = Stopper(&cancel, AtomicUsize::new(2));
        let error = pack(&stopped, &stopper, &cancel).unwrap_err();
        assert!(matches!(error, Error::Interrupted { .. }), "{error}");
        let mut other = stopped.clone();
        other.quality = Some(80);
        let error = run(&other).unwrap_err();
        assert!(
            matches!(&error, Error::DifferentPack { differences, .. } if differences == &["quality: then not given, now 80"]),
            "{error}"
        );
        assert!(run(&stopped).unwrap().resumed_shards >= 2);
        assert_same(one, stopped.dst.local_path().unwrap());
    }
}

#[test]
fn nonstandard_images_become_plain_jpegs_if_requested() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    pictures(&src);
    let (cmyk, ycck) = (testdata("dirty/cmyk.jpg"), testdata("dirty/ycck.jpg"));
    let png = forebay_image::encode_png(&vec![70; 33 * 21 * 3], 33, 21);
    let plain = picture(50, 40);
    let trailing = [plain.as_slice(), b"\0\0\0"].concat();
    let endless = &plain[..plain.len() - 2];
    for (name, content) in [
        ("cmyk.jpg", cmyk.as_slice()),
        ("ycck.jpg", &ycck),
        ("png.JPEG", &png),
        ("png.png", &png),
        ("jpeg.png", &plain),
        ("trailing.jpg", &trailing),
        ("endless.jpg", endless),
    ] {
        put(&src, format!("n00000001/{name}").as_bytes(), content);
    }
    let mut convert = options(&src, &dst);
    convert.transcode_nonstandard = true;
    let summary = run(&convert).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (37, 0));
    let found = records(&dst, "train");
    let mut decoder = Decoder::new(Limits::default());
    for (name, content) in [
        ("cmyk.jpg", cmyk.as_slice()),
        ("ycck.jpg", &ycck),
        ("png.JPEG", &png),
        ("endless.jpg", endless),
    ] {
        let seen = &found[format!("n00000001/{name}").as_bytes()];
        let picture = decoder.decode(content).unwrap();
        assert!(
            seen.image == encode_jpeg(&picture, 100, false).unwrap(),
            "{name}"
        );
        assert_eq!(
            (seen.format.as_str(), seen.colorspace.as_str()),
            ("JPEG", "RGB")
        );
        assert_eq!(seen.size.2, 3);
    }
    for (name, content) in [
        ("png.png", &png),
        ("jpeg.png", &plain),
        ("trailing.jpg", &trailing),
    ] {
        let seen = &found[format!("n00000001/{name}").as_bytes()];
        assert!(&seen.image == content, "{name} stays as it is");
    }
    let mut said: Vec<_> = report(&dst)
        .into_iter()
        .map(|found| (found.path, found.action, found.reason))
        .collect();
    said.sort();
    let line = |name: &str, action, reason| (format!("n00000001/{name}"), action, reason);
    assert_eq!(
        said,
        [
            line("cmyk.jpg", Action::Converted, Reason::Cmyk),
            line("endless.jpg", Action::Converted, Reason::NoEnd),
            line("jpeg.png", Action::Kept, Reason::NameMismatch),
            line("png.JPEG", Action::Converted, Reason::NameMismatch),
            line("trailing.jpg", Action::Kept, Reason::TrailingBytes),
            line("ycck.jpg", Action::Converted, Reason::Cmyk),
        ]
    );
    assert_eq!(Manifest::load(&dst).unwrap().pack["convert_odd"], "true");
}

#[test]
fn damage_found_only_by_decoding_is_a_bad_image() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst, aside) = (
        dir.path().join("src"),
        dir.path().join("dst"),
        dir.path().join("aside"),
    );
    pictures(&src);
    // The header and the end are intact, with half of the data between them.
    let whole = picture(300, 200);
    let bad = [&whole[..whole.len() / 2], &[0xff, 0xd9]].concat();
    put(&src, b"n00000000/bad.jpg", &bad);
    let mut options = small(&src, &dst);
    options.on_bad = OnBad::Quarantine(aside.clone());
    let summary = run(&options).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (30, 1));
    assert_eq!(contents(&aside).len(), 1);
    assert_eq!(std::fs::read(aside.join("n00000000/bad.jpg")).unwrap(), bad);
    let line = report(&dst).into_iter().find(|f| f.path.contains("bad"));
    let line = line.unwrap();
    assert_eq!(
        (line.action, line.reason),
        (Action::Quarantined, Reason::BadData)
    );
    // Computing seek points finds the damage too. Without them, the data is not read, and the image is packed.
    for (seek_points, records) in [(options.seek_points, 30), (None, 31)] {
        let as_it_is = dir.path().join(format!("as_it_is_{records}"));
        let mut options = support::options(&src, &as_it_is);
        options.seek_points = seek_points;
        assert_eq!(run(&options).unwrap().records(), records);
    }
}

#[test]
fn progressive_images_that_cannot_be_restored_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    let good = testdata("formats/420-progressive.jpg");
    // The quantization table is repeated after the last scan: decoders ignore it, but a baseline file cannot represent it.
    let table = good
        .windows(2)
        .position(|marker| marker == [0xff, 0xdb])
        .unwrap();
    let len = usize::from(u16::from_be_bytes([good[table + 2], good[table + 3]]));
    let (body, end) = good.split_at(good.len() - 2);
    assert_eq!(end, [0xff, 0xd9]);
    let odd = [body, &good[table..table + 2 + len], end].concat();
    put(&src, b"a/good.jpg", &good);
    put(&src, b"a/odd.jpg", &odd);
    put(&src, b"a/plain.jpg", &picture(40, 30));
    let mut options = options(&src, &dst);
    options.progressive_to_baseline = true;
    let summary = run(&options).unwrap();
    let count = summary.progressive;
    assert_eq!(
        (count.changed, count.left, summary.skipped()),
        (1, 1, 0),
        "{count:?}"
    );
    let found = records(&dst, "train");
    assert!(found[b"a/odd.jpg".as_slice()].image == odd);
    assert!(found[b"a/good.jpg".as_slice()].image != good);
    let [line] = &report(&dst)[..] else {
        panic!("{:?}", report(&dst));
    };
    assert_eq!(
        (line.action, line.reason, line.path.as_str()),
        (Action::Kept, Reason::Progressive, "a/odd.jpg")
    );
    // Without the option, there are no findings.
    let as_it_is = dir.path().join("as_it_is");
    options = support::options(&src, &as_it_is);
    assert_eq!(run(&options).unwrap().report, None);
}
