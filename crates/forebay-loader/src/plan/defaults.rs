//! What a plan uses where nothing was chosen, and why.
//!
//! These values shape the order of an epoch, so they depend on the dataset alone: never on
//! the machine, the number of ranks or the memory at hand. Changing them changes the order
//! of every run that relied on them.
//!
//! | | default | because |
//! | --- | --- | --- |
//! | lanes | 64 | every power of two up to 64 ranks can share an order; a job of more ranks names a multiple of its size |
//! | block | up to 4 MiB of records | disks and object stores give most of their bandwidth from 2 to 4 MiB on |
//! | window | 2 blocks a lane | a global batch of 256 then draws from 128 blocks, and one rank of one holds at most 512 MiB |
//!
//! What is held is `lanes * window * block` for all ranks of a job together: 512 MiB in the
//! default, whether one process reads all lanes or 64 share them. With 1,024 lanes for 1,024
//! ranks each rank holds 8 MiB.

use forebay_shard::manifest;
#[cfg(doc)]
use forebay_shard::manifest::EPOCH_BLOCK_BYTES;

/// Lanes of an epoch.
pub const LANES: u64 = 64;

/// Blocks that a lane mixes.
pub const WINDOW_BLOCKS: u64 = 2;

/// Records of a block: the largest power of two that keeps a block within
/// [`EPOCH_BLOCK_BYTES`] on average, but small enough that each lane gets a window's
/// worth of different blocks. A dataset that fits into the windows is thus cut finely
/// and mixed well: below `lanes * WINDOW_BLOCKS * 2` records each block is one record.
///
/// A power of two, because then the same images packed into another format (a few bytes
/// more or less for each record) almost always come in the same order.
#[must_use]
pub fn block_records(records: u64, bytes: u64, lanes: u64) -> u64 {
    block_records_within(manifest::block_records(records, bytes), records, lanes)
}

/// The same where the most records that a block may have, a power of two, is known: manifests keep it,
/// so that an order survives a conversion that changes the sizes of records.
#[must_use]
pub fn block_records_within(most: u64, records: u64, lanes: u64) -> u64 {
    match records / lanes.saturating_mul(WINDOW_BLOCKS).max(1) {
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
        // A thousand of them are mixed finely.
        assert_eq!(block_records(1000, 110_000_000, 64), 4);
        assert_eq!(block_records(100, 11_000_000, 64), 1);
        // A million tiny records.
        assert_eq!(block_records(1_000_000, 100_000_000, 64), 4096);
        // Records larger than a block, empty records, nothing.
        assert_eq!(block_records(1_000_000, 1_000_000 << 24, 64), 1);
        assert_eq!(block_records(1_000_000, 0, 64), 4096);
        assert_eq!(block_records(0, 0, 0), 1);
    }
}
