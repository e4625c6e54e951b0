//! A loader and its consumers: they take a batch each, begin a step together, and are busy for its time.

use std::thread;
use std::time::{Duration, Instant};

use forebay_image::Transform;
use forebay_loader::{Loader, Options, Stats};
use forebay_shard::Split;

use crate::read::record_bytes;
use crate::{Result, Steps};

/// How the loader and its consumers run.
#[derive(Debug, Clone)]
pub(super) struct Feed<'a> {
    pub(super) split: &'a Split,
    pub(super) transform: Transform,
    /// Threads that decode; 0 for as many as there are cores.
    pub(super) threads: usize,
    pub(super) batch_size: u64,
    /// Consumers, which take a batch each and begin a step together.
    pub(super) ranks: u64,
    /// How long the consumers are busy with a batch each.
    pub(super) steps: Steps,
    /// Ends the run after the batch during which it passes.
    pub(super) limit: Duration,
}

/// The result of a run.
#[derive(Debug)]
pub(super) struct Fed {
    pub(super) images: u64,
    pub(super) seconds: f64,
    /// Seconds until the first batch.
    pub(super) first: f64,
    /// Seconds that was waited for batches.
    pub(super) waited: f64,
    /// Stored bytes of these images.
    pub(super) bytes: u64,
    /// Bytes that were read, those of batches that were not taken included.
    pub(super) read: u64,
    /// Numbers of the samples in the order in which they came.
    pub(super) samples: Vec<u64>,
    pub(super) stats: Stats,
}

impl<'a> Feed<'a> {
    /// One consumer that takes no time.
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

    /// Runs until an epoch ends, or the limit passed. A second epoch would come from the page cache.
    pub(super) fn run(&self) -> Result<Fed> {
        self.run_as(&mut |_| {})
    }

    /// The same with further options of the loader.
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
            // Reads ahead for the next epoch come from the page cache, and no batch of this run holds them.
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

    /// Cores that all threads of the process used.
    pub(super) fn cores(&self) -> f64 {
        self.stats.process_cpu_s / self.stats.wall_s.max(1e-9)
    }
}
