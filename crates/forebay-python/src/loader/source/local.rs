//! Batches made in this process.

use std::path::Path;
use std::sync::Arc;

use forebay_loader::{Loader, Monitor};
use forebay_wire::Batch;

use super::{Counters, Handle, Opened, choose};
use crate::failure::Failure;
use crate::loader::arguments::Wish;
use crate::pump::{Place, Source};

pub(super) fn open(path: &Path, mut wish: Wish) -> Result<(Opened, Box<dyn Source>), Failure> {
    let dataset = forebay_shard::Dataset::open(path)?;
    let name = choose(wish.split.as_deref(), dataset.splits(), &path.display())?;
    let options = wish.options_for(dataset.manifest().label_base);
    let loader = Loader::new(dataset.split(&name)?, options)?;
    let opened = Opened {
        fingerprint: dataset.fingerprint().to_owned(),
        split: name,
        records: loader.records(),
        samples: loader.epoch_samples(),
        batches_per_epoch: loader.batches_per_epoch(),
        options: loader.options().clone(),
        label_base: dataset.manifest().label_base,
        handle: Arc::new(loader.monitor()),
    };
    let failed = false;
    Ok((opened, Box::new(Local { loader, failed })))
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

impl Handle for Monitor {
    fn cancel(&self) {
        self.interrupt();
    }

    fn counters(&self) -> Counters {
        let stats = Monitor::stats(self);
        Counters {
            verdict: Some(stats.verdict().to_string()),
            wire: stats.to_wire(),
        }
    }
}
