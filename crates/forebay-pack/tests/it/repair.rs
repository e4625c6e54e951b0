//! Repairs keep intact records, list lost ones, and write a complete dataset.

use crate::support;

use forebay_pack::{
    Cancel, DatasetFormat, Error, Observer, RepairOptions, RepairSummary, ShardDone, repair,
};
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{FILE_NAME, ShardEntry, SplitEntry};
use forebay_shard::verify::{self, verify_dataset};
use forebay_shard::{
    BlockCompression, Codec, Dataset, ExampleBuilder, Manifest, RecordMeta, ShardFormat,
    ShardWriter, indexed, tfrecord,
};
use forebay_store::{Durability, Location};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use support::*;

fn of(src: &Path, dst: &Path) -> RepairOptions {
    let mut options = RepairOptions::new(Location::from(src), Location::from(dst));
    options.convert.durability = Durability::Cached;
    options
}

fn repaired(src: &Path, dst: &Path) -> RepairSummary {
    let summary = repair(&of(src, dst), &(), &Cancel::new()).unwrap();
    let report = verify_dataset(dst, &verify::VerifyOptions::default(), &|_| {}).unwrap();
    assert!(report.is_ok(), "{report}");
    summary
}

/// Packs classes of images into four shards.
fn packed(dir: &Path, format: DatasetFormat) -> PathBuf {
    let (src, dst) = (dir.join("src"), dir.join("packed"));
    tree(&src, 3, 20);
    let mut options = options(&src, &dst);
    options.format = format;
    run(&options).unwrap();
    dst
}

fn shard(root: &Path, number: usize) -> PathBuf {
    let manifest = Manifest::load(root).unwrap();
    root.join(&manifest.splits[0].shards[number].name)
}

/// Returns key, label and bytes of every record of the split `train`, in order.
fn all(root: &Path) -> Vec<(Vec<u8>, Option<i64>, Vec<u8>)> {
    let split = Dataset::open(root).unwrap().split("train").unwrap();
    let record = |i| {
        let mut record = Vec::new();
        split.read(i, &mut record).unwrap();
        (split.key(i).unwrap(), split.label(i), record)
    };
    (0..split.len()).map(record).collect()
}

/// Returns shards and indexes.
fn data(root: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = contents(root).into_iter();
    files
        .filter(|(path, _)| path != Path::new(FILE_NAME))
        .collect()
}

fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).unwrap();
    change(&mut bytes);
    std::fs::write(path, bytes).unwrap();
}

/// Returns the numbers of lost records in the report, by shard.
fn reported(root: &Path) -> BTreeMap<String, BTreeSet<u64>> {
    let text = std::fs::read_to_string(root.join("pack/report.jsonl")).unwrap();
    let mut lost: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        if line["action"] == "lost" {
            let shard = Path::new(line["shard"].as_str().unwrap());
            let shard = shard.file_name().unwrap().to_str().unwrap().to_owned();
            let first = line["record"].as_u64().unwrap();
            let records = first..first + line["records"].as_u64().unwrap();
            assert!(line["offset"].is_u64() && line["bytes"].is_u64(), "{line}");
            lost.entry(shard).or_default().extend(records);
        } else {
            assert_eq!(line["action"], "damaged");
            assert!(line["what"].is_string(), "{line}");
        }
    }
    lost
}

#[test]
fn an_intact_dataset_loses_nothing() {
    for format in DatasetFormat::all() {
        let dir = tempfile::tempdir().unwrap();
        let src = packed(dir.path(), format);
        let dst = dir.path().join("repaired");
        let summary = repaired(&src, &dst);
        assert_eq!(
            (summary.lost_records, summary.lost_places, summary.damage),
            (0, 0, 0)
        );
        assert!(summary.notes.is_empty() && summary.report.is_none());
        assert_eq!(data(&dst), data(&src), "{format:?}");
        let (before, after) = (Manifest::load(&src).unwrap(), Manifest::load(&dst).unwrap());
        assert_eq!(after.fingerprint, before.fingerprint);
        assert_eq!(after.sample_fingerprint, before.sample_fingerprint);
        assert_eq!((after.order, after.classes), (before.order, before.classes));
        assert_eq!(after.features, before.features);
    }
}

