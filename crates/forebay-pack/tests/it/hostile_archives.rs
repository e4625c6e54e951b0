//! Damaged and malicious archives are refused or reported, and have no other effect.

use crate::layout;
use crate::support;

use forebay_pack::{Action, Error, Finding, Reason, Sharding, SourceError};
use layout::*;
use std::path::Path;
use support::*;

fn report(dst: &Path) -> Vec<(String, Action, Reason)> {
    let text = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap_or_default();
    let findings = text
        .lines()
        .map(|line| serde_json::from_str::<Finding>(line).unwrap());
    findings.map(|f| (f.path, f.action, f.reason)).collect()
}

fn good(text: &str) -> Vec<u8> {
    jpeg(10, 20, 3, text.as_bytes())
}

/// Builds a header with any name, without validation.
fn raw_member(name: &[u8], kind: tar::EntryType, link: &[u8], content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.as_old_mut().linkname[..link.len()].copy_from_slice(link);
    header.set_entry_type(kind);
    header.set_size(content.len() as u64);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend(content);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

#[test]
fn archives_cannot_refer_to_files_outside() {
    use tar::EntryType;
    let dir = tempfile::tempdir().unwrap();
    let (archive, dst) = (dir.path().join("a.tar"), dir.path().join("dst"));
    let image = good("x");
    let bytes = [
        raw_member(b"cat/1.jpg", EntryType::Regular, b"", &image),
        raw_member(b"/etc/passwd.jpg", EntryType::Regular, b"", &image),
        raw_member(b"cat/../../up.jpg", EntryType::Regular, b"", &image),
        raw_member(b"cat/soft.jpg", EntryType::Symlink, b"/etc/passwd", b""),
        raw_member(b"cat/hard.jpg", EntryType::Link, b"cat/1.jpg", b""),
        raw_member(b"cat/device.jpg", EntryType::Char, b"", b""),
        raw_member(b"cat/pipe", EntryType::Fifo, b"", b""),
        raw_member(b"dog/.hidden/2.jpg", EntryType::Regular, b"", &image),
        raw_member(b"dog/.hidden/3.jpg", EntryType::Regular, b"", &image),
        raw_member(b"dog/3", EntryType::Regular, b"", &image),
        raw_member(b"dog/notes.txt", EntryType::Regular, b"", b"text"),
        raw_member(b"dog/empty.jpg", EntryType::Regular, b"", b""),
        raw_member(
            b"dog/photo.avif",
            EntryType::Regular,
            b"",
            b"\0\0\0\x1cftypavif",
        ),
        vec![0; 1024],
    ]
    .concat();
    std::fs::write(&archive, bytes).unwrap();
    let summary = run(&options(&archive, &dst)).unwrap();
    let keys: Vec<_> = records(&dst, "train").into_keys().collect();
    assert_eq!(keys, [b"cat/1.jpg".to_vec(), b"dog/3".to_vec()]);
    assert_eq!(summary.classes, 2);
    let mut found = report(&dst);
    found.sort();
    let expected = [
        ("/etc/passwd.jpg", Action::Skipped, Reason::UnsafeName),
        ("cat/../../up.jpg", Action::Skipped, Reason::UnsafeName),
        ("cat/device.jpg", Action::Skipped, Reason::SpecialFile),
        ("cat/hard.jpg", Action::Skipped, Reason::Link),
        ("cat/pipe", Action::Ignored, Reason::SpecialFile),
        ("cat/soft.jpg", Action::Skipped, Reason::Link),
        ("dog/.hidden", Action::Ignored, Reason::Hidden),
        ("dog/empty.jpg", Action::Skipped, Reason::Empty),
        ("dog/notes.txt", Action::Ignored, Reason::NotAnImage),
        ("dog/photo.avif", Action::Skipped, Reason::OtherFormat),
    ];
    assert_eq!(
        found,
        expected.map(|(path, action, reason)| (path.to_owned(), action, reason))
    );
}

#[test]
fn nested_archives_stay_in_their_directory() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, dst) = (dir.path().join("a.tar"), dir.path().join("dst"));
    let inner = tar_of(&[("x.jpg".to_owned(), good("inner"))]);
    // Without their extension, these names would be the directories `cat/`, `cat/.` and `cat/..`.
    let names = ["cat/.tar", "cat/..tar", "cat/...tar", "cat/dog.tar"];
    let mut files: Vec<_> = names.map(|name| (name.to_owned(), inner.clone())).into();
    files.push(("cat/1.jpg".to_owned(), good("outer")));
    write_archive(&archive, &files);
    run(&options(&archive, &dst)).unwrap();
    let keys: Vec<_> = records(&dst, "train").into_keys().collect();
    assert_eq!(keys, [b"cat/1.jpg".to_vec(), b"cat/dog/x.jpg".to_vec()]);
    let mut found = report(&dst);
    found.sort();
    let hidden = |name: &str| (name.to_owned(), Action::Ignored, Reason::Hidden);
    assert_eq!(
        found,
        [
            hidden("cat/...tar"),
            hidden("cat/..tar"),
            hidden("cat/.tar")
        ]
    );
}

