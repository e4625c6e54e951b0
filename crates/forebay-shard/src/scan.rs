//! Reads the records of a shard in order, with large reads.

use std::ops::Range;

use crate::error::Result;
use crate::record_block::RecordBlock;
use crate::shard::Shard;
use crate::storage::Ahead;
use crate::tfrecord::{Record, RecordInfo};

/// Bytes per read: small enough to stay in a core's cache between the read and the checksum.
const READ_BYTES: u64 = 512 << 10;

/// Iterates over the records of a shard, in reusable buffers.
///
/// ```
/// # use forebay_shard::{Shard, tfrecord};
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("records");
/// # let mut writer = tfrecord::WriterBuilder::new().from_writer(std::fs::File::create(&path)?, &path);
/// # writer.write(b"first")?;
/// # writer.finish()?;
/// let shard = Shard::open(&path)?;
/// let mut scan = shard.scan(0..shard.len());
/// while let Some(record) = scan.next_record()? {
///     println!("{}: {} bytes", record.info.index, record.bytes.len());
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Scan {
    shard: Shard,
    rest: Range<u64>,
    block: RecordBlock,
    at: usize,
    /// `None` before the first read.
    ahead: Option<Ahead>,
}

impl Shard {
    /// Iterates over records in order, with large reads.
    pub fn scan(&self, records: Range<u64>) -> Scan {
        Scan::new(self.clone(), records)
    }
}

impl Scan {
    fn new(shard: Shard, records: Range<u64>) -> Self {
        Self {
            shard,
            rest: records,
            block: RecordBlock::default(),
            at: 0,
            ahead: None,
        }
    }

    /// Returns the next record, in the scan's buffer; `None` after the last.
    ///
    /// # Errors
    /// As [`Shard::read_range`]; after an error there are no more records.
    pub fn next_record(&mut self) -> Result<Option<Record<'_>>> {
        if self.at == self.block.len() {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let run = self.next_run();
            self.at = 0;
            self.tell(&run);
            let read = self.shard.read_range(run.clone(), &mut self.block);
            self.rest.start = run.end;
            if let Err(error) = read {
                self.block.clear(run.end);
                self.rest = 0..0;
                return Err(error);
            }
        }
        let bytes = self.block.get(self.at);
        let index = self.block.first() + self.at as u64;
        self.at += 1;
        let offset = self.shard.index().offsets.start(index).unwrap_or(0);
        let info = RecordInfo {
            index,
            offset,
            len: bytes.len() as u64,
        };
        Ok(Some(Record { info, bytes }))
    }

    /// Announces the next reads to the storage, as far as its readahead allows.
    fn tell(&mut self, run: &Range<u64>) {
        let ahead = self.ahead.get_or_insert_with(|| {
            let profile = self.shard.storage().read_profile();
            let records = self.rest.start..self.rest.end.min(self.shard.len());
            // An error here occurs again in the read itself, which reports it.
            match (self.shard.byte_range(records), self.shard.file()) {
                (Ok(bytes), Ok(file)) if profile.readahead_bytes > 0 => {
                    Ahead::new(&file, profile, bytes.start, bytes.end)
                }
                _ => Ahead::default(),
            }
        });
        if ahead.is_wanted()
            && let Ok(bytes) = self.shard.byte_range(run.clone())
        {
            ahead.advance(bytes.start);
        }
    }

    /// Returns as many of the remaining records as fit into one read. If blocks are compressed, the range ends at a block
    /// boundary, so that no block is expanded twice.
    fn next_run(&self) -> Range<u64> {
        let index = self.shard.index();
        let first = self.rest.start;
        if index.raw_frame(first).is_none() {
            let within = index.block_records(index.block_of(first));
            return first..within.end.clamp(first + 1, self.rest.end.max(first + 1));
        }
        let limit = index
            .offsets
            .start(first)
            .unwrap_or(0)
            .saturating_add(READ_BYTES);
        // Bisection finds the last record that starts below the limit.
        let (mut low, mut high) = (first + 1, self.rest.end);
        while low < high {
            let middle = low + (high - low) / 2;
            match index.offsets.frame(middle) {
                Some(frame) if frame.end <= limit && index.raw_frame(middle).is_some() => {
                    low = middle + 1;
                }
                _ => high = middle,
            }
        }
        first..low
    }
}

impl Iterator for Scan {
    type Item = Result<Vec<u8>>;

    /// Returns the next record, copied into a new vector.
    fn next(&mut self) -> Option<Self::Item> {
        self.next_record()
            .map(|record| record.map(|record| record.bytes.to_vec()))
            .transpose()
    }
}
