//! Verifying an indexed shard: by its index, or without one by the headers of
//! its blocks.

use std::ops::Range;
use std::sync::Arc;

use super::sum::{SummedFile, Sums};
use super::{Progress, ShardCheck, check_header};
use crate::checksum::crc32c;
use crate::error::{Corruption, Error, Result};
use crate::frame::{self, HEAD_BYTES, OVERHEAD_BYTES};
use crate::index::layout::{BlockHeader, PIECE_BYTES};
use crate::index::{Block, FileKind, Index};
use crate::indexed::Walk;
use crate::shard::{expand_block, indexed_block_limit};
use crate::storage::{self, Ahead, ReadAt, Stream};

pub(super) fn verify(check: &mut ShardCheck<'_>) -> Result<()> {
    let path = check.path;
    let file = storage::open(check.storage, path)?;
    let len = file.len();
    check.report.bytes = len;
    let header = check_header(check, path, FileKind::Shard);
    let summed = match check.index(path, FileKind::Shard) {
        Some(index) => {
            if header.is_some_and(|header| header.features != index.features) {
                let (expected, found) = (index.features, header.map(|header| header.features));
                let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
                let what = "feature flags of the header, against the trailer";
                check.damaged(Corruption::new(12, what, expected, found));
            }
            check.keys(path, &index);
            by_index(check, &file, &index)?
        }
        None => {
            by_walking(check, &file, len)?;
            (0, Sums::new(check.want_blake3))
        }
    };
    if check.stopped() {
        return Ok(());
    }
    // The index may be what is damaged: the sum is of the file as it is.
    let (summed, sums) = summed;
    let rest = Stream::new(file, check.storage.pace(), summed);
    let sums = SummedFile::new(rest, sums, &|_| {})
        .drain()
        .map_err(|error| Error::io(path, "read", error))?;
    check.crc32c = Some(sums.crc.value());
    check.blake3 = sums.blake3();
    Ok(())
}

/// Gives the sums of everything up to a byte, which need not be read again.
fn by_index(
    check: &mut ShardCheck<'_>,
    file: &Arc<dyn ReadAt>,
    index: &Index,
) -> Result<(u64, Sums)> {
    let (mut bytes, mut expanded) = (Vec::new(), Vec::new());
    let mut end = PIECE_BYTES as u64;
    let last = index.blocks.last().map_or(end, |block| block.payload().end);
    let mut ahead = Ahead::new(file, check.storage.pace(), 0, last);
    ahead.advance(0);
    let mut sums = Sums::new(check.want_blake3);
    let mut header = [0; PIECE_BYTES];
    storage::read_exact_at(&**file, check.path, &mut header, 0)?;
    sums.update(&header);
    for (at, block) in index.blocks.iter().enumerate() {
        let payload = block.payload();
        // The padding before the block is read with it.
        let len = usize::try_from(payload.end - end);
        bytes.resize(
            len.map_err(|_| Error::invalid("a block longer than memory"))?,
            0,
        );
        ahead.advance(end);
        file.read_exact_at(&mut bytes, end)
            .map_err(|e| Error::io(check.path, "read", e))?;
        sums.update(&bytes);
        (check.observer)(Progress {
            bytes: payload.end - end,
            ..Progress::default()
        });
        let (padding, rest) = bytes.split_at((block.offset - end) as usize);
        if let Some(nonzero) = padding.iter().position(|&byte| byte != 0) {
            let found = format!("{:#04x}", padding[nonzero]);
            check.damaged(Corruption::new(
                end + nonzero as u64,
                "padding",
                "0x00",
                found,
            ));
        }
        let records = index.block_records(at);
        if let Some((piece, stored)) = rest.split_first_chunk::<PIECE_BYTES>() {
            check_block_header(check, index, block, piece, &records);
            check_block(check, index, block, stored, records, &mut expanded);
        }
        end = payload.end;
        if check.stopped() {
            break;
        }
    }
    Ok((end, sums))
}

/// The header before a block says the same as the index.
fn check_block_header(
    check: &mut ShardCheck<'_>,
    index: &Index,
    block: &Block,
    piece: &[u8; PIECE_BYTES],
    records: &Range<u64>,
) {
    let start = index.offsets.start(records.start).unwrap_or(0);
    let end = index.offsets.start(records.end).unwrap_or(start);
    let expected = BlockHeader {
        codec: block.codec,
        records: (records.end - records.start) as u32,
        first_record: records.start,
        crc: block.crc,
        stored_len: block.stored_len,
        raw_len: end - start,
        logical: start,
    };
    match BlockHeader::decode(piece, block.offset) {
        Ok(found) if found == expected => {}
        Ok(found) => {
            let what = "block header, against the index";
            let (expected, found) = (format!("{expected:?}"), format!("{found:?}"));
            check.damaged(Corruption::new(block.offset, what, expected, found));
        }
        Err(damage) => check.damaged(damage),
    }
}