#[test]
fn a_repeated_member_is_refused_by_name_and_offset() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.tar", "a.tar.gz"] {
        let archive = dir.path().join(name);
        let files = [("c/1.jpg", "x"), ("c/2.jpg", "y"), ("./c/1.jpg", "z")];
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| ((*name).to_owned(), good(text)))
            .collect();
        write_archive(&archive, &files);
        let error = run(&options(&archive, &dir.path().join("dst"))).unwrap_err();
        assert!(matches!(error, Error::Source(SourceError::Source { .. })));
        let text = error.to_string();
        assert!(
            text.contains("c/1.jpg is there already, at offset 512"),
            "{text}"
        );
    }
}

#[test]
fn truncations_and_bit_flips_are_errors_or_reported() {
    let dir = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..3)
        .map(|n| (format!("c/{n}.jpg"), good(&n.to_string())))
        .collect();
    for name in ["a.tar", "a.tar.gz", "a.tar.zst", "a.zip"] {
        let archive = dir.path().join(name);
        write_archive(&archive, &files);
        let whole = std::fs::read(&archive).unwrap();
        let mut number = 0;
        let mut attempt = |bytes: &[u8]| {
            std::fs::write(&archive, bytes).unwrap();
            let dst = dir.path().join(format!("{name}-{number}"));
            number += 1;
            let mut options = options(&archive, &dst);
            options.durability = forebay_store::Durability::Cached;
            let result = run(&options)
                .map(|summary| (summary.records() + summary.skipped(), summary.warnings));
            let _ = std::fs::remove_dir_all(&dst);
            result
        };
        // Only damage of headers can be detected, since a tar has no checksums of contents.
        let step = (whole.len() / 150).max(1);
        for end in (0..whole.len()).step_by(step) {
            if let Ok((files, warnings)) = attempt(&whole[..end]) {
                assert!(
                    files == 3 || !warnings.is_empty(),
                    "{name} cut to {end} of {}",
                    whole.len()
                );
            }
        }
        for at in (0..whole.len()).step_by(step) {
            let mut damaged = whole.clone();
            damaged[at] ^= 0x5a;
            let _ = attempt(&damaged);
        }
    }
}

