//! An open stream of batches, as its two sides describe it.

use crate::LoaderOptions;

/// The description of an open stream: its options with every default filled in, and the numbers that follow from them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StreamInfo {
    /// Its options, complete: the same stream can be opened again with them.
    pub options: LoaderOptions,
    /// Records of the split.
    pub records: u64,
    /// Samples of an epoch, all ranks together, padding not counted.
    pub samples: u64,
    /// Batches of an epoch.
    pub batches_per_epoch: u64,
    /// Bytes of every batch; with encoded images, what one has on average.
    pub batch_bytes: u64,
    /// The label of the first class in batches.
    pub label_base: i64,
    /// The names of classes in the order of labels; empty where they are not known.
    pub classes: Vec<String>,
}

impl StreamInfo {
    /// A stream with these options.
    #[must_use]
    pub fn new(options: LoaderOptions) -> Self {
        StreamInfo {
            options,
            ..StreamInfo::default()
        }
    }

    /// Samples of a batch of its rank.
    #[must_use]
    pub fn batch_size(&self) -> u64 {
        self.options.batch_size.unwrap_or(0)
    }

    /// Its rank.
    #[must_use]
    pub fn rank(&self) -> u64 {
        self.options.rank.unwrap_or(0)
    }

    /// The ranks that share an epoch.
    #[must_use]
    pub fn world_size(&self) -> u64 {
        self.options.world_size.unwrap_or(0)
    }

    /// Samples of a batch of all ranks together.
    #[must_use]
    pub fn global_batch_size(&self) -> u64 {
        self.batch_size().saturating_mul(self.world_size())
    }
}
