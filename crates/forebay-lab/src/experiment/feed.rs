//! Runs a loader with consumers that each take a batch, start a step at the same time, and sleep for the time of the step.

use std::thread;
use std::time::{Duration, Instant};

use forebay_image::Transform;
use forebay_loader::{Loader, Options, Stats};
use forebay_shard::Split;

use crate::read::record_bytes;
use crate::{Result, Steps};

/// A loader with its consumers, and how they run.
#[derive(Debug, Clone)]
pub(super) struct Feed<'a> {
    pub(super) split: &'a Split,
    pub(super) transform: Transform,
    /// Decode threads; 0 selects the number of cores.
    pub(super) threads: usize,
    pub(super) batch_size: u64,
    /// Number of consumers. Each takes a batch; then all start a step at the same time.
    pub(super) ranks: u64,
    /// Times of the steps, for which the consumers sleep.
    pub(super) steps: Steps,
    /// Time limit. The run ends after the first batch past it.
    pub(super) limit: Duration,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) images: u64,
    pub(super) seconds: f64,
    /// Seconds until the first batch.
    pub(super) first: f64,
    /// Seconds that the consumers waited for batches.
    pub(super) waited: f64,
    /// Stored bytes of the images.
    pub(super) bytes: u64,
    /// Bytes read, including those of prefetched batches that no consumer took.
    pub(super) read: u64,
    /// Sample numbers in the order of delivery.
    pub(super) samples: Vec<u64>,
    pub(super) stats: Stats,
}

impl<'a> Feed<'a> {
    /// Creates a run with one consumer that takes no time.
    pub(super) fn new(
        split: &'a Split,
        transform: Transform,
        batch_size: u64,
        limit: Duration,
    ) -> Self {
        Self {
            split,
            transform,
            threads: 0,
            batch_size,
            ranks: 1,
            steps: Steps::none(),
            limit,
        }
    }

    /// Runs until the epoch ends or the limit passes. A second epoch would read from the page cache.
    pub(super) fn run(&self) -> Result<Fed> {
        self.run_as(&mut |_| {})
    }

    /// Runs as [`Feed::run`], after `change` has set further options of the loader.
    pub(super) fn run_as(&self, change: &mut dyn FnMut(&mut Options)) -> Result<Fed> {
        let mut options = Options::new(self.batch_size, self.transform.clone());
        options.threads = self.threads;
        change(&mut options);
        let begin = Instant::now();
        let mut loader = Loader::new(self.split.clone(), options)?;
        let (mut samples, mut batches, mut waited, mut first) = (Vec::new(), 0, 0.0, 0.0);
        loop {
            let asked = Instant::now();
            let Some(batch) = loader.next_batch()? else {
                break;
            };
            waited += asked.elapsed().as_secs_f64();
            if batches == 0 {
                first = begin.elapsed().as_secs_f64();
            }
            samples.extend_from_slice(&batch.samples);
            batches += 1;
            drop(batch);
            if batches % self.ranks == 0 {
                thread::sleep(self.steps.at(batches / self.ranks - 1));
            }
            if begin.elapsed() > self.limit {
                break;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        let stats = loader.stats();
        let images = samples.len() as u64;
        let all = record_bytes(self.split);
        let bytes = all / self.split.len().max(1) * images;
        Ok(Fed {
            images,
            seconds,
            first,
            waited,
            bytes,
            // At most one epoch counts: reads ahead for the next one come from the page cache, and no batch of this run holds
            // them.
            read: stats.bytes_read.clamp(bytes, all.max(bytes)),
            samples,
            stats,
        })
    }
}

impl Fed {
    pub(super) fn images_per_s(&self) -> f64 {
        self.images as f64 / self.seconds
    }

    /// Returns the mean number of cores that all threads of the process used.
    pub(super) fn cores(&self) -> f64 {
        self.stats.process_cpu_s / self.stats.wall_s.max(1e-9)
    }
}
