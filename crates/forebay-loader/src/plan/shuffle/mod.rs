//! The interface of shuffles: the order of an epoch's samples.
//!
//! A shuffle is a line in [`Kind`], with what it orders and how it reads in the functions that match it; the tests below
//! then check the properties of every order.

mod blocks;
mod full;
mod none;

use std::fmt;
use std::ops::Range;

use forebay_batch::positions::{Domain, Key, Permutation, VirtualRanks};

use self::blocks::Windowed;
use self::full::Permuted;
use self::none::InStorage;
use super::defaults;
use crate::error::{Error, Result};

/// A family of orders, one per epoch.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Storage order.
    None,
    /// Permuted blocks, then windows.
    Blocks,
    /// A permutation of all samples.
    Full,
    /// Windows over storage order: each virtual rank reads its part of the records front to back, and mixes the
    /// records that it holds.
    ///
    /// As [`blocks`], with the blocks in storage order, so that a window is one read. A record moves by at most one
    /// window within its virtual rank; a different rotation in each epoch moves the boundaries of virtual ranks and
    /// windows. Suits records that are stored in random order: reads are as sequential as without a
    /// shuffle, with the memory of `blocks`.
    Window,
}

/// All shuffles.
const KINDS: [Kind; 4] = [Kind::None, Kind::Blocks, Kind::Full, Kind::Window];

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::None => "none",
            Kind::Blocks => "blocks",
            Kind::Full => "full",
            Kind::Window => "window",
        }
    }
}

/// The order of an epoch's samples: `none`, `blocks` or another of [`Shuffle::names`], with the
/// sizes of its blocks if it has them.
///
/// ```
/// use forebay_loader::Shuffle;
///
/// let shuffle = Shuffle::named("blocks").unwrap();
/// assert_eq!(shuffle, Shuffle::default());
/// assert_eq!(Shuffle::blocks(32, 2).to_string(), "blocks:32x2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shuffle {
    kind: Kind,
    /// Records read together; 0 selects [`defaults::block_records`].
    pub block_records: u64,
    /// Blocks mixed together in one virtual rank; 0 selects [`defaults::WINDOW_BLOCKS`].
    pub window_blocks: u64,
    /// Whether each epoch has another order; otherwise all have that of epoch 0.
    pub reshuffle: bool,
}

impl Default for Shuffle {
    /// Blocks, sized for the dataset.
    fn default() -> Self {
        Shuffle::blocks(0, 0)
    }
}

impl Shuffle {
    /// Storage order.
    pub const NONE: Shuffle = Shuffle::of(Kind::None);
    /// A random permutation of all samples; each record is read on its own.
    pub const FULL: Shuffle = Shuffle::of(Kind::Full);

    const fn of(kind: Kind) -> Shuffle {
        Shuffle {
            kind,
            block_records: 0,
            window_blocks: 0,
            reshuffle: true,
        }
    }

    /// Blocks of neighbors in random order, then windows of blocks in random order within each virtual rank. Reads stay
    /// sequential.
    #[must_use]
    pub const fn blocks(block_records: u64, window_blocks: u64) -> Shuffle {
        Shuffle {
            block_records,
            window_blocks,
            ..Shuffle::of(Kind::Blocks)
        }
    }

    /// Returns the shuffle with a name, sized for the dataset.
    #[must_use]
    pub fn named(name: &str) -> Option<Shuffle> {
        let kind = KINDS.into_iter().find(|kind| kind.name() == name)?;
        Some(Shuffle::of(kind))
    }

    /// Returns all names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        KINDS.into_iter().map(Kind::name)
    }

    /// Returns the name of the shuffle in options.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Returns whether `block_records` and `window_blocks` have an effect.
    #[must_use]
    pub fn has_blocks(&self) -> bool {
        matches!(self.kind, Kind::Blocks | Kind::Window)
    }

    /// Returns the number of the epoch whose order is used for `epoch`.
    pub(super) fn order_of(&self, epoch: u64) -> u64 {
        if self.reshuffle { epoch } else { 0 }
    }

    /// Fills in the sizes that are 0, for a dataset of `records` records in `bytes` bytes whose
    /// manifest may limit the records per block.
    pub(crate) fn resolve(
        &mut self,
        records: u64,
        bytes: u64,
        most: Option<u64>,
        virtual_ranks: u64,
    ) {
        if !self.has_blocks() {
            return;
        }
        if self.block_records == 0 {
            self.block_records = match most {
                Some(most) => defaults::block_records_within(most, records, virtual_ranks),
                None => defaults::block_records(records, bytes, virtual_ranks),
            };
        }
        if self.window_blocks == 0 {
            self.window_blocks = defaults::WINDOW_BLOCKS;
        }
    }

    /// Returns the number of records that a rank reads together, and those of its windows: one of `window_blocks` blocks
    /// for each virtual rank of this rank.
    pub(crate) fn footprint(&self, reading: &Reading) -> Footprint {
        let window = self.window_blocks.saturating_mul(self.block_records);
        let windows = Some(reading.virtual_ranks.saturating_mul(window));
        let (run_records, window_records) = match self.kind {
            Kind::None => return none::footprint(reading),
            Kind::Full => (1, None),
            Kind::Blocks => (self.block_records, windows),
            Kind::Window => (window, windows),
        };
        Footprint {
            run_records,
            window_records,
        }
    }

    /// Returns the number of indices per row if samples are repeated: the number of virtual ranks, so that
    /// repetitions stay on one rank.
    pub(super) fn row(&self, virtual_ranks: u64) -> u64 {
        match self.kind {
            Kind::None => 1,
            _ => virtual_ranks,
        }
    }

    fn check_blocks(&self) -> Result<()> {
        let Shuffle {
            block_records,
            window_blocks,
            ..
        } = *self;
        if !(1..=MAX_BLOCK_RECORDS).contains(&block_records) {
            return Err(Error::option("block_records", block_records, "1 to 2^32"));
        }
        if !(1..=MAX_WINDOW_BLOCKS).contains(&window_blocks) {
            return Err(Error::option("window_blocks", window_blocks, "1 to 2^20"));
        }
        Ok(())
    }
}

