//! Mapped shards: records that stay in the files of another tool read the same as converted records.

use crate::support;

use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, ConvertSummary, DatasetFormat, Error, Observer,
    OutputFormat, RecordFormat, RecordInput, SeekPointChange, ShardDone, Sharding, convert,
};
use forebay_shard::{BlockCompression, Codec, Dataset, Manifest, ShardFormat, verify};
use forebay_store::{Durability, Location};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::{contents, options, run, tree};

fn of(source: ConvertSource, dst: &Path, format: impl Into<OutputFormat>) -> ConvertOptions {
    let mut options = ConvertOptions::new(source, Location::from(dst), format);
    options.durability = Durability::Cached;
    options
}

fn done(options: &ConvertOptions) -> ConvertSummary {
    convert(options, &(), &Cancel::new()).unwrap()
}

fn dataset(root: &Path) -> ConvertSource {
    ConvertSource::Dataset(Location::from(root))
}

/// Returns the formats whose records can be read in place, with the options for writing files of each.
fn formats() -> Vec<(&'static str, RecordFormat, BlockCompression)> {
    let (parquet, has_parquet) = (RecordFormat::PARQUET, cfg!(feature = "formats"));
    let all = RecordFormat::all().filter(|format| format.is_written() && format.is_read_in_place());
    let all = all.filter(|format| has_parquet || *format != parquet);
    let mut all: Vec<_> = all
        .map(|format| (format.name(), format, BlockCompression::NONE))
        .collect();
    if has_parquet {
        all.push(("parquet-snappy", parquet, Codec::SNAPPY.into()));
        all.push(("parquet-zstd", parquet, Codec::ZSTD.into()));
        all.push(("parquet-lz4", parquet, Codec::LZ4.into()));
    }
    all
}

/// Creates a dataset of images, and writes its records in each format.
fn sources(dir: &Path) -> Vec<(&'static str, ConvertSource)> {
    let packed = dir.join("packed");
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let mut packing = options(&src, &packed);
    (packing.format, packing.seek_points) = (DatasetFormat::INDEXED, None);
    packing.sharding = Sharding::Count(3);
    run(&packing).unwrap();
    let mut sources = Vec::new();
    for (name, format, compression) in formats() {
        let place = dir.join(name);
        done(&of(
            dataset(&packed),
            &place,
            OutputFormat::Records(format, compression),
        ));
        let input = Box::new(RecordInput::new(place.as_path()));
        sources.push((name, ConvertSource::Records(format, input)));
    }
    done(&of(
        dataset(&packed),
        &dir.join("tfrecord"),
        DatasetFormat::TfRecord,
    ));
    std::fs::remove_file(dir.join("tfrecord/forebay.json")).unwrap();
    std::fs::remove_dir_all(dir.join("tfrecord/index")).unwrap();
    let mut files = std::collections::BTreeMap::<String, Vec<PathBuf>>::new();
    for name in contents(&dir.join("tfrecord")).into_keys() {
        let split = name.to_str().unwrap().split('-').next().unwrap().to_owned();
        files
            .entry(split)
            .or_default()
            .push(dir.join("tfrecord").join(name));
    }
    let mut input = RecordInput::new(dir.join("tfrecord").as_path());
    input.splits = files;
    let source = ConvertSource::Records(RecordFormat::TFRECORD, Box::new(input));
    sources.push(("tfrecord", source));
    sources
}

