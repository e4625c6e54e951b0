//! Measures the speed of a source with a bounded sample of the plan's files: opens and reads them one by one, then builds
//! records as a pack does, without writing anything.

use super::builder::PieceBuilder;
use super::clock::SLOW_FILE;
use super::piece::Piece;
use super::record::Recorder;
use super::source::Sources;
use super::threads;
use super::transcode::DecodeMemory;
use crate::error::{Error, Result};
use crate::observer::Cancel;
use crate::prepare::Prepared;
use forebay_formats::images::EntryRef;
use forebay_store::for_each_parallel_with;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The sample ends when one of these limits is reached.
const SAMPLE_FILES: u64 = 512;
const SAMPLE_BYTES: u64 = 128 << 20;
const SAMPLE_TIME: Duration = Duration::from_secs(2);

/// Throughput of a sample of the source.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SourceProbe {
    /// Files opened and read one after another by one thread.
    pub alone: ProbeSample,
    /// Files read and built into records by all threads that a pack would use, with overlapping waits.
    pub together: ProbeSample,
    /// Number of threads of the second sample.
    pub threads: usize,
    /// Fraction of the first sample's files that were in the page cache; `None` if the system does not report it.
    pub cached_share: Option<f64>,
    /// Estimated time for all files at the rate of the second sample. A slow destination takes additional time.
    pub estimate: Duration,
}

/// Measurements of reading some files.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct ProbeSample {
    /// Number of files.
    pub files: u64,
    /// Size of the files in bytes.
    pub bytes: u64,
    /// Total time.
    pub time: Duration,
    /// The part of the time for finding and opening files; zero in the second sample.
    pub open_time: Duration,
}

impl ProbeSample {
    /// Returns the number of files per second.
    pub fn files_per_second(&self) -> f64 {
        self.files as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// Returns the number of bytes per second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.time.as_secs_f64().max(1e-9)
    }

    /// Returns the number of files that could be opened per second without reading them.
    pub fn opens_per_second(&self) -> f64 {
        self.files as f64 / self.open_time.as_secs_f64().max(1e-9)
    }

    /// Returns the fraction of the time for finding and opening files, which readers of shards do not need.
    pub fn metadata_share(&self) -> f64 {
        self.open_time.as_secs_f64() / self.time.as_secs_f64().max(1e-9)
    }
}

impl Prepared {
    /// Samples the source for at most a few seconds. `None` if a sample would be meaningless: for compressed archives, whose
    /// images are decoded in one pass before packing, and after a stop.
    ///
    /// # Errors
    /// If the source cannot be opened. Files that cannot be read are part of the sample like others.
    pub fn probe_source(&self, cancel: &Cancel) -> Result<Option<SourceProbe>> {
        let Some(sources) = Sources::open_plain(self)? else {
            return Ok(None);
        };
        let total = self.census.files();
        let half = (SAMPLE_FILES / 2).min(total.div_ceil(2)).max(1);
        // Takes two neighboring files at each position: one per sample, so that the second sample finds none in the cache.
        let entry_at = |number: u64, second: u64| {
            let at = (2 * number + second) * total / (2 * half);
            self.entry_in_plan(at)
        };
        let is_over = |begin: Instant, bytes: u64| {
            begin.elapsed() > SAMPLE_TIME / 2 || bytes > SAMPLE_BYTES / 2 || cancel.is_cancelled()
        };
        let mut alone = ProbeSample::default();
        let mut cached = Some(0);
        let mut buffer = Vec::new();
        let begin = Instant::now();
        for number in 0..half {
            if is_over(begin, alone.bytes) {
                break;
            }
            let Some((split, entry)) = entry_at(number, 0) else {
                break;
            };
            let opening = Instant::now();
            let opened = sources.entry(split, &entry);
            alone.open_time += opening.elapsed();
            buffer.clear();
            if let Ok(opened) = opened {
                let is_cached = opened.is_in_memory();
                cached = cached.zip(is_cached).map(|(n, more)| n + u64::from(more));
                // The pack reports files that cannot be read; only the time counts here.
                let _ = opened.append_to(entry.size, &mut buffer);
            }
            alone.files += 1;
            alone.bytes += entry.size;
        }
        alone.time = begin.elapsed();
        if cancel.is_cancelled() {
            return Ok(None);
        }
        // A pack adds readers under the same condition.
        let is_slow = alone.time > SLOW_FILE * alone.files as u32;
        let (jobs, readers) = threads(self, 1)?;
        let threads = if is_slow { jobs + readers } else { jobs };
        let room = DecodeMemory::new(jobs);
        let (files, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let begin = Instant::now();
        let builder = || {
            let recorder = Recorder::new(self, &sources, &room).without_quarantine();
            (PieceBuilder::new(self, recorder), Piece::default())
        };
        for_each_parallel_with(0..half, threads, builder, |(builder, piece), number| {
            let Some((split, entry)) = entry_at(number, 1) else {
                return Ok(());
            };
            if is_over(begin, bytes.load(Ordering::Relaxed)) {
                return Ok(());
            }
            let file = sources.entry(split, &entry);
            builder.add(split, file, &entry, piece)?;
            *piece = std::mem::take(piece).emptied();
            files.fetch_add(1, Ordering::Relaxed);
            bytes.fetch_add(entry.size, Ordering::Relaxed);
            Ok::<_, Error>(())
        })?;
        let together = ProbeSample {
            files: files.into_inner(),
            bytes: bytes.into_inner(),
            time: begin.elapsed(),
            open_time: Duration::ZERO,
        };
        let estimate = total as f64 / together.files_per_second().max(1e-9);
        Ok((!cancel.is_cancelled()).then(|| SourceProbe {
            alone,
            together,
            threads,
            cached_share: cached.map(|cached| cached as f64 / alone.files.max(1) as f64),
            estimate: Duration::try_from_secs_f64(estimate).unwrap_or(Duration::MAX),
        }))
    }

    /// Returns file number `at` of the plan, counted over all splits; `None` beyond the last file.
    fn entry_in_plan(&self, mut at: u64) -> Option<(usize, EntryRef<'_>)> {
        let splits = self.census.splits().iter().zip(self.plan.splits());
        for (index, (census, split)) in splits.enumerate() {
            match at.checked_sub(census.len()) {
                Some(beyond) => at = beyond,
                None => return Some((index, census.get(split.entry_at(at)))),
            }
        }
        None
    }
}
