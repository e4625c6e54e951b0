//! The facts of each record that stay in memory: label, size, dimensions, hash, and short texts within a budget.
//!
//! A table is a list of chunks that are replaced as a whole, so that queries read a snapshot while the scan goes on.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Maximum number of records in a chunk.
pub(super) const CHUNK_RECORDS: usize = 2048;
/// Maximum number of bytes of a text to keep.
pub(super) const MAX_TEXT_BYTES: usize = 200;
/// Maximum number of bytes of all texts: keys, and values of columns.
pub(super) const TEXT_BUDGET_BYTES: usize = 512 << 20;

/// The record cannot be read or decoded. Reasons are in the order of their weight.
pub(super) const BROKEN: u8 = 1;
/// A box is empty or outside of the image.
pub(super) const BAD_BOX: u8 = 2;
/// The image looks like another one.
pub(super) const TWIN: u8 = 4;
/// The class has few records.
pub(super) const RARE: u8 = 8;

/// Texts of the records of a chunk.
#[derive(Debug, Default)]
pub(super) struct Texts {
    pub(super) bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Texts {
    /// Appends a text, or an empty one if less than its length is left of the bytes that all texts may take.
    pub(super) fn push(&mut self, text: &[u8], left: &AtomicUsize) {
        let text = &text[..text.len().min(MAX_TEXT_BYTES)];
        let (order, less) = (Ordering::Relaxed, |left: usize| {
            left.checked_sub(text.len())
        });
        if left.fetch_update(order, order, less).is_ok() {
            self.bytes.extend_from_slice(text);
        }
        self.ends.push(self.bytes.len() as u32);
    }

    /// Returns the text of a record; empty beyond the last.
    fn get(&self, at: usize) -> &[u8] {
        let start = at.checked_sub(1).and_then(|before| self.ends.get(before));
        let end = self.ends.get(at).copied().unwrap_or(0);
        let range = start.copied().unwrap_or(0) as usize..end as usize;
        self.bytes.get(range).unwrap_or_default()
    }
}

/// The facts of a record, apart from texts.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts {
    /// In bytes; clamped to 4 GiB.
    pub(super) bytes: u32,
    pub(super) label: Option<i32>,
    /// Width and height in pixels; 0 if unknown.
    pub(super) size: (u32, u32),
    /// The perceptual hash; 0 if there is none.
    pub(super) hash: u64,
    /// [`BROKEN`] and [`BAD_BOX`].
    pub(super) flags: u8,
}

/// Consecutive records of one part of the source.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    pub(super) first: u32,
    pub(super) facts: Vec<Facts>,
    /// Shared with the chunk that this one replaces.
    pub(super) keys: Arc<Texts>,
    /// The values of each column that queries can search; empty until the records were read.
    pub(super) columns: Vec<Texts>,
    /// The number of boxes of each label; empty until the records were read.
    pub(super) boxes: BTreeMap<i64, u64>,
    pub(super) is_read: bool,
}

/// One record of a snapshot.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row<'a> {
    pub(super) number: u32,
    pub(super) facts: Facts,
    chunk: &'a Chunk,
}

impl<'a> Row<'a> {
    fn at(&self) -> usize {
        (self.number - self.chunk.first) as usize
    }

    pub(super) fn key(&self) -> &'a [u8] {
        self.chunk.keys.get(self.at())
    }

    pub(super) fn column(&self, column: usize) -> &'a [u8] {
        let texts = self.chunk.columns.get(column);
        texts.map_or(b"", |texts| texts.get(self.at()))
    }
}

impl Chunk {
    fn row(&self, number: u32) -> Option<Row<'_>> {
        let at = number.checked_sub(self.first)? as usize;
        let facts = *self.facts.get(at)?;
        let chunk = self;
        Some(Row {
            number,
            facts,
            chunk,
        })
    }
}

/// The chunks at one time.
#[derive(Debug, Clone, Default)]
pub(super) struct Snapshot {
    pub(super) chunks: Arc<Vec<Arc<Chunk>>>,
    /// For each record that looks like another: the first record of their group.
    pub(super) twins: Arc<HashMap<u32, u32>>,
    /// Labels whose classes have few records, with their numbers.
    pub(super) rare: Arc<BTreeMap<i32, u64>>,
}

impl Snapshot {
    /// Returns a record; `None` beyond the last.
    pub(super) fn row(&self, number: u32) -> Option<Row<'_>> {
        let after = self.chunks.partition_point(|chunk| chunk.first <= number);
        let chunk = self.chunks.get(after.checked_sub(1)?)?;
        chunk.row(number)
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = Row<'_>> {
        let chunks = self.chunks.iter();
        chunks.flat_map(|chunk| (chunk.first..).map_while(|number| chunk.row(number)))
    }

    /// Returns why a record is suspicious, as a set of bits.
    pub(super) fn reasons(&self, row: &Row<'_>) -> u8 {
        let is_rare = row
            .facts
            .label
            .is_some_and(|label| self.rare.contains_key(&label));
        let rare = u8::from(is_rare) * RARE;
        row.facts.flags | rare | (u8::from(self.twins.contains_key(&row.number)) * TWIN)
    }

    /// Returns the number of records of each label.
    pub(super) fn class_counts(&self) -> BTreeMap<i32, u64> {
        let mut counts = HashMap::new();
        for label in self.rows().filter_map(|row| row.facts.label) {
            *counts.entry(label).or_insert(0) += 1;
        }
        counts.into_iter().collect()
    }

    /// Returns the number of boxes of each label.
    pub(super) fn box_counts(&self) -> BTreeMap<i64, u64> {
        let mut counts = BTreeMap::new();
        for (label, count) in self.chunks.iter().flat_map(|chunk| &chunk.boxes) {
            *counts.entry(*label).or_default() += count;
        }
        counts
    }
}

/// The current snapshot.
#[derive(Debug, Default)]
pub(super) struct Table(RwLock<Snapshot>);

impl Table {
    pub(super) fn snapshot(&self) -> Snapshot {
        let current = self.0.read().unwrap_or_else(PoisonError::into_inner);
        current.clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Snapshot)) {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner));
    }
}