/// Writes one shard of 64 MiB.
fn large(root: &Path, format: ShardFormat, codec: Codec) -> PathBuf {
    std::fs::create_dir_all(root.join("index")).unwrap();
    let path = root.join(format!("train-00000-of-00001{}", format.extension()));
    let mut writer: ShardWriter<Vec<u8>> = match format {
        ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(vec![], &path),
        ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
        ShardFormat::Indexed => {
            let mut builder = indexed::WriterBuilder::new();
            builder
                .compression(codec)
                .from_writer(vec![], &path)
                .unwrap()
        }
    };
    // Computed once, so that every codec gets the same records.
    static NOISE: LazyLock<Vec<u8>> = LazyLock::new(|| noise(1, 4300 * 20_000));
    for (i, room) in (0u64..).zip(NOISE.chunks_exact(20_000)) {
        let mut record = room[..12_000 + (i as usize * 7919) % 8000].to_vec();
        record[..200].fill(0);
        writer
            .append(&record, &RecordMeta::new(1, format!("k/{i}").as_bytes()))
            .unwrap();
    }
    let (bytes, summary) = writer.finish().unwrap();
    assert!(bytes.len() > 64 << 20, "{}", bytes.len());
    std::fs::write(&path, &bytes).unwrap();
    if let Some(fbi) = summary.to_fbi().filter(|_| format == ShardFormat::TfRecord) {
        std::fs::write(root.join("index/train-00000-of-00001.fbi"), fbi).unwrap();
    }
    let entry = ShardEntry {
        name: path.file_name().unwrap().to_str().unwrap().to_owned(),
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let mut manifest = Manifest::new(format, 1, vec![SplitEntry::new("train", vec![entry])]);
    let compression = BlockCompression::from(codec).to_string();
    manifest.pack.insert("codec".to_owned(), compression.into());
    std::fs::write(root.join(FILE_NAME), manifest.to_json().unwrap()).unwrap();
    path
}

#[test]
fn zeroed_64_kib_of_64_mib_lose_exactly_what_verify_lists() {
    let indexed = Codec::all().map(|codec| (ShardFormat::Indexed, codec));
    let all_formats = std::iter::once((ShardFormat::TfRecord, Codec::NONE)).chain(indexed);
    // The first three: records without a codec in both formats, and one codec.
    let number = match forebay_rigs::is_full_test() {
        true => usize::MAX,
        false => 3,
    };
    for (format, codec) in all_formats.take(number) {
        let dir = tempfile::tempdir().unwrap();
        let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
        let path = large(&src, format, codec);
        let before = all(&src);
        change(&path, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle..middle + 65_536].fill(0);
        });
        let report = verify_dataset(&src, &verify::VerifyOptions::default(), &|_| {}).unwrap();
        let listed: BTreeSet<u64> = report
            .lost
            .iter()
            .flat_map(|lost| lost.records.clone().unwrap())
            .collect();
        let readable = |i: u64| {
            let split = Dataset::open(&src).unwrap().split("train").unwrap();
            split.read(i, &mut Vec::new()).is_ok()
        };
        let (first, last) = (*listed.first().unwrap(), *listed.last().unwrap());
        assert!(listed.iter().all(|&i| !readable(i)), "{report}");
        assert!(readable(first - 1) && readable(last + 1), "{report}");
        assert!(
            (4..=40).contains(&listed.len()),
            "{format} {codec}: {}",
            listed.len()
        );

        let summary = repaired(&src, &dst);
        assert_eq!(summary.lost_records, listed.len() as u64);
        assert_eq!(
            reported(&dst).into_values().collect::<Vec<_>>(),
            std::slice::from_ref(&listed)
        );
        let kept: Vec<_> = (0..)
            .zip(before)
            .filter(|(i, _)| !listed.contains(i))
            .map(|(_, record)| record)
            .collect();
        assert!(all(&dst) == kept, "{format} {codec}");
        let manifest = Manifest::load(&dst).unwrap();
        assert_eq!(manifest.pack["lost_records"], listed.len() as u64);
    }
}

