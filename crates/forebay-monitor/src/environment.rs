//! Environment of a server: its process, its cache, the stores that it reads.

use forebay_cache::{Cache, CacheStats};
use forebay_store::Traffic;

use crate::process::Process;

#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    pub(crate) process: Option<Process>,
    /// `None` without a cache.
    pub(crate) cache: Option<CacheStats>,
    pub(crate) stores: Vec<Traffic>,
}

impl Environment {
    pub(crate) fn look(cache: Option<&Cache>) -> Environment {
        Environment {
            process: Process::read(),
            cache: cache.map(Cache::stats),
            stores: Traffic::of_this_process(),
        }
    }
}
