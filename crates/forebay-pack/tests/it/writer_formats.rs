//! Datasets in other tools' formats, written sample by sample.

use crate::support;
use crate::writer::{samples, write, writer_options};

use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, DatasetFormat, DatasetWriter, Error, RecordFormat,
    RecordInput, WriterOptions, convert,
};
use forebay_shard::manifest::ClassEntry;
use forebay_shard::{BlockCompression, Dataset, ShardFormat};
use std::collections::BTreeSet;
use std::path::Path;
use support::*;

fn options_of_records(dst: &Path, format: RecordFormat) -> WriterOptions {
    let mut options = writer_options(dst, DatasetFormat::TfRecord);
    options.records_format = Some((format, BlockCompression::NONE));
    options.classes = ["cat", "dog", "owl"]
        .map(|name| ClassEntry {
            name: name.to_owned(),
            text: None,
        })
        .into();
    options
}

/// Files in another tool's format contain the samples of a dataset of shards, and no other files are left.
#[test]
fn formats_of_other_tools_are_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut plain = options_of_records(&dir.path().join("plain"), RecordFormat::MDS);
    plain.records_format = None;
    plain.seek_points = None;
    write(plain, samples()).unwrap();
    for (format, file) in [
        (RecordFormat::WEBDATASET, "train-000000.tar"),
        (RecordFormat::MDS, "train/index.json"),
        (RecordFormat::LMDB, "train-00000.lmdb"),
    ] {
        let dst = dir.path().join(format.name());
        let summary = write(options_of_records(&dst, format), samples()).unwrap();
        assert_eq!((summary.records(), summary.splits.len()), (40, 2));
        assert!(dst.join(file).exists(), "{:?}", contents(&dst).keys());
        let back = dir.path().join(format!("{}-back", format.name()));
        let source = ConvertSource::Records(format, Box::new(RecordInput::new(dst.as_path())));
        let mut options = ConvertOptions::new(source, back.as_path(), DatasetFormat::TfRecord);
        options.durability = forebay_store::Durability::Cached;
        convert(&options, &(), &Cancel::new()).unwrap();
        let [back, plain] =
            [&back, &dir.path().join("plain")].map(|root| Dataset::open(root).unwrap());
        assert_eq!(
            back.manifest().sample_fingerprint,
            plain.manifest().sample_fingerprint
        );
        assert_eq!(back.manifest().classes, plain.manifest().classes);
        for number in [0, 3, 31] {
            let record = |dataset: &Dataset| {
                let mut record = Vec::new();
                let split = dataset.split("train").unwrap();
                split.read(number, &mut record).unwrap();
                record
            };
            assert!(record(&back) == record(&plain), "{}", format.name());
        }
        // An existing dataset is not written again.
        let again = write(options_of_records(&dst, format), samples()).unwrap_err();
        assert!(matches!(again, Error::Occupied { .. }), "{again}");
        // A writer that resumes compares its samples with it, as with a dataset of shards.
        let before = contents(&dst);
        let resuming = |format| {
            let mut options = options_of_records(&dst, format);
            options.resume = true;
            options
        };
        let again = write(resuming(format), samples()).unwrap();
        assert!(again.already_complete && again.fingerprint == summary.fingerprint);
        assert_eq!((again.records(), &again.root), (40, &summary.root));
        let fewer = samples().into_iter().take(39).collect();
        let error = write(resuming(format), fewer).unwrap_err();
        assert!(matches!(error, Error::DifferentSamples { .. }), "{error}");
        for mut other in [resuming(RecordFormat::ARRAY_RECORD), resuming(format)] {
            other.shard_bytes += u64::from(other.records_format == resuming(format).records_format);
            let error = write(other, samples()).unwrap_err();
            assert!(matches!(error, Error::Occupied { .. }), "{error}");
        }
        assert!(before == contents(&dst));
    }
    let names = contents(dir.path()).into_keys();
    assert!(
        names
            .into_iter()
            .all(|name| !name.to_string_lossy().contains(".samples"))
    );
}

#[test]
fn an_interrupted_writer_of_another_format_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, cut) = (dir.path().join("whole"), dir.path().join("cut"));
    let format = RecordFormat::WEBDATASET;
    write(options_of_records(&whole, format), samples()).unwrap();
    let mut writer =
        DatasetWriter::create(options_of_records(&cut, format), &Cancel::new()).unwrap();
    for sample in samples().into_iter().take(30) {
        writer.write(sample).unwrap();
    }
    drop(writer);
    let error = write(options_of_records(&cut, format), samples()).unwrap_err();
    let is_of_cut = matches!(&error, Error::Unfinished { path } if *path == cut);
    assert!(is_of_cut, "{error}");
    let mut options = options_of_records(&cut, format);
    options.resume = true;
    let summary = write(options, samples()).unwrap();
    assert!(summary.resumed_shards > 0);
    let bytes = |root: &Path| {
        let mut files = contents(root);
        files.retain(|name, _| name.extension().is_some_and(|end| end == "tar"));
        files
    };
    assert!(bytes(&cut) == bytes(&whole) && !bytes(&cut).is_empty());
}

