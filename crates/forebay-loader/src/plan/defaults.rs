//! Default parameters of a plan, with the reasons.
//!
//! These values determine the order of an epoch, so they depend on the dataset alone: never on the
//! machine, the number of ranks or the available memory. Changing them changes the order of every
//! run that relied on them.
//!
//! | | default | because |
//! | --- | --- | --- |
//! | virtual ranks | 64 | powers of two up to 64 ranks have whole virtual ranks; other numbers of ranks divide windows |
//! | block | up to 4 MiB of records | disks and object stores reach most of their bandwidth from 2 to 4 MiB on |
//! | window | 2 blocks per virtual rank | a global batch of 256 then samples from 128 blocks, and a single rank holds at most 512 MiB |
//!
//! The memory is `virtual_ranks * window * block` for all ranks of a job together: 512 MiB by default,
//! whether one process reads all virtual ranks or 64 processes share them. Ranks that divide windows hold parts of two
//! or three more than their share.

use forebay_shard::manifest;
#[cfg(doc)]
use forebay_shard::manifest::EPOCH_BLOCK_BYTES;

/// Number of virtual ranks of an epoch.
pub const VIRTUAL_RANKS: u64 = 64;

/// Number of blocks that a virtual rank mixes.
pub const WINDOW_BLOCKS: u64 = 2;

/// Returns the number of records per block: the largest power of two that keeps a block within
/// [`EPOCH_BLOCK_BYTES`] on average, but small enough that each virtual rank gets a window's worth of
/// different blocks. So a dataset that fits into the windows is divided finely and mixed well:
/// below `virtual_ranks * WINDOW_BLOCKS * 2` records each block is one record.
///
/// It is a power of two, because the same images packed into another format (a few bytes more or
/// less per record) then almost always have the same order.
#[must_use]
pub fn block_records(records: u64, bytes: u64, virtual_ranks: u64) -> u64 {
    block_records_within(
        manifest::block_records(records, bytes),
        records,
        virtual_ranks,
    )
}

/// As [`block_records`], with an upper bound, a power of two. Manifests store the bound, so that an order survives
/// a conversion that changes the sizes of records.
#[must_use]
pub fn block_records_within(most: u64, records: u64, virtual_ranks: u64) -> u64 {
    match records / virtual_ranks.saturating_mul(WINDOW_BLOCKS).max(1) {
        0 => 1,
        by_count => most.min(1 << by_count.ilog2()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_fit_their_datasets() {
        // ImageNet: 1,281,167 images of 110 KB.
        assert_eq!(block_records(1_281_167, 1_281_167 * 110_000, 64), 32);
        // A thousand of these images are mixed finely.
        assert_eq!(block_records(1000, 110_000_000, 64), 4);
        assert_eq!(block_records(100, 11_000_000, 64), 1);
        // A million tiny records.
        assert_eq!(block_records(1_000_000, 100_000_000, 64), 4096);
        // Records larger than a block, empty records, no records.
        assert_eq!(block_records(1_000_000, 1_000_000 << 24, 64), 1);
        assert_eq!(block_records(1_000_000, 0, 64), 4096);
        assert_eq!(block_records(0, 0, 0), 1);
    }
}
