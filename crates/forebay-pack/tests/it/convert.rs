//! Conversions keep records, order, keys and labels, and write the same files as a pack.

use crate::support;

use forebay_image::{SeekDensity, build_seek_points};
use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, ConvertSummary, DatasetFormat, Error, Observer, OnBad,
    ProgressiveChange, RecordFormat, RecordInput, Result, SeekPointChange, ShardDone, Sharding,
    convert,
};
use forebay_shard::checksum::crc32c;
use forebay_shard::verify::{self, verify_dataset};
use forebay_shard::{
    BlockCompression, Codec, Dataset, ExampleBuilder, ExampleView, Manifest, image_record, tfrecord,
};
use forebay_store::{Durability, Location};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use support::options as pack_options;
use support::*;

/// Packs the repository's images into three shards per split.
pub(crate) fn pictures(dst: &Path, format: DatasetFormat, seek_points: Option<SeekDensity>) {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let mut options = options(&src, dst);
    (options.format, options.seek_points) = (format, seek_points);
    options.sharding = Sharding::Count(3);
    run(&options).unwrap();
}

pub(crate) fn of(src: &Path, dst: &Path, format: DatasetFormat) -> ConvertOptions {
    let source = ConvertSource::Dataset(Location::from(src));
    let mut options = ConvertOptions::new(source, Location::from(dst), format);
    options.durability = Durability::Cached;
    options
}

pub(crate) fn done(options: &ConvertOptions) -> ConvertSummary {
    convert(options, &(), &Cancel::new()).unwrap()
}

/// Split, key, label and bytes of a record.
pub(crate) type Seen = (String, Vec<u8>, Option<i64>, Vec<u8>);

/// Returns all records of all splits, in order.
pub(crate) fn all(root: &Path) -> Vec<Seen> {
    let dataset = Dataset::open(root).unwrap();
    let names: Vec<String> = dataset.splits().map(str::to_owned).collect();
    let mut found = Vec::new();
    for name in names {
        let split = dataset.split(&name).unwrap();
        for i in 0..split.len() {
            let mut record = Vec::new();
            split.read(i, &mut record).unwrap();
            found.push((name.clone(), split.key(i).unwrap(), split.label(i), record));
        }
    }
    found
}

pub(crate) fn assert_verifies(root: &Path) {
    let report = verify_dataset(root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
    assert!(report.is_ok(), "{report}");
}

/// Returns the checksums of shards and indexes, without the manifest and the report, which depend on how they were made.
pub(crate) fn data(root: &Path) -> BTreeMap<PathBuf, u32> {
    let files = contents(root).into_iter();
    files
        .filter(|(path, _)| path != Path::new("forebay.json") && !path.starts_with("pack"))
        .map(|(path, bytes)| (path, crc32c(&bytes)))
        .collect()
}

#[test]
fn converted_formats_and_seek_points_equal_packed_ones() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let name = |format| match format {
        DatasetFormat::Indexed(BlockCompression::NONE) => "indexed".to_owned(),
        DatasetFormat::Indexed(compression) => compression.codec().to_string(),
        _ => "tfrecord".to_owned(),
    };
    let kinds: Vec<_> = DatasetFormat::all()
        .map(|format| (name(format), format))
        .collect();
    for (name, format) in &kinds {
        let format = *format;
        pictures(&at(name), format, None);
        pictures(
            &at(&format!("{name}-seek")),
            format,
            Some(SeekDensity::Auto),
        );
    }
    for (from, _) in &kinds {
        for (to, format) in &kinds {
            let dst = at(&format!("{from}-{to}"));
            let summary = done(&of(&at(from), &dst, *format));
            assert_eq!(data(&dst), data(&at(to)), "{from} to {to}");
            assert_eq!(
                summary.fingerprint,
                Manifest::load(at(to)).unwrap().fingerprint
            );
            assert_verifies(&dst);
        }
    }
    let mut make = of(&at("tfrecord"), &at("made"), DatasetFormat::INDEXED);
    make.seek_points = SeekPointChange::Make(SeekDensity::Auto);
    let summary = done(&make);
    assert!(summary.seek_points.images > 0);
    assert_eq!(data(&at("made")), data(&at("indexed-seek")));
    let features = |root: &Path| Manifest::load(root).unwrap().features;
    assert_eq!(features(&at("made")), features(&at("indexed-seek")));
    let mut remove = of(&at("made"), &at("removed"), DatasetFormat::TfRecord);
    remove.seek_points = SeekPointChange::Remove;
    assert_eq!(done(&remove).seek_points.images, 0);
    assert_eq!(data(&at("removed")), data(&at("tfrecord")));
    let manifest = Manifest::load(at("removed")).unwrap();
    assert_eq!(manifest.features, features(&at("tfrecord")));
    assert_eq!(
        manifest.classes,
        Manifest::load(at("tfrecord")).unwrap().classes
    );
    assert_eq!(manifest.pack["seek_points"], "off");
    assert_eq!(
        manifest.pack["converted_from"],
        Manifest::load(at("made")).unwrap().fingerprint.as_str()
    );
    // By default, seek points are kept.
    done(&of(&at("made"), &at("kept"), DatasetFormat::TfRecord));
    assert_eq!(data(&at("kept")), data(&at("tfrecord-seek")));
}

