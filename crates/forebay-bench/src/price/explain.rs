//! Measures the stages of a pipeline one after another on the same plan, and predicts the gains of remedies.

mod report;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebay_cache::ReadOptions;
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Options, Stats, plan};
use forebay_shard::Split;
use forebay_shard::manifest::EPOCH_BLOCK_BYTES;
use forebay_shard::storage::Storage;
use forebay_store::Location;
use forebay_synthetic::{Recipe, is_synthetic};

use super::cost::{EpochCost, epoch_cost};
use super::kept::keep;
use super::model::{Cores, StageTimes};
use super::remedy::{Price, Situation, prices};
use super::sample::{ImageSample, SIDE};
use super::timed::{FILLING, counted, run_loader};
use crate::cold::{Cold, Evictor, Proof, Watch, Way, summary};
use crate::measure::{Alternative, BenchReport, Delivered, Measurement, side_by_side};
use crate::read::split_of;
use crate::replay::{self, Recording};
use crate::report::LabReport;
use crate::storage::{Medium, RunOptions, RunReport, run};
use crate::stream;
use crate::{Consumer, Result, Steps};

/// Options of [`explain`].
#[derive(Debug, Clone)]
pub struct ExplainOptions {
    /// Split, the first one by default.
    pub split: Option<String>,
    /// Samples per batch.
    pub batch_size: u64,
    /// Decoding threads; 0 for as many as there are cores.
    pub threads: usize,
    /// Consumer of the batches; without a consumer, each batch is released at once.
    pub consumer: Option<Consumer>,
    /// Duration of a run.
    pub run_time: Duration,
    /// Counted runs of each stage.
    pub runs: usize,
    /// How the page cache is emptied before each run that reads the storage.
    pub cold: Cold,
    /// Options for reading from stores.
    pub read: ReadOptions,
    /// The command line, for the report.
    pub command: String,
}

/// Result of [`explain`].
#[derive(Debug, Clone)]
pub struct ExplainReport {
    /// Rates of the stages, each together with all stages before it.
    pub stages: BenchReport,
    /// The bottleneck, in a sentence.
    pub bottleneck: String,
    /// Remedies with their gains, the largest first.
    pub prices: Vec<Price>,
    /// The estimated cost of an epoch; `None` for local files.
    pub cost: Option<EpochCost>,
    /// The same as a report for files.
    pub report: LabReport,
}

/// The generated dataset, small enough to fill the windows of the shuffle soon.
const SYNTHETIC: &str = "synthetic://imagenet?records=2000&pictures=8";
/// Number of records per shard that are sampled.
const RECORDS_OF_SHARD: u64 = 256;
const ALONE: &str = "synthetic data, images stay encoded";
const MEMORY: &str = "reads of the loader, from memory";
/// Names of the row with the reads of the loader, by the kind of storage.
const STORED: [&str; 3] = [
    "reads of the loader, local storage",
    "reads of the loader, remote storage",
    "reads of the loader, generated storage",
];
const CHECKED: &str = "+ checksums, images stay encoded";
const DECODED: &str = "+ decoding of random crops, shrunk to 8 x 8 pixels";
/// Width and height of images in a row that decodes and hardly does anything else.
const DECODED_SIDE: u32 = 8;
const TRANSFORMED: &str = "+ transform: RandomResizedCrop(224)";
const HANDED: &str = "+ hand-over to another process";
const CONSUMED: &str = "+ consumer";

