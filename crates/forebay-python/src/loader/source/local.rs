//! Batches made in this process.

use std::ffi::OsStr;
use std::sync::Arc;

use forebay_loader::{Loader, Mix, MixLabels, Monitor};
use forebay_shard::{Dataset, Split};
use forebay_store::{Cancel, ReadOptions};
use forebay_wire::Batch;

use super::{Counters, GivenLabels, GivenMix, Handle, Opened, choose};
use crate::failure::{Failure, Kind};
use crate::loader::arguments::Wish;
use crate::pump::{Place, Source};
use crate::storage::{location, open_dataset, synthetic};

fn dataset(place: &OsStr, read: &ReadOptions) -> Result<Dataset, Failure> {
    match synthetic(place)? {
        Some(recipe) => Ok(recipe.open()?),
        None => open_dataset(&location(place)?, read),
    }
}

pub(super) fn open(place: &OsStr, mut wish: Wish) -> Result<(Opened, Box<dyn Source>), Failure> {
    // A loader has reads on its way by itself, within its own budget.
    let dataset = dataset(place, &wish.read.open()?.for_loader())?;
    let name = choose(wish.split.as_deref(), dataset.splits(), &place.display())?;
    let options = wish.options_for(dataset.manifest().label_base);
    let loader = Loader::new(dataset.split(&name)?, options)?;
    let base = dataset.manifest().label_base;
    Ok(opened(loader, name, base, None, wish.cancel))
}

/// The split has to be in each dataset of the mix.
pub(super) fn open_mix(
    given: &GivenMix,
    mut wish: Wish,
) -> Result<(Opened, Box<dyn Source>), Failure> {
    let mut splits = Vec::with_capacity(given.sources.len());
    let read = wish.read.open()?.for_loader();
    for path in &given.sources {
        let dataset = dataset(path.as_os_str(), &read)?;
        let name = choose(wish.split.as_deref(), dataset.splits(), &path.display())?;
        splits.push(dataset.split(&name)?);
    }
    let base = splits.first().map_or(0, Split::label_base);
    let one_base = splits.iter().all(|split| split.label_base() == base);
    let mut mix = Mix::new(splits);
    mix.weights = given.weights.clone();
    let by_class = matches!(&given.labels, GivenLabels::Named(name) if name != "stored");
    mix.labels = match &given.labels {
        GivenLabels::Added(offsets) => MixLabels::Add(offsets.clone()),
        GivenLabels::Named(name) => match name.as_str() {
            "stored" => MixLabels::Stored,
            "offset" => MixLabels::Offset,
            "names" => MixLabels::ByName,
            other => {
                let expected = "'stored', 'offset' or 'names'";
                let message = format!("option labels is {other:?}: expected {expected}");
                return Err(Failure::new(Kind::Option, message));
            }
        },
    };
    if let Some(wanted) = wish.label_base
        && !one_base
        && !by_class
    {
        let message = format!(
            "option label_base is {wanted}: expected None, as the labels of some datasets count from 0 and \
             those of others from 1; or a Mix with labels 'offset' or 'names', which count as those of the first do"
        );
        return Err(Failure::new(Kind::Option, message));
    }
    let loader = Loader::mixed(&mix, wish.options_for(base))?;
    let starts = Some(mix.starts());
    Ok(opened(loader, mix.split(), base, starts, wish.cancel))
}

fn opened(
    loader: Loader,
    split: String,
    label_base: i64,
    starts: Option<Vec<u64>>,
    cancel: Cancel,
) -> (Opened, Box<dyn Source>) {
    let opened = Opened {
        fingerprint: loader.fingerprint().to_owned(),
        split,
        records: loader.records(),
        samples: loader.epoch_samples(),
        batches_per_epoch: loader.batches_per_epoch(),
        options: loader.options().clone(),
        label_base,
        starts,
        handle: Arc::new(Hold {
            monitor: loader.monitor(),
            cancel,
        }),
    };
    let failed = false;
    (opened, Box::new(Local { loader, failed }))
}

struct Local {
    loader: Loader,
    /// Only a seek helps.
    failed: bool,
}

impl Source for Local {
    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        let result = self.loader.next_batch();
        self.failed = result.is_err();
        Ok(result?)
    }

    fn seek(&mut self, place: Place) -> Result<(), Failure> {
        let here = (self.loader.epoch(), self.loader.position());
        if here == (place.epoch, place.position) && !self.failed {
            // A seek would throw away what was made ahead.
            return Ok(());
        }
        self.loader.seek(place.epoch, place.position)?;
        self.failed = false;
        Ok(())
    }
}

struct Hold {
    monitor: Monitor,
    /// Ends whatever waits for a store.
    cancel: Cancel,
}

impl Handle for Hold {
    fn cancel(&self) {
        self.monitor.interrupt();
        self.cancel.cancel();
    }

    fn counters(&self) -> Counters {
        let stats = self.monitor.stats();
        Counters {
            verdict: Some(stats.verdict().to_string()),
            wire: stats.to_wire(),
        }
    }
}
