//! Verifies a mapped shard: its own bytes, and the records in the source.

use std::ops::Range;
use std::sync::Arc;

use super::sum::{SummedFile, Sums};
use super::{ShardCheck, VerifyProgress, check_header};
use crate::error::{Error, Result};
use crate::frame;
use crate::index::{FileKind, Index};
use crate::mapped::{MappedFile, SourceFile};
use crate::storage::{self, FileStream, ReadAt};

/// Number of bytes of frames per read.
const READ_BYTES: u64 = 1 << 20;

pub(super) fn verify(check: &mut ShardCheck<'_>) -> Result<()> {
    let path = check.path;
    let Some(source) = check.source.clone() else {
        return Err(Error::Unsupported {
            path: path.to_owned(),
            problem: "is a mapped shard: verify its dataset, whose manifest has the location of the records".to_owned(),
        });
    };
    let shard = storage::open(check.storage, path)?;
    check.report.bytes = shard.len();
    check_header(check, path, FileKind::Map);
    if let Some(index) = check.index(path, FileKind::Map) {
        check.keys(path, &index);
        let opened = index.map.clone().map(|map| SourceFile::open(source, map));
        match opened.transpose() {
            Ok(source) => {
                let len = index.offsets.start(index.len()).unwrap_or(0);
                let frames = source.map(|source| MappedFile {
                    shard: Arc::clone(&shard),
                    source: Arc::new(source),
                    len,
                });
                if let Some(frames) = frames {
                    records(check, &frames, &index);
                }
            }
            Err(error) => {
                check.found(error);
                check.lose(&index, 0..index.len());
            }
        }
    }
    if check.stopped() {
        return Ok(());
    }
    let stream = FileStream::new(shard, check.storage.read_profile(), 0);
    let sums = Sums::new(check.want_blake3);
    check.sum(SummedFile::new(stream, sums, &|_| {}))?;
    Ok(())
}

/// Reads and verifies every record.
fn records(check: &mut ShardCheck<'_>, frames: &MappedFile, index: &Index) {
    let mut bytes = Vec::new();
    let mut next = 0;
    while let Some(first) = index.offsets.frame(next) {
        let mut end = next + 1;
        let mut range = first;
        while let Some(frame) = index.offsets.frame(end)
            && frame.end - range.start <= READ_BYTES
        {
            range.end = frame.end;
            end += 1;
        }
        bytes.resize((range.end - range.start) as usize, 0);
        match frames.read_exact_at(&mut bytes, range.start) {
            Ok(()) => group(check, frames, index, next..end, (&bytes, range.start)),
            Err(error) => {
                check.found(Error::io(frames.source.path(), "read", error));
                check.lose(index, next..end);
            }
        }
        (check.observer)(VerifyProgress {
            bytes: range.end - range.start,
            ..VerifyProgress::default()
        });
        if check.stopped() {
            return;
        }
        next = end;
    }
}

/// Verifies records whose frames were read together, beginning at `start`.
fn group(
    check: &mut ShardCheck<'_>,
    frames: &MappedFile,
    index: &Index,
    records: Range<u64>,
    (bytes, start): (&[u8], u64),
) {
    for record in records {
        let Some(place) = index.offsets.frame(record) else {
            return;
        };
        let frame = bytes.get((place.start - start) as usize..(place.end - start) as usize);
        match frame::check(frame.unwrap_or_default(), place.start, true) {
            Ok(payload) => check.record(record, payload, Some(index)),
            Err(damage) => {
                let mut damage = damage.record(record);
                let at = frames.source_offset(place).unwrap_or(0);
                let source = frames.source.path().display();
                damage.what += &format!(" of bytes from offset {at} of {source}");
                check.damaged(damage);
                check.lose(index, record..record + 1);
            }
        }
    }
}