/// Measures the rate of each stage of loading a source, and predicts the gains of remedies.
///
/// # Errors
/// The source cannot be read or decoded.
pub fn explain(place: &Location, options: &ExplainOptions) -> Result<ExplainReport> {
    let source = Source::new(place, options)?.with_short_windows()?;
    let ways = source.sample()?.measure(options.runs)?;
    let seen = Seen::default();
    let mut stages = source.measure(&seen)?;
    let situation = Situation {
        ways,
        ..source.situation(&stages, &seen)?
    };
    let prices = prices(&situation);
    stages.notes.extend(source.account(&situation, &seen));
    let cost = source.cost()?;
    stages
        .notes
        .extend(cost.iter().map(|cost| cost.text.clone()));
    let bottleneck = seen.bottleneck.borrow().clone();
    let report = source.report(&stages, &bottleneck, &prices);
    Ok(ExplainReport {
        stages,
        bottleneck,
        prices,
        cost,
        report,
    })
}

/// A source with the recorded reads of a loader.
pub(super) struct Source<'a> {
    place: &'a Location,
    options: &'a ExplainOptions,
    split: Split,
    /// Virtual ranks of the loader.
    virtual_ranks: u64,
    pub(super) recorded: Recording<'a>,
    /// Bytes read per image.
    pub(super) image_bytes: f64,
    cores: Cores,
}

/// Observations of runs by round, including the discarded one.
#[derive(Default)]
struct Seen {
    /// Counters of the runs that decode.
    decoded: RefCell<Vec<Stats>>,
    /// The bottleneck sentence of the last counted run.
    bottleneck: RefCell<String>,
    delivered: Cell<Delivered>,
}

/// Records the reads of a loader, without announcements.
fn record<'a>(
    place: &'a Location,
    options: &'a ExplainOptions,
    virtual_ranks: u64,
) -> Result<Recording<'a>> {
    let load = |split| {
        let asked = asked(options, virtual_ranks, Transform::KeepEncoded);
        run_loader(split, asked, options.run_time, &Steps::none())
    };
    let split = options.split.as_deref();
    let (mut recorded, _) = Recording::new(place, &options.read, split, load)?;
    recorded.job = recorded.job.without_announcements();
    Ok(recorded)
}

impl<'a> Source<'a> {
    pub(super) fn new(place: &'a Location, options: &'a ExplainOptions) -> Result<Self> {
        let virtual_ranks = plan::defaults::VIRTUAL_RANKS;
        let recorded = record(place, options, virtual_ranks)?;
        let (root, storage) = replay::storage(place, &options.read)?;
        let dataset = replay::open(&root, storage)?;
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let split = split_of(&dataset, &root, options.split.as_deref())?;
        // Not the bytes that a short run reads per image, because it fills the windows of the shuffle first.
        let image_bytes = mean_record_bytes(&split);
        Ok(Self {
            split,
            place,
            options,
            virtual_ranks,
            image_bytes,
            recorded,
            cores: Cores {
                cores: cores as f64,
                threads: match options.threads {
                    0 => cores as f64,
                    threads => threads as f64,
                },
            },
        })
    }

    /// Uses fewer virtual ranks if the storage cannot fill their windows in the part of a run that is not counted: otherwise
    /// the first batches would wait for windows that supply many later batches. Size and concurrency of reads stay the same.
    fn with_short_windows(mut self) -> Result<Self> {
        let (rates, _) = self.storage_rates(1)?;
        let filling_s = self.options.run_time.as_secs_f64() / f64::from(FILLING);
        let bytes = crate::measure::median(&rates) * self.image_bytes * filling_s;
        let window = plan::defaults::WINDOW_BLOCKS * EPOCH_BLOCK_BYTES;
        let ranks = (bytes / window as f64).max(1.0);
        // A power of two, like all numbers of virtual ranks.
        let ranks = 1 << (ranks as u64).ilog2().min(self.virtual_ranks.ilog2());
        if ranks < self.virtual_ranks {
            self.virtual_ranks = ranks;
            self.recorded = record(self.place, self.options, ranks)?;
        }
        Ok(self)
    }

    pub(super) fn sample(&self) -> Result<ImageSample> {
        ImageSample::take(&self.split)
    }

