//! The seam for shuffles: in which order the samples of an epoch come.
//!
//! A shuffle is a file here, a variant of [`Shuffle`] and a line in `SHUFFLES`;
//! the tests below then hold it to what every order must be.

use std::ops::Range;

use super::lanes::Lanes;
use super::permutation::Key;
use crate::error::{Error, Result};

mod blocks;
mod full;
mod none;

/// In which order the samples of an epoch come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shuffle {
    /// Storage order.
    None,
    /// Blocks of neighbours in random order, then windows of blocks in random order
    /// within each lane. Reads stay sequential.
    Blocks {
        /// Records read together; 0 for [`defaults::block_records`](super::defaults::block_records).
        block_records: u64,
        /// Blocks mixed together in one lane; 0 for
        /// [`defaults::WINDOW_BLOCKS`](super::defaults::WINDOW_BLOCKS).
        window_blocks: u64,
    },
    /// A random permutation of all samples; each record is read on its own.
    Full,
}

impl Default for Shuffle {
    /// Blocks, sized for the dataset.
    fn default() -> Self {
        Shuffle::Blocks {
            block_records: 0,
            window_blocks: 0,
        }
    }
}

impl Shuffle {
    /// Name of the shuffle in options: `none`, `blocks`, `full`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Shuffle::None => "none",
            Shuffle::Blocks { .. } => "blocks",
            Shuffle::Full => "full",
        }
    }

    /// All names there are.
    pub fn names() -> impl Iterator<Item = &'static str> {
        SHUFFLES.iter().map(|entry| entry.name)
    }
}

/// Records that are read together, and how long they are of use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The sample that was asked for.
    pub sample: u64,
    /// Neighbours in the split; the sample is among them.
    pub records: Range<u64>,
    /// Lane that reads them.
    pub lane: u64,
    /// Number of the window within the lane. When the lane's positions reach another
    /// group, nothing of this run is used any more in the epoch.
    pub group: u64,
}

/// An order of `0..records`: a pure function, without memory that grows with it.
pub(super) trait Order: std::fmt::Debug + Send + Sync {
    /// The sample at `position`, which is below the number of records.
    fn sample(&self, position: u64) -> u64;
    /// What to read for `position`.
    fn run(&self, position: u64) -> Run;
}

/// What an order is made from.
pub(super) struct Make {
    pub(super) records: u64,
    pub(super) lanes: Lanes,
    pub(super) key: Key,
    pub(super) run_records: u64,
    pub(super) shuffle: Shuffle,
}

struct Entry {
    name: &'static str,
    make: fn(&Make) -> Result<Box<dyn Order>>,
}

/// Every shuffle there is.
const SHUFFLES: &[Entry] = &[
    Entry {
        name: "none",
        make: |make| {
            Ok(Box::new(none::Storage {
                records: make.records,
                run_records: make.run_records.max(1),
            }))
        },
    },
    Entry {
        name: "blocks",
        make: make_blocks,
    },
    Entry {
        name: "full",
        make: |make| Ok(Box::new(full::Full::new(make.records, make.key))),
    },
];

/// Largest values that keep every product below 2^63.
const MAX_BLOCK_RECORDS: u64 = 1 << 32;
const MAX_WINDOW_BLOCKS: u64 = 1 << 20;

fn make_blocks(make: &Make) -> Result<Box<dyn Order>> {
    let Shuffle::Blocks {
        block_records,
        window_blocks,
    } = make.shuffle
    else {
        return Err(Error::option("shuffle", make.shuffle.name(), "blocks"));
    };
    if !(1..=MAX_BLOCK_RECORDS).contains(&block_records) {
        return Err(Error::option("block_records", block_records, "1 to 2^32"));
    }
    if !(1..=MAX_WINDOW_BLOCKS).contains(&window_blocks) {
        return Err(Error::option("window_blocks", window_blocks, "1 to 2^20"));
    }
    Ok(Box::new(blocks::Blocks::new(
        make.records,
        block_records,
        window_blocks,
        make.lanes,
        make.key,
    )))
}

pub(super) fn order(make: &Make) -> Result<Box<dyn Order>> {
    let name = make.shuffle.name();
    match SHUFFLES.iter().find(|entry| entry.name == name) {
        Some(entry) => (entry.make)(make),
        None => Err(Error::option("shuffle", name, "none, blocks or full")),
    }
}

/// What every shuffle must be; a newcomer is tested by its line in the table.
#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn variants(block_records: u64, window_blocks: u64) -> Vec<Shuffle> {
        let all = vec![
            Shuffle::None,
            Shuffle::Blocks {
                block_records,
                window_blocks,
            },
            Shuffle::Full,
        ];
        assert!(Shuffle::names().eq(all.iter().map(Shuffle::name)));
        all
    }

    fn make(records: u64, lanes: u64, seed: u64, shuffle: Shuffle) -> Box<dyn Order> {
        order(&Make {
            records,
            lanes: Lanes::new(records, lanes),
            key: Key::root(seed).child(5),
            run_records: 16,
            shuffle,
        })
        .unwrap()
    }

    proptest! {
        #[test]
        fn each_sample_once(
            records in 1u64..2500, lanes in 1u64..100, seed: u64,
            block in 1u64..200, window in 1u64..8,
        ) {
            for shuffle in variants(block, window) {
                let order = make(records, lanes, seed, shuffle);
                let mut all: Vec<u64> = (0..records).map(|p| order.sample(p)).collect();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(0..records), "{}", shuffle.name());
            }
        }

        /// Runs hold the sample, stay inside, never overlap within an epoch, and a
        /// lane that has left a group does not come back to it.
        #[test]
        fn runs_are_read_once(
            records in 1u64..2500, lanes in 1u64..100, seed: u64,
            block in 1u64..200, window in 1u64..8,
        ) {
            for shuffle in variants(block, window) {
                let order = make(records, lanes, seed, shuffle);
                let mut owner: HashMap<u64, (u64, u64, u64, u64)> = HashMap::new();
                let mut latest: HashMap<u64, u64> = HashMap::new();
                for p in 0..records {
                    let run = order.run(p);
                    prop_assert_eq!(run.sample, order.sample(p));
                    prop_assert!(run.records.contains(&run.sample));
                    prop_assert!(run.records.end <= records);
                    let identity = (run.records.start, run.records.end, run.lane, run.group);
                    for record in run.records.clone() {
                        prop_assert_eq!(*owner.entry(record).or_insert(identity), identity);
                    }
                    let group = latest.entry(run.lane).or_insert(run.group);
                    prop_assert!(*group <= run.group, "{} returns", shuffle.name());
                    *group = run.group;
                }
            }
        }
    }
}