/// A writer that has not finished a shard leaves nothing, however it ends; the next one starts with the first sample.
#[test]
fn a_writer_of_another_format_stopped_early_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let dst = dir.path().join("mine");
    let format = RecordFormat::WEBDATASET;
    let create = |resume: bool, cancel: &Cancel| {
        let mut options = options_of_records(&dst, format);
        (options.shard_bytes, options.resume) = (64 << 20, resume);
        DatasetWriter::create(options, cancel).unwrap()
    };
    let is_nothing_left = || std::fs::read_dir(dir.path()).unwrap().count() == 0;
    // Abandoned without samples, and with samples that were not sent to the thread.
    for count in [0, 20] {
        let mut writer = create(false, &Cancel::new());
        for sample in samples().into_iter().take(count) {
            writer.write(sample).unwrap();
        }
        drop(writer);
        assert!(is_nothing_left(), "{count} samples");
    }
    // Canceled, and closed without a sample.
    let cancel = Cancel::new();
    let mut writer = create(false, &cancel);
    writer.write(samples().swap_remove(0)).unwrap();
    cancel.cancel();
    assert!(writer.close().is_err() && is_nothing_left());
    let error = create(false, &Cancel::new()).close().unwrap_err();
    assert!(error.to_string().contains("no sample"), "{error}");
    assert!(is_nothing_left());
    // A second writer is refused, and does not remove the directory of the first one.
    let mut writer = create(true, &Cancel::new());
    let second = DatasetWriter::create(options_of_records(&dst, format), &Cancel::new());
    assert!(second.is_err());
    for sample in samples() {
        writer.write(sample).unwrap();
    }
    let summary = writer.close().unwrap();
    assert_eq!((summary.records(), summary.resumed_shards), (40, 0));
    assert!(dst.join("train-000000.tar").exists());
    assert!(!dir.path().join(".mine.samples").exists());
}

#[test]
fn unsupported_columns_are_refused_with_the_first_sample() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options_of_records(&dir.path().join("a"), RecordFormat::NPZ);
    options.records_format = Some((RecordFormat::NPZ, "zstd".parse().unwrap()));
    let mut writer = DatasetWriter::create(options, &Cancel::new()).unwrap();
    let error = writer.write(samples().swap_remove(0)).unwrap_err();
    assert!(matches!(error, Error::Options(_)), "{error}");
    drop(writer);
    let options = options_of_records(&dir.path().join("a"), RecordFormat::COCO);
    let error = DatasetWriter::create(options, &Cancel::new()).unwrap_err();
    assert!(error.to_string().contains("cannot be written"), "{error}");
    std::fs::create_dir(dir.path().join("full")).unwrap();
    std::fs::write(dir.path().join("full/x"), "x").unwrap();
    let options = options_of_records(&dir.path().join("full"), RecordFormat::MDS);
    let error = DatasetWriter::create(options, &Cancel::new()).unwrap_err();
    assert!(error.to_string().contains("other files"), "{error}");
}

/// The signature and the documentation of Python's `Writer`, and docs/formats.md, list the formats by hand.
#[test]
fn python_and_docs_list_the_formats_that_are_written() {
    let written = RecordFormat::all().filter(|format| format.is_written());
    let shards = [ShardFormat::TfRecord.name(), ShardFormat::Indexed.name()];
    let written: BTreeSet<&str> = written.map(RecordFormat::name).chain(shards).collect();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let python = read("crates/forebay-python/python/forebay/_writer.py");
    for (start, end) in [("format: Literal[", "]"), ("\n    format : ", "For these,")] {
        let (_, listed) = python.split_once(start).unwrap();
        let (listed, _) = listed.split_once(end).unwrap();
        let listed: BTreeSet<&str> = listed.split('"').skip(1).step_by(2).collect();
        assert_eq!(listed, written, "after {start:?}");
    }
    let page = read("docs/formats.md");
    let rows = page
        .lines()
        .skip_while(|line| !line.starts_with("| format |"));
    let rows = rows.take_while(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.split('|').nth(3)?.trim().strip_prefix('`'));
    let names = cells.filter_map(|cell| cell.split_once('`'));
    let listed: BTreeSet<&str> = names.map(|(name, _)| name).collect();
    let others = ["forebay export SRC DST", "--format"];
    assert_eq!(listed, written.into_iter().chain(others).collect());
}