#[test]
fn conversions_keep_sample_fingerprint_and_epoch_order() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    pictures(&at("packed"), DatasetFormat::TfRecord, None);
    pictures(&at("packed-indexed"), DatasetFormat::INDEXED, None);
    let mut packed = Manifest::load(at("packed")).unwrap();
    assert!(packed.version == 2 && packed.sample_fingerprint.is_some());
    let splits = packed.splits.iter().map(|split| split.name.clone());
    let order = packed.order.clone().unwrap();
    assert!(order.block_records.keys().cloned().eq(splits));
    let indexed = Manifest::load(at("packed-indexed")).unwrap();
    assert_eq!(indexed.sample_fingerprint, packed.sample_fingerprint);

    let recut = |name: &str| {
        let mut options = of(
            &at("packed"),
            &at(name),
            DatasetFormat::Indexed(Codec::ZSTD.into()),
        );
        options.sharding = Some(Sharding::Count(2));
        options.seek_points = SeekPointChange::Make(SeekDensity::Fine);
        done(&options);
        assert_verifies(&at(name));
        Manifest::load(at(name)).unwrap()
    };
    let converted = recut("converted");
    assert_ne!(converted.fingerprint, packed.fingerprint);
    assert_eq!(converted.sample_fingerprint, packed.sample_fingerprint);
    assert_eq!(converted.order, packed.order);

    // Without these entries in the manifest, they are computed from the shards.
    let samples = packed.sample_fingerprint.take();
    packed.order = None;
    let path = at("packed").join("forebay.json");
    std::fs::write(&path, packed.to_json().unwrap()).unwrap();
    let converted = recut("without samples and order");
    assert_eq!(converted.sample_fingerprint, samples);
    assert_eq!(converted.order, Some(order.clone()));

    // An order that does not follow from the sizes of records is kept too.
    let mut other = order;
    other
        .block_records
        .values_mut()
        .for_each(|block| *block = 2);
    packed.order = Some(other);
    std::fs::write(&path, packed.to_json().unwrap()).unwrap();
    assert_eq!(recut("of another order").order, packed.order);
}

