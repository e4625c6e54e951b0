//! Data that a server keeps for the dashboard and metrics, besides its counters.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use forebay_wire::wire::error::Kind;

use crate::journal::Journal;
use crate::previews::PreviewCache;

#[derive(Default)]
pub(crate) struct Telemetry {
    pub(crate) journal: Journal,
    pub(crate) previews: PreviewCache,
    failures: Mutex<BTreeMap<String, BTreeMap<&'static str, u64>>>,
}

impl Telemetry {
    /// Counts a stream of `name` that ended with an error.
    pub(crate) fn stream_failed(&self, name: &str, kind: Kind) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let of_name = failures.entry(name.to_owned()).or_default();
        *of_name.entry(kind.as_str_name()).or_default() += 1;
    }

    /// Counts of streams that ended with an error, by name and kind, such as `KIND_DATA`.
    pub(crate) fn failures(&self) -> BTreeMap<String, BTreeMap<&'static str, u64>> {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.clone()
    }
}
