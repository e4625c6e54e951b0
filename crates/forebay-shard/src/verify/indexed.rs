//! Verifies an indexed shard by its index, or by the headers of its blocks if the index is damaged.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::sum::{SummedFile, Sums};
use super::{ShardCheck, VerifyProgress, check_header};
use crate::checksum::crc32c;
use crate::codec::Codec;
use crate::error::{Corruption, Error, Result};
use crate::frame::{self, HEAD_BYTES, OVERHEAD_BYTES};
use crate::index::layout::{BLOCK_ALIGN, BLOCK_MAGIC, BlockHeader, PIECE_BYTES};
use crate::index::{Block, FileKind, Index};
use crate::shard::{expand_block, indexed_block_limit};
use crate::storage::{self, Ahead, FileStream, ReadAt};
use crate::tfrecord::{Compression, Mode, ReaderBuilder};

/// Bytes per step in the search for a block header.
const SEARCH_BYTES: u64 = 1 << 20;

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
    // The rest of the file is read too, because the whole-file checksum covers the index even if it is damaged.
    let (summed, sums) = summed;
    let rest = FileStream::new(file, check.storage.read_profile(), summed);
    check.sum(SummedFile::new(rest, sums, &|_| {}))?;
    Ok(())
}

/// Verifies a shard by its index. Returns the checksums of everything up to an offset; bytes before it need not be
/// read again.
fn by_index(
    check: &mut ShardCheck<'_>,
    file: &Arc<dyn ReadAt>,
    index: &Index,
) -> Result<(u64, Sums)> {
    let (mut bytes, mut expanded) = (Vec::new(), Vec::new());
    let mut end = PIECE_BYTES as u64;
    let last = index.blocks.last().map_or(end, |block| block.payload().end);
    let mut ahead = Ahead::new(file, check.storage.read_profile(), 0, last);
    ahead.advance(0);
    let mut sums = Sums::new(check.want_blake3);
    let mut header = [0; PIECE_BYTES];
    storage::read_exact_at(&**file, check.path, &mut header, 0)?;
    sums.update(&header);
    for (at, block) in index.blocks.iter().enumerate() {
        let payload = block.payload();
        // The padding before the block is read together with it.
        let len = usize::try_from(payload.end - end);
        bytes.resize(
            len.map_err(|_| Error::invalid("a block longer than memory"))?,
            0,
        );
        ahead.advance(end);
        file.read_exact_at(&mut bytes, end)
            .map_err(|e| Error::io(check.path, "read", e))?;
        sums.update(&bytes);
        (check.observer)(VerifyProgress {
            bytes: payload.end - end,
            ..VerifyProgress::default()
        });
        let (padding, rest) = bytes.split_at((block.offset - end) as usize);
        if let Some(damage) = damaged_padding(padding, end) {
            check.damaged(damage);
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

/// Padding, which begins at offset `at`, must be zero.
fn damaged_padding(padding: &[u8], at: u64) -> Option<Corruption> {
    let (at, byte) = (at..).zip(padding).find(|&(_, &byte)| byte != 0)?;
    Some(Corruption::new(
        at,
        "padding",
        "0x00",
        format!("{byte:#04x}"),
    ))
}

/// Checks that the header of a block agrees with the index.
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
        Codec::NONE => Ok(stored),
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
    // Damage to the payload would have been found in a record, so the checksum in header and index is
    // wrong.
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

/// Verifies a shard without an index: follows block headers, and searches for the next header after damage.
fn by_walking(check: &mut ShardCheck<'_>, file: &Arc<dyn ReadAt>, len: u64) -> Result<()> {
    let most = indexed_block_limit(check.options.max_record);
    let mut ahead = Ahead::new(file, check.storage.read_profile(), 0, len);
    let mut at = PIECE_BYTES as u64;
    let mut payload = Vec::new();
    // The expected first record of the next block, and the offset up to which headers were
    // searched.
    let (mut next, mut unsearched) = (0, 0);
    while at < len {
        ahead.advance(at);
        let before = at;
        let met = match read_block(&**file, check.path, at, most, &mut payload) {
            Ok(met) => met,
            Err(Error::Corrupt(damage)) => {
                check.damaged(*damage);
                let from = before.max(unsearched);
                let Some(met) = next_block(&**file, check.path, from..len, next, most)? else {
                    // The blocks end where keys and index begin, which are damaged.
                    match check.expected_records {
                        Some(records) if records > next => {
                            check.lost(Some(next..records), before..len);
                        }
                        Some(_) => {}
                        None => check.lost(None, before..len),
                    }
                    return Ok(());
                };
                if met.header.first_record > next {
                    check.lost(Some(next..met.header.first_record), before..met.offset);
                }
                next = met.header.first_record;
                unsearched = met.offset + 1;
                let payload_at = met.offset + PIECE_BYTES as u64;
                if met.header.stored_len > len - payload_at {
                    cut_block(check, &**file, &met, payload_at..len)?;
                    next = met.records().end;
                    unsearched = len;
                    at = len;
                } else {
                    at = met.offset;
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        at = met.offset + PIECE_BYTES as u64 + met.header.stored_len;
        (check.observer)(VerifyProgress {
            bytes: at - before,
            ..VerifyProgress::default()
        });
        if met.header.first_record < next {
            let expected = format!("{next} or more");
            let found = met.header.first_record;
            check.damaged(Corruption::new(
                met.offset,
                "first record of the block",
                expected,
                found,
            ));
            continue;
        }
        if met.header.first_record > next {
            // A whole block with its header was overwritten by zeros, which read as padding.
            check.lost(Some(next..met.header.first_record), before..met.offset);
        }
        walked_block(check, &met, &payload);
        next = met.records().end;
        if check.stopped() {
            return Ok(());
        }
    }
    if let Some(records) = check.expected_records.filter(|&records| records > next) {
        check.lost(Some(next..records), len..len);
    }
    Ok(())
}

/// A block header, with the offset of the block.
struct BlockAt {
    offset: u64,
    header: BlockHeader,
}

impl BlockAt {
    fn records(&self) -> Range<u64> {
        let first = self.header.first_record;
        first..first.saturating_add(u64::from(self.header.records))
    }
}

/// Reads the block that begins at offset `at`, or, after padding, at the next multiple of the alignment, with its
/// payload, which is not verified. Compressed blocks have no padding before them.
fn read_block(
    file: &dyn ReadAt,
    path: &Path,
    at: u64,
    max_payload: u64,
    payload: &mut Vec<u8>,
) -> Result<BlockAt> {
    let mut piece = read_piece(file, path, at)?;
    let mut offset = at;
    if piece[0] == 0 {
        offset = at.next_multiple_of(BLOCK_ALIGN);
        piece = read_piece(file, path, offset)?;
        let mut padding = vec![0; (offset - at) as usize];
        storage::read_exact_at(file, path, &mut padding, at)?;
        if let Some(damage) = damaged_padding(&padding, at) {
            return Err(damage.into());
        }
    }
    let header = BlockHeader::decode(&piece, offset)?;
    if header.codec == Codec::NONE && !offset.is_multiple_of(BLOCK_ALIGN) {
        let expected = format!("a multiple of {BLOCK_ALIGN}");
        return Err(Corruption::new(offset, "start of a raw block", expected, offset).into());
    }
    let start = offset + PIECE_BYTES as u64;
    let room = file.len() - start;
    if header.stored_len > room || header.raw_len > max_payload {
        let most = format!("at most {room} stored and {max_payload} raw");
        let found = format!("{} and {}", header.stored_len, header.raw_len);
        return Err(Corruption::new(offset, "length of the block", most, found).into());
    }
    let len = usize::try_from(header.stored_len);
    payload.resize(
        len.map_err(|_| Error::invalid("a block longer than memory"))?,
        0,
    );
    storage::read_exact_at(file, path, payload, start)?;
    Ok(BlockAt { offset, header })
}

/// Reads the bytes of a header at offset `at`.
fn read_piece(file: &dyn ReadAt, path: &Path, at: u64) -> Result<[u8; PIECE_BYTES]> {
    let mut piece = [0; PIECE_BYTES];
    let room = file.len().saturating_sub(at);
    if room < PIECE_BYTES as u64 {
        let expected = format!("{PIECE_BYTES} bytes");
        let found = format!("{room} before the end of the blocks");
        let at = file.len();
        return Err(Corruption::truncated(at, "block is cut short", expected, found).into());
    }
    storage::read_exact_at(file, path, &mut piece, at)?;
    Ok(piece)
}

/// Verifies a block that was found without an index. A raw block with a wrong checksum may still contain
/// intact records.
fn walked_block(check: &mut ShardCheck<'_>, met: &BlockAt, payload: &[u8]) {
    let header = &met.header;
    let block = Block {
        offset: met.offset,
        stored_len: header.stored_len,
        first_record: header.first_record,
        crc: header.crc,
        codec: header.codec,
    };
    let mut expanded = Vec::new();
    let raw_len = usize::try_from(header.raw_len).unwrap_or(usize::MAX);
    match expand_block(&block, payload, raw_len, true, &mut expanded) {
        Ok(()) => check_frames(check, &expanded, met.offset, met.records()),
        Err(damage) if header.codec == Codec::NONE => {
            check.damaged(damage);
            salvage_frames(check, met, payload);
        }
        Err(damage) => {
            check.damaged(damage.record(header.first_record));
            check.lost(Some(met.records()), block.payload());
        }
    }
}

/// Finds the intact frames of a raw block whose checksum is wrong.
fn salvage_frames(check: &mut ShardCheck<'_>, met: &BlockAt, payload: &[u8]) {
    let start = met.offset + PIECE_BYTES as u64;
    let mut builder = ReaderBuilder::new();
    builder
        .mode(Mode::Salvage)
        .compression(Compression::None)
        .max_record(check.options.max_record);
    let mut reader = builder.from_reader(payload, check.path);
    let records = met.records();
    let (mut number, mut known, mut record) = (records.start, 0, Vec::new());
    // Reading from memory does not fail.
    while let Ok(found) = reader.read_into(&mut record) {
        for lost in reader.lost().iter().skip(known) {
            let bytes = start + lost.offset..start + lost.offset + lost.len;
            // Each gap counts as one record; records missing at the end are added to the last gap.
            check.lost(Some(number..number + 1), bytes);
            number += 1;
        }
        known = reader.lost().len();
        if found.is_none() {
            break;
        }
        check.record(number, &record, None);
        number += 1;
    }
    if number < records.end {
        let end = start + payload.len() as u64;
        match check.report.lost.last_mut().filter(|_| known > 0) {
            Some(last) => {
                if let Some(last) = &mut last.records {
                    last.end += records.end - number;
                }
            }
            None => check.lost(Some(number..records.end), end..end),
        }
    }
}

/// Verifies the records of a block that is truncated by the end of the file.
fn cut_block(
    check: &mut ShardCheck<'_>,
    file: &dyn ReadAt,
    met: &BlockAt,
    bytes: Range<u64>,
) -> Result<()> {
    if met.header.codec != Codec::NONE {
        check.lost(Some(met.records()), bytes);
        return Ok(());
    }
    // The header claims more bytes than the file has, so this is shorter than the longest block.
    let len = usize::try_from(bytes.end - bytes.start).unwrap_or(usize::MAX);
    let mut payload = vec![0; len];
    storage::read_exact_at(file, check.path, &mut payload, bytes.start)?;
    salvage_frames(check, met, &payload);
    Ok(())
}

/// Returns the next block whose header lies in `bytes`, whose records begin at `record` or later and expand
/// to at most `most` bytes.
fn next_block(
    file: &dyn ReadAt,
    path: &Path,
    bytes: Range<u64>,
    record: u64,
    most: u64,
) -> Result<Option<BlockAt>> {
    let mut window = Vec::new();
    let mut at = bytes.start;
    while at + PIECE_BYTES as u64 <= bytes.end {
        let size = (bytes.end - at).min(SEARCH_BYTES);
        window.resize(size as usize, 0);
        storage::read_exact_at(file, path, &mut window, at)?;
        for (offset, piece) in (at..).zip(window.windows(PIECE_BYTES)) {
            if piece.starts_with(&BLOCK_MAGIC)
                && let Some(piece) = piece.first_chunk()
                && let Ok(header) = BlockHeader::decode(piece, offset)
                && (header.codec != Codec::NONE || offset.is_multiple_of(BLOCK_ALIGN))
                && header.first_record >= record
                && header.raw_len <= most
            {
                return Ok(Some(BlockAt { offset, header }));
            }
        }
        at += size - (PIECE_BYTES as u64 - 1);
    }
    Ok(None)
}

/// Verifies the frames of a block whose checksum is correct.
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
