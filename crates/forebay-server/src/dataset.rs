//! A packed dataset as a [`Source`]: each stream is a loader of its own.

use std::sync::Arc;

use forebay_loader::{Error as LoadError, Loader, Options};
use forebay_shard::{Dataset, Split};
use forebay_wire::Batch;
use forebay_wire::wire::{self, error::Kind};

use crate::source::{BatchSource, Description, Failure, Monitor, Source, StreamRequest};

/// All splits of a dataset, open.
pub(crate) struct DatasetSource {
    splits: Vec<Split>,
    description: Description,
}

impl DatasetSource {
    pub(crate) fn new(dataset: &Dataset) -> forebay_shard::Result<Self> {
        let splits = dataset
            .splits()
            .map(|name| dataset.split(name))
            .collect::<forebay_shard::Result<Vec<Split>>>()?;
        let label_base = splits.first().map_or(0, Split::label_base);
        Ok(DatasetSource {
            description: Description {
                fingerprint: dataset.fingerprint().to_owned(),
                splits: splits
                    .iter()
                    .map(|split| wire::SplitInfo {
                        name: split.name().to_owned(),
                        records: split.len(),
                    })
                    .collect(),
                label_base: u32::try_from(label_base).unwrap_or(0),
            },
            splits,
        })
    }

    /// The split of that name; the only one, if none is named.
    fn split(&self, name: &str) -> Result<&Split, Failure> {
        let found = match &self.splits[..] {
            [only] if name.is_empty() => Some(only),
            splits => splits.iter().find(|split| split.name() == name),
        };
        found.ok_or_else(|| {
            let names: Vec<&str> = self.splits.iter().map(Split::name).collect();
            let name = crate::session::printable(name);
            let text = format!("no split \"{name}\"; there is {}", names.join(", "));
            Failure::new(Kind::NotFound, text)
        })
    }
}

impl Source for DatasetSource {
    fn describe(&self) -> Description {
        self.description.clone()
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        let split = self.split(&request.spec.split)?;
        let mut options =
            Options::from_spec(request.spec, request.max_batch_bytes).map_err(failure)?;
        options.memory_bytes = request.memory_bytes.unwrap_or(0);
        options.threads = request.threads.unwrap_or(0);
        let (epoch, position) = (request.epoch, request.position);
        let loader =
            Loader::resume(split.clone(), options, epoch, position, None).map_err(failure)?;
        Ok(Box::new(loader))
    }
}

impl BatchSource for Loader {
    fn opened(&self) -> wire::Opened {
        wire::Opened {
            spec: Some(self.spec()),
            records: self.records(),
            batches_per_epoch: self.batches_per_epoch(),
            // The loader exists, so its batches have a size.
            batch_bytes: self.options().batch_bytes().unwrap_or(usize::MAX) as u64,
        }
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        Loader::next_batch(self).map_err(failure)
    }

    fn monitor(&self) -> Arc<dyn Monitor> {
        Arc::new(Loader::monitor(self))
    }
}

impl Monitor for forebay_loader::Monitor {
    fn cancel(&self) {
        self.interrupt();
    }

    fn stats(&self) -> wire::Stats {
        forebay_loader::Monitor::stats(self).to_wire()
    }
}

fn failure(e: LoadError) -> Failure {
    let kind = match &e {
        LoadError::Option { .. }
        | LoadError::WorldSize { .. }
        | LoadError::NoBatch { .. }
        | LoadError::Memory { .. }
        | LoadError::Position { .. } => Kind::Invalid,
        LoadError::Shard(_) | LoadError::Record { .. } => Kind::Data,
        LoadError::Image { .. } => Kind::Image,
        LoadError::Interrupted => Kind::Shutdown,
        _ => Kind::Internal,
    };
    Failure::new(kind, e)
}