/// Damages a packed dataset and repairs it. Returns the original positions of the surviving records, and whether
/// the sample fingerprint is unchanged.
fn survivors(
    format: DatasetFormat,
    damage: impl Fn(&Path, &Path),
) -> (RepairSummary, Vec<u64>, bool) {
    let dir = tempfile::tempdir().unwrap();
    let src = packed(dir.path(), format);
    let (before, samples) = (all(&src), Manifest::load(&src).unwrap().sample_fingerprint);
    let name = shard(&src, 1);
    damage(&src, &name);
    let dst = dir.path().join("repaired");
    let summary = repaired(&src, &dst);
    let after = all(&dst);
    let find = |record| {
        before
            .iter()
            .position(|known| known == record)
            .map(|at| at as u64)
    };
    let places: Option<Vec<u64>> = after.iter().map(find).collect();
    let places = places.expect("labels, keys and bytes of all records are those from before");
    assert!(places.is_sorted());
    assert_eq!(summary.lost_records, (before.len() - after.len()) as u64);
    let same = Manifest::load(&dst).unwrap().sample_fingerprint == samples;
    (summary, places, same)
}

#[test]
fn damaged_indexes_lose_no_record() {
    for format in DatasetFormat::all().filter(|&format| format != DatasetFormat::TfRecord) {
        let (summary, _, same) = survivors(format, |_, shard| {
            change(shard, |bytes| {
                let end = bytes.len();
                bytes[end - 100..].fill(0xff);
            });
        });
        assert!(
            same && summary.damage > 0 && summary.lost_places == 0,
            "{summary:?}"
        );
    }
    type Damage = fn(&Path);
    let damages: [Damage; 3] = [
        |sidecar| change(sidecar, |bytes| bytes[100] ^= 1),
        |sidecar| std::fs::remove_file(sidecar).unwrap(),
        // The index of another shard.
        |sidecar| {
            let other = sidecar.with_file_name("train-00000-of-00004.fbi");
            std::fs::copy(other, sidecar).map(drop).unwrap();
        },
    ];
    for damage in damages {
        let (summary, _, same) = survivors(DatasetFormat::TfRecord, |root, shard| {
            let name = shard.file_name().unwrap().to_str().unwrap();
            damage(&root.join("index").join(format!("{name}.fbi")));
        });
        assert!(same && summary.lost_places == 0, "{summary:?}");
    }
}

#[test]
fn without_an_index_damage_costs_only_the_damaged_piece() {
    // Damages the index and a record in the middle.
    let (summary, places, _) = survivors(DatasetFormat::INDEXED, |_, shard| {
        change(shard, |bytes| {
            let (middle, end) = (bytes.len() / 3, bytes.len());
            bytes[middle] ^= 1;
            bytes[end - 100..].fill(0xff);
        });
    });
    assert_eq!((places.len(), summary.lost_records), (59, 1));
    // Damages the header of the only block as well, so that its frames cannot be found.
    let (summary, places, _) = survivors(DatasetFormat::Indexed(Codec::ZSTD.into()), |_, shard| {
        change(shard, |bytes| {
            let end = bytes.len();
            bytes[64..128].fill(0);
            bytes[end - 100..].fill(0xff);
        });
    });
    assert_eq!((places.len(), summary.lost_records), (45, 15));
}

#[test]
fn truncated_or_missing_shards_lose_only_missing_records() {
    for format in DatasetFormat::all() {
        let (summary, places, _) =
            survivors(format, |_, shard| std::fs::remove_file(shard).unwrap());
        assert_eq!((places.len(), summary.lost_records), (45, 15));
        assert_eq!(summary.lost[0].records, Some(0..15));
    }
    for format in [DatasetFormat::TfRecord, DatasetFormat::INDEXED] {
        let (summary, places, _) = survivors(format, |_, shard| {
            change(shard, |bytes| bytes.truncate(bytes.len() / 2))
        });
        assert!((1..15).contains(&summary.lost_records), "{summary:?}");
        assert!(places.len() > 45, "{summary:?}");
    }
    // Truncated between two records, where a TFRecord is still valid.
    let (summary, _, _) = survivors(DatasetFormat::TfRecord, |root, shard| {
        let name = shard.file_name().unwrap().to_str().unwrap();
        let index = root.join("index").join(format!("{name}.idx"));
        let text = std::fs::read_to_string(index).unwrap();
        let (offset, _) = text.lines().last().unwrap().split_once(' ').unwrap();
        change(shard, |bytes| bytes.truncate(offset.parse().unwrap()));
        std::fs::remove_dir_all(root.join("index")).unwrap();
    });
    assert_eq!(summary.lost_records, 1);
    assert_eq!(summary.lost[0].records, Some(14..15));
}

