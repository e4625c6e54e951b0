//! One epoch of a stream: the order of its plan, applied to the selected records, each repeated as
//! requested.

use std::ops::Range;

#[cfg(test)]
use super::Shuffle;
use super::selection::{Indices, Selection};
use super::{EpochPlan, PlanOptions, Run};
use crate::error::{Error, Result};

/// Maximum number of requested repetitions of a sample in an epoch.
pub(crate) const MAX_REPEATS: u64 = 1 << 16;
/// Maximum number of positions of an epoch: sums stay far below 2^64.
const MAX_POSITIONS: u64 = 1 << 48;

/// The sample at a position of an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlannedSample {
    /// The record's number in the split.
    pub sample: u64,
    /// Number of preceding indices of the same sample in this epoch: 0, 1, 2, ... Random transforms
    /// use it to differ between repetitions.
    pub occurrence: u64,
}

/// A [`PlannedSample`] and the records to read for it: see [`Epoch::run_at`].
pub(crate) struct Reading {
    pub(crate) planned: PlannedSample,
    /// In numbers of indices, not of records.
    pub(crate) run: Run,
}

/// One epoch, as a map from position to sample.
///
/// The plan orders the indices of the [`Selection`]. With `repeats` above 1, each occurs that
/// many times. Position `p` is in row `g = p / (w * repeats)` of `w` indices (the virtual ranks; 1 without
/// shuffle; the remainder in the last row), and is index `g * w + o % w` of the plan for the `o /
/// w`-th time, with `o = p % (w * repeats)`. So repetitions of a sample are close to each other, and if the
/// number of ranks divides the virtual ranks they go to the same rank and are read once.
#[derive(Debug)]
pub struct Epoch {
    plan: EpochPlan,
    indices: Indices,
    repeats: u64,
    row: u64,
}

impl Epoch {
    /// Creates an epoch of `options`, whose number of records is the selection's number of samples.
    ///
    /// # Errors
    ///
    /// As [`EpochPlan::new`]; another number of records; too many repetitions or positions.
    pub fn new(options: &PlanOptions, selection: &Selection, repeats: u64) -> Result<Self> {
        if options.records != selection.len() {
            return Err(Error::option("records", options.records, selection.len()));
        }
        if !(1..=MAX_REPEATS).contains(&repeats) || options.records > MAX_POSITIONS / repeats {
            let expected = format!("1 to {MAX_REPEATS}, and epochs of at most 2^48 samples");
            return Err(Error::option("repeats", repeats, expected));
        }
        Ok(Epoch {
            plan: EpochPlan::new(options)?,
            indices: selection.indices(options.seed, options.shuffle.order_of(options.epoch)),
            repeats,
            row: options.shuffle.row(options.virtual_ranks),
        })
    }

