//! The records of a `Dataset` object: its splits, one after the other, and a slice of them. Computes record numbers and
//! reads runs.

use std::sync::Arc;

use forebay_shard::{RecordBlock, Split};

use crate::failure::Failure;

/// Bytes that are read together when records are read in order: enough to amortize a system call, few enough for a
/// processor's cache.
const RUN_BYTES: u64 = 2 << 20;
/// Maximum number of records in a run, which small records reach.
const RUN_RECORDS: u64 = 4096;

/// A slice of the records of some splits, in order.
#[derive(Clone)]
pub(super) struct View {
    pub(super) splits: Arc<[Split]>,
    pub(super) cut: Cut,
}

/// Every `step`th number from `start` on; `len` numbers in total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub(super) start: i64,
    pub(super) step: i64,
    pub(super) len: u64,
}

impl Cut {
    pub(super) fn all(len: u64) -> Cut {
        Cut {
            start: 0,
            step: 1,
            len,
        }
    }

    /// Returns the `i`th number, counted from the end if `i` is negative.
    pub(super) fn number(self, i: i64) -> Option<u64> {
        let len = i64::try_from(self.len).ok()?;
        let i = if i < 0 { i.checked_add(len)? } else { i };
        if !(0..len).contains(&i) {
            return None;
        }
        u64::try_from(self.start.checked_add(self.step.checked_mul(i)?)?).ok()
    }

    /// Returns a part of this cut. `part` selects positions in this cut.
    pub(super) fn part(self, part: Cut) -> Option<Cut> {
        Some(Cut {
            start: self.start.checked_add(self.step.checked_mul(part.start)?)?,
            step: self.step.checked_mul(part.step)?,
            len: part.len,
        })
    }
}

impl View {
    pub(super) fn new(splits: Arc<[Split]>) -> View {
        let len = splits.iter().map(Split::len).sum();
        View {
            splits,
            cut: Cut::all(len),
        }
    }

    /// Returns the split of record `number` of all records, and the record's number in the split.
    pub(super) fn place(&self, number: u64) -> Option<(&Split, u64)> {
        let mut left = number;
        for split in self.splits.iter() {
            if left < split.len() {
                return Some((split, left));
            }
            left -= split.len();
        }
        None
    }

    /// Reads record `number` of all records alone.
    pub(super) fn read(&self, number: u64, out: &mut Vec<u8>) -> Result<(), Failure> {
        if let Some((split, index)) = self.place(number) {
            split.read(index, out)?;
        }
        Ok(())
    }

    /// Reads at most `most` adjacent records, from record `number` of all records on.
    pub(super) fn read_run(
        &self,
        number: u64,
        most: u64,
        out: &mut RecordBlock,
    ) -> Result<(), Failure> {
        let place = self.place(number);
        let Some((shard, first)) = place.and_then(|(split, index)| {
            let (shard, first) = split.locate(index)?;
            Some((split.shards().get(shard)?, first))
        }) else {
            return Ok(());
        };
        let end = first.saturating_add(most.min(RUN_RECORDS)).min(shard.len());
        let mut last = first;
        let mut bytes = 0u64;
        while last < end && bytes < RUN_BYTES {
            bytes = bytes.saturating_add(shard.record_len(last).unwrap_or(0));
            last += 1;
        }
        Ok(shard.read_range(first..last, out)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(cut: Cut) -> Vec<u64> {
        (0..cut.len as i64)
            .map(|i| cut.number(i).unwrap())
            .collect()
    }

    #[test]
    fn cuts_of_cuts() {
        let all = Cut::all(10);
        assert_eq!(numbers(all), (0..10).collect::<Vec<_>>());
        let odd = all
            .part(Cut {
                start: 1,
                step: 2,
                len: 5,
            })
            .unwrap();
        assert_eq!(numbers(odd), [1, 3, 5, 7, 9]);
        let back = odd
            .part(Cut {
                start: 3,
                step: -1,
                len: 3,
            })
            .unwrap();
        assert_eq!(numbers(back), [7, 5, 3]);
        assert_eq!(back.number(-1), Some(3));
        assert_eq!(back.number(3), None);
        assert_eq!(back.number(-4), None);
        assert_eq!(back.number(i64::MIN), None);
    }
}