#[test]
fn verify_compares_the_sample_fingerprint_with_the_indexes() {
    let dir = tempfile::tempdir().unwrap();
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let root = dir.path().join(format!("{format:?}"));
        pictures(&root, format, None);
        assert_verifies(&root);
        let mut manifest = Manifest::load(&root).unwrap();
        manifest.sample_fingerprint = Some("0".repeat(32));
        std::fs::write(root.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
        let report = verify_dataset(&root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
        assert_eq!(report.findings.len(), 1, "{report}");
        assert!(
            report.findings[0]
                .what
                .starts_with("sample_fingerprint, against"),
            "{report}"
        );
    }
}

#[test]
fn new_shard_sizes_keep_records_for_any_number_of_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let (src, packed) = (dir.path().join("src"), dir.path().join("packed"));
    tree(&src, 4, 25);
    let mut options = options(&src, &packed);
    options.sharding = Sharding::Count(7);
    run(&options).unwrap();
    let before = all(&packed);
    for sharding in [
        Sharding::Count(1),
        Sharding::Count(3),
        Sharding::Count(11),
        Sharding::Bytes(5000),
        Sharding::Bytes(1 << 40),
    ] {
        let mut outputs = Vec::new();
        for jobs in [1, 4] {
            let dst = dir.path().join(format!("{sharding:?}-{jobs}"));
            let mut options = of(&packed, &dst, DatasetFormat::INDEXED);
            (options.sharding, options.jobs) = (Some(sharding), Some(jobs));
            let summary = done(&options);
            let shards = summary.splits[0].shards;
            match sharding {
                Sharding::Count(count) => assert_eq!(shards, u64::from(count)),
                Sharding::Bytes(5000) => assert!(shards > 3),
                Sharding::Bytes(_) => assert_eq!(shards, 1),
            }
            assert_eq!(all(&dst), before);
            assert_verifies(&dst);
            outputs.push(dst);
        }
        assert_same(&outputs[0], &outputs[1]);
    }
}

/// Writes TFRecords like other tools: without manifest and index, with features in any order, and with records without images.
fn foreign(root: &Path) -> Vec<Vec<u8>> {
    std::fs::create_dir_all(root).unwrap();
    let picture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images/train");
    let class = std::fs::read_dir(picture)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let picture = std::fs::read_dir(class)
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let jpeg = std::fs::read(picture).unwrap();
    let mut records = Vec::new();
    for i in 0..9i64 {
        let name = format!("picture {i}");
        let mut example = ExampleBuilder::new();
        example.add_int64("image/class/label", i % 3);
        example.add_bytes("image/filename", name.as_bytes());
        example.add_floats("zebra", &[1.5; 3]);
        match i {
            3 => drop(example.add_bytes("image/encoded", b"no JPEG")),
            4 => {}
            _ => drop(example.add_bytes("image/encoded", &jpeg)),
        }
        records.push(example.to_vec());
    }
    records.push(b"\xff no Example".to_vec());
    for (number, records) in records.chunks(5).enumerate() {
        let path = root.join(format!("train-{number:05}-of-00002"));
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = tfrecord::WriterBuilder::new().from_writer(file, &path);
        for record in records {
            writer.write(record).unwrap();
        }
        writer.finish().unwrap();
    }
    records
}

