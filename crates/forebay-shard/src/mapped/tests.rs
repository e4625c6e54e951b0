use std::fs;
use std::io::IoSliceMut;
use std::ops::Range;

use proptest::prelude::*;

use super::*;
use crate::index::Map;
use crate::manifest::{Manifest, MappedFrom, ShardEntry, SplitEntry};
use crate::{Codec, Dataset, RecordBlock, RecordMeta, Shard, ShardFormat, tfrecord, verify};

/// The parts of a record: their bytes, and for a part in the source the gap before it
/// there.
type Parts = Vec<(Vec<u8>, Option<u64>)>;

/// A record, and the parts of it that are in the source.
type Mapped = (Vec<u8>, Vec<Extent>);

/// Writes a dataset of one mapped shard. Returns its path, and the bytes of a TFRecord with the same records.
fn dataset(root: &Path, source: &[u8], records: &[Mapped]) -> (std::path::PathBuf, Vec<u8>) {
    dataset_of_version(root, source, records, None)
}

fn dataset_of_version(
    root: &Path,
    source: &[u8],
    records: &[Mapped],
    version: Option<&str>,
) -> (std::path::PathBuf, Vec<u8>) {
    let (data, out) = (root.join("data"), root.join("index"));
    fs::create_dir_all(data.join("deep")).unwrap();
    fs::create_dir_all(&out).unwrap();
    fs::write(data.join("deep/source.bin"), source).unwrap();
    let mut identity = SourceIdentity::new("deep/source.bin", source.len() as u64);
    identity.version = version.map(str::to_owned);
    let mut writer = Writer::new(Vec::new(), "x.fbm", identity).unwrap();
    let mut plain = tfrecord::WriterBuilder::new().from_writer(Vec::new(), "x");
    for (number, (record, extents)) in records.iter().enumerate() {
        let key = format!("k{number}");
        let meta = RecordMeta::new(number as i64, key.as_bytes());
        writer.append(record, &meta, extents).unwrap();
        plain.append(record, &meta).unwrap();
    }
    let (bytes, summary) = writer.finish().unwrap();
    assert_eq!(summary.bytes, bytes.len() as u64);
    assert_eq!(summary.crc32c, crate::checksum::crc32c(&bytes));
    fs::write(out.join("train-00000-of-00001.fbm"), &bytes).unwrap();
    let entry = ShardEntry {
        name: "train-00000-of-00001.fbm".to_owned(),
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let splits = vec![SplitEntry::new("train", vec![entry])];
    let mut manifest = Manifest::new(ShardFormat::Mapped, 0, splits);
    manifest.source = Some(MappedFrom {
        location: data.to_str().unwrap().to_owned(),
        format: "webdataset".to_owned(),
    });
    fs::write(out.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
    (out, plain.finish().unwrap().0)
}

fn shard(root: &Path) -> Shard {
    let dataset = Dataset::open(root).unwrap();
    dataset.split("train").unwrap().shards()[0].clone()
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Builds records of literals and copies. The source contains their copies in order, with gaps.
fn records(parts: &[Parts]) -> (Vec<u8>, Vec<Mapped>) {
    let mut source = Vec::new();
    let mut records = Vec::new();
    for parts in parts {
        let (mut record, mut extents) = (Vec::new(), Vec::new());
        for (bytes, gap) in parts {
            if let Some(gap) = gap {
                source.extend(noise(*gap as usize, 99));
                extents.push(Extent {
                    record: record.len()..record.len() + bytes.len(),
                    start: ExtentStart::File(source.len() as u64),
                });
                source.extend(bytes);
            }
            record.extend(bytes);
        }
        records.push((record, extents));
    }
    (source, records)
}

fn parts() -> impl Strategy<Value = Vec<Parts>> {
    let part = (0..3000usize, any::<u32>(), prop::option::of(0..40_000u64));
    let part = part.prop_map(|(len, seed, gap)| (noise(len, seed), gap));
    prop::collection::vec(prop::collection::vec(part, 0..5), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn frames_are_those_of_the_same_tfrecord(
        parts in parts(),
        ranges in prop::collection::vec((any::<u16>(), any::<u16>()), 8),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let (source, records) = records(&parts);
        let (root, plain) = dataset(dir.path(), &source, &records);
        let shard = shard(&root);
        let file = shard.file().unwrap();
        prop_assert_eq!(file.len(), plain.len() as u64);
        for (start, len) in ranges {
            let start = usize::from(start) % (plain.len() + 1);
            let len = usize::from(len) % (plain.len() - start + 1);
            let mut bytes = vec![0; len];
            file.read_exact_at(&mut bytes, start as u64).unwrap();
            prop_assert_eq!(&bytes, &plain[start..start + len]);
            let (mut one, mut two) = (vec![0; len / 3], vec![0; len - len / 3]);
            let mut both = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
            prop_assert_eq!(file.read_parts_at(&mut both, start as u64).unwrap(), len);
            prop_assert_eq!(&[one, two].concat(), &plain[start..start + len]);
        }
        let mut block = RecordBlock::default();
        shard.read_range(0..shard.len(), &mut block).unwrap();
        let mut record = Vec::new();
        for (number, (expected, _)) in records.iter().enumerate() {
            prop_assert_eq!(block.get(number), &expected[..]);
            shard.read(number as u64, &mut record).unwrap();
            prop_assert_eq!(&record, expected);
            let key = shard.key(number as u64).unwrap();
            prop_assert_eq!((shard.label(number as u64), key), (Some(number as i64), format!("k{number}").into_bytes()));
        }
        let report = verify::verify_dataset(&root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
        prop_assert!(report.is_ok(), "{}", report);
        prop_assert_eq!(report.records, records.len() as u64);
    }
}

#[test]
fn most_bytes_stay_in_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let one = |seed| {
        vec![
            (b"head of a record".to_vec(), None),
            (noise(50_000, seed), Some(512)),
        ]
    };
    let (source, records) = records(&(0..40).map(one).collect::<Vec<_>>());
    let (root, plain) = dataset(dir.path(), &source, &records);
    let len = fs::metadata(root.join("train-00000-of-00001.fbm"))
        .unwrap()
        .len();
    assert!(len * 200 < plain.len() as u64, "{len} of {}", plain.len());
}

#[test]
fn extents_that_overlap_are_resolved_by_length() {
    let dir = tempfile::tempdir().unwrap();
    let source = noise(10_000, 5);
    let at = |range: Range<usize>| Extent {
        start: ExtentStart::File(range.start as u64),
        record: range,
    };
    let extents = vec![at(0..500), at(400..4000), at(3990..5000), at(6000..6010)];
    let (root, plain) = dataset(dir.path(), &source, &[(source.clone(), extents)]);
    let mut record = Vec::new();
    shard(&root).read(0, &mut record).unwrap();
    assert!(record == source && plain.len() == source.len() + 16);
}

#[test]
fn blocks_are_expanded_if_records_need_them() {
    let dir = tempfile::tempdir().unwrap();
    let text: Vec<Vec<u8>> = (0..6).map(|seed| noise(64, seed).repeat(50)).collect();
    let mut source = noise(100, 1);
    let mut records = Vec::new();
    for codec in Codec::all() {
        let Ok(compressor) = crate::BlockCompression::from(codec).compressor() else {
            continue;
        };
        let expanded = text.concat();
        let offset = source.len() as u64;
        match compressor {
            Some(mut compress) => compress(&expanded, &mut source).unwrap(),
            None => source.extend(&expanded),
        }
        let block = SourceBlock {
            offset,
            stored_len: source.len() as u64 - offset,
            expanded_len: expanded.len() as u64,
            codec,
        };
        for (number, text) in text.iter().enumerate() {
            let record = [&b"<"[..], text, b">"].concat();
            let start = ExtentStart::Block(block, (number * text.len()) as u64);
            let record_range = 1..1 + text.len();
            records.push((
                record,
                vec![Extent {
                    record: record_range,
                    start,
                }],
            ));
        }
    }
    let (root, plain) = dataset(dir.path(), &source, &records);
    let mut bytes = vec![0; plain.len()];
    shard(&root)
        .file()
        .unwrap()
        .read_exact_at(&mut bytes, 0)
        .unwrap();
    assert!(bytes == plain);
    // A damaged block causes errors of its own records only.
    source[120] ^= 0xff;
    fs::write(dir.path().join("data/deep/source.bin"), &source).unwrap();
    let report = verify::verify_dataset(&root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
    assert!(!report.is_ok());
}

#[test]
fn a_changed_source_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let one = |seed| vec![(noise(5000, seed), Some(10))];
    let (mut source, records) = records(&[one(1), one(2), one(3)]);
    let (root, _) = dataset(dir.path(), &source, &records);
    let path = dir.path().join("data/deep/source.bin");
    source[7000] ^= 1;
    fs::write(&path, &source).unwrap();
    let shard = shard(&root);
    let mut record = Vec::new();
    shard.read(0, &mut record).unwrap();
    let error = shard.read(1, &mut record).unwrap_err().to_string();
    assert!(error.contains("deep/source.bin"), "{error}");
    assert!(error.contains("offset 5020"), "{error}");
    let report = verify::verify_dataset(&root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!((report.records, report.lost.len()), (2, 1), "{report}");
    // A file of another length is refused before it is read.
    fs::write(&path, &source[..source.len() - 1]).unwrap();
    let error = Dataset::open(&root)
        .unwrap()
        .split("train")
        .unwrap_err()
        .to_string();
    assert!(error.contains("index it again"), "{error}");
    fs::remove_file(&path).unwrap();
    let error = Dataset::open(&root)
        .unwrap()
        .split("train")
        .unwrap_err()
        .to_string();
    assert!(error.contains("deep/source.bin"), "{error}");
}

#[test]
fn sources_stay_below_their_location() {
    for name in ["", "/etc/passwd", "../x", "a/../b", "a//b", "a\\b", "a\nb"] {
        assert!(
            Writer::new(Vec::new(), "x", SourceIdentity::new(name, 1)).is_err(),
            "{name:?}"
        );
    }
    assert!(Writer::new(Vec::new(), "x", SourceIdentity::new("a/b c.tar", 1)).is_ok());
    let mut writer = Writer::new(Vec::new(), "x", SourceIdentity::new("a", 100)).unwrap();
    let beyond = Extent {
        record: 0..64,
        start: ExtentStart::File(50),
    };
    let error = writer.append(&[0; 64], &RecordMeta::default(), &[beyond]);
    assert!(error.unwrap_err().to_string().contains("not in the source"));
}

/// Files with a version, as in an object store.
#[derive(Debug)]
struct VersionedStorage(crate::LocalFiles, Option<&'static str>);

#[derive(Debug)]
struct VersionedFile(std::sync::Arc<dyn crate::ReadAt>, Option<&'static str>);

impl Storage for VersionedStorage {
    fn open(&self, path: &Path) -> std::io::Result<Arc<dyn crate::ReadAt>> {
        Ok(Arc::new(VersionedFile(self.0.open(path)?, self.1)))
    }

    fn exists(&self, path: &Path) -> std::io::Result<bool> {
        self.0.exists(path)
    }

    fn list(&self, dir: &Path) -> std::io::Result<Vec<std::ffi::OsString>> {
        self.0.list(dir)
    }

    fn open_location(&self, location: &str) -> std::io::Result<(PathBuf, Arc<dyn Storage>)> {
        let files = Self(crate::LocalFiles::new(2), self.1);
        Ok((location.into(), Arc::new(files)))
    }
}

impl crate::ReadAt for VersionedFile {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn version(&self) -> Option<&str> {
        self.1
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.0.read_exact_at(buf, offset)
    }
}

/// A source of another version is refused when the dataset is opened, unless the index or the
/// storage has no version.
#[test]
fn a_replaced_source_is_refused_by_its_version() {
    let dir = tempfile::tempdir().unwrap();
    let record = (noise(60, 1), vec![]);
    for (indexed, found, is_refused) in [
        (Some("one"), Some("one"), false),
        (Some("one"), Some("two"), true),
        (Some("one"), None, false),
        (None, Some("two"), false),
    ] {
        let root = dir.path().join(format!("{indexed:?}-{found:?}"));
        let (root, _) = dataset_of_version(&root, b"-", std::slice::from_ref(&record), indexed);
        let storage = Arc::new(VersionedStorage(crate::LocalFiles::new(2), found));
        let opened = Dataset::options().storage(storage).open(&root);
        let split = opened.and_then(|dataset| dataset.split("train"));
        if !is_refused {
            let mut read = Vec::new();
            split.unwrap().read(0, &mut read).unwrap();
            assert_eq!(read, record.0);
            continue;
        }
        let error = split.unwrap_err().to_string();
        for word in [
            "deep/source.bin",
            "replaced",
            "\"one\"",
            "\"two\"",
            "index it again",
        ] {
            assert!(error.contains(word), "{error}");
        }
    }
    for version in ["", &"x".repeat(1025)] {
        let mut identity = SourceIdentity::new("a", 1);
        identity.version = Some(version.to_owned());
        assert!(Writer::new(Vec::new(), "x", identity).is_err());
    }
}

/// Every single changed byte of a mapped shard is detected by reading or by verification, and never
/// makes a reader panic or allocate without bound.
#[test]
fn damage_of_the_shard_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let one = |seed| vec![(b"head".to_vec(), None), (noise(60, seed), Some(3))];
    let (source, records) = records(&(0..5).map(one).collect::<Vec<_>>());
    let (root, _) = dataset_of_version(dir.path(), &source, &records, Some("v1"));
    let path = root.join("train-00000-of-00001.fbm");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << (at % 8);
        fs::write(&path, &bytes).unwrap();
        let report =
            verify::verify_dataset(&root, &verify::VerifyOptions::default(), &|_| {}).unwrap();
        assert!(!report.is_ok(), "byte {at}");
    }
}

/// Invalid maps with correct checksums are refused.
#[test]
fn crafted_maps_are_refused() {
    let versioned = |edit: &dyn Fn(&mut Vec<u8>), has_version| {
        let mut map = Vec::new();
        map.extend(1000u64.to_le_bytes());
        map.extend(1u64.to_le_bytes());
        map.extend(1u32.to_le_bytes());
        map.push(b'a');
        for number in [0u64, 64, 500, 164] {
            map.extend(number.to_le_bytes());
        }
        edit(&mut map);
        Map::parse(&[], &map, 0, (164, 500), has_version)
    };
    let pages = |edit: &dyn Fn(&mut Vec<u8>)| versioned(edit, false);
    pages(&|_| {}).unwrap();
    for edit in [
        &(|map: &mut Vec<u8>| map.truncate(10)) as &dyn Fn(&mut Vec<u8>),
        &|map| map[8] = 2,
        &|map| map[15] = 0xff,
        &|map| map[19] = 0xff,
        &|map| map[20] = b'/',
        &|map| map[21] = 1,
        &|map| map[29] = 1,
        &|map| map[37] = 1,
        &|map| map.push(0),
    ] {
        assert!(pages(edit).is_err());
    }
    let version = |bytes: &[u8]| versioned(&|map| map.extend(bytes), true);
    let map = version("0x8dé".as_bytes()).unwrap();
    assert_eq!(map.source_version.as_deref(), Some("0x8dé"));
    for bytes in [&b""[..], &[b'x'; 1025], b"\xff"] {
        assert!(version(bytes).is_err());
    }
}
