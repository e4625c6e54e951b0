//! Jobs: named streams whose options the server defines and ranks join.

use std::sync::Arc;

use forebay_loader::{FairShare, Options};
use forebay_options::{LoaderOptions, StreamInfo, shown};
use forebay_wire::wire::{self, error::Kind};

use crate::options::ServerOptions;
use crate::source::{Failure, StreamRequest, StreamSource};
use crate::wire_options;

/// A job: a dataset and all options that determine its batches.
#[derive(Debug, Clone, PartialEq)]
pub struct JobOptions {
    /// Name of a dataset of the server.
    pub dataset: String,
    /// Options of the streams. Each client chooses its rank, and the world size if it is not set here. All other options that
    /// are not set have their defaults, which clients cannot change either.
    pub options: LoaderOptions,
}

/// A dataset or job that is served under a name.
#[derive(Clone)]
pub(crate) struct Served {
    pub(crate) source: Arc<dyn StreamSource>,
    pub(crate) job: Option<Arc<Job>>,
    /// Share of CPU and bandwidth of all streams of the name together.
    pub(crate) share: FairShare,
}

/// A job with all defaults filled in.
#[derive(Debug)]
pub(crate) struct Job {
    /// The options as configured; a client may send the same values.
    configured: LoaderOptions,
    resolved: LoaderOptions,
    /// The stream of the first rank.
    pub(crate) info: StreamInfo,
}

impl Job {
    /// Opens a stream as the first rank would, to validate the options.
    pub(crate) fn new(
        job: JobOptions,
        source: &dyn StreamSource,
        server: &ServerOptions,
    ) -> Result<Job, Failure> {
        let configured = job.options;
        let mut first = configured.clone();
        first.rank = Some(0);
        let stream = source.open(&StreamRequest {
            options: &first,
            epoch: 0,
            position: 0,
            max_batch_bytes: server.max_batch_bytes,
            image_limits: server.image_limits,
            memory_bytes: server.stream_memory_bytes,
            threads: server.stream_threads,
            share: None,
            pool: None,
        })?;
        let info = stream.info();
        stream.monitor().cancel();
        if info.batches_per_epoch == 0 {
            let text = format!(
                "an epoch of {} records has no full batch of {} samples for each of {} ranks",
                info.records,
                info.batch_size(),
                info.world_size()
            );
            return Err(Failure::new(Kind::Invalid, text));
        }
        let mut resolved = info.options.clone();
        resolved.rank = None;
        resolved.world_size = configured.world_size;
        Ok(Job {
            configured,
            resolved,
            info,
        })
    }

    /// The description that clients receive.
    pub(crate) fn to_wire(&self) -> wire::Job {
        wire::Job {
            spec: Some(wire_options::write(&self.resolved)),
        }
    }

    /// Fills in the job's options, after checking that the client's options agree with them.
    pub(crate) fn join(&self, name: &str, given: LoaderOptions) -> Result<LoaderOptions, Failure> {
        let (rank, world_size) = (given.rank, given.world_size);
        // The canonical form of other options depends on these two, so the job's are filled in first.
        let mut complete = given.clone();
        complete.transform = complete.transform.or(self.resolved.transform.clone());
        complete.shuffle = complete.shuffle.or(self.resolved.shuffle.clone());
        let canonical =
            Options::from_schema(&complete).map_err(|error| Failure::new(Kind::Invalid, error))?;
        let canonical = canonical.to_schema().given();
        let (resolved, configured) = (self.resolved.given(), self.configured.given());
        for (option, asked) in given.given() {
            let is_own =
                option == "rank" || (option == "world_size" && self.resolved.world_size.is_none());
            // A client's value agrees if it equals the job's value as it is, in canonical form, or as configured.
            let agrees = [Some(&asked), canonical.get(&option)].contains(&resolved.get(&option))
                || configured.get(&option) == Some(&asked);
            if !is_own && !agrees {
                let has = resolved
                    .get(&option)
                    .map_or_else(|| "none".to_owned(), shown);
                let asked = shown(&asked);
                let text = format!(
                    "option {option}: job {name} has {has}, this client asks for {asked}; leave it out, or change one of the two"
                );
                return Err(Failure::new(Kind::Invalid, text));
            }
        }
        let mut stream = self.resolved.clone();
        stream.rank = rank;
        stream.world_size = stream.world_size.or(world_size);
        Ok(stream)
    }
}
