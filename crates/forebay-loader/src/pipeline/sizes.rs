//! The sizes of a pipeline: threads, batches and their memory.

use crate::options::{Machine, Options, RAW_EXTRA};

/// Sizes from which a new state is created.
pub(super) struct Sizes {
    pub(super) readers: usize,
    pub(super) threads: usize,
    pub(super) batches_ahead: usize,
    pub(super) batch_size: usize,
    pub(super) pixel_bytes: u64,
    pub(super) varying_bytes: u64,
    pub(super) is_raw: bool,
    pub(super) has_columns: bool,
    pub(super) varying_budget: Option<u64>,
    pub(super) record_bytes: u64,
}

impl Sizes {
    /// Returns the sizes for resolved options with batches of `batch_bytes`.
    pub(super) fn new(
        options: &Options,
        machine: &Machine,
        batch_bytes: usize,
        has_columns: bool,
    ) -> Self {
        let pixel_bytes = options.pixel_bytes();
        Sizes {
            readers: machine.readers,
            threads: machine.threads,
            batches_ahead: machine.batches_ahead,
            batch_size: usize::try_from(options.batch_size).unwrap_or(usize::MAX),
            pixel_bytes: pixel_bytes as u64,
            varying_bytes: (batch_bytes - pixel_bytes) as u64,
            is_raw: options.is_raw(),
            has_columns,
            varying_budget: options.varies().then(|| {
                let batches = machine.batches_ahead as u64 + RAW_EXTRA;
                (batch_bytes as u64).saturating_mul(batches)
            }),
            record_bytes: machine.record_bytes,
        }
    }
}
