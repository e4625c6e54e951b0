//! Properties of each parser for arbitrary input: it does not panic or loop forever, and everything it
//! accepts is consistent. The fuzz targets check these properties; the test `corpus` does so without a
//! fuzzer.
//!
//! A fuzzer cannot guess checksums, so each input is tried twice: unchanged, and with corrected
//! checksums.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_shard::checksum::{crc32c, mask};
use forebay_shard::example::{ExampleError, FeatureKind, FeatureView};
use forebay_shard::index::{FileKind, Found, Index, parse_idx, parse_suffix};
use forebay_shard::manifest::{MappedFrom, ShardEntry, SplitEntry};
use forebay_shard::storage::{MemoryStorage, ReadAt, Storage};
use forebay_shard::tfrecord::{Compression, Mode, ReaderBuilder};
use forebay_shard::{
    Dataset, ExampleView, Manifest, RecordBlock, Shard, ShardFormat, image_and_label,
};
use prost::Message;
use tensorflow::feature::Kind;

/// Generated from `proto/example.proto`.
#[allow(unreachable_pub, clippy::all)]
#[path = "../tests/generated/tensorflow.rs"]
pub(crate) mod tensorflow;

/// Small limits: an input of some KiB that makes a reader allocate more memory is a finding.
const MAX_RECORD: u64 = 1 << 20;

/// TFRecord frames, plain and compressed, strict and salvaging.
pub(crate) fn frames(bytes: &[u8]) {
    read_frames(bytes);
    let mut sealed = bytes.to_vec();
    seal_frames(&mut sealed);
    read_frames(&sealed);
}

fn read_frames(bytes: &[u8]) {
    let mut strict = ReaderBuilder::new();
    strict.max_record(MAX_RECORD);
    let mut reader = strict.from_reader(bytes, "input");
    let (mut record, mut before) = (Vec::new(), 0);
    while let Ok(Some(info)) = reader.read_into(&mut record) {
        assert_eq!((info.index, info.len), (before, record.len() as u64));
        before += 1;
    }
    let mut salvage = strict.clone();
    let mut reader = salvage.mode(Mode::Salvage).from_reader(bytes, "input");
    let (mut frames, mut found) = (0, 0);
    while let Ok(Some(info)) = reader.read_into(&mut record) {
        frames += info.len + 16;
        found += 1;
    }
    assert!(found >= before, "salvage finds less than a strict reader");
    if reader.compression() == Some(Compression::None) {
        let lost: u64 = reader.lost().iter().map(|lost| lost.len).sum();
        assert_eq!(
            frames + lost,
            bytes.len() as u64,
            "each byte is read or lost"
        );
    }
}

/// Corrects the checksums of everything that looks like a frame.
fn seal_frames(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(head) = bytes.get(at..).and_then(<[u8]>::first_chunk::<8>) {
        let len = u64::from_le_bytes(*head).min(4096) as usize;
        let crc = mask(crc32c(head)).to_le_bytes();
        let Some(field) = bytes.get_mut(at + 8..at + 12) else {
            return;
        };
        field.copy_from_slice(&crc);
        let payload = at + 12..at + 12 + len;
        let Some(crc) = bytes
            .get(payload.clone())
            .map(|payload| mask(crc32c(payload)))
        else {
            return;
        };
        let Some(field) = bytes.get_mut(payload.end..payload.end + 4) else {
            return;
        };
        field.copy_from_slice(&crc.to_le_bytes());
        at = payload.end + 4;
    }
}

/// An indexed shard: trailer, index, blocks.
pub(crate) fn shard(bytes: &[u8]) {
    open(FileKind::Shard, bytes);
    open(FileKind::Shard, &seal_index(bytes));
}

/// The sidecar of a TFRecord file.
pub(crate) fn sidecar(bytes: &[u8]) {
    open(FileKind::Sidecar, bytes);
    open(FileKind::Sidecar, &seal_index(bytes));
}

