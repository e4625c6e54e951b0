//! Decodes stored bytes to records, without IO.

use std::ops::Range;

use super::Shard;
use crate::codec::Codec;
use crate::error::Corruption;
use crate::frame::{self, HEAD_BYTES, OVERHEAD_BYTES, TAIL_BYTES};
use crate::index;
use crate::record_block::{PayloadRange, RecordBlock};

impl Shard {
    pub(super) fn decode_frames(
        &self,
        records: Range<u64>,
        base: u64,
        out: &mut RecordBlock,
    ) -> Result<(), Corruption> {
        let index = &self.inner.index;
        let verify = self.inner.checks.verify;
        let mut record = records.start;
        while record < records.end {
            let block = index.blocks.get(index.block_of(record));
            if let Some(block) = block.filter(|block| block.codec != Codec::NONE) {
                let within = index.block_records(index.block_of(record));
                let run = record..within.end.min(records.end);
                self.expand(block, within, run.clone(), base, out)?;
                record = run.end;
                continue;
            }
            let Some(frame) = index.raw_frame(record) else {
                break;
            };
            let at = (frame.start - base) as usize..(frame.end - base) as usize;
            let stored = &out.stored[..out.stored_len];
            let bytes = stored.get(at.clone()).ok_or_else(|| {
                let needed = format_args!("bytes up to {}", frame.end);
                let given = base + out.stored_len as u64;
                Corruption::new(frame.start, "bytes at hand", needed, given).record(record)
            })?;
            frame::check(bytes, frame.start, verify).map_err(|damage| damage.record(record))?;
            let bytes = at.start + HEAD_BYTES..at.end - TAIL_BYTES;
            out.records.push(PayloadRange {
                expanded: false,
                bytes,
            });
            record += 1;
        }
        Ok(())
    }

    /// Expands a compressed block, and adds its records that lie in `within`.
    fn expand(
        &self,
        block: &index::Block,
        within: Range<u64>,
        run: Range<u64>,
        base: u64,
        out: &mut RecordBlock,
    ) -> Result<(), Corruption> {
        let offsets = &self.inner.index.offsets;
        let payload = block.payload();
        let at = (payload.start - base) as usize..(payload.end - base) as usize;
        let stored = out.stored[..out.stored_len].get(at).ok_or_else(|| {
            let given = base + out.stored_len as u64;
            let needed = format_args!("bytes up to {}", payload.end);
            Corruption::new(payload.start, "bytes at hand", needed, given).record(run.start)
        })?;
        let logical = offsets.start(within.start).unwrap_or(0);
        let raw_len = offsets
            .start(within.end)
            .unwrap_or(0)
            .saturating_sub(logical);
        let most = indexed_block_limit(self.inner.checks.max_record);
        if raw_len > most {
            let expected = format_args!("at most {most} bytes");
            return Err(Corruption::new(
                block.offset,
                "block's expanded length",
                expected,
                raw_len,
            ));
        }
        // The first block expands into place, later ones after it.
        let start = out.expanded.len();
        let target = if start == 0 {
            &mut out.expanded
        } else {
            &mut out.scratch
        };
        let verify = self.inner.checks.verify;
        expand_block(block, stored, raw_len as usize, verify, target)
            .map_err(|damage| damage.record(run.start))?;
        if start != 0 {
            out.expanded.extend_from_slice(&out.scratch);
        }
        for record in run {
            let Some(frame) = offsets.frame(record) else {
                break;
            };
            let from = |offset: u64| start + (offset - logical) as usize;
            let at = from(frame.start)..from(frame.end);
            let bytes = out.expanded.get(at.clone()).unwrap_or(&[]);
            frame::check(bytes, block.offset, verify).map_err(|damage| damage.record(record))?;
            let bytes = at.start + HEAD_BYTES..at.end - TAIL_BYTES;
            out.records.push(PayloadRange {
                expanded: true,
                bytes,
            });
        }
        Ok(())
    }
}

/// Returns the maximum expanded size of a block: the record that reaches the block size is its last one.
pub(crate) fn indexed_block_limit(max_record: u64) -> u64 {
    (crate::indexed::MAX_BLOCK_BYTES as u64 + OVERHEAD_BYTES as u64).saturating_add(max_record)
}

/// Verifies and expands the payload of a block.
pub(crate) fn expand_block(
    block: &index::Block,
    stored: &[u8],
    raw_len: usize,
    verify: bool,
    out: &mut Vec<u8>,
) -> Result<(), Corruption> {
    let found = if verify {
        crate::checksum::crc32c(stored)
    } else {
        block.crc
    };
    if found != block.crc {
        return Err(Corruption::checksum(
            block.offset,
            "block crc32c",
            block.crc,
            found,
        ));
    }
    block
        .codec
        .decompress(stored, raw_len, out)
        .map_err(|error| {
            let expected = format_args!("{raw_len} bytes of {}", block.codec);
            Corruption::new(block.offset, "compressed block", expected, error)
        })
}