#[test]
fn a_damaged_manifest_is_rebuilt() {
    for format in DatasetFormat::all() {
        let dir = tempfile::tempdir().unwrap();
        let src = packed(dir.path(), format);
        let whole = Manifest::load(&src).unwrap();
        let path = src.join(FILE_NAME);
        let json = std::fs::read_to_string(&path).unwrap();
        // If the fingerprint is correct, shards and names of classes are too.
        std::fs::write(&path, json.replace("image/height", "image/heighs")).unwrap();
        let dst = dir.path().join("by fingerprint");
        let summary = repaired(&src, &dst);
        let manifest = Manifest::load(&dst).unwrap();
        assert_eq!(
            (summary.lost_places, manifest.classes),
            (0, whole.classes.clone())
        );
        assert!(
            summary.notes.concat().contains("not recovered"),
            "{:?}",
            summary.notes
        );
        assert_eq!(manifest.sample_fingerprint, whole.sample_fingerprint);
        assert_eq!(manifest.features, whole.features);
        assert_eq!(data(&dst), data(&src));
        // Otherwise the names of files are used, or there is no manifest at all.
        for text in [Some(&json[..200]), Some(""), None] {
            match text {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            let dst = dir.path().join(format!("{:?}", text.map(str::len)));
            let summary = repaired(&src, &dst);
            let notes = summary.notes.concat();
            assert!(notes.contains("names and texts of classes"), "{notes}");
            let manifest = Manifest::load(&dst).unwrap();
            assert_eq!((summary.lost_places, manifest.classes.len()), (0, 0));
            assert_eq!(manifest.sample_fingerprint, whole.sample_fingerprint);
            assert_eq!(manifest.order, whole.order);
            assert_eq!(data(&dst), data(&src), "{format:?}");
        }
    }
}

/// Every changed byte of the manifest is detected, and the repaired dataset contains all samples.
#[test]
fn any_changed_byte_of_the_manifest_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let src = packed(dir.path(), DatasetFormat::INDEXED);
    let path = src.join(FILE_NAME);
    let json = std::fs::read(&path).unwrap();
    let samples = Manifest::load(&src).unwrap().sample_fingerprint;
    for at in (0..json.len()).step_by(97) {
        let mut changed = json.clone();
        changed[at] ^= 0x04;
        std::fs::write(&path, &changed).unwrap();
        verify_dataset(&src, &verify::VerifyOptions::default(), &|_| {}).unwrap_err();
        let dst = dir.path().join(at.to_string());
        match repair(&of(&src, &dst), &(), &Cancel::new()) {
            Ok(summary) => {
                let manifest = Manifest::load(&dst).unwrap();
                assert_eq!(manifest.sample_fingerprint, samples, "byte {at}");
                assert!(
                    summary.lost_places == 0 && !summary.notes.is_empty(),
                    "byte {at}"
                );
            }
            // A newer version cannot be distinguished from a damaged version number.
            Err(error) => assert!(error.to_string().contains("version"), "byte {at}: {error}"),
        }
    }
}

