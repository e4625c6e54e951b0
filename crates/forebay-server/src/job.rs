//! Jobs: named streams whose options the server defines and ranks join.

use std::sync::Arc;

use forebay_loader::Share;
use forebay_wire::job;
use forebay_wire::wire::{self, error::Kind};

use crate::options::ServerOptions;
use crate::source::{Failure, Source, StreamRequest};

/// A job: a dataset and all options that determine its batches.
#[derive(Debug, Clone, PartialEq)]
pub struct JobOptions {
    /// Name of a dataset of the server.
    pub dataset: String,
    /// The options of the streams. The rank is each client's own, and so is a world size of 0. What else is zero or
    /// missing takes its default, and is the job's nevertheless.
    pub spec: wire::StreamSpec,
}

/// A dataset or job that is served under a name.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) source: Arc<dyn Source>,
    pub(crate) job: Option<Arc<Job>>,
    /// Share of CPU and bandwidth of all streams of the name together.
    pub(crate) share: Share,
}

/// A job with all defaults filled in.
#[derive(Debug)]
pub(crate) struct Job {
    /// As configured, for clients that say the same in the same words.
    configured: wire::StreamSpec,
    resolved: wire::StreamSpec,
    /// What the first rank is told.
    pub(crate) opened: wire::Opened,
}

impl Job {
    /// Opens a stream as the first rank would, to validate the options.
    pub(crate) fn new(
        options: JobOptions,
        source: &dyn Source,
        server: &ServerOptions,
    ) -> Result<Job, Failure> {
        let spec = wire::StreamSpec {
            rank: 0,
            world_size: options.spec.world_size.max(1),
            ..options.spec.clone()
        };
        let stream = source.open(&StreamRequest {
            spec: &spec,
            epoch: 0,
            position: 0,
            max_batch_bytes: server.max_batch_bytes,
            image_limits: server.image_limits,
            memory_bytes: server.stream_memory_bytes,
            threads: server.stream_threads,
            share: None,
            pool: None,
        })?;
        let opened = stream.opened();
        stream.monitor().cancel();
        if opened.batches_per_epoch == 0 {
            let text = format!(
                "an epoch of {} records has no full batch of {} samples for each of {} ranks",
                opened.records, spec.batch_size, spec.world_size
            );
            return Err(Failure::new(Kind::Invalid, text));
        }
        let resolved = wire::StreamSpec {
            world_size: options.spec.world_size,
            ..opened.spec.clone().unwrap_or_default()
        };
        Ok(Job {
            configured: options.spec,
            resolved,
            opened,
        })
    }

    /// The description that clients receive.
    pub(crate) fn to_wire(&self) -> wire::Job {
        wire::Job {
            spec: Some(self.resolved.clone()),
        }
    }

    /// The stream that a rank opens: the job's, if what it gives agrees.
    pub(crate) fn join(&self, name: &str, open: &mut wire::Open) -> Result<(), Failure> {
        let spec = open.spec.get_or_insert_default();
        // A client may choose records or transforms in the words of the configuration.
        if spec.sampling.is_some() && spec.sampling == self.configured.sampling {
            spec.sampling.clone_from(&self.resolved.sampling);
        }
        if spec.decode.is_some() && spec.decode == self.configured.decode {
            spec.decode = self.resolved.decode;
        }
        job::fill(spec, &self.resolved, &open.given);
        match job::contradiction(spec, &self.resolved) {
            None => Ok(()),
            Some(found) => {
                let text = format!(
                    "option {}: job {name} has {}, this client asks for {}; leave it out, or change one of the two",
                    found.option, found.job, found.asked
                );
                Err(Failure::new(Kind::Invalid, text))
            }
        }
    }
}
