//! Comparison of datasets with their sources: every layout compares as equal, and every kind of difference is found.

use crate::layout;
use crate::support;

use forebay_pack::{ComparisonReport, DatasetFormat, DifferenceKind, PackOptions};
use forebay_shard::verify::{VerifyOptions, verify_dataset};
use forebay_shard::{Dataset, RecordMeta, indexed};
use layout::*;
use std::path::Path;
use support::*;

fn compare(dst: &Path, src: &Path) -> ComparisonReport {
    let against = comparison(dst, src);
    let check = |shard: &Path, record: u64, payload: &[u8]| {
        against.check(shard, record, payload);
        Ok(())
    };
    let options = VerifyOptions {
        record_check: Some(&check),
        ..VerifyOptions::default()
    };
    verify_dataset(dst, &options, &|_| {}).unwrap();
    against.finish().unwrap()
}

fn pack(options: &PackOptions) -> u64 {
    run(options).unwrap().records()
}

/// Returns kind, key and detail of each difference.
fn found(report: &ComparisonReport) -> Vec<(DifferenceKind, &str, &str)> {
    let all = report.differences.iter();
    all.map(|d| (d.kind, d.key.as_str(), d.detail.as_str()))
        .collect()
}

#[test]
fn every_layout_equals_its_source() {
    let dir = tempfile::tempdir().unwrap();
    let kaggle_root = dir.path().join("kaggle");
    kaggle(&kaggle_root);
    let academic_root = dir.path().join("academic");
    academic(&academic_root);
    let mut sources = vec![
        pictures(),
        pictures().join("train"),
        kaggle_root,
        academic_root,
    ];
    for name in ["a.tar", "b.tar.gz", "c.tar.zst", "d.zip"] {
        let archive = dir.path().join(name);
        write_archive(&archive, &tree_below(&pictures(), "images/"));
        sources.push(archive);
    }
    for (number, src) in sources.iter().enumerate() {
        for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
            let dst = dir.path().join(format!("{number} {format:?}"));
            let mut options = options(src, &dst);
            options.format = format;
            // A progressive image that was transcoded to baseline still belongs to its file.
            options.progressive_to_baseline = format == DatasetFormat::INDEXED;
            let records = pack(&options);
            let report = compare(&dst, src);
            assert!(
                report.is_ok() && report.differences.is_empty(),
                "{}: {report:?}",
                src.display()
            );
            assert_eq!(
                (report.files, report.verbatim),
                (records, records),
                "{}",
                src.display()
            );
        }
    }
    // The dataset also equals the archives that were made from the directory.
    let dst = dir.path().join(format!("0 {:?}", DatasetFormat::INDEXED));
    for src in &sources[4..] {
        assert!(compare(&dst, src).is_ok(), "{}", src.display());
    }
}

#[test]
fn every_kind_of_difference_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tree(&src, 3, 10);
    put(&src, b"n00000001/bad.jpg", b"bad");
    put(&src, b"n00000001/notes.txt", b"x");
    for (format, archive) in [
        (DatasetFormat::TfRecord, None),
        (DatasetFormat::INDEXED, None),
        (DatasetFormat::TfRecord, Some("a.tar")),
        (DatasetFormat::TfRecord, Some("a.tar.gz")),
        (DatasetFormat::INDEXED, Some("a.zip")),
    ] {
        let dst = dir.path().join(format!("{format:?} {archive:?}"));
        let mut options = options(&src, &dst);
        options.format = format;
        assert_eq!(pack(&options), 30);
        let intact = compare(&dst, &src);
        assert!(intact.is_ok(), "{intact:?}");
        assert_eq!(
            (intact.files, intact.verbatim, intact.left_out),
            (31, 30, 1)
        );

        let other = dir.path().join("other");
        let _ = std::fs::remove_dir_all(&other);
        copy_tree(&src, &other);
        put(&other, b"n00000000/new.jpg", &jpeg(9, 9, 3, b"new"));
        std::fs::remove_file(other.join("n00000001/n00000001_4.JPEG")).unwrap();
        let path = other.join("n00000002/n00000002_5.JPEG");
        let mut bytes = std::fs::read(&path).unwrap();
        let last = bytes.len() - 3;
        bytes[last] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let longer = other.join("n00000002/n00000002_6.JPEG");
        bytes.push(0);
        std::fs::write(&longer, &bytes).unwrap();
        let witness = match archive {
            None => other,
            Some(name) => {
                let archive = dir.path().join(name);
                write_archive(&archive, &tree_below(&other, ""));
                archive
            }
        };
        let report = compare(&dst, &witness);
        assert!(!report.is_ok());
        assert_eq!(report.verbatim, 27);
        let mut kinds: Vec<_> = report
            .differences
            .iter()
            .map(|d| (d.kind, d.key.as_str()))
            .collect();
        kinds.sort();
        assert_eq!(
            kinds,
            [
                (DifferenceKind::Missing, "n00000000/new.jpg"),
                (DifferenceKind::Extra, "n00000001/n00000001_4.JPEG"),
                (DifferenceKind::Changed, "n00000002/n00000002_5.JPEG"),
                (DifferenceKind::Changed, "n00000002/n00000002_6.JPEG"),
            ],
            "{report:?}"
        );
        for difference in report
            .differences
            .iter()
            .filter(|d| d.kind != DifferenceKind::Missing)
        {
            let shard = difference.shard.as_deref().unwrap();
            let opened = forebay_shard::Shard::open(shard).unwrap();
            let key = opened.key(difference.record.unwrap()).unwrap();
            assert_eq!(key, difference.key.as_bytes());
        }
    }
}

#[test]
fn a_repeated_record_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 6);
    let mut one = options(&src, &dst);
    (one.format, one.sharding) = (DatasetFormat::INDEXED, forebay_pack::Sharding::Count(1));
    pack(&one);
    // Writes the same dataset again, with the third record in place of the last one.
    let split = Dataset::open(&dst).unwrap().split("train").unwrap();
    let path = split.shards()[0].path().to_owned();
    let mut records = Vec::new();
    for number in 0..split.len() {
        let mut record = Vec::new();
        split.read(number, &mut record).unwrap();
        records.push((
            split.key(number).unwrap(),
            split.label(number).unwrap(),
            record,
        ));
    }
    let lost = records.pop().unwrap().0;
    records.push(records[2].clone());
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = indexed::WriterBuilder::new()
        .from_writer(file, &path)
        .unwrap();
    for (key, label, record) in &records {
        writer
            .append(record, &RecordMeta::new(*label, key))
            .unwrap();
    }
    writer.finish().unwrap();
    let report = compare(&dst, &src);
    let twice = String::from_utf8(records[2].0.clone()).unwrap();
    let lost = String::from_utf8(lost).unwrap();
    assert_eq!(
        found(&report),
        [
            (DifferenceKind::Missing, lost.as_str(), ""),
            (DifferenceKind::Doubled, twice.as_str(), ""),
            (DifferenceKind::Doubled, twice.as_str(), ""),
        ]
    );
    assert_eq!(report.differences[1].record, Some(2));
    assert_eq!(report.differences[2].record, Some(11));
}