fn is_whole(root: &Path) {
    let report = verify::verify_dataset(root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
    assert!(report.is_ok(), "{report}");
}

#[test]
fn mapped_records_equal_converted_ones() {
    let dir = tempfile::tempdir().unwrap();
    for (name, source) in sources(dir.path()) {
        for points in [
            SeekPointChange::Keep,
            SeekPointChange::Make(Default::default()),
        ] {
            let path = |what: &str| dir.path().join(format!("{name}-{what}-{points:?}"));
            let to = |what: &str, source: &ConvertSource, format: OutputFormat| {
                let mut options = of(source.clone(), &path(what), format);
                options.seek_points = points;
                done(&options)
            };
            to("mapped", &source, OutputFormat::Mapped);
            to("converted", &source, DatasetFormat::TfRecord.into());
            is_whole(&path("mapped"));
            let mapped = Manifest::load(path("mapped")).unwrap();
            let converted = Manifest::load(path("converted")).unwrap();
            assert_eq!(mapped.shard_format, ShardFormat::Mapped);
            assert_eq!(mapped.requires, ["mapped"]);
            assert_eq!(mapped.sample_fingerprint, converted.sample_fingerprint);
            assert!(mapped.sample_fingerprint.is_some(), "{name}");
            assert_eq!(mapped.order, converted.order, "{name}");
            assert_eq!(mapped.classes, converted.classes, "{name}");
            assert_eq!(mapped.features, converted.features, "{name}");
            assert_eq!(mapped.schema(), converted.schema(), "{name}");
            // Converting the mapped shards gives the same bytes.
            done(&of(
                dataset(&path("mapped")),
                &path("again"),
                DatasetFormat::TfRecord,
            ));
            let (again, expected) = (contents(&path("again")), contents(&path("converted")));
            for (file, bytes) in &expected {
                if !file.ends_with("forebay.json") {
                    assert!(again.get(file) == Some(bytes), "{name}: {file:?}");
                }
            }
            // Most bytes stay in the source.
            let bytes = |root: &Path| contents(root).values().map(|b| b.len() as u64).sum::<u64>();
            let less = bytes(&path("converted")) - bytes(&path("mapped"));
            assert!(
                less * 10 > bytes(&path("converted")) * 9,
                "{name}: only {less} bytes less"
            );
        }
    }
}

#[test]
fn the_index_does_not_depend_on_threads_or_interruptions() {
    struct StopAfter<'a>(AtomicUsize, &'a Cancel);
    impl Observer for StopAfter<'_> {
        fn shard_done(&self, _: &ShardDone) {
            if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.1.cancel();
            }
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let (src, packed, tars) = (
        dir.path().join("src"),
        dir.path().join("packed"),
        dir.path().join("tars"),
    );
    tree(&src, 3, 20);
    run(&options(&src, &packed)).unwrap();
    let records = OutputFormat::Records(RecordFormat::WEBDATASET, BlockCompression::NONE);
    let mut writing = of(dataset(&packed), &tars, records);
    writing.sharding = Some(Sharding::Count(6));
    done(&writing);
    let input = Box::new(RecordInput::new(tars.as_path()));
    let source = ConvertSource::Records(RecordFormat::WEBDATASET, input);
    let to = |name: &str, jobs| {
        let mut options = of(source.clone(), &dir.path().join(name), OutputFormat::Mapped);
        options.jobs = Some(jobs);
        options
    };
    done(&to("one", 1));
    done(&to("three", 3));
    let one = contents(&dir.path().join("one"));
    assert!(one == contents(&dir.path().join("three")));
    let cancel = Cancel::new();
    let observer = StopAfter(AtomicUsize::new(2), &cancel);
    convert(&to("stopped", 1), &observer, &cancel).unwrap_err();
    assert!(!dir.path().join("stopped/forebay.json").exists());
    let summary = done(&to("stopped", 2));
    assert!(summary.resumed_shards >= 2, "{}", summary.resumed_shards);
    assert!(one == contents(&dir.path().join("stopped")));
    assert!(done(&to("stopped", 2)).already_complete);
}

#[test]
fn unsupported_mapped_conversions_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let sources = sources(dir.path());
    let refused = |source: ConvertSource, change: &dyn Fn(&mut ConvertOptions)| {
        let mut options = of(source, &dir.path().join("out"), OutputFormat::Mapped);
        change(&mut options);
        convert(&options, &(), &Cancel::new())
            .unwrap_err()
            .to_string()
    };
    let error = refused(dataset(&dir.path().join("packed")), &|_| {});
    assert!(error.contains("a dataset already"), "{error}");
    let error = refused(sources[0].1.clone(), &|options| {
        options.sharding = Some(Sharding::Count(2));
    });
    assert!(error.contains("other shards"), "{error}");
    let error = refused(sources[0].1.clone(), &|options| {
        options.dst = Location::parse("s3://bucket/index").unwrap();
    });
    assert!(error.contains("upload the files first"), "{error}");

    let tar = std::fs::read(dir.path().join("webdataset/train-000000.tar")).unwrap();
    let packed = dir.path().join("gz");
    std::fs::create_dir(&packed).unwrap();
    let file = std::fs::File::create(packed.join("train-000000.tar.gz")).unwrap();
    let mut writer = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    std::io::Write::write_all(&mut writer, &tar).unwrap();
    writer.finish().unwrap();
    let input = Box::new(RecordInput::new(packed.as_path()));
    let source = ConvertSource::Records(RecordFormat::WEBDATASET, input);
    let error = refused(source, &|_| {});
    assert!(error.contains("train-000000.tar.gz"), "{error}");
    assert!(error.contains("compressed as a whole"), "{error}");
    assert!(!dir.path().join("out").exists());
}

#[test]
fn a_changed_source_is_detected_by_its_records() {
    let dir = tempfile::tempdir().unwrap();
    let mut sources = sources(dir.path()).into_iter();
    let (_, source) = sources.find(|(name, _)| *name == "webdataset").unwrap();
    let index = dir.path().join("index");
    done(&of(source, &index, OutputFormat::Mapped));
    let tar = dir.path().join("webdataset/train-000000.tar");
    let mut bytes = std::fs::read(&tar).unwrap();
    let jpeg = bytes.windows(3).position(|at| at == [0xff, 0xd8, 0xff]);
    bytes[jpeg.unwrap() + 200] ^= 0x40;
    std::fs::write(&tar, &bytes).unwrap();
    let report =
        verify::verify_dataset(&index, &verify::VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!(report.lost.len(), 1, "{report}");
    assert!(report.to_string().contains("train-000000.tar"), "{report}");
    // Other records can be read, and a conversion stops at the changed one.
    let converted = of(
        dataset(&index),
        &dir.path().join("out"),
        DatasetFormat::INDEXED,
    );
    let error = convert(&converted, &(), &Cancel::new()).unwrap_err();
    assert!(matches!(error, Error::Shard(_)), "{error:?}");
    assert!(error.to_string().contains("train-000000.tar"), "{error}");
    // A source of another length is refused when the dataset is opened.
    bytes.extend([0; 512]);
    std::fs::write(&tar, &bytes).unwrap();
    let opened = Dataset::open(&index).and_then(|dataset| dataset.split("train").map(drop));
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("index it again"), "{error}");
}
