//! The epoch as a pure function: `(records, seed, epoch, options) -> order of samples`.
//!
//! Nothing here does IO, waits, or uses a clock. A position is a number in `0..records`;
//! [`EpochPlan::sample_at`] returns the sample at a position, in constant memory and time. So the
//! state of a run is a single number, and any process can make any batch of any rank.
//!
//! # The arithmetic, which is a contract
//!
//! All divisions round down. `mix`, `reduce`, `Key` and the permutation are defined in
//! [`forebay_batch::positions`]; `K = Key::root(seed).child(epoch)`.
//!
//! - With `V` virtual ranks, position `p` belongs to virtual rank `l = p % V`, as its position `j = p / V`. Virtual
//!   rank `l` owns the places `start(l) .. start(l) + len(l)` of a sequence `Q`, where `start(l) = l * (N / V) +
//!   min(l, N % V)`.
//! - Shuffle *blocks*: with `B` records per block and `F = N / B` full blocks, place `q` of `Q` is
//!   in block `k = permutation(F, K.child(2))(q / B)`, or the short block `F` if `q / B = F`. Its
//!   record is `(rot + k * B + q % B) mod N`, with `rot = K.child(1).below(N)`. With `W` blocks per
//!   window, `skip(l) = start(l) % B + B * (W * l / V)`: position `j` of the virtual rank is in window
//!   `w = (j + skip) / (W * B)`, which has its positions from `max(w * W * B - skip, 0)` up to
//!   `min((w + 1) * W * B - skip, len(l))`. The window's positions are permuted by
//!   `permutation(size of the window, K.child(3).child(l).child(w))`.
//! - Shuffle *window*: as *blocks*, with `k = q / B`.
//! - Shuffle *full*: the sample is `permutation(N, K.child(4))(p)`. Shuffle *none*: it is `p`.
//! - [`Batches`]: the global batch that begins at `s` is the positions `s .. s + batch_size *
//!   world_size`; an [`Assignment`](forebay_batch::positions::Assignment) says which of them a rank has. Positions from
//!   `N` on are padding: `p mod N`.
//! - [`Selection`]: if only some records are selected, or some of them several times, `N` is the
//!   number of *indices*, and the samples above are indices, which the selection maps to
//!   records. [`Epoch`] repeats them.
//!
//! ```
//! use forebay_loader::plan::{EpochPlan, PlanOptions, Shuffle};
//!
//! let plan = EpochPlan::new(&PlanOptions {
//!     records: 1_281_167,
//!     seed: 42,
//!     epoch: 3,
//!     virtual_ranks: 64,
//!     shuffle: Shuffle::blocks(32, 2),
//!     run_records: 32,
//! })?;
//! let first: Vec<u64> = (0..4).map(|p| plan.sample_at(p)).collect();
//! assert_eq!(first, [703796, 1248776, 29997, 212141]);
//! # Ok::<(), forebay_loader::Error>(())
//! ```

mod batches;
pub mod defaults;
mod epoch;
mod selection;
mod shuffle;

pub use batches::Batches;
pub(crate) use epoch::MAX_REPEATS;
pub use epoch::{Epoch, PlannedSample};
pub(crate) use forebay_batch::positions::Key;
pub use selection::Selection;
pub(crate) use shuffle::{Footprint, Reading};
pub use shuffle::{Run, Shuffle};

use forebay_batch::positions::VirtualRanks;

use crate::error::{Error, Result};
use shuffle::{Make, Order};

/// Maximum number of records of a split: sums of positions stay far below 2^64.
const MAX_RECORDS: u64 = 1 << 48;
/// Maximum number of virtual ranks.
const MAX_VIRTUAL_RANKS: u64 = 1 << 24;

/// The parameters of an [`EpochPlan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlanOptions {
    /// Samples in the split.
    pub records: u64,
    /// Seed of the run.
    pub seed: u64,
    /// Epoch, from 0.
    pub epoch: u64,
    /// Parts of the epoch that are read in parallel.
    pub virtual_ranks: u64,
    /// The shuffle. Its sizes must not be 0: a plan has no defaults.
    pub shuffle: Shuffle,
    /// Records read together if the order itself does not group them (no shuffle). Changes reads only,
    /// never the order; 0 counts as 1.
    pub run_records: u64,
}

/// The order of one epoch.
#[derive(Debug)]
pub struct EpochPlan {
    records: u64,
    epoch: u64,
    order: Box<dyn Order>,
}

