//! The columns of an open index, in the narrowest type that holds their values.
//!
//! On disk offsets are always `u64` and labels `i64`; for a shard below 4 GiB with a thousand
//! classes, six bytes of memory per record suffice instead of sixteen.

use crate::samples::NO_LABEL;
use std::ops::Range;

/// The start of each frame, and the end of the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offsets(Wide);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Wide {
    U32(Vec<u32>),
    U64(Vec<u64>),
}

impl Offsets {
    /// Creates the column from ascending offsets, the last of which is the end.
    pub(crate) fn new(count: usize, offsets: impl Iterator<Item = u64> + Clone) -> Self {
        let narrow = offsets
            .clone()
            .last()
            .is_none_or(|end| u32::try_from(end).is_ok());
        Self(if narrow {
            let mut column = Vec::with_capacity(count);
            column.extend(offsets.map(|offset| offset as u32));
            Wide::U32(column)
        } else {
            let mut column = Vec::with_capacity(count);
            column.extend(offsets);
            Wide::U64(column)
        })
    }

    /// Returns the number of frames.
    pub fn records(&self) -> u64 {
        let ends = match &self.0 {
            Wide::U32(column) => column.len(),
            Wide::U64(column) => column.len(),
        };
        ends.saturating_sub(1) as u64
    }

    /// Returns the start of frame `record`; for the number of records, the end of the last one.
    pub fn start(&self, record: u64) -> Option<u64> {
        let at = usize::try_from(record).ok()?;
        match &self.0 {
            Wide::U32(column) => column.get(at).map(|&offset| u64::from(offset)),
            Wide::U64(column) => column.get(at).copied(),
        }
    }

    /// Returns the byte range of frame `record`.
    pub fn frame(&self, record: u64) -> Option<Range<u64>> {
        Some(self.start(record)?..self.start(record.checked_add(1)?)?)
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.0 {
            Wide::U32(column) => column.capacity() * 4,
            Wide::U64(column) => column.capacity() * 8,
        }
    }
}

/// Labels of records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels(Width);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Width {
    /// No record has a label.
    Absent,
    I16(Vec<i16>),
    I32(Vec<i32>),
    I64(Vec<i64>),
}

impl Labels {
    /// Creates the column from labels as stored on disk.
    pub(crate) fn new(count: usize, labels: impl Iterator<Item = i64> + Clone) -> Self {
        let real = labels.clone().filter(|&label| label != NO_LABEL);
        let Some((low, high)) = real.fold(None, |range: Option<(i64, i64)>, label| {
            let (low, high) = range.unwrap_or((label, label));
            Some((low.min(label), high.max(label)))
        }) else {
            return Self(Width::Absent);
        };
        macro_rules! column {
            ($variant:ident, $int:ty) => {{
                let mut column = Vec::with_capacity(count);
                column.extend(labels.map(|label| <$int>::try_from(label).unwrap_or(<$int>::MIN)));
                Self(Width::$variant(column))
            }};
        }
        if low > i64::from(i16::MIN) && high <= i64::from(i16::MAX) {
            column!(I16, i16)
        } else if low > i64::from(i32::MIN) && high <= i64::from(i32::MAX) {
            column!(I32, i32)
        } else {
            column!(I64, i64)
        }
    }

    /// Returns the label of a record, if it has one.
    pub fn get(&self, record: u64) -> Option<i64> {
        let at = usize::try_from(record).ok()?;
        match &self.0 {
            Width::Absent => None,
            Width::I16(column) => column
                .get(at)
                .filter(|&&label| label != i16::MIN)
                .map(|&label| label.into()),
            Width::I32(column) => column
                .get(at)
                .filter(|&&label| label != i32::MIN)
                .map(|&label| label.into()),
            Width::I64(column) => column.get(at).filter(|&&label| label != NO_LABEL).copied(),
        }
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        match &self.0 {
            Width::Absent => 0,
            Width::I16(column) => column.capacity() * 2,
            Width::I32(column) => column.capacity() * 4,
            Width::I64(column) => column.capacity() * 8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_narrow_as_their_values() {
        for (labels, bytes) in [
            (vec![1, 1000, NO_LABEL], 2),
            (vec![i64::from(i16::MIN), 0, NO_LABEL], 4),
            (vec![40_000, -40_000, NO_LABEL], 4),
            (vec![i64::MAX, i64::MIN + 1, NO_LABEL], 8),
            (vec![NO_LABEL, NO_LABEL, NO_LABEL], 0),
        ] {
            let column = Labels::new(3, labels.iter().copied());
            assert_eq!(column.memory_bytes(), 3 * bytes);
            for (at, &label) in labels.iter().enumerate() {
                assert_eq!(column.get(at as u64), (label != NO_LABEL).then_some(label));
            }
            assert_eq!(column.get(3), None);
        }
        for end in [u64::from(u32::MAX), u64::from(u32::MAX) + 1] {
            let offsets = Offsets::new(3, [0, 16, end].into_iter());
            assert_eq!((offsets.records(), offsets.frame(1)), (2, Some(16..end)));
            assert_eq!(offsets.frame(2), None);
            assert_eq!(offsets.memory_bytes(), if end >> 32 == 0 { 12 } else { 24 });
        }
    }
}