#[test]
fn records_of_other_tools_are_converted_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("foreign");
    let records = foreign(&root);
    let paths = (0..2)
        .map(|i| root.join(format!("train-{i:05}-of-00002")))
        .collect();
    let mut input = RecordInput::new(root.as_path());
    input.splits = BTreeMap::from([("train".to_owned(), paths)]);
    input.features.label_base = Some(0);
    let source = |input: &RecordInput| {
        ConvertSource::Records(RecordFormat::TFRECORD, Box::new(input.clone()))
    };
    // Loaders cannot read records without images, so such records are refused unless requested. With one thread, the error
    // names the first of them.
    let mut refused = of(&root, &dir.path().join("refused"), DatasetFormat::INDEXED);
    (refused.src, refused.jobs) = (source(&input), Some(1));
    refused.on_bad = OnBad::Fail;
    let error = convert(&refused, &(), &Cancel::new())
        .unwrap_err()
        .to_string();
    let said = "record 3: its 7 bytes are no image";
    assert!(
        error.contains("train-00000-of-00002") && error.contains(said),
        "{error}"
    );
    // With `Skip`, records without images are left out, each with its reason.
    let mut skipping = of(&root, &dir.path().join("skipped"), DatasetFormat::INDEXED);
    skipping.src = source(&input);
    skipping.on_bad = OnBad::Skip;
    let summary = convert(&skipping, &(), &Cancel::new()).unwrap();
    assert_eq!(summary.skipped(), 3);
    let report = std::fs::read_to_string(dir.path().join("skipped/pack/report.jsonl")).unwrap();
    let features = "record 4: feature image/encoded is missing; its features are image/class/label (int64), image/filename (bytes), zebra (float)";
    assert!(report.contains(features), "{report}");
    assert!(!dir.path().join("refused/forebay.json").exists());
    // With `without_images`, a record may lack an image, but an invalid image is still refused.
    input.features.without_images = true;
    let source = source(&input);
    let kept: Vec<_> = (0..10).filter(|i| *i != 3).collect();
    let convert_to = |name: &str, change| {
        let dst = dir.path().join(name);
        let mut options = ConvertOptions::new(
            source.clone(),
            Location::from(dst.as_path()),
            DatasetFormat::INDEXED,
        );
        (options.seek_points, options.durability) = (change, Durability::Cached);
        let summary = done(&options);
        assert_verifies(&dst);
        (all(&dst), summary, Manifest::load(&dst).unwrap())
    };
    let (found, _, manifest) = convert_to("plain", SeekPointChange::Keep);
    assert_eq!((manifest.label_base, manifest.splits.len()), (0, 1));
    let names: Vec<_> = manifest
        .features
        .iter()
        .map(|f| (f.name.as_str(), f.shape.len()))
        .collect();
    assert!(
        names.contains(&("zebra", 1)) && names.contains(&("image/encoded", 0)),
        "{names:?}"
    );
    assert_eq!(found.len(), kept.len());
    for (i, (_, key, label, record)) in kept.iter().copied().zip(&found) {
        assert!(*record == records[i], "{i}");
        if i < 9 {
            assert_eq!(key, format!("picture {i}").as_bytes());
            assert_eq!(*label, Some(i as i64 % 3));
        } else {
            assert_eq!((key.len(), *label), (0, None));
        }
    }
    let (found, summary, manifest) = convert_to("points", SeekPointChange::Make(SeekDensity::Rows));
    assert_eq!(summary.seek_points.images, 7);
    assert!(
        manifest
            .features
            .iter()
            .any(|f| f.name == "image/seek_points")
    );
    for (i, (.., record)) in kept.iter().copied().zip(&found) {
        let (Ok(new), Ok(old)) = (ExampleView::parse(record), ExampleView::parse(&records[i]))
        else {
            assert_eq!((i, record), (9, &records[i]));
            continue;
        };
        let points = new.bytes("image/seek_points").unwrap().map(<[u8]>::to_vec);
        let image = old.bytes("image/encoded").unwrap();
        assert_eq!(points, image.and_then(build_seek_points));
        for feature in old.iter() {
            let name = feature.name();
            assert_eq!(new.get(name).unwrap().kind(), feature.kind());
            assert_eq!(new.bytes(name).ok(), old.bytes(name).ok());
            assert_eq!(new.int64(name).ok(), old.int64(name).ok());
        }
        assert_eq!(
            new.iter().count(),
            old.iter().count() + usize::from(points.is_some())
        );
    }
}

/// Writes progressive versions of the repository's images, and one baseline image.
pub(crate) fn progressive_pictures(src: &Path) {
    use libjpeg_turbo_rs::{read_coefficients, write_coefficients_progressive};
    let pictures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images/val");
    let mut number = 0;
    for (path, bytes) in contents(&pictures) {
        if !bytes.starts_with(&[0xff, 0xd8]) {
            continue;
        }
        let coefficients = read_coefficients(&bytes).unwrap();
        let bytes = match number {
            0 => bytes,
            _ => write_coefficients_progressive(&coefficients, None).unwrap(),
        };
        let name = path.file_name().unwrap().as_encoded_bytes();
        put(src, &[b"class/", name].concat(), &bytes);
        number += 1;
    }
    assert!(number > 3);
}

