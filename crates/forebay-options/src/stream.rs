//! Description of an open stream of batches, for client and server.

use forebay_batch::positions::{Assignment, WindowedOrder};

use crate::LoaderOptions;

/// The description of an open stream: its options with all defaults filled in, and numbers that follow from them.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StreamInfo {
    /// The complete options, with which the same stream can be opened again.
    pub options: LoaderOptions,
    /// Number of records in the split.
    pub records: u64,
    /// Number of samples in an epoch over all ranks, without padding.
    pub samples: u64,
    /// Number of batches in an epoch.
    pub batches_per_epoch: u64,
    /// Size of a batch in bytes; the mean size with encoded images.
    pub batch_bytes: u64,
    /// The label of the first class in batches.
    pub label_base: i64,
    /// Class names in the order of labels; empty if unknown.
    pub classes: Vec<String>,
    /// The number of the first record of each dataset of a mix; empty without one.
    pub dataset_starts: Vec<u64>,
}

impl StreamInfo {
    /// Creates the description of a stream with these options.
    #[must_use]
    pub fn new(options: LoaderOptions) -> Self {
        StreamInfo {
            options,
            ..StreamInfo::default()
        }
    }

    /// Returns the number of samples in a batch of this rank.
    #[must_use]
    pub fn batch_size(&self) -> u64 {
        self.options.batch_size.unwrap_or(0)
    }

    /// Returns the rank of the stream.
    #[must_use]
    pub fn rank(&self) -> u64 {
        self.options.rank.unwrap_or(0)
    }

    /// Returns the number of ranks that share an epoch.
    #[must_use]
    pub fn world_size(&self) -> u64 {
        self.options.world_size.unwrap_or(0)
    }

    /// Returns the positions of the rank in each global batch. Its sizes are not checked.
    #[must_use]
    pub fn assignment(&self) -> Assignment {
        let LoaderOptions {
            virtual_ranks,
            block_records,
            window_blocks,
            seed,
            reshuffle,
            repeats,
            ..
        } = &self.options;
        let sizes = (*virtual_ranks).zip(block_records.zip(*window_blocks));
        let order = |(virtual_ranks, (block_records, window_blocks))| WindowedOrder {
            virtual_ranks,
            block_records,
            window_blocks,
            seed: seed.unwrap_or(0),
            reshuffle: reshuffle.unwrap_or(true),
            repeats: repeats.unwrap_or(1),
        };
        Assignment {
            samples: self.samples,
            batch_size: self.batch_size(),
            rank: self.rank(),
            world_size: self.world_size(),
            order: sizes.map(order),
        }
    }

    /// Returns the number of samples in a batch over all ranks.
    #[must_use]
    pub fn global_batch_size(&self) -> u64 {
        self.batch_size().saturating_mul(self.world_size())
    }
}
