//! The example bytes in FORMAT.md and in the pages of docs/format equal those that the code writes and reads.
//!
//! A fence "```hex NAME" holds lines `OFFSET  BYTES | meaning`; a line `*` stands for zeros up to
//! the next line's offset. NAME selects the tests of the fence.

use std::collections::BTreeMap;
use std::path::Path;

use forebay_shard::manifest::{
    ClassEntry, EpochOrder, FILE_NAME, FeatureEntry, Manifest, MappedFrom, ShardEntry, SplitEntry,
    block_records,
};
use forebay_shard::mapped;
use forebay_shard::verify::{VerifyOptions, verify_dataset, verify_shard};
use forebay_shard::{
    Codec, Dataset, RecordMeta, Shard, ShardFormat, ShardSummary, ShardWriter, example, indexed,
    tfrecord,
};

const TFRECORD: &str = "train-00000-of-00001";
const INDEXED: &str = "train-00000-of-00001.fbs";
const MAPPED: &str = "train-00000-of-00001.fbm";
const SOURCE: &str = "train-000000.tar";

/// Returns the pages whose bytes this crate writes and reads, as one text.
fn document() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    [
        "FORMAT.md",
        "docs/format/compressed-shards.md",
        "docs/format/mapped-shards.md",
    ]
    .map(|page| std::fs::read_to_string(root.join(page)).unwrap())
    .concat()
}

/// Returns the fences of one language, from name to text.
fn fences(language: &str) -> BTreeMap<String, String> {
    let document = document();
    let mut fences = BTreeMap::new();
    let mut lines = document.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.strip_prefix(&format!("```{language} ")) else {
            continue;
        };
        let text: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
        let old = fences.insert(name.to_owned(), text.join("\n") + "\n");
        assert!(old.is_none(), "{name} is there twice");
    }
    fences
}

fn bytes(dump: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut zeros = false;
    for line in dump.lines() {
        if line.trim() == "*" {
            zeros = true;
            continue;
        }
        let (line, _) = line.split_once('|').unwrap_or((line, ""));
        let (offset, hex) = line.trim().split_once("  ").unwrap();
        let offset = usize::from_str_radix(offset, 16).unwrap();
        if zeros {
            assert!(offset > bytes.len(), "{line}");
            bytes.resize(offset, 0);
            zeros = false;
        }
        assert_eq!(offset, bytes.len(), "{line}");
        bytes.extend(
            hex.split_whitespace()
                .map(|byte| u8::from_str_radix(byte, 16).unwrap()),
        );
    }
    bytes
}

/// Writes the two records of the document.
fn write(format: ShardFormat, codec: Codec) -> (Vec<u8>, ShardSummary) {
    let mut writer: ShardWriter<Vec<u8>> = match format {
        ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(vec![], TFRECORD),
        ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
        ShardFormat::Indexed => {
            let mut builder = indexed::WriterBuilder::new();
            builder
                .compression(codec)
                .from_writer(vec![], INDEXED)
                .unwrap()
        }
    };
    for (record, label, key) in records() {
        writer
            .append(&record, &RecordMeta::new(label, key))
            .unwrap();
    }
    writer.finish().unwrap()
}