fn check_block(
    check: &mut ShardCheck<'_>,
    index: &Index,
    block: &Block,
    stored: &[u8],
    records: Range<u64>,
    expanded: &mut Vec<u8>,
) {
    let known = check.report.findings.len();
    let logical = index.offsets.start(records.start).unwrap_or(0);
    let raw_len = index.offsets.start(records.end).unwrap_or(logical) - logical;
    let frames = match block.codec {
        crate::codec::Codec::None => Ok(stored),
        _ => expand_block(block, stored, raw_len as usize, true, expanded).map(|()| &expanded[..]),
    };
    let frames = match frames {
        Ok(frames) => frames,
        Err(damage) => {
            check.damaged(damage.record(records.start));
            check.lost(Some(records), block.payload());
            return;
        }
    };
    let mut lost: Option<Range<u64>> = None;
    for record in records.clone() {
        let Some(frame) = index.offsets.frame(record) else {
            break;
        };
        let at = (frame.start - logical) as usize..(frame.end - logical) as usize;
        let place = index
            .raw_frame(record)
            .map_or(block.offset, |frame| frame.start);
        match frame::check(frames.get(at).unwrap_or(&[]), place, true) {
            Ok(payload) => check.record(record, payload, Some(index)),
            Err(damage) => {
                check.damaged(damage.record(record));
                match &mut lost {
                    Some(run) if run.end == record => run.end += 1,
                    run => {
                        if let Some(run) = run.replace(record..record + 1) {
                            lose(check, index, block, run);
                        }
                    }
                }
            }
        }
    }
    if let Some(run) = lost {
        lose(check, index, block, run);
    }
    // Damage that no record shows cannot be; a wrong sum in header and index
    // could.
    let found = crc32c(stored);
    if found != block.crc && check.report.findings.len() == known {
        check.damaged(Corruption::checksum(
            block.offset,
            "block crc32c",
            block.crc,
            found,
        ));
    }
}

fn lose(check: &mut ShardCheck<'_>, index: &Index, block: &Block, records: Range<u64>) {
    let place = |record| index.raw_frame(record).unwrap_or_else(|| block.payload());
    let bytes = place(records.start).start..place(records.end - 1).end;
    check.lost(Some(records), bytes);
}

/// Without an index: block after block, as far as their headers lead.
fn by_walking(check: &mut ShardCheck<'_>, file: &Arc<dyn ReadAt>, len: u64) -> Result<()> {
    let reader = Stream::new(Arc::clone(file), check.storage.pace(), PIECE_BYTES as u64);
    let most = indexed_block_limit(check.options.max_record);
    let mut walk = Walk::new(reader, len, most);
    let (mut payload, mut expanded) = (Vec::new(), Vec::new());
    loop {
        let before = walk.position();
        let step = walk
            .next(&mut payload)
            .map_err(|e| Error::io(check.path, "read", e))?;
        let met = match step {
            Ok(Some(met)) => met,
            Ok(None) => return Ok(()),
            Err(damage) => {
                // The blocks end where keys and index begin. Without those
                // nothing tells that end from damage.
                check.damaged(damage);
                check.lost(None, before..len);
                return Ok(());
            }
        };
        (check.observer)(Progress {
            bytes: walk.position() - before,
            ..Progress::default()
        });
        let header = met.header;
        let block = Block {
            offset: met.offset,
            stored_len: header.stored_len,
            first_record: header.first_record,
            crc: header.crc,
            codec: header.codec,
        };
        match expand_block(
            &block,
            &payload,
            header.raw_len as usize,
            true,
            &mut expanded,
        ) {
            Ok(()) => check_frames(check, &expanded, met.offset, met.records()),
            Err(damage) => {
                check.damaged(damage.record(header.first_record));
                check.lost(Some(met.records()), block.payload());
            }
        }
        if check.stopped() {
            return Ok(());
        }
    }
}

/// Checks the frames of a block whose sum is right.
fn check_frames(check: &mut ShardCheck<'_>, mut frames: &[u8], offset: u64, records: Range<u64>) {
    let mut record = records.start;
    while let Some(head) = frames.first_chunk::<HEAD_BYTES>() {
        let len = frame::split_head(head).0;
        let cut = usize::try_from(len)
            .ok()
            .and_then(|len| len.checked_add(OVERHEAD_BYTES));
        let Some((frame, rest)) = cut.and_then(|cut| frames.split_at_checked(cut)) else {
            break;
        };
        match frame::check(frame, offset, true) {
            Ok(payload) => check.record(record, payload, None),
            Err(damage) => check.damaged(damage.record(record)),
        }
        frames = rest;
        record += 1;
    }
    if !frames.is_empty() || record != records.end {
        let expected = format!("{} to the block's end", records.end - records.start);
        let found = format!("{} and {} bytes", record - records.start, frames.len());
        check.damaged(Corruption::new(
            offset,
            "records of the block",
            expected,
            found,
        ));
    }
}