    /// Estimates what an epoch costs; `None` for local files.
    pub(super) fn cost(&self) -> Result<Option<EpochCost>> {
        let bytes = self.records() as f64 * self.image_bytes;
        epoch_cost(self.place, &self.options.read, bytes, &self.recorded.job)
    }

    pub(super) fn records(&self) -> u64 {
        self.split.len()
    }

    /// Returns the images per second of the storage by round, and the cache state of the warmest round.
    pub(super) fn storage_rates(&self, rounds: usize) -> Result<(Vec<f64>, Proof)> {
        let evictor = Evictor::buffered(self.options.cold)?;
        let (footprint, seen) = (self.recorded.footprint(), Seen::default());
        let (mut rates, mut proofs) = (Vec::new(), Vec::new());
        for _ in 0..rounds.max(1) {
            evictor.evict(&footprint)?;
            let watch = Watch::begin(&footprint, evictor.way());
            let took = self.replay(&seen)?;
            let delivered = seen.delivered.get();
            proofs.push(watch.end(delivered.bytes, delivered.fetched));
            rates.push(took.amount / took.seconds.max(1e-9));
        }
        let proof = summary(&proofs).ok_or("no round was measured")?;
        Ok((rates, proof.clone()))
    }

    fn measure(&self, seen: &Seen) -> Result<BenchReport> {
        let evictor = Evictor::buffered(self.options.cold)?;
        let train = || Transform::Train(TrainTransform::new(SIDE));
        let steps = self.steps();
        let generated = Recipe::parse(SYNTHETIC)?.open()?.split("train")?;
        let alone = Alternative::here(ALONE, "images/s", || {
            let asked = self.asked(Transform::KeepEncoded);
            let time = self.options.run_time;
            Ok(run_loader(generated.clone(), asked, time, &Steps::none())?.measurement)
        });
        let how = self.how();
        let (job, kept) = keep(&self.recorded.job, &*self.recorded.storage()?, &how)?;
        let kept = Medium::Storage(Arc::new(kept));
        let memory = Alternative::here(MEMORY, "images/s", move || {
            Ok(self.images_of(&run(&job, &kept, &how)?))
        });
        let stored = Alternative::here(self.stored(), "images/s", || self.replay(seen));
        let mut all = vec![alone, memory, self.reading(stored, evictor, seen)];
        let checked = Alternative::here(CHECKED, "images/s", || {
            Ok(self.load(Transform::KeepEncoded, &Steps::none(), seen)?.0)
        });
        all.push(self.reading(checked, evictor, seen));
        let decoded = Alternative::here(DECODED, "images/s", || {
            let shrunk = Transform::Train(TrainTransform::new(DECODED_SIDE));
            Ok(self.load(shrunk, &Steps::none(), seen)?.0)
        });
        all.push(self.reading(decoded, evictor, seen));
        let transformed = Alternative::here(TRANSFORMED, "images/s", || {
            let (measurement, stats) = self.load(train(), &Steps::none(), seen)?;
            if steps.is_zero() {
                *seen.bottleneck.borrow_mut() = stats.bottleneck().to_string();
            }
            seen.decoded.borrow_mut().push(stats);
            Ok(measurement)
        });
        all.push(self.reading(transformed, evictor, seen));
        let handed = Alternative::here(HANDED, "images/s", || self.serve(train(), seen));
        all.push(self.reading(handed, evictor, seen));
        if !steps.is_zero() {
            let name = format!("{CONSUMED} that takes {steps} a batch, in this process");
            let consumed = Alternative::here(name, "images/s", || {
                let (measurement, stats) = self.load(train(), &steps, seen)?;
                *seen.bottleneck.borrow_mut() = stats.bottleneck().to_string();
                Ok(measurement)
            });
            all.push(self.reading(consumed, evictor, seen));
        }
        let title = format!(
            "Stages of {}: batches of {}, {} threads on {} cores, {:.1} kB read for an image",
            self.place,
            self.options.batch_size,
            self.cores.threads,
            self.cores.cores,
            self.image_bytes / 1e3,
        );
        let mut report = side_by_side(title, self.options.runs, all)?;
        if self.virtual_ranks < plan::defaults::VIRTUAL_RANKS {
            report.notes.push(format!(
                "{} virtual ranks, so that a quarter of a run fills the windows of the shuffle: the default of {} takes longer here",
                self.virtual_ranks,
                plan::defaults::VIRTUAL_RANKS
            ));
        }
        if evictor.way() == Way::Off && self.recorded.is_local {
            let note = "caches were left as they were: --cold auto empties them before each run";
            report.notes.push(note.to_owned());
        }
        Ok(report)
    }

