//! The sizes of a pipeline: threads, batches and their memory.

use crate::options::{Machine, Options, RAW_EXTRA};

/// Sizes from which a new state is created.
pub(super) struct Sizes {
    pub(super) readers: usize,
    pub(super) threads: usize,
    /// Memory for encoded records, in bytes.
    pub(super) record_bytes: u64,
    pub(super) batches: BatchSizes,
}

/// The sizes of batches, and how many to make ahead of the trainer.
#[derive(Clone, Copy)]
pub(super) struct BatchSizes {
    /// Maximum number of batches in progress or ready.
    pub(super) ahead: usize,
    /// Samples per batch.
    pub(super) samples: usize,
    /// Size of a batch's pixels in bytes; 0 if images stay encoded.
    pub(super) pixel_bytes: u64,
    /// Minimum expected size of the encoded images and columns of a batch, in bytes.
    pub(super) varying_bytes: u64,
    pub(super) is_raw: bool,
    pub(super) has_columns: bool,
    /// Memory in bytes for all batches, if batches vary in size.
    pub(super) varying_budget: Option<u64>,
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
            record_bytes: machine.record_bytes,
            batches: BatchSizes {
                ahead: machine.batches_ahead,
                samples: usize::try_from(options.batch_size).unwrap_or(usize::MAX),
                pixel_bytes: pixel_bytes as u64,
                varying_bytes: (batch_bytes - pixel_bytes) as u64,
                is_raw: options.is_raw(),
                has_columns,
                varying_budget: options.varies().then(|| {
                    let batches = machine.batches_ahead as u64 + RAW_EXTRA;
                    (batch_bytes as u64).saturating_mul(batches)
                }),
            },
        }
    }
}
