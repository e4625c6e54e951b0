//! Verifies a TFRecord file and its sidecar index.

use std::ops::Range;
use std::path::Path;

use super::sum::{SummedFile, Sums};
use super::{ShardCheck, check_header};
use crate::checksum::Crc32c;
use crate::error::{Error, Result};
use crate::index::{FileKind, Index, parse_idx, write_idx};
use crate::storage::{self, FileStream};
use crate::tfrecord::{Compression, Mode, ReaderBuilder};

pub(super) fn verify(check: &mut ShardCheck<'_>, sidecar: Option<&Path>) -> Result<()> {
    let path = check.path;
    let file = storage::open(check.storage, path)?;
    let len = file.len();
    check.report.bytes = len;
    let index = sidecar.and_then(|sidecar| open_sidecar(check, sidecar, len));

    let stream = FileStream::new(file, check.storage.read_profile(), 0);
    let sums = Sums::new(check.want_blake3);
    let mut summed = SummedFile::new(stream, sums, check.observer);
    let mut walked = Walked::default();
    walk(check, &mut summed, index.as_ref(), &mut walked)?;
    if check.stopped() {
        return Ok(());
    }
    let sum = check.sum(summed)?;
    if let Some(index) = index.filter(|_| walked.compression == Compression::None) {
        compare(check, &index, &walked, sum);
    }
    Ok(())
}

/// Result of reading all frames.
#[derive(Default)]
struct Walked {
    compression: Compression,
    /// Byte ranges without a valid frame.
    damaged: Vec<Range<u64>>,
    /// The first record whose position differs from the index.
    misplaced: Option<(u64, Range<u64>)>,
    records: u64,
}

fn walk(
    check: &mut ShardCheck<'_>,
    file: &mut SummedFile<'_>,
    index: Option<&Index>,
    walked: &mut Walked,
) -> Result<()> {
    let mut builder = ReaderBuilder::new();
    builder
        .mode(Mode::Salvage)
        .max_record(check.options.max_record);
    let mut reader = builder.from_reader(file, check.path);
    let mut known = 0;
    let mut record = Vec::new();
    loop {
        let next = reader.read_into(&mut record)?;
        for lost in reader.lost().iter().skip(known) {
            check.found(
                lost.cause
                    .clone()
                    .record(number(index, lost.offset, lost.records_before)),
            );
            walked.damaged.push(lost.offset..lost.offset + lost.len);
        }
        known = reader.lost().len();
        let Some(info) = next else { break };
        let at = number(index, info.offset, info.index);
        let frame = info.offset..info.offset + info.len + crate::frame::OVERHEAD_BYTES as u64;
        if index.is_some_and(|index| index.offsets.frame(at).as_ref() != Some(&frame)) {
            // After damage, this may be a frame inside a record that itself contains frames. Otherwise the
            // index belongs to another file.
            if walked.damaged.is_empty() {
                walked.misplaced.get_or_insert((at, frame));
            } else {
                walked.damaged.push(frame);
                continue;
            }
        }
        check.record(at, &record, index);
        walked.records += 1;
        if check.stopped() {
            return Ok(());
        }
    }
    walked.compression = reader.compression().unwrap_or_default();
    if index.is_none() {
        for bytes in walked.damaged.clone() {
            check.lost(None, bytes);
        }
    }
    Ok(())
}

/// Returns the number of the record at an offset. If there is an index, it is used, since preceding records may
/// be lost.
fn number(index: Option<&Index>, offset: u64, counted: u64) -> u64 {
    let Some(index) = index else { return counted };
    let (mut low, mut high) = (0, index.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if index
            .offsets
            .start(middle)
            .is_some_and(|start| start < offset)
        {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

fn open_sidecar(check: &mut ShardCheck<'_>, sidecar: &Path, file_len: u64) -> Option<Index> {
    if sidecar
        .extension()
        .is_some_and(|extension| extension == "idx")
    {
        let text = storage::read_whole(check.storage, sidecar, 256 << 20, "a text index");
        let index = text.and_then(|text| parse_idx(sidecar, &text, file_len));
        return index
            .map(|index| index.into_index(None))
            .map_err(|e| check.found(e))
            .ok();
    }
    check_header(check, sidecar, FileKind::Sidecar);
    let index = check.index(sidecar, FileKind::Sidecar)?;
    check.keys(sidecar, &index);
    let text = sidecar.with_extension("idx");
    if storage::exists(check.storage, &text) {
        compare_text(check, &text, &index);
    }
    Some(index)
}

/// Checks that the text index beside a binary one agrees with it.
fn compare_text(check: &mut ShardCheck<'_>, path: &Path, index: &Index) {
    let frames = (0..index.len()).filter_map(|record| index.offsets.frame(record));
    let expected = write_idx(frames.map(|frame| (frame.start, frame.end - frame.start)));
    let found = storage::read_whole(check.storage, path, 256 << 20, "a text index");
    match found {
        Ok(found) if found == expected.as_bytes() => {}
        Ok(found) => {
            let same = found
                .iter()
                .zip(expected.as_bytes())
                .take_while(|(a, b)| a == b)
                .count();
            check.found(Error::Mismatch {
                path: path.to_owned(),
                what: "text index, against the binary one".to_owned(),
                expected: format!("{} bytes", expected.len()),
                found: format!("{} bytes, of which the first {same} are equal", found.len()),
            });
        }
        Err(error) => check.found(error),
    }
}

/// Compares the index with the content of the file, and reports lost records.
fn compare(check: &mut ShardCheck<'_>, index: &Index, walked: &Walked, sum: Crc32c) {
    if index.data_len() != sum.len() {
        let expected = format!("{} bytes as its index says", index.data_len());
        check.compare(
            "length of the file",
            expected,
            format!("{} bytes", sum.len()),
        );
    } else if let Some(expected) = index.data_crc {
        let (expected, found) = (format!("{expected:08x}"), format!("{:08x}", sum.value()));
        check.compare("crc32c of the file, against its index", expected, found);
    }
    if let Some((record, frame)) = &walked.misplaced {
        let expected = index.offsets.frame(*record);
        let expected = expected.map_or("no such record".to_owned(), |e| format!("{e:?}"));
        let what = format!("bytes of record {record}, against the index");
        check.compare(&what, expected, format!("{frame:?}"));
    }
    if walked.damaged.is_empty() {
        check.compare("records, against the index", index.len(), walked.records);
    }
    let beyond = (sum.len() < index.data_len()).then_some(sum.len()..index.data_len());
    let mut missing: Option<Range<u64>> = None;
    let mut next = walked.damaged.iter().chain(&beyond).peekable();
    for record in 0..index.len() {
        let Some(frame) = index.offsets.frame(record) else {
            break;
        };
        while next.next_if(|damaged| damaged.end <= frame.start).is_some() {}
        let hit = next.peek().is_some_and(|damaged| damaged.start < frame.end);
        missing = match missing.take() {
            Some(run) if hit => Some(run.start..record + 1),
            Some(run) => {
                check.lose(index, run);
                None
            }
            None => hit.then_some(record..record + 1),
        };
    }
    if let Some(run) = missing {
        check.lose(index, run);
    }
}