impl fmt::Display for Shuffle {
    /// Writes the shuffle as one word, as stored in the state of loaders.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.has_blocks() {
            write!(f, ":{}x{}", self.block_records, self.window_blocks)?;
        }
        if !self.reshuffle {
            f.write_str(":fixed")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Shuffle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Records that are read together, and their lifetime.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The requested sample.
    pub sample: u64,
    /// Consecutive records of the split that include the sample.
    pub records: Range<u64>,
    /// The virtual rank that reads them.
    pub virtual_rank: u64,
    /// Number of the window within the virtual rank. When the virtual rank's positions reach another group, this
    /// run is no longer used in the epoch.
    pub group: u64,
}

/// An order of `0..records`: a pure function in constant memory.
pub(super) trait Order: fmt::Debug + Send + Sync {
    /// Returns the sample at `position`, which is below the number of records.
    fn sample(&self, position: u64) -> u64;
    /// Returns the records to read for `position`.
    fn run(&self, position: u64) -> Run;
}

/// How a rank reads an epoch.
pub(crate) struct Reading {
    /// Samples in the epoch.
    pub(crate) records: u64,
    /// Average size of a record, in bytes.
    pub(crate) mean_bytes: u64,
    /// Virtual ranks of this rank.
    pub(crate) virtual_ranks: u64,
    pub(crate) world_size: u64,
    /// Memory for records, in bytes.
    pub(crate) budget_bytes: u64,
    /// Maximum number of unwanted bytes to read between two wanted records.
    pub(crate) gap_bytes: u64,
    /// Reads planned ahead.
    pub(crate) reads: u64,
}

/// The cost of reading in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Footprint {
    /// Records read together.
    pub(crate) run_records: u64,
    /// Records of all windows of a rank, which are held together; `None` if each record is read on
    /// its own.
    pub(crate) window_records: Option<u64>,
}

/// The parameters of an order.
pub(super) struct Make {
    pub(super) records: u64,
    pub(super) virtual_ranks: VirtualRanks,
    pub(super) key: Key,
    pub(super) run_records: u64,
    pub(super) shuffle: Shuffle,
}

/// Maximum values that keep every product below 2^63.
const MAX_BLOCK_RECORDS: u64 = 1 << 32;
const MAX_WINDOW_BLOCKS: u64 = 1 << 20;

/// Creates the order of one epoch.
pub(super) fn order(make: &Make) -> Result<Box<dyn Order>> {
    if make.shuffle.has_blocks() {
        make.shuffle.check_blocks()?;
    }
    Ok(match make.shuffle.kind {
        Kind::None => Box::new(InStorage::new(make)),
        Kind::Full => Box::new(Permuted::new(make)),
        Kind::Blocks => {
            let blocks = make.records / make.shuffle.block_records;
            let order = Permutation::new(blocks, make.key.domain(Domain::Blocks));
            Box::new(Windowed::new(make, Some(order)))
        }
        Kind::Window => Box::new(Windowed::new(make, None)),
    })
}

/// Properties of every shuffle. The tests include each shuffle of `KINDS`.
#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn variants(block_records: u64, window_blocks: u64) -> Vec<Shuffle> {
        let sized = |kind| Shuffle {
            block_records,
            window_blocks,
            ..Shuffle::of(kind)
        };
        KINDS.into_iter().map(sized).collect()
    }

    fn make(records: u64, virtual_ranks: u64, seed: u64, shuffle: Shuffle) -> Box<dyn Order> {
        order(&Make {
            records,
            virtual_ranks: VirtualRanks::new(records, virtual_ranks),
            key: Key::root(seed).child(5),
            run_records: 16,
            shuffle,
        })
        .unwrap()
    }

    proptest! {
        #[test]
        fn each_sample_once(
            records in 1u64..2500, virtual_ranks in 1u64..100, seed: u64,
            block in 1u64..200, window in 1u64..8,
        ) {
            for shuffle in variants(block, window) {
                let order = make(records, virtual_ranks, seed, shuffle);
                let mut all: Vec<u64> = (0..records).map(|p| order.sample(p)).collect();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..records), "{}", shuffle.name());
            }
        }

        /// Runs contain the sample, stay in bounds, never overlap within an epoch, and a virtual rank that
        /// has left a group does not return to it.
        #[test]
        fn runs_are_read_once(
            records in 1u64..2500, virtual_ranks in 1u64..100, seed: u64,
            block in 1u64..200, window in 1u64..8,
        ) {
            for shuffle in variants(block, window) {
                let order = make(records, virtual_ranks, seed, shuffle);
                let mut owner: HashMap<u64, (u64, u64, u64, u64)> = HashMap::new();
                let mut latest: HashMap<u64, u64> = HashMap::new();
                for p in 0..records {
                    let run = order.run(p);
                    prop_assert_eq!(run.sample, order.sample(p));
                    prop_assert!(run.records.contains(&run.sample));
                    prop_assert!(run.records.end <= records);
                    let identity = (run.records.start, run.records.end, run.virtual_rank, run.group);
                    for record in run.records.clone() {
                        prop_assert_eq!(*owner.entry(record).or_insert(identity), identity);
                    }
                    let group = latest.entry(run.virtual_rank).or_insert(run.group);
                    prop_assert!(*group <= run.group, "{} returns", shuffle.name());
                    *group = run.group;
                }
            }
        }
    }
}