    fn reading<'r>(
        &self,
        alternative: Alternative<'r>,
        evictor: Evictor,
        seen: &'r Seen,
    ) -> Alternative<'r> {
        alternative.reading(self.recorded.footprint(), evictor, |_| seen.delivered.get())
    }

    /// Returns the step times of the consumer.
    fn steps(&self) -> Steps {
        let consumer = self.options.consumer.as_ref();
        consumer.map_or_else(Steps::none, |consumer| {
            consumer.steps(self.options.batch_size)
        })
    }

    /// Opens the storage again, so that readahead of earlier runs has no effect.
    fn open(&self) -> Result<(Arc<dyn Storage>, Split)> {
        let (root, storage) = replay::storage(self.place, &self.options.read)?;
        let dataset = replay::open(&root, Arc::clone(&storage))?;
        let split = split_of(&dataset, &root, self.options.split.as_deref())?;
        Ok((storage, split))
    }

    /// Returns the name of the row with the reads of the loader.
    fn stored(&self) -> &'static str {
        let [local, remote, generated] = STORED;
        match self.recorded.is_local {
            true => local,
            false if is_synthetic(&self.place.to_string()) => generated,
            false => remote,
        }
    }

    /// Returns options with as many concurrent reads as the loader has.
    fn how(&self) -> RunOptions {
        let mut how = RunOptions::at_depth(self.recorded.depth);
        how.limit = Some(self.options.run_time);
        how
    }

    fn images_of(&self, report: &RunReport) -> Measurement {
        Measurement {
            amount: report.bytes as f64 / self.image_bytes,
            seconds: report.seconds,
        }
    }

    fn replay(&self, seen: &Seen) -> Result<Measurement> {
        let recorded = &self.recorded;
        let (report, fetched) = recorded.replay(&recorded.job, &self.how(), false)?;
        seen.delivered.set(Delivered {
            bytes: report.bytes,
            fetched,
        });
        Ok(self.images_of(&report))
    }

    fn asked(&self, transform: Transform) -> Options {
        asked(self.options, self.virtual_ranks, transform)
    }

    fn load(
        &self,
        transform: Transform,
        steps: &Steps,
        seen: &Seen,
    ) -> Result<(Measurement, Stats)> {
        let (storage, split) = self.open()?;
        let before = storage.stats();
        let asked = self.asked(transform);
        let ran = run_loader(split, asked, self.options.run_time, steps)?;
        seen.delivered.set(Delivered {
            bytes: ran.bytes_read,
            fetched: replay::wire_bytes(&*storage, before),
        });
        Ok((ran.measurement, ran.stats))
    }

    fn serve(&self, transform: Transform, seen: &Seen) -> Result<Measurement> {
        let (root, storage) = replay::storage(self.place, &self.options.read)?;
        let before = storage.stats();
        let dataset = replay::open(&root, Arc::clone(&storage))?;
        let (server, url) =
            stream::serve(|server| Ok(server.add_dataset(stream::NAME, &dataset)?))?;
        let asked = self.asked(transform);
        let auto = forebay_client::Transport::Auto;
        let mut batches = stream::connect(&url, &asked, self.split.name(), auto)?;
        let mut next = || Ok(batches.next_batch()?.map(|batch| batch.len() as u64));
        let took = counted(self.options.run_time, &Steps::none(), &mut next, || ());
        let stats = batches.server_stats(Duration::from_secs(2));
        server.shutdown();
        seen.delivered.set(Delivered {
            bytes: stats.map_or(0, |stats| stats.bytes_read),
            fetched: replay::wire_bytes(&*storage, before),
        });
        took
    }

    /// Returns the times per image, by counted round.
    fn situation(&self, stages: &BenchReport, seen: &Seen) -> Result<Situation> {
        let rates = |name: &str| {
            let row = stages.rows.iter().find(|row| row.name == name);
            row.map_or_else(Vec::new, |row| row.rates.clone())
        };
        let seconds = |rates: Vec<f64>| -> Vec<f64> {
            let each = rates
                .into_iter()
                .map(|rate| 1.0 / rate.max(f64::MIN_POSITIVE));
            each.collect()
        };
        let consumer_s = self.steps().mean().as_secs_f64() / self.options.batch_size as f64;
        let decoded = seen.decoded.borrow();
        let rounds = seconds(rates(self.stored()))
            .into_iter()
            .zip(decoded.iter().skip(1));
        let rounds: Vec<StageTimes> = rounds
            .map(|(storage_s, stats)| times([storage_s, consumer_s], self.image_bytes, stats))
            .collect();
        let last = stages.rows.iter().rfind(|row| row.name != HANDED);
        if rounds.is_empty() {
            return Err("no round was measured: --runs must be 1 or more".into());
        }
        Ok(Situation {
            memory_s: match self.recorded.is_local {
                true => seconds(rates(MEMORY)),
                // A cache is at most as fast as the loader itself.
                false => seconds(rates(ALONE)),
            },
            rounds,
            cores: self.cores,
            image_bytes: self.image_bytes,
            is_remote: !self.recorded.is_local,
            ways: Vec::new(),
            rates: last.map_or_else(Vec::new, |row| row.rates.clone()),
        })
    }
}

