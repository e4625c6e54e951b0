//! Making an index for a TFRecord file that came without one.

use std::path::Path;

use super::{IndexBuilder, RecordMeta};
use crate::checksum::Crc32c;
use crate::error::{Error, Result};
use crate::example::ExampleView;
use crate::files::{self, Files};
use crate::frame::HEAD_BYTES;
use crate::shard::refuse_compressed;
use crate::tfrecord::{Compression, ReaderBuilder};

/// Reads a TFRecord file whole, verifying it, and indexes it. Gives the index
/// and the CRC32C of the file. Labels come from the feature `label_feature`
/// where a record is an Example that has it, keys from the bytes feature
/// `key_feature`.
///
/// # Errors
/// When the file cannot be read, is damaged, or is compressed as a whole.
pub fn build_sidecar(
    path: &Path,
    label_feature: Option<&str>,
    key_feature: Option<&str>,
) -> Result<(IndexBuilder, u32)> {
    let mut index = IndexBuilder::new();
    let mut sum = Crc32c::default();
    let mut reader = ReaderBuilder::new().from_path(path)?;
    while let Some(record) = reader.next_record()? {
        let example = ExampleView::parse(record.bytes).ok();
        let label = label_feature
            .zip(example)
            .and_then(|(name, e)| e.int64(name).ok().flatten());
        let key = key_feature
            .zip(example)
            .and_then(|(name, e)| e.bytes(name).ok().flatten());
        let meta = RecordMeta {
            label: label.filter(|&label| label != super::column::NO_LABEL),
            key: key
                .filter(|key| key.len() <= super::MAX_KEY_BYTES)
                .unwrap_or(b""),
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

/// Adds a verified frame to the file's sum.
fn sum_frame(sum: &mut Crc32c, payload: &[u8]) {
    let crc = crate::checksum::crc32c(payload);
    sum.update(&crate::frame::encode_head(payload.len() as u64));
    sum.join_bytes(crc, payload);
    sum.update(&crate::checksum::mask(crc).to_le_bytes());
}

/// Finds the frames of a TFRecord file by their heads alone, whose checksums
/// are verified: payloads are not read. Neither labels nor keys are known.
///
/// # Errors
/// When the file cannot be read, a head is damaged, or the file is compressed
/// as a whole.
pub fn scan_tfrecord(path: &Path, max_record: u64) -> Result<IndexBuilder> {
    let files = Files::new(1);
    let (file, len) = files::open(&files, path)?;
    let mut index = IndexBuilder::new();
    let mut head = [0; HEAD_BYTES];
    let mut at = 0;
    while at < len {
        let record = index.records();
        let named = |damage: crate::error::Corruption| damage.record(record).shard(path);
        if at == 0 {
            let known = len.min(HEAD_BYTES as u64) as usize;
            files::read_exact_at(&file, path, &mut head[..known], 0)?;
            refuse_compressed(path, &head[..known])?;
        }
        if len - at < crate::frame::OVERHEAD_BYTES as u64 {
            let expected = "16 bytes or more";
            let cut = crate::error::Corruption::new(at, "frame is cut short", expected, len - at);
            return Err(named(cut).into());
        }
        files::read_exact_at(&file, path, &mut head, at)?;
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