/// Records have image, label and key in features with other names, and there is no index.
#[test]
fn features_of_other_names_are_kept_or_detected() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    std::fs::create_dir_all(&src).unwrap();
    let path = src.join("train-00000-of-00001");
    let mut writer: ShardWriter<Vec<u8>> =
        tfrecord::WriterBuilder::new().from_writer(vec![], &path);
    for i in 0..9 {
        let name = format!("name {i}");
        let mut example = ExampleBuilder::new();
        example.add_bytes("image", b"\xff\xd8\xff\xe0 a JPEG");
        example.add_int64("label", i % 3);
        example.add_bytes("file_name", name.as_bytes());
        writer
            .append(&example.to_vec(), &RecordMeta::new(i % 3, b""))
            .unwrap();
    }
    let (bytes, summary) = writer.finish().unwrap();
    std::fs::write(&path, &bytes).unwrap();
    let entry = ShardEntry {
        name: "train-00000-of-00001".to_owned(),
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let splits = vec![SplitEntry::new("train", vec![entry])];
    let mut manifest = Manifest::new(ShardFormat::TfRecord, 0, splits);
    manifest.record_features = RecordFeatures {
        image: "image".to_owned(),
        label: "label".to_owned(),
        first_of_several: false,
    };
    manifest
        .pack
        .insert("key_feature".to_owned(), "file_name".into());
    let json = manifest.to_json().unwrap();
    // The manifest is intact, damaged with a correct fingerprint, or lost.
    let changed = json.replace("file_name", "file_nama");
    for (name, text) in [("whole", &json[..]), ("changed", &changed), ("lost", "")] {
        std::fs::write(src.join(FILE_NAME), text).unwrap();
        let dst = dir.path().join(name);
        let mut options = of(&src, &dst);
        options.label_base = 0;
        let summary = repair(&options, &(), &Cancel::new()).unwrap();
        let report = verify_dataset(&dst, &verify::VerifyOptions::default(), &|_| {}).unwrap();
        assert!(report.is_ok() && summary.lost_places == 0, "{report}");
        let repaired = Manifest::load(&dst).unwrap();
        assert_eq!(repaired.record_features, manifest.record_features, "{name}");
        assert_eq!(repaired.requires, ["record-features"], "{name}");
        assert_eq!(repaired.label_base, 0);
        for (i, (key, label, _)) in (0..).zip(all(&dst)) {
            assert_eq!(key, format!("name {i}").as_bytes(), "{name}");
            assert_eq!(label, Some(i % 3), "{name}");
        }
    }
}

/// Cancels after a number of shards.
struct StopAfter<'a>(AtomicUsize, &'a Cancel);

impl Observer for StopAfter<'_> {
    fn shard_done(&self, _: &ShardDone) {
        if self.0.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.1.cancel();
        }
    }
}

fn damage_record(shard: &Path, within: Range<usize>) {
    change(shard, |bytes| {
        for byte in &mut bytes[within] {
            *byte = !*byte;
        }
    });
}

#[test]
fn an_interrupted_repair_continues_and_reports_all_losses() {
    let dir = tempfile::tempdir().unwrap();
    let src = packed(dir.path(), DatasetFormat::TfRecord);
    for number in 0..4 {
        damage_record(&shard(&src, number), 1000..1010);
    }
    let whole = dir.path().join("whole");
    assert_eq!(repaired(&src, &whole).lost_records, 4);
    let dst = dir.path().join("interrupted");
    let mut options = of(&src, &dst);
    options.convert.jobs = Some(1);
    let cancel = Cancel::new();
    let stopped = repair(&options, &StopAfter(AtomicUsize::new(2), &cancel), &cancel);
    let Err(Error::Interrupted { finished, total: 4 }) = stopped else {
        panic!("{stopped:?}");
    };
    // On a slow disk, all shards are written before the second one is durable.
    assert!((2..=4).contains(&finished), "{finished}");
    assert!(!dst.join(FILE_NAME).exists());
    let summary = repaired(&src, &dst);
    assert_eq!(
        (summary.converted.resumed_shards, summary.lost_records),
        (finished, 4)
    );
    assert_same(&dst, &whole);
    let again = repaired(&src, &dst);
    assert!(again.converted.already_complete);
    assert_eq!((again.lost_records, again.lost.len()), (4, 4));
    // A repair does not continue that of another source, and does not write into its source.
    damage_record(&shard(&src, 0), 2000..2001);
    repair(&options, &(), &Cancel::new()).unwrap_err();
    repair(&of(&src, &src.join("x")), &(), &Cancel::new()).unwrap_err();
}