/// Returns the mean length of a record, from records all over a split.
fn mean_record_bytes(split: &Split) -> f64 {
    let (mut bytes, mut count) = (0u64, 0u64);
    for shard in split.shards() {
        let every = (shard.len() / RECORDS_OF_SHARD).max(1);
        for record in (0..shard.len()).step_by(usize::try_from(every).unwrap_or(usize::MAX)) {
            bytes += shard.record_len(record).unwrap_or(0);
            count += 1;
        }
    }
    bytes as f64 / count.max(1) as f64
}

/// Returns the times per image in a run that decodes. Reading is accounted by bytes, as a run may read more than it decodes.
fn times([storage_s, consumer_s]: [f64; 2], image_bytes: f64, stats: &Stats) -> StageTimes {
    let images = stats.images.max(1) as f64;
    let work = stats.decode.busy_s + stats.transform.busy_s;
    let transform = stats.transform.busy_s / work.max(f64::MIN_POSITIVE);
    let decode_cpu_s = stats.decode_cpu_s / images;
    let read = (stats.bytes_read as f64 / image_bytes).max(images);
    StageTimes {
        storage_s,
        fetch_cpu_s: (stats.process_cpu_s - stats.decode_cpu_s).max(0.0) / read,
        decode_cpu_s: decode_cpu_s * (1.0 - transform),
        transform_cpu_s: decode_cpu_s * transform,
        handover_cpu_s: 0.0,
        consumer_s,
    }
}

fn asked(options: &ExplainOptions, virtual_ranks: u64, transform: Transform) -> Options {
    let mut asked = Options::new(options.batch_size, transform);
    asked.virtual_ranks = virtual_ranks;
    asked.threads = options.threads;
    asked.drop_last = false;
    // All rounds are to cost what the first epoch costs.
    asked.learn_seek_points = 0;
    asked
}