#[test]
fn progressive_images_become_baseline_and_are_restored() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    progressive_pictures(&at("src"));
    run(&pack_options(&at("src"), &at("packed"))).unwrap();
    let records = all(&at("packed")).len() as u64;
    let mut options = of(&at("packed"), &at("baseline"), DatasetFormat::INDEXED);
    options.progressive = ProgressiveChange::Baseline;
    options.seek_points = SeekPointChange::Make(SeekDensity::Auto);
    let summary = done(&options);
    assert_eq!(
        (summary.progressive.changed, summary.progressive.left),
        (records - 1, 0)
    );
    assert!(
        summary.seek_points.images > 1,
        "progressive ones can have none"
    );
    let listed = |root: &Path, name: &str| {
        let features = Manifest::load(root).unwrap().features;
        features.iter().any(|feature| feature.name == name)
    };
    assert!(listed(&at("baseline"), "image/progressive"));
    let limits = forebay_image::Limits::default();
    let mut decoder = forebay_image::Decoder::new(limits);
    for (old, new) in all(&at("packed")).iter().zip(&all(&at("baseline"))) {
        let [old, new] = [old, new].map(|seen| image_record(&seen.3).unwrap().image);
        assert!(!forebay_image::probe(new, &limits).unwrap().progressive);
        assert_eq!(decoder.decode(old), decoder.decode(new));
    }
    // An export restores the original files.
    let export = forebay_pack::ExportOptions::new(at("baseline").as_path(), at("out").as_path());
    forebay_pack::export(&export, &(), &Cancel::new()).unwrap();
    for (path, bytes) in contents(&at("src")) {
        assert!(
            std::fs::read(at("out").join(&path)).unwrap() == bytes,
            "{path:?}"
        );
    }
    // Packing with this option gives the same records.
    let mut direct = pack_options(&at("src"), &at("direct"));
    (direct.format, direct.progressive_to_baseline) = (DatasetFormat::INDEXED, true);
    let packed = run(&direct).unwrap();
    assert_eq!(
        (packed.progressive, packed.seek_points),
        (summary.progressive, summary.seek_points)
    );
    assert_eq!(data(&at("direct")), data(&at("baseline")));
    // Converting back restores the original images.
    let mut options = of(&at("baseline"), &at("back"), DatasetFormat::TfRecord);
    options.progressive = ProgressiveChange::Original;
    options.seek_points = SeekPointChange::Make(SeekDensity::Auto);
    done(&options);
    assert_eq!(data(&at("back")), data(&at("packed")));
    assert!(!listed(&at("back"), "image/progressive"));
    // Seek points of the baseline image are removed with it.
    options.dst = Location::from(at("kept").as_path());
    options.seek_points = SeekPointChange::Keep;
    let summary = done(&options);
    assert_eq!(summary.seek_points.images, 1);
    assert_eq!(data(&at("kept")), data(&at("packed")));
}

/// Cancels after a number of shards.
pub(crate) struct StopAfter<'a>(pub(crate) AtomicUsize, pub(crate) &'a Cancel);

impl Observer for StopAfter<'_> {
    fn shard_done(&self, _: &ShardDone) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.1.cancel();
        }
    }
}

#[test]
fn an_interrupted_conversion_continues() {
    let dir = tempfile::tempdir().unwrap();
    let (src, packed) = (dir.path().join("src"), dir.path().join("packed"));
    tree(&src, 3, 20);
    run(&options(&src, &packed)).unwrap();
    let to = |name: &str| {
        let mut options = of(&packed, &dir.path().join(name), DatasetFormat::INDEXED);
        (options.sharding, options.jobs) = (Some(Sharding::Count(6)), Some(1));
        options
    };
    done(&to("whole"));
    let interrupted = to("interrupted");
    let cancel = Cancel::new();
    let result: Result<_> = convert(
        &interrupted,
        &StopAfter(AtomicUsize::new(2), &cancel),
        &cancel,
    );
    let Err(Error::Interrupted { finished, total: 6 }) = result else {
        panic!("{result:?}");
    };
    assert!((2..6).contains(&finished), "{finished}");
    let root = dir.path().join("interrupted");
    assert!(!root.join("forebay.json").exists());
    // A conversion with other options does not continue it.
    let mut other = interrupted.clone();
    other.blake3 = true;
    let refused = convert(&other, &(), &Cancel::new()).unwrap_err();
    assert!(refused.to_string().contains("blake3"), "{refused}");
    let summary = done(&interrupted);
    assert_eq!(summary.resumed_shards, finished);
    assert_same(&root, &dir.path().join("whole"));
    let again = done(&interrupted);
    assert!(again.already_complete);
    assert_eq!(again.fingerprint, summary.fingerprint);
    // Nor does it replace it without `overwrite`.
    other.sharding = Some(Sharding::Count(2));
    convert(&other, &(), &Cancel::new()).unwrap_err();
    other.overwrite = true;
    assert_eq!(done(&other).splits[0].shards, 2);
}

