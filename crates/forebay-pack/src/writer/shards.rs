//! The open shards of a writer: one per split, ended by size in the order of the records.

use super::options::WriterOptions;
use super::record::{Checked, Encoded};
use crate::error::{Error, Result};
use crate::options::{MAX_SHARDS, PackOptions};
use crate::publish::destination::{Destination, ShardLine, SpaceReservation};
use crate::publish::upload;
use crate::write::{Output, WrittenShard, open_shard};
use forebay_image::SeekDensity;
use forebay_shard::{OVERHEAD_BYTES, RecordMeta, ShardWriter};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Receives finished shards.
pub(super) type Sink<'a> = dyn FnMut(WrittenShard) -> Result<()> + 'a;

pub(super) struct OpenShards<'a> {
    options: &'a WriterOptions,
    of_shards: &'a PackOptions,
    destination: &'a dyn Destination,
    stopped: &'a dyn Fn() -> bool,
    splits: BTreeMap<Arc<str>, OpenSplit>,
}

#[derive(Default)]
struct OpenSplit {
    /// Number of the next new shard.
    next: u32,
    open: Option<OpenShard>,
}

struct OpenShard {
    line: ShardLine,
    /// The number of a lost shard of an earlier writer, which is written again with the same records.
    given: Option<u32>,
    writer: ShardWriter<Output>,
    /// Size of its frames in bytes.
    bytes: u64,
    room: SpaceReservation,
}

impl<'a> OpenShards<'a> {
    /// Creates the open shards; `next` contains the number of the first new shard of splits that have stored shards.
    pub(super) fn new(
        options: &'a WriterOptions,
        of_shards: &'a PackOptions,
        destination: &'a dyn Destination,
        stopped: &'a dyn Fn() -> bool,
        next: impl Iterator<Item = (Arc<str>, u32)>,
    ) -> Self {
        let split = |next| OpenSplit { next, open: None };
        Self {
            options,
            of_shards,
            destination,
            stopped,
            splits: next.map(|(name, next)| (name, split(next))).collect(),
        }
    }

    /// Appends the next record of its split. Shards that end with or before it are passed to `sink`. Returns false if the
    /// writer was stopped.
    pub(super) fn append(
        &mut self,
        sample: &Checked,
        record: &Encoded,
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        let open_shards = self
            .splits
            .values()
            .filter(|split| split.open.is_some())
            .count();
        let split = self.splits.entry(Arc::clone(&sample.split)).or_default();
        if let Some(ended) = split.open.take_if(|open| open.given != sample.shard) {
            sink(ended.finish(self.of_shards, false)?)?;
        }
        if split.open.is_none() {
            let at_once = self.destination.shards_at_once(usize::MAX);
            if open_shards >= at_once {
                return Err(Error::Options(format!(
                    "the staging area has no room for a shard of each of {} splits: write one split after the other, choose smaller shards, or a larger area",
                    open_shards + 1
                )));
            }
            let number = sample.shard.unwrap_or(split.next);
            if number >= MAX_SHARDS {
                return Err(Error::Options(format!(
                    "the split {} has more than the {MAX_SHARDS} shards that names can number: choose larger shards",
                    sample.split
                )));
            }
            let extension = self.options.format.shard_format().extension();
            let name = format!("{}-{number:05}{extension}", sample.split);
            let Some(room) = self
                .destination
                .reserve(room_of(self.options), self.stopped)?
            else {
                return Ok(false);
            };
            let path = self.destination.dir().path(&name);
            split.open = Some(OpenShard {
                line: ShardLine::new(name),
                given: sample.shard,
                writer: open_shard(&path, self.of_shards)?,
                bytes: 0,
                room,
            });
        }
        if let Some(open) = &mut split.open {
            let meta = RecordMeta {
                label: sample.label,
                key: &sample.key,
            };
            open.writer.append(&record.bytes, &meta)?;
            open.bytes += (record.bytes.len() + OVERHEAD_BYTES) as u64;
            open.line.image_bytes += record.image_bytes;
            open.line.seek_points.add(record.seek_point_bytes);
        }
        let options = self.options;
        let is_full = |open: &mut OpenShard| {
            open.given.is_none()
                && (open.bytes >= options.shard_bytes
                    || options
                        .shard_records
                        .is_some_and(|most| open.writer.records() >= most))
        };
        if let Some(full) = split.open.take_if(is_full) {
            split.next += 1;
            sink(full.finish(self.of_shards, false)?)?;
        }
        Ok(true)
    }

    /// Ends the shards of all splits.
    pub(super) fn finish(self, sink: &mut Sink<'_>) -> Result<()> {
        for open in self.splits.into_values().filter_map(|split| split.open) {
            sink(open.finish(self.of_shards, true)?)?;
        }
        Ok(())
    }
}

impl OpenShard {
    fn finish(mut self, of_shards: &PackOptions, ends_split: bool) -> Result<WrittenShard> {
        let file = self.writer.finish()?;
        self.line.ends_split = ends_split;
        Ok(WrittenShard::new(self.line, file, self.room, of_shards))
    }
}

/// Returns the space in bytes that a shard needs in a staging area. The record that exceeds its target is not reserved.
pub(super) fn room_of(options: &WriterOptions) -> u64 {
    let has_fine_points = options.seek_points == Some(SeekDensity::Fine);
    let records = options.shard_records.unwrap_or(0);
    upload::room_of(
        options.shard_bytes,
        records,
        options.format,
        has_fine_points,
    )
}