    /// Returns the number of the epoch.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.plan.epoch()
    }

    /// Returns the number of positions.
    #[must_use]
    pub fn positions(&self) -> u64 {
        self.plan.records() * self.repeats
    }

    /// Returns the sample at `position`, taken modulo the number of positions.
    #[must_use]
    pub fn at(&self, position: u64) -> PlannedSample {
        let (place, time) = self.place(position);
        self.planned(self.plan.sample_at(place), time)
    }

    /// Returns the sample at `position`, taken modulo the number of positions, and the records to
    /// read for it.
    pub(crate) fn run_at(&self, position: u64) -> Reading {
        let (place, time) = self.place(position);
        let run = self.plan.run_at(place);
        Reading {
            planned: self.planned(run.sample, time),
            run,
        }
    }

    /// Returns the records of a run to read together: those around its sample, as far as at most
    /// `gap` unwanted records lie between two wanted ones.
    pub(crate) fn stretch(&self, run: &Run, gap: u64) -> Range<u64> {
        if matches!(self.indices, Indices::First) {
            return run.records.clone();
        }
        let record = |v| self.indices.record(v);
        let near = |a: u64, b: u64| b - a <= gap + 1;
        let (mut from, mut to) = (run.sample, run.sample);
        while from > run.records.start && near(record(from - 1), record(from)) {
            from -= 1;
        }
        while to + 1 < run.records.end && near(record(to), record(to + 1)) {
            to += 1;
        }
        record(from)..record(to) + 1
    }

    fn planned(&self, v: u64, time: u64) -> PlannedSample {
        PlannedSample {
            sample: self.indices.record(v),
            occurrence: self.indices.occurrence(v) * self.repeats + time,
        }
    }

    /// Returns the position in the plan, and the number of the repetition.
    fn place(&self, position: u64) -> (u64, u64) {
        let position = position % self.positions();
        if self.repeats == 1 {
            return (position, 0);
        }
        let begin = position / (self.row * self.repeats) * self.row;
        let offset = position - begin * self.repeats;
        let width = self.row.min(self.plan.records() - begin);
        (begin + offset % width, offset / width)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn epoch(selection: &Selection, virtual_ranks: u64, repeats: u64, shuffle: Shuffle) -> Epoch {
        let options = PlanOptions {
            records: selection.len(),
            seed: 8,
            epoch: 2,
            virtual_ranks,
            shuffle,
            run_records: 16,
        };
        Epoch::new(&options, selection, repeats).unwrap()
    }

    fn shuffles() -> [Shuffle; 3] {
        let blocks = Shuffle::blocks(9, 2);
        [Shuffle::NONE, blocks, Shuffle::FULL]
    }

    proptest! {
        /// Each selected record occurs `repeats` times, each time as another occurrence, on the
        /// same rank.
        #[test]
        fn selected_records_come_as_often_as_asked_for(
            list in prop::collection::btree_set(0u32..3000, 1..400), virtual_ranks in 1u64..9, repeats in 1u64..6,
        ) {
            let list: Vec<u32> = list.into_iter().collect();
            let selection = Selection::listed(list.clone());
            for shuffle in shuffles() {
                let epoch = epoch(&selection, virtual_ranks, repeats, shuffle);
                prop_assert_eq!(epoch.positions(), list.len() as u64 * repeats);
                let mut found: HashMap<u64, Vec<(u64, u64)>> = HashMap::new();
                for p in 0..epoch.positions() {
                    let planned = epoch.at(p);
                    found.entry(planned.sample).or_default().push((planned.occurrence, p));
                    let reading = epoch.run_at(p);
                    prop_assert_eq!(reading.planned, planned);
                    for gap in [0, 3, 1000] {
                        let stretch = epoch.stretch(&reading.run, gap);
                        prop_assert!(stretch.contains(&planned.sample));
                        prop_assert!(list.contains(&(stretch.start as u32)));
                        prop_assert!(list.contains(&(stretch.end as u32 - 1)));
                    }
                }
                prop_assert_eq!(found.len(), list.len());
                for (sample, times) in found {
                    prop_assert!(list.contains(&(sample as u32)));
                    let occurrences: Vec<u64> = times.iter().map(|time| time.0).collect();
                    prop_assert_eq!(occurrences, (0..repeats).collect::<Vec<_>>());
                    // Whole rows: the same virtual rank each time. The distance never exceeds a row's
                    // repetitions.
                    let (first, last) = (times[0].1, times[times.len() - 1].1);
                    prop_assert!(last - first < virtual_ranks * repeats);
                    if last < list.len() as u64 / virtual_ranks * virtual_ranks * repeats && shuffle != Shuffle::NONE {
                        prop_assert!(times.iter().all(|time| time.1 % virtual_ranks == first % virtual_ranks));
                    }
                }
            }
        }

        /// A single repetition of all records gives the order of the plan.
        #[test]
        fn without_options_nothing_changes(records in 1u64..2000, virtual_ranks in 1u64..65) {
            let selection = Selection::first(records);
            for shuffle in shuffles() {
                let epoch = epoch(&selection, virtual_ranks, 1, shuffle);
                for p in 0..records {
                    let expected = PlannedSample { sample: epoch.plan.sample_at(p), occurrence: 0 };
                    prop_assert_eq!(epoch.at(p), expected);
                    let run = epoch.plan.run_at(p);
                    prop_assert_eq!(epoch.stretch(&run, 0), run.records);
                }
            }
        }
    }

    /// Draws are a contract; the values were also computed by `tools/golden/epoch_order.py`.
    #[test]
    fn golden_draws() {
        let members = vec![0, 3, 5, 6, 1, 2, 4, 7, 8, 9];
        let weights = [1.0, 2.5, 0.25];
        let selection = Selection::drawn(12, vec![0, 4, 6, 10], members, &weights).unwrap();
        let blocks = Shuffle::blocks(2, 2);
        let epoch = epoch(&selection, 2, 2, blocks);
        let order: Vec<(u64, u64)> = (0..24)
            .map(|p| (epoch.at(p).sample, epoch.at(p).occurrence))
            .collect();
        assert_eq!(order, GOLDEN);
    }
    const GOLDEN: [(u64, u64); 24] = [
        (5, 2),
        (5, 0),
        (5, 3),
        (5, 1),
        (1, 2),
        (3, 0),
        (1, 3),
        (3, 1),
        (1, 0),
        (2, 0),
        (1, 1),
        (2, 1),
        (6, 0),
        (1, 4),
        (6, 1),
        (1, 5),
        (2, 4),
        (2, 6),
        (2, 5),
        (2, 7),
        (2, 2),
        (2, 8),
        (2, 3),
        (2, 9),
    ];

    /// Portions are a contract; the values were also computed by `tools/golden/epoch_order.py`.
    #[test]
    fn golden_portions() {
        let members = vec![0, 1, 2, 4, 6, 7, 8, 9];
        let selection = Selection::portioned(7, vec![0, 3, 8], members, &[vec![1.5, 0.5]]).unwrap();
        let blocks = Shuffle::blocks(2, 2);
        let epoch = epoch(&selection, 2, 1, blocks);
        let order: Vec<(u64, u64)> = (0..7)
            .map(|p| (epoch.at(p).sample, epoch.at(p).occurrence))
            .collect();
        assert_eq!(order, GOLDEN_PORTIONS);
    }
    const GOLDEN_PORTIONS: [(u64, u64); 7] =
        [(0, 1), (2, 1), (0, 0), (2, 0), (9, 0), (6, 0), (1, 0)];

    #[test]
    fn each_epoch_draws_independently() {
        let selection = Selection::drawn(100, vec![0, 50], (0..50).collect(), &[1.0]).unwrap();
        let indices = |seed, epoch| {
            let options = PlanOptions {
                records: 100,
                seed,
                epoch,
                virtual_ranks: 1,
                shuffle: Shuffle::NONE,
                run_records: 1,
            };
            let epoch = Epoch::new(&options, &selection, 1).unwrap();
            (0..100).map(|p| epoch.at(p).sample).collect::<Vec<_>>()
        };
        assert_eq!(indices(1, 0), indices(1, 0));
        assert_ne!(indices(1, 0), indices(1, 1));
        assert_ne!(indices(1, 0), indices(2, 0));
    }

    #[test]
    fn invalid_selections_are_refused() {
        let options = PlanOptions {
            records: 10,
            seed: 0,
            epoch: 0,
            virtual_ranks: 2,
            shuffle: Shuffle::NONE,
            run_records: 1,
        };
        let selection = Selection::first(10);
        assert!(Epoch::new(&options, &selection, 1).is_ok());
        assert!(Epoch::new(&options, &selection, 0).is_err());
        assert!(Epoch::new(&options, &selection, u64::MAX).is_err());
        assert!(Epoch::new(&options, &Selection::first(11), 1).is_err());
    }
}