#[test]
fn a_damaged_source_is_an_error_and_leaves_no_dataset() {
    let dir = tempfile::tempdir().unwrap();
    let (src, packed, dst) = (
        dir.path().join("src"),
        dir.path().join("packed"),
        dir.path().join("dst"),
    );
    tree(&src, 2, 20);
    run(&options(&src, &packed)).unwrap();
    let shard = packed.join("train-00000-of-00004");
    let mut bytes = std::fs::read(&shard).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&shard, bytes).unwrap();
    let error = convert(
        &of(&packed, &dst, DatasetFormat::INDEXED),
        &(),
        &Cancel::new(),
    )
    .unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("train-00000-of-00004") && text.contains("record"),
        "{text}"
    );
    assert!(!dst.join("forebay.json").exists());
    // A dataset cannot be converted into its own directory.
    let error = convert(
        &of(&packed, &packed.join("x"), DatasetFormat::INDEXED),
        &(),
        &Cancel::new(),
    );
    assert!(matches!(error, Err(Error::Destination { .. })), "{error:?}");
}

/// Converts a directory of another tool's format, leaving out records that cannot be read.
fn convert_readable(format: RecordFormat, src: &Path, dst: &Path) -> Result<ConvertSummary> {
    let source = ConvertSource::Records(format, Box::new(RecordInput::new(src)));
    let format = DatasetFormat::INDEXED;
    let mut options = ConvertOptions::new(source, Location::from(dst), format);
    options.on_bad = OnBad::Skip;
    convert(&options, &(), &Cancel::new())
}

#[test]
fn splits_without_a_readable_record_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    std::fs::create_dir(&src).unwrap();
    std::fs::write(src.join("metadata.csv"), "file_name\na.jpg\n").unwrap();
    std::fs::write(src.join("a.jpg"), "hello").unwrap();
    let dst = dir.path().join("dst");
    let converted = convert_readable(RecordFormat::IMAGE_LIST, &src, &dst);
    let error = converted.unwrap_err().to_string();
    let said = "none of the 1 records of the split \"train\" can be read";
    assert!(error.contains(said) && error.contains("a.jpg"), "{error}");
    assert!(!dst.join("forebay.json").exists());
}

#[test]
fn scaled_boxes_are_in_the_report() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images/train");
    // The image has 400 x 300 pixels.
    let image = root.join("n09193705/n09193705_11.JPEG");
    for name in ["JPEGImages", "Annotations"] {
        std::fs::create_dir_all(src.join(name)).unwrap();
    }
    std::fs::copy(image, src.join("JPEGImages/1.jpg")).unwrap();
    let bounds = "<xmin>0</xmin><ymin>0</ymin><xmax>20</xmax><ymax>15</ymax>";
    let object = format!("<object><name>cat</name><bndbox>{bounds}</bndbox></object>");
    let size = "<size><width>200</width><height>150</height></size>";
    let xml = format!("<annotation>{size}{object}</annotation>");
    std::fs::write(src.join("Annotations/1.xml"), xml).unwrap();
    let dst = dir.path().join("dst");
    let summary = convert_readable(RecordFormat::VOC, &src, &dst).unwrap();
    assert_eq!(summary.skipped(), 0);
    let note = "of another size than their image, scaled: 1";
    assert!(
        summary.notes.iter().any(|said| said.contains(note)),
        "{:?}",
        summary.notes
    );
    let report = std::fs::read_to_string(dst.join("pack/report.jsonl")).unwrap();
    assert!(report.contains("\"reason\":\"scaled-boxes\""), "{report}");
}
