//! Batches made in this process.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_cache::ReadOptions;
use forebay_loader::{Loader, Mix, MixLabels, Monitor, Options};
use forebay_server::counters;
use forebay_shard::{Dataset, Split};
use forebay_store::Cancel;
use forebay_wire::Batch;

use super::{Counters, GivenLabels, GivenMix, Handle, LoopTimes, Opened, Opener, choose};
use crate::failure::Failure;
use crate::loader::arguments::LoaderArgs;
use crate::loader::ranks::Ranks;
use crate::pump::{EpochPosition, Source};
use crate::storage::{location, open_dataset, synthetic};

fn dataset(place: &OsStr, read: &ReadOptions) -> Result<Dataset, Failure> {
    match synthetic(place)? {
        Some(recipe) => Ok(recipe.open()?),
        None => open_dataset(&location(place)?, read),
    }
}

pub(super) fn reach(place: &OsStr, args: &LoaderArgs) -> Result<Box<dyn Opener>, Failure> {
    // The loader prefetches within its own budget, so the storage does not read ahead.
    let dataset = dataset(place, &args.read.open()?.for_loader())?;
    let name = choose(
        args.given.split.as_deref(),
        dataset.splits(),
        &place.display(),
    )?;
    Ok(Box::new(OpenedDataset {
        options: args.options.clone(),
        records: Records::One(dataset.split(&name)?),
        split: name,
        cancel: args.cancel.clone(),
    }))
}

/// Opens the datasets of a mix, each of which must have the split.
pub(super) fn reach_mix(given: &GivenMix, args: &LoaderArgs) -> Result<Box<dyn Opener>, Failure> {
    let mut splits = Vec::with_capacity(given.sources.len());
    let read = args.read.open()?.for_loader();
    for path in &given.sources {
        let dataset = dataset(path.as_os_str(), &read)?;
        let name = choose(
            args.given.split.as_deref(),
            dataset.splits(),
            &path.display(),
        )?;
        splits.push(dataset.split(&name)?);
    }
    let mut mix = Mix::new(splits);
    mix.weights = given.weights().to_vec();
    mix.labels = match &given.labels {
        GivenLabels::Added(offsets) => MixLabels::Add(offsets.clone()),
        GivenLabels::Named(name) => MixLabels::named(name)?,
    };
    Ok(Box::new(OpenedDataset {
        options: args.options.clone(),
        split: mix.split(),
        records: Records::Mixed(mix),
        cancel: args.cancel.clone(),
    }))
}

/// The open records that loaders of this process read.
struct OpenedDataset {
    records: Records,
    split: String,
    options: Options,
    cancel: Cancel,
}

enum Records {
    One(Split),
    Mixed(Mix),
}

impl Opener for OpenedDataset {
    fn open(&self, ranks: &Ranks) -> Result<(Opened, Box<dyn Source>), Failure> {
        let mut options = self.options.clone();
        (options.rank, options.world_size) = (ranks.rank, ranks.world_size);
        let (loader, starts) = match &self.records {
            Records::One(split) => (Loader::new(split.clone(), options)?, None),
            Records::Mixed(mix) => (Loader::mixed(mix, options)?, Some(mix.starts())),
        };
        let opened = Opened {
            fingerprint: loader.fingerprint().to_owned(),
            sample_fingerprint: loader.sample_fingerprint().map(str::to_owned),
            split: self.split.clone(),
            records: loader.records(),
            samples: loader.epoch_samples(),
            batches: loader.options().batches(loader.epoch_samples())?,
            options: loader.options().clone(),
            label_base: loader.label_base(),
            classes: Arc::clone(loader.classes()),
            starts,
            handle: Arc::new(Hold {
                monitor: loader.monitor(),
                cancel: self.cancel.clone(),
            }),
        };
        let failed = false;
        Ok((opened, Box::new(Local { loader, failed })))
    }
}

struct Local {
    loader: Loader,
    /// Set after a failure, until the next seek.
    failed: bool,
}

impl Source for Local {
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        let result = self.loader.next_batch();
        self.failed = result.is_err();
        Ok(result?)
    }

    fn seek(&mut self, place: EpochPosition) -> Result<(), Failure> {
        let here = (self.loader.current_epoch(), self.loader.position());
        if here == (place.epoch, place.position) && !self.failed {
            // A seek would discard prefetched batches.
            return Ok(());
        }
        self.loader.seek(place.epoch, place.position)?;
        self.failed = false;
        Ok(())
    }
}

struct Hold {
    monitor: Monitor,
    /// Ends all waits for a store.
    cancel: Cancel,
}

impl Handle for Hold {
    fn interrupt(&self) {
        self.monitor.interrupt();
    }

    fn cancel(&self) {
        self.interrupt();
        self.cancel.cancel();
    }

    fn counters(&self, loops: LoopTimes) -> Counters {
        let mut stats = self.monitor.stats();
        (stats.handover_s, stats.device) = (loops.handover.as_secs_f64(), loops.device);
        // The pipeline counts the thread that takes its batches, which is ahead of the loops.
        let trainer = &mut stats.trainer;
        let all = trainer.busy_s + trainer.starved_s;
        trainer.starved_s = loops.waited.as_secs_f64().min(all);
        trainer.busy_s = all - trainer.starved_s;
        Counters {
            bottleneck: Some(stats.bottleneck()),
            wire: counters::to_wire(&stats),
        }
    }
}