fn open(kind: FileKind, bytes: &[u8]) {
    let path = Path::new("input");
    let len = bytes.len() as u64;
    match parse_suffix(path, kind, len, MAX_RECORD, bytes) {
        Ok(Found::Index(index)) => walk(kind, *index, bytes),
        Ok(Found::Need(_)) => panic!("the whole file is there"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    // Given only a part of the bytes, the parser requests more or returns the same result.
    let half = &bytes[bytes.len() / 2..];
    if let Ok(Found::Need(range)) = parse_suffix(path, kind, len, MAX_RECORD, half) {
        assert!(range.end == len && range.start < len - half.len() as u64 || half.len() < 64);
    }
}

fn walk(kind: FileKind, index: Index, bytes: &[u8]) {
    let records = index.len();
    assert!(records <= bytes.len() as u64 / 16);
    for record in 0..records {
        assert!(
            index
                .record_len(record)
                .is_some_and(|len| len <= MAX_RECORD)
        );
        index.byte_range(record..record + 1).unwrap();
    }
    index.byte_range(0..records + 1).unwrap_err();
    if kind == FileKind::Sidecar {
        return;
    }
    let storage = Arc::new(MemoryStorage::from_iter([("input", bytes)]));
    let options = Shard::options().storage(storage).max_record(MAX_RECORD);
    let options = options.format(ShardFormat::Indexed, None);
    let shard = options.open("input").unwrap();
    let mut block = RecordBlock::default();
    for record in 0..records {
        if shard.read_range(record..record + 1, &mut block).is_ok() {
            assert_eq!(Some(block.get(0).len() as u64), shard.record_len(record));
        }
    }
    let _ = shard.read_range(0..records, &mut block);
}

/// Corrects the checksums of trailer and index, and the file's length.
fn seal_index(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let Some(at) = bytes.len().checked_sub(64) else {
        return bytes;
    };
    let field = |at: usize| {
        bytes[at..at + 8]
            .first_chunk()
            .map_or(0, |f| u64::from_le_bytes(*f))
    };
    let (start, len) = (field(at) as usize, field(at + 8) as usize);
    let index = start.checked_add(len).and_then(|end| bytes.get(start..end));
    let crc = index.map_or(0, crc32c);
    let file_len = bytes.len() as u64;
    bytes[at + 16..at + 24].copy_from_slice(&file_len.to_le_bytes());
    bytes[at + 24..at + 28].copy_from_slice(&crc.to_le_bytes());
    let seal = crc32c(&bytes[at..at + 52]);
    bytes[at + 52..at + 56].copy_from_slice(&seal.to_le_bytes());
    bytes
}

/// A mapped shard, in memory with its source.
pub(crate) fn mapped(bytes: &[u8]) {
    open_mapped(bytes);
    let mut bytes = bytes.to_vec();
    seal_pages(&mut bytes);
    open_mapped(&seal_index(&bytes));
}

/// A storage whose datasets refer to a source in the same storage.
#[derive(Debug)]
struct Places(Arc<MemoryStorage>);

impl Storage for Places {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        self.0.open(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.0.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.0.list(dir)
    }

    fn open_location(&self, location: &str) -> io::Result<(PathBuf, Arc<dyn Storage>)> {
        Ok((location.into(), Arc::<MemoryStorage>::clone(&self.0)))
    }
}

fn open_mapped(bytes: &[u8]) {
    let path = Path::new("input");
    let len = bytes.len() as u64;
    let records = match parse_suffix(path, FileKind::Map, len, MAX_RECORD, bytes) {
        Ok(Found::Index(index)) => index.len(),
        Ok(Found::Need(_)) => panic!("the whole file is there"),
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let shard = ShardEntry {
        name: "train-00000-of-00001.fbm".to_owned(),
        records,
        bytes: len,
        crc32c: crc32c(bytes),
        blake3: None,
    };
    let split = SplitEntry::new("train", vec![shard]);
    let mut manifest = Manifest::new(ShardFormat::Mapped, 0, vec![split]);
    manifest.source = Some(MappedFrom {
        location: "data".to_owned(),
        format: "webdataset".to_owned(),
    });
    let json = manifest.to_json().unwrap();
    // The name and the length of the source match those in the seeds.
    let source = [b'b'; 512];
    let files = [
        ("set/forebay.json", json.as_bytes()),
        ("set/train-00000-of-00001.fbm", bytes),
        ("data/a", &source[..]),
    ];
    let storage = Places(Arc::new(MemoryStorage::from_iter(files)));
    let dataset = Dataset::options()
        .storage(Arc::new(storage))
        .max_record(MAX_RECORD);
    let Ok(split) = dataset
        .open("set")
        .and_then(|dataset| dataset.split("train"))
    else {
        return;
    };
    let mut record = Vec::new();
    for number in 0..split.len() {
        if split.read(number, &mut record).is_ok() {
            let len = split
                .shards()
                .first()
                .and_then(|shard| shard.record_len(number));
            assert_eq!(Some(record.len() as u64), len);
        }
    }
}

/// Corrects the checksums of the pages of a map.
fn seal_pages(bytes: &mut [u8]) {
    let number = |bytes: &[u8], at: usize| {
        let field = at.checked_add(8).and_then(|end| bytes.get(at..end));
        let field = field.and_then(|field| field.first_chunk());
        field.map_or(0, |field| u64::from_le_bytes(*field)) as usize
    };
    let Some(trailer) = bytes.len().checked_sub(64) else {
        return;
    };
    // The offsets of pages are the last column, 16 bytes for each page and for the end.
    let mut end = None;
    let mut at = trailer.saturating_sub(8);
    while at >= 64 {
        let offset = number(bytes, at);
        if let Some(end) = end
            && (64..end).contains(&offset)
            && end <= trailer
        {
            let crc = crc32c(&bytes[(offset + 4).min(end)..end]);
            if end - offset > 4 {
                bytes[offset..offset + 4].copy_from_slice(&crc.to_le_bytes());
            }
        }
        if offset <= 64 {
            return;
        }
        end = Some(offset);
        at = at.saturating_sub(16);
    }
}

/// DALI's text index.
pub(crate) fn text_index(bytes: &[u8]) {
    // The length that follows from the last line, so that some inputs are accepted.
    let text = String::from_utf8_lossy(bytes);
    let last = text.lines().last().and_then(|line| line.split_once(' '));
    let sum =
        last.and_then(|(offset, size)| offset.parse::<u64>().ok()?.checked_add(size.parse().ok()?));
    if let Ok(index) = parse_idx(Path::new("input"), bytes, sum.unwrap_or(0)) {
        assert_eq!(index.to_idx().as_bytes(), bytes);
        assert_eq!(index.logical_len(), sum.unwrap_or(0));
    }
}

/// The manifest.
pub(crate) fn manifest(bytes: &[u8]) {
    parse_manifest(bytes);
    parse_manifest(&seal_manifest(bytes));
}

/// Corrects the checksum at the end of a manifest, if there is space for one.
fn seal_manifest(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = bytes.to_vec();
    if let Some(at) = sealed.len().checked_sub("00000000\"\n}\n".len()) {
        sealed[at..at + 8].fill(b'0');
        let sum = format!("{:08x}", crc32c(&sealed));
        sealed[at..at + 8].copy_from_slice(sum.as_bytes());
    }
    sealed
}

fn parse_manifest(bytes: &[u8]) {
    let path = Path::new("forebay.json");
    if let Ok(manifest) = Manifest::parse(path, bytes) {
        let json = manifest.to_json().unwrap();
        assert_eq!(Manifest::parse(path, json.as_bytes()).unwrap(), manifest);
    }
}

/// `tensorflow.Example`, against the generated parser.
pub(crate) fn example(bytes: &[u8]) {
    let _ = image_and_label(bytes);
    let owned = tensorflow::Example::decode(bytes);
    let view = match (ExampleView::parse(bytes), &owned) {
        (Ok(view), _) => view,
        (Err(_), Err(_)) => return,
        (Err(error), Ok(_)) => return assert_stricter(&error),
    };
    for feature in view.iter() {
        let _ = values(feature);
    }
    let Ok(owned) = owned else { return };
    let features = owned.features.unwrap_or_default().feature;
    for (name, expected) in &features {
        let feature = view.get(name).unwrap();
        match values(feature) {
            Ok(found) => assert_eq!(bits(found), bits(expected.kind.clone()), "{name}"),
            Err(error) => assert_stricter(&error),
        }
    }
    assert!(
        view.iter()
            .all(|feature| features.contains_key(feature.name()))
    );
}

/// The generated parser skips groups, and reads map entries regardless of their wire type. The view
/// refuses both.
fn assert_stricter(error: &ExampleError) {
    assert!(error.to_string().contains("wire type"), "{error}");
}

fn values(feature: FeatureView<'_>) -> Result<Option<Kind>, ExampleError> {
    Ok(match feature.kind()? {
        FeatureKind::Unset => None,
        FeatureKind::Bytes => {
            let value = feature
                .bytes_list()?
                .into_iter()
                .map(|value| value.to_vec().into())
                .collect();
            Some(Kind::BytesList(tensorflow::BytesList { value }))
        }
        FeatureKind::Float => Some(Kind::FloatList(tensorflow::FloatList {
            value: feature.floats()?,
        })),
        FeatureKind::Int64 => Some(Kind::Int64List(tensorflow::Int64List {
            value: feature.int64s()?,
        })),
    })
}

/// Floats by their bits, so that NaN equals itself.
fn bits(kind: Option<Kind>) -> (Option<Vec<u32>>, Option<Kind>) {
    match kind {
        Some(Kind::FloatList(list)) => (
            Some(list.value.into_iter().map(f32::to_bits).collect()),
            None,
        ),
        other => (None, other),
    }
}