fn records() -> [(Vec<u8>, i64, &'static [u8]); 2] {
    [
        (b"one".to_vec(), 1, b"cat/1.jpeg"),
        (b"three".to_vec(), 2, b"dog/3.jpeg"),
    ]
}

fn manifest() -> Manifest {
    let (_, summary) = write(ShardFormat::TfRecord, Codec::NONE);
    let block = block_records(summary.records, summary.record_bytes);
    let shard = ShardEntry {
        name: TFRECORD.to_owned(),
        records: summary.records,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let split = SplitEntry::new("train", vec![shard]);
    let mut manifest = Manifest::new(ShardFormat::TfRecord, 1, vec![split]);
    manifest.features = vec![
        FeatureEntry {
            name: "image/class/label".to_owned(),
            kind: example::FeatureKind::Int64,
            shape: vec![],
        },
        FeatureEntry {
            name: "image/object/bbox/xmin".to_owned(),
            kind: example::FeatureKind::Float,
            shape: vec![None],
        },
    ];
    let class = |name: &str| ClassEntry {
        name: name.to_owned(),
        text: None,
    };
    manifest.classes = vec![class("cat"), class("dog")];
    manifest.order = Some(EpochOrder {
        block_records: [("train".to_owned(), block)].into(),
    });
    manifest.sample_fingerprint = manifest.sample_fingerprint_of(|_| Some(summary.samples));
    manifest.pack = [("shuffle_seed".to_owned(), 0.into())].into();
    manifest
}

fn check(name: &str, dump: &str, expected: &[u8]) {
    let found = bytes(dump);
    assert_eq!(found.len(), expected.len(), "{name}");
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{name}: byte {at:#x}");
    }
}

#[test]
fn the_code_writes_the_documents_bytes() {
    let hex = fences("hex");
    let names: Vec<_> = hex.keys().map(String::as_str).collect();
    let fbi = format!("index/{TFRECORD}.fbi");
    let zstd = document_shard(Codec::ZSTD);
    let mut expected = [fbi.as_str(), TFRECORD, INDEXED, MAPPED, &zstd];
    expected.sort_unstable();
    assert_eq!(names, expected);

    let (file, summary) = write(ShardFormat::TfRecord, Codec::NONE);
    check(TFRECORD, &hex[TFRECORD], &file);
    check(&fbi, &hex[&fbi], &summary.to_fbi().unwrap());
    let (file, _) = write(ShardFormat::Indexed, Codec::NONE);
    check(INDEXED, &hex[INDEXED], &file);

    let text = fences("text");
    assert_eq!(
        text[&format!("index/{TFRECORD}.idx")],
        summary.to_idx().unwrap()
    );
    let json = fences("json");
    assert_eq!(json[FILE_NAME], manifest().to_json().unwrap());
}

#[test]
fn the_code_reads_the_documents_bytes() {
    let hex = fences("hex");
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::create_dir(root.join("index")).unwrap();
    std::fs::write(root.join(TFRECORD), bytes(&hex[TFRECORD])).unwrap();
    let fbi = format!("index/{TFRECORD}.fbi");
    std::fs::write(root.join(&fbi), bytes(&hex[&fbi])).unwrap();
    std::fs::write(root.join(FILE_NAME), &fences("json")[FILE_NAME]).unwrap();
    let report = verify_dataset(root, &VerifyOptions::default(), &|_| {}).unwrap();
    assert!(report.is_ok() && report.records == 2, "{report}");
    let split = Dataset::open(root).unwrap().split("train").unwrap();
    assert_eq!(split.block_records(), Some(131_072));
    assert!(split.sample_fingerprint().is_some());
    for (at, (record, label, key)) in (0..).zip(records()) {
        let mut out = Vec::new();
        split.read(at, &mut out).unwrap();
        assert_eq!(
            (out, split.label(at), split.key(at).unwrap()),
            (record, Some(label), key.into())
        );
    }
}

fn compressing() -> impl Iterator<Item = Codec> {
    Codec::all().filter(|&codec| codec != Codec::NONE)
}

/// Returns the name of the document's shard for this codec.
fn document_shard(codec: Codec) -> String {
    format!("{codec}.fbs")
}

/// Returns the bytes of this shard. The page shows one codec, and links to files for the others.
fn compressed_shard(codec: Codec) -> Vec<u8> {
    let name = document_shard(codec);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let linked = || std::fs::read_to_string(root.join(format!("testdata/format/{name}.hex")));
    let dump = fences("hex").remove(&name);
    bytes(&dump.unwrap_or_else(|| linked().unwrap()))
}

/// A later version of a codec's library may compress a block differently, but a block always
/// expands to the same bytes. So these shards are read, and not compared with written ones.
#[test]
fn the_code_reads_the_documents_compressed_shards() {
    let directory = tempfile::tempdir().unwrap();
    for codec in compressing() {
        let path = directory.path().join(document_shard(codec));
        let file = compressed_shard(codec);
        assert_eq!(Codec::of_shard(file.first_chunk().unwrap()), Some(codec));
        std::fs::write(&path, file).unwrap();
        let report = verify_shard(&path, &VerifyOptions::default(), &|_| {}).unwrap();
        assert!(report.is_ok() && report.records == 1, "{report}");
        let shard = Shard::open(&path).unwrap();
        let mut out = Vec::new();
        shard.read(0, &mut out).unwrap();
        assert_eq!(
            (out, shard.label(0), shard.key(0).unwrap()),
            (vec![b'a'; 64], None, vec![])
        );
    }
}

/// Returns the source of the document's mapped shard: 128 bytes, of which the last 64 are record 1.
fn source() -> Vec<u8> {
    [[b'-'; 64], [b'b'; 64]].concat()
}

/// Writes the document's mapped shard, which contains record 0; record 1 is in the source.
fn write_mapped() -> (Vec<u8>, ShardSummary) {
    let source = source();
    let identity = mapped::SourceIdentity::new(SOURCE, source.len() as u64);
    let mut writer = mapped::Writer::new(Vec::new(), MAPPED, identity).unwrap();
    let extent = mapped::Extent {
        record: 0..64,
        start: mapped::ExtentStart::File(64),
    };
    let meta = |label, key| RecordMeta::new(label, key);
    writer.append(b"one", &meta(1, b"cat/1.jpeg"), &[]).unwrap();
    writer
        .append(&source[64..], &meta(2, b"dog/3.jpeg"), &[extent])
        .unwrap();
    writer.finish().unwrap()
}

#[test]
fn the_document_has_the_bytes_of_a_mapped_shard() {
    let dump = &fences("hex")[MAPPED];
    let (file, summary) = write_mapped();
    check(MAPPED, dump, &file);
    let directory = tempfile::tempdir().unwrap();
    let (data, root) = (
        directory.path().join("data"),
        directory.path().join("index"),
    );
    std::fs::create_dir_all(&data).unwrap();
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(data.join(SOURCE), source()).unwrap();
    std::fs::write(root.join(MAPPED), bytes(dump)).unwrap();
    let shard = ShardEntry {
        name: MAPPED.to_owned(),
        records: 2,
        bytes: summary.bytes,
        crc32c: summary.crc32c,
        blake3: None,
    };
    let split = SplitEntry::new("train", vec![shard]);
    let mut manifest = Manifest::new(ShardFormat::Mapped, 1, vec![split]);
    manifest.source = Some(MappedFrom {
        location: data.to_str().unwrap().to_owned(),
        format: "webdataset".to_owned(),
    });
    std::fs::write(root.join(FILE_NAME), manifest.to_json().unwrap()).unwrap();
    let split = Dataset::open(&root).unwrap().split("train").unwrap();
    for (at, expected) in [(0, &b"one"[..]), (1, &[b'b'; 64])] {
        let mut record = Vec::new();
        split.read(at, &mut record).unwrap();
        assert_eq!(record, expected);
    }
}
