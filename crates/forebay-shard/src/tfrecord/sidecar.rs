//! Builds the index of a TFRecord file that has none.

use std::path::Path;
use std::sync::Arc;

use super::{Compression, ReaderBuilder};
use crate::checksum::Crc32c;
use crate::error::{Error, Result};
use crate::example::ExampleView;
use crate::frame::HEAD_BYTES;
use crate::index::{IndexBuilder, MAX_KEY_BYTES, RecordMeta};
use crate::samples::NO_LABEL;
use crate::storage::{self, Ahead, ReadAt, Storage};

/// Reads and verifies a whole TFRecord file and indexes it. Returns the index and the CRC32C of the
/// file. Labels come from the feature `label_feature` of records that are Examples and have it,
/// keys from the bytes feature `key_feature`. `check` is called with every record, and may refuse it.
///
/// # Errors
/// If the file cannot be read, is damaged, or is compressed as a whole; and for a refused record.
pub fn build_sidecar(
    path: &Path,
    label_feature: Option<&str>,
    key_feature: Option<&str>,
    check: &dyn Fn(&[u8]) -> Result<(), String>,
) -> Result<(IndexBuilder, u32)> {
    let mut index = IndexBuilder::new();
    let mut sum = Crc32c::default();
    let mut reader = ReaderBuilder::new().from_path(path)?;
    while let Some(record) = reader.next_record()? {
        check(record.bytes).map_err(|what| Error::Unsupported {
            path: path.to_owned(),
            problem: format!("record {}: {what}", record.info.index),
        })?;
        let example = ExampleView::parse(record.bytes).ok();
        let label = label_feature
            .zip(example)
            .and_then(|(name, e)| e.int64(name).ok().flatten());
        let key = key_feature
            .zip(example)
            .and_then(|(name, e)| e.bytes(name).ok().flatten());
        let meta = RecordMeta {
            label: label.filter(|&label| label != NO_LABEL),
            key: key.filter(|key| key.len() <= MAX_KEY_BYTES).unwrap_or(b""),
        };
        index.push(record.info.len, &meta)?;
        sum_frame(&mut sum, record.bytes);
    }
    if let Some(compression @ (Compression::Gzip | Compression::Zlib)) = reader.compression() {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            problem: format!(
                "is compressed as a whole ({compression}): an index cannot point into it"
            ),
        });
    }
    Ok((index, sum.value()))
}

/// Adds a verified frame to the file's checksum.
fn sum_frame(sum: &mut Crc32c, payload: &[u8]) {
    let crc = crate::checksum::crc32c(payload);
    sum.update(&crate::frame::encode_head(payload.len() as u64));
    sum.join_bytes(crc, payload);
    sum.update(&crate::checksum::mask(crc).to_le_bytes());
}

/// Finds the frames of a TFRecord file by reading only their heads, whose checksums are verified. Labels and keys
/// are unknown. Payloads are skipped, unless a separate read costs more than reading the bytes between two
/// heads.
pub(crate) fn scan_heads(
    storage: &dyn Storage,
    path: &Path,
    max_record: u64,
) -> Result<IndexBuilder> {
    let mut file = Heads::open(storage, path)?;
    let len = file.len;
    let mut index = IndexBuilder::new();
    let mut head = [0; HEAD_BYTES];
    let mut at = 0;
    while at < len {
        let record = index.records();
        let named = |damage: crate::error::Corruption| damage.record(record).shard(path);
        if at == 0 {
            let known = len.min(HEAD_BYTES as u64) as usize;
            file.read(&mut head[..known], 0)?;
            refuse_compressed(path, &head[..known])?;
        }
        if len - at < crate::frame::OVERHEAD_BYTES as u64 {
            let expected = "16 bytes or more";
            let cut =
                crate::error::Corruption::truncated(at, "frame is cut short", expected, len - at);
            return Err(named(cut).into());
        }
        file.read(&mut head, at)?;
        let payload = crate::frame::decode_head(&head, at).map_err(named)?;
        let remain = len - at - crate::frame::OVERHEAD_BYTES as u64;
        if payload > remain.min(max_record) {
            let expected = format!("at most {}", remain.min(max_record));
            let long = crate::error::Corruption::new(at, "record length", expected, payload);
            return Err(named(long).into());
        }
        index.push(payload, &RecordMeta::default())?;
        at = index.logical_len();
    }
    Ok(index)
}

/// Reads small pieces of a file at increasing offsets.
struct Heads<'a> {
    path: &'a Path,
    file: Arc<dyn ReadAt>,
    len: u64,
    ahead: Ahead,
    /// Bytes per read; 0 to read only the requested ones.
    chunk: u64,
    start: u64,
    bytes: Vec<u8>,
}

impl<'a> Heads<'a> {
    fn open(storage: &dyn Storage, path: &'a Path) -> Result<Self> {
        let file = storage::open(storage, path)?;
        let (len, profile) = (file.len(), storage.read_profile());
        Ok(Self {
            path,
            len,
            ahead: Ahead::new(&file, profile, 0, len),
            file,
            chunk: profile.gap_bytes,
            start: 0,
            bytes: Vec::new(),
        })
    }

    fn read(&mut self, buf: &mut [u8], at: u64) -> Result<()> {
        if self.chunk <= buf.len() as u64 {
            return storage::read_exact_at(&*self.file, self.path, buf, at);
        }
        let within = |start: u64, bytes: &[u8]| {
            let from = usize::try_from(at.checked_sub(start)?).ok()?;
            let to = from.checked_add(buf.len())?;
            (to <= bytes.len()).then_some(from..to)
        };
        let place = match within(self.start, &self.bytes) {
            Some(place) => place,
            None => {
                self.ahead.advance(at);
                let len = self.chunk.min(self.len.saturating_sub(at)) as usize;
                self.bytes.resize(len.max(buf.len()), 0);
                self.start = at;
                storage::read_exact_at(&*self.file, self.path, &mut self.bytes, at)?;
                0..buf.len()
            }
        };
        buf.copy_from_slice(&self.bytes[place]);
        Ok(())
    }
}

/// Refuses a compressed TFRecord, because offsets of records are needed.
fn refuse_compressed(path: &Path, start: &[u8]) -> Result<()> {
    match Compression::detect(start) {
        Compression::None => Ok(()),
        compression => Err(Error::Unsupported {
            path: path.to_owned(),
            problem: format!(
                "is compressed as a whole ({compression}): its records can only be read in order"
            ),
        }),
    }
}