impl EpochPlan {
    /// Creates the plan of one epoch.
    ///
    /// # Errors
    ///
    /// A number out of its range; no records.
    pub fn new(options: &PlanOptions) -> Result<Self> {
        let &PlanOptions {
            records,
            seed,
            epoch,
            virtual_ranks,
            shuffle,
            run_records,
        } = options;
        if !(1..=MAX_RECORDS).contains(&records) {
            return Err(Error::option("records", records, "1 to 2^48"));
        }
        if !(1..=MAX_VIRTUAL_RANKS).contains(&virtual_ranks) {
            return Err(Error::option("virtual_ranks", virtual_ranks, "1 to 2^24"));
        }
        let order = shuffle::order(&Make {
            records,
            virtual_ranks: VirtualRanks::new(records, virtual_ranks),
            key: Key::root(seed).child(shuffle.order_of(epoch)),
            run_records,
            shuffle,
        })?;
        Ok(EpochPlan {
            records,
            epoch,
            order,
        })
    }

    /// Returns the number of positions.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Returns the number of the epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Returns the sample at `position`, taken modulo the number of records.
    #[must_use]
    pub fn sample_at(&self, position: u64) -> u64 {
        self.order.sample(position % self.records)
    }

    /// Returns the records to read for `position`, taken modulo the number of records.
    #[must_use]
    pub fn run_at(&self, position: u64) -> Run {
        self.order.run(position % self.records)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn plan(
        records: u64,
        seed: u64,
        epoch: u64,
        virtual_ranks: u64,
        shuffle: Shuffle,
    ) -> EpochPlan {
        EpochPlan::new(&PlanOptions {
            records,
            seed,
            epoch,
            virtual_ranks,
            shuffle,
            run_records: 8,
        })
        .unwrap()
    }

    fn blocks(block_records: u64, window_blocks: u64) -> Shuffle {
        Shuffle::blocks(block_records, window_blocks)
    }

    fn sized(name: &str, block_records: u64, window_blocks: u64) -> Shuffle {
        let mut shuffle = Shuffle::named(name).unwrap();
        shuffle.block_records = block_records;
        shuffle.window_blocks = window_blocks;
        shuffle
    }

    /// The order of an epoch is a contract; the values were also computed by `tools/golden/epoch_order.py`.
    #[test]
    fn golden_order() {
        let small = plan(30, 1, 2, 4, blocks(4, 2));
        let order: Vec<u64> = (0..30).map(|p| small.sample_at(p)).collect();
        assert_eq!(order, GOLDEN_SMALL);
        let full = plan(30, 1, 2, 4, Shuffle::FULL);
        let order: Vec<u64> = (0..30).map(|p| full.sample_at(p)).collect();
        assert_eq!(order, GOLDEN_FULL);
        let window = plan(30, 1, 2, 4, sized("window", 4, 2));
        let order: Vec<u64> = (0..30).map(|p| window.sample_at(p)).collect();
        assert_eq!(order, GOLDEN_WINDOW);
        let large = plan(1_281_167, 42, 3, 64, blocks(32, 2));
        let order: Vec<u64> = (0..8).map(|k| large.sample_at(k * 177_777)).collect();
        assert_eq!(order, GOLDEN_LARGE);
    }
    const GOLDEN_SMALL: [u64; 30] = [
        18, 10, 28, 26, 11, 7, 27, 3, 12, 20, 0, 2, 13, 21, 29, 4, 16, 22, 24, 6, 14, 19, 25, 1,
        15, 9, 23, 5, 17, 8,
    ];
    const GOLDEN_FULL: [u64; 30] = [
        29, 23, 0, 2, 13, 14, 15, 20, 8, 27, 26, 5, 6, 9, 3, 17, 22, 18, 19, 7, 11, 21, 12, 1, 16,
        24, 4, 25, 28, 10,
    ];
    const GOLDEN_WINDOW: [u64; 30] = [
        14, 22, 24, 0, 7, 19, 23, 3, 8, 16, 26, 2, 9, 17, 25, 4, 12, 18, 28, 6, 10, 15, 29, 1, 11,
        21, 27, 5, 13, 20,
    ];
    const GOLDEN_LARGE: [u64; 8] = [
        703796, 84395, 742975, 492567, 838361, 189221, 474215, 849810,
    ];

    proptest! {
        /// No two ranks read the same run.
        #[test]
        fn ranks_share_no_run(records in 1u64..1500, seed: u64, world in 1u64..7) {
            for name in ["blocks", "window"] {
                let plan = plan(records, seed, 0, world * 4, sized(name, 16, 2));
                for p in 0..records {
                    prop_assert_eq!(plan.run_at(p).virtual_rank % world, p % world);
                }
            }
        }
    }

    /// A virtual rank reads nearly a block at once, although windows and virtual ranks split some blocks.
    #[test]
    fn reads_are_long() {
        let (records, mean) = (200_000u64, 110_000u64);
        let block = defaults::block_records(records, records * mean, defaults::VIRTUAL_RANKS);
        let plan = plan(
            records,
            9,
            1,
            defaults::VIRTUAL_RANKS,
            blocks(block, defaults::WINDOW_BLOCKS),
        );
        let mut runs: Vec<u64> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for p in 0..records {
            let run = plan.run_at(p);
            if seen.insert(run.records.start) {
                runs.push(run.records.end - run.records.start);
            }
        }
        assert_eq!(
            runs.iter().sum::<u64>(),
            records,
            "each record is read once"
        );
        let bytes = mean * records / runs.len() as u64;
        assert!(bytes > 3_400_000, "mean run of {bytes} bytes");
    }

    /// At any time about one window per virtual rank is in use, never two.
    #[test]
    fn virtual_ranks_start_windows_at_different_times() {
        let (records, virtual_ranks, block, window) = (100_000u64, 64, 32, 4);
        let plan = plan(records, 9, 1, virtual_ranks, blocks(block, window));
        let mut begun = vec![0u64; (records / virtual_ranks / 16 + 1) as usize];
        let mut group = vec![u64::MAX; virtual_ranks as usize];
        for p in 0..records {
            let run = plan.run_at(p);
            if std::mem::replace(&mut group[run.virtual_rank as usize], run.group) != run.group {
                begun[(p / virtual_ranks / 16) as usize] += 1;
            }
        }
        // The first samples start all virtual ranks; later windows start evenly spread: 8 per window
        // length.
        let (most, least) = (begun[1..90].iter().max(), begun[1..90].iter().min());
        assert!(most <= Some(&24) && least >= Some(&1), "{begun:?}");
    }

    /// Samples that are neighbors in storage are not neighbors in the epoch.
    #[test]
    fn neighbours_are_spread() {
        let records = 100_000u64;
        let plan = plan(records, 4, 0, 64, blocks(32, 2));
        let mut distinct = 0;
        for step in 0..100 {
            let mut found: Vec<u64> = (0..256)
                .map(|i| plan.sample_at(step * 256 + i) / 32)
                .collect();
            found.sort_unstable();
            found.dedup();
            distinct += found.len();
        }
        assert!(
            distinct / 100 >= 90,
            "{} neighbourhoods a batch of 256",
            distinct / 100
        );
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let base = plan(10_000, 1, 0, 64, blocks(32, 2));
        for (seed, epoch) in [(1, 1), (2, 0), (0, 1)] {
            let other = plan(10_000, seed, epoch, 64, blocks(32, 2));
            let same = (0..10_000)
                .filter(|&p| base.sample_at(p) == other.sample_at(p))
                .count();
            assert!(same < 30, "{same} samples at the same place");
        }
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let good = PlanOptions {
            records: 10,
            seed: 0,
            epoch: 0,
            virtual_ranks: 2,
            shuffle: blocks(2, 2),
            run_records: 0,
        };
        EpochPlan::new(&good).unwrap();
        for bad in [
            PlanOptions { records: 0, ..good },
            PlanOptions {
                records: u64::MAX,
                ..good
            },
            PlanOptions {
                virtual_ranks: 0,
                ..good
            },
            PlanOptions {
                virtual_ranks: u64::MAX,
                ..good
            },
            PlanOptions {
                shuffle: blocks(0, 1),
                ..good
            },
            PlanOptions {
                shuffle: blocks(1, 0),
                ..good
            },
            PlanOptions {
                shuffle: blocks(u64::MAX, u64::MAX),
                ..good
            },
        ] {
            assert!(EpochPlan::new(&bad).is_err(), "{bad:?}");
        }
        let huge = PlanOptions {
            records: MAX_RECORDS,
            virtual_ranks: MAX_VIRTUAL_RANKS,
            shuffle: blocks(1 << 32, 1 << 20),
            seed: u64::MAX,
            epoch: u64::MAX,
            run_records: u64::MAX,
        };
        let plan = EpochPlan::new(&huge).unwrap();
        assert!(
            plan.run_at(u64::MAX)
                .records
                .contains(&plan.sample_at(u64::MAX))
        );
    }
}
