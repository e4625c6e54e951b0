//! Statistics of `inspect`: from the indexes alone, and with `--deep` from every record.

use std::collections::BTreeMap;

use forebay_image::{Limits, probe};
use forebay_shard::Shard;
use forebay_shard::example::RecordFeatures;
use forebay_store::try_map_parallel;

use crate::console::Console;
use crate::contents::SplitShards;
use crate::failure::Failure;
use crate::histogram::Histogram;

/// Statistics from the indexes: record sizes and label counts.
#[derive(Default)]
pub(super) struct IndexFigures {
    pub(super) record_sizes: Histogram,
    /// Number of records by label and split; `None` stands for records without a label.
    pub(super) labels: BTreeMap<Option<i64>, Vec<u64>>,
}

impl IndexFigures {
    pub(super) fn of(splits: &[SplitShards]) -> Self {
        let mut figures = Self::default();
        for (number, (_, shards)) in splits.iter().enumerate() {
            for shard in shards {
                for record in 0..shard.len() {
                    figures
                        .record_sizes
                        .add(shard.record_len(record).unwrap_or(0));
                    let counts = figures
                        .labels
                        .entry(shard.label(record))
                        .or_insert_with(|| vec![0; splits.len()]);
                    counts[number] += 1;
                }
            }
        }
        figures
    }
}

/// Statistics from the records: formats and sizes of the images.
#[derive(Default)]
pub(super) struct ImageFigures {
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) sizes: Histogram,
    /// Short sides of the images, in pixels.
    pub(super) short_sides: Histogram,
    /// Number of images by format, color and scan order, such as "JPEG rgb" or "PNG grey".
    pub(super) kinds: BTreeMap<String, u64>,
    pub(super) widths: Option<(u32, u32)>,
    pub(super) heights: Option<(u32, u32)>,
    /// Number of records without a readable image; `first_unreadable` describes the first one.
    pub(super) unreadable: u64,
    pub(super) first_unreadable: Option<String>,
}

impl ImageFigures {
    /// Reads every record; shards are read in parallel.
    pub(super) fn read(
        splits: &[SplitShards],
        features: &RecordFeatures,
        console: &Console,
    ) -> Result<Self, Failure> {
        let shards: Vec<&Shard> = splits.iter().flat_map(|(_, shards)| shards).collect();
        let total = shards.iter().map(|shard| shard.file_len()).sum();
        let bar = console.bar("reading", Some(total));
        let progress = |len: u64| {
            bar.add(1, len, "records");
        };
        let jobs = std::thread::available_parallelism().map_or(1, usize::from);
        let read = try_map_parallel(&shards, jobs, &|| false, |shard| {
            let mut figures = Self::default();
            let read = figures.read_shard(shard, features, progress);
            read.map(|()| figures)
        })?;
        let mut all = Self::default();
        for figures in read.into_iter().flatten() {
            all.merge(figures);
        }
        Ok(all)
    }

    fn read_shard(
        &mut self,
        shard: &Shard,
        features: &RecordFeatures,
        progress: impl Fn(u64),
    ) -> Result<(), Failure> {
        let mut scan = shard.scan(0..shard.len());
        while let Some(record) = scan.next_record()? {
            self.records += 1;
            let refused = match features.image_record(record.bytes) {
                Ok(record) => self.add(record.image).err(),
                Err(error) => Some(error.to_string()),
            };
            if let Some(why) = refused {
                self.unreadable += 1;
                self.first_unreadable.get_or_insert_with(|| {
                    format!(
                        "{}: record {}: {why}",
                        crate::input::show(shard.path()),
                        record.info.index
                    )
                });
            }
            progress(record.info.len);
        }
        Ok(())
    }

    fn add(&mut self, image: &[u8]) -> Result<(), String> {
        self.bytes += image.len() as u64;
        self.sizes.add(image.len() as u64);
        let probe = probe(image, &Limits::default()).map_err(|error| error.to_string())?;
        let progressive = if probe.progressive {
            " progressive"
        } else {
            ""
        };
        let kind = format!("{} {:?}{progressive}", probe.format, probe.color);
        *self.kinds.entry(kind).or_default() += 1;
        self.short_sides.add(probe.width.min(probe.height).into());
        widen(&mut self.widths, (probe.width, probe.width));
        widen(&mut self.heights, (probe.height, probe.height));
        Ok(())
    }

    fn merge(&mut self, other: Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.sizes.merge(&other.sizes);
        self.short_sides.merge(&other.short_sides);
        for (kind, count) in other.kinds {
            *self.kinds.entry(kind).or_default() += count;
        }
        if let Some(range) = other.widths {
            widen(&mut self.widths, range);
        }
        if let Some(range) = other.heights {
            widen(&mut self.heights, range);
        }
        self.unreadable += other.unreadable;
        self.first_unreadable = match (self.first_unreadable.take(), other.first_unreadable) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

fn widen(range: &mut Option<(u32, u32)>, with: (u32, u32)) {
    *range = Some(match *range {
        None => with,
        Some((least, most)) => (least.min(with.0), most.max(with.1)),
    });
}