#[test]
fn zips_are_checked_by_their_checksums() {
    let dir = tempfile::tempdir().unwrap();
    let (archive, dst) = (dir.path().join("a.zip"), dir.path().join("dst"));
    let files: Vec<_> = (0..4)
        .map(|n| (format!("c/{n}.jpg"), good(&format!("{n}").repeat(300))))
        .collect();
    let mut bytes = zip_of(&files);
    // A byte of the first image, which is stored, and one of the second image, which is deflated.
    let at = |bytes: &[u8], name: &[u8]| {
        bytes.windows(name.len()).position(|w| w == name).unwrap() + name.len()
    };
    let first = at(&bytes, b"c/0.jpg") + 100;
    let second = at(&bytes, b"c/1.jpg") + 30;
    bytes[first] ^= 1;
    bytes[second] ^= 1;
    std::fs::write(&archive, &bytes).unwrap();
    let summary = run(&options(&archive, &dst)).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (2, 2));
    let found = report(&dst);
    assert!(
        found
            .iter()
            .all(|(_, _, reason)| *reason == Reason::Unreadable),
        "{found:?}"
    );
    // Bytes precede the archive, as in self-extracting archives.
    let moved = dir.path().join("moved.zip");
    let mut bytes = b"PK\x03\x04 is not at its place".to_vec();
    bytes.extend(zip_of(&files));
    std::fs::write(&moved, bytes).unwrap();
    let summary = run(&options(&moved, &dir.path().join("moved"))).unwrap();
    assert_eq!((summary.records(), summary.skipped()), (4, 0));
}

#[test]
fn a_changing_archive_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let archive = dir.path().join("a.tar.gz");
    let files: Vec<_> = (0..3)
        .map(|n| (format!("c/{n}.jpg"), good(&n.to_string())))
        .collect();
    write_archive(&archive, &files);
    let options = options(&archive, &dir.path().join("dst"));
    let prepared = forebay_pack::prepare(&options, &(), &forebay_pack::Cancel::new()).unwrap();
    write_archive(&archive, &files[..2]);
    let error = prepared
        .run(&(), &forebay_pack::Cancel::new())
        .unwrap_err()
        .to_string();
    assert!(error.contains("changed since its census"), "{error}");
    for (head, expected) in [
        (&b"BZh91AY&SY"[..], "bzip2"),
        (b"\xfd7zXZ\0\0", "xz"),
        (b"7z\xbc\xaf", "7z"),
        (b"hello", "no tar"),
        (b"", "no tar"),
        (b"PK\x03\x04", "cut short"),
        (b"\x1f\x8b", "unexpected end"),
    ] {
        std::fs::write(&archive, head).unwrap();
        let error = run(&options).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn a_pack_from_an_archive_continues() {
    let dir = tempfile::tempdir().unwrap();
    let files = tree_below(&pictures().join("train"), "");
    for name in ["a.tar", "a.tar.zst", "a.zip"] {
        let archive = dir.path().join(name);
        write_archive(&archive, &files);
        let whole = dir.path().join(format!("{name}-whole"));
        let given = |dst: &Path| {
            let mut given = options(&archive, dst);
            (given.jobs, given.sharding) = (Some(1), Sharding::Count(24));
            given
        };
        run(&given(&whole)).unwrap();
        let dst = dir.path().join(format!("{name}-dst"));
        let given = given(&dst);
        let stop = StopAfter::new(1);
        let error = forebay_pack::pack(&given, &stop, &stop.cancel).unwrap_err();
        assert!(
            matches!(error, Error::Interrupted { finished: 1.., .. }),
            "{error}"
        );
        let summary = run(&given).unwrap();
        assert!(summary.resumed_shards > 0);
        assert_same(&whole, &dst);
    }
}

/// Cancels after a number of shards.
struct StopAfter {
    left: std::sync::atomic::AtomicUsize,
    cancel: forebay_pack::Cancel,
}

impl StopAfter {
    fn new(shards: usize) -> Self {
        Self {
            left: shards.into(),
            cancel: forebay_pack::Cancel::new(),
        }
    }
}

impl forebay_pack::Observer for StopAfter {
    fn shard_done(&self, _shard: &forebay_pack::ShardDone) {
        if self.left.fetch_sub(1, std::sync::atomic::Ordering::SeqCst) == 1 {
            self.cancel.cancel();
        }
    }
}
