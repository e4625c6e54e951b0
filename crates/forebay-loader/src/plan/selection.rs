//! The records of an epoch: all of a split, some of them, draws with replacement, or quotas of
//! several datasets.
//!
//! A [`Selection`] numbers the *indices* of an epoch from 0 on, in storage order, and the
//! [plan](super) orders those numbers as it orders the records of a whole split. So neighbors stay
//! neighbors, and reads stay sequential for every selection.
//!
//! Each epoch makes new, independent draws: the indices of an epoch are the drawn records, sorted.
//! The arithmetic is a contract, as the plan's is. With `K` the epoch's key, `D = K.child(5)` and
//! `k = D.child(v)`, draw `v` is:
//!
//! - its group: column `c = k.child(1).below(groups)` of an alias table; `c` itself if
//!   `k.child(2).below(2^32)` is below the column's threshold, otherwise the column's alias;
//! - its record: member `k.child(3).below(members of the group)` of the group, in storage order.
//!
//! The table is Vose's, computed in double precision from the weights of the groups in their order
//! (see [`Alias::new`]).
//!
//! Portions (exact per-epoch quotas) cycle through each group repeatedly, in a new order each time,
//! and each epoch continues where the previous one ended: a record repeats only after all others of
//! its group occurred. With `T` indices per epoch and `s(g)` the sum of the weights of the groups up
//! to `g`, in their order and in double precision, group `g` has the indices of each epoch from
//! `floor(T * (s(g - 1) / s) + 0.5)` to `floor(T * (s(g) / s) + 0.5)`, where `s` is the sum of all.
//! With `c(e)` indices of a group of `n` members, epoch `e` has the next `c(e)` numbers of the group's
//! endless sequence after those of the epochs before it: number `i` is member `permutation(n, K)(i % n)`, with `K =
//! Key::root(seed).child(6).child(g).child(i / n)`.

use std::sync::Arc;

use crate::error::{Error, Result};
use forebay_batch::positions::{Domain, Key, Permutation};

/// The records of a stream's epochs.
#[derive(Debug, Clone)]
pub struct Selection(Kind);

#[derive(Debug, Clone)]
enum Kind {
    /// The first records, up to this number.
    First(u64),
    /// These records, in ascending order.
    Listed(Arc<[u32]>),
    Drawn(Arc<WeightedSampler>),
    Portioned(Arc<Portions>),
}

/// Groups of records, with the number of samples of each per epoch.
#[derive(Debug)]
struct Portions {
    num_samples: u64,
    /// Number of samples of each group in each epoch; those of the last one stay.
    counts: Vec<Vec<u64>>,
    /// Start of each group in `members`, followed by the number of members.
    starts: Vec<usize>,
    /// In ascending order: groups are consecutive parts of the storage order.
    members: Vec<u32>,
}

/// Groups of records, the probability of each group, and the number of draws.
#[derive(Debug)]
struct WeightedSampler {
    num_samples: u64,
    /// Start of each group in `members`, followed by the number of members.
    starts: Vec<u32>,
    /// Members of all groups, one group after the other.
    members: Vec<u32>,
    alias: Alias,
}

impl Selection {
    /// Selects the first `records` records of a split.
    #[must_use]
    pub fn first(records: u64) -> Self {
        Selection(Kind::First(records))
    }

    /// Selects these records, which must be in ascending order.
    pub(crate) fn listed(records: Vec<u32>) -> Self {
        Selection(Kind::Listed(records.into()))
    }

    /// Draws `num_samples` records per epoch with replacement: first a group by its weight, then one of
    /// its members. `starts` holds the start of each group's members, followed by their number; no
    /// group is empty.
    ///
    /// # Errors
    ///
    /// Weights that are negative, not finite, or all zero.
    pub(crate) fn drawn(
        num_samples: u64,
        starts: Vec<u32>,
        members: Vec<u32>,
        weights: &[f64],
    ) -> Result<Self> {
        let alias = Alias::new(weights)?;
        Ok(Selection(Kind::Drawn(Arc::new(WeightedSampler {
            num_samples,
            starts,
            members,
            alias,
        }))))
    }

    /// Selects `num_samples` records per epoch, with a quota for each group by its weight in that epoch:
    /// see the module. `members` are in ascending order, and `starts` holds the start of each group,
    /// followed by their number; no group with a weight is empty.
    ///
    /// # Errors
    ///
    /// Weights that are negative, not finite, or all zero.
    pub(crate) fn portioned(
        num_samples: u64,
        starts: Vec<usize>,
        members: Vec<u32>,
        weights: &[Vec<f64>],
    ) -> Result<Self> {
        let quotas = |weights: &Vec<f64>| {
            let sum = checked_sum(weights)?;
            let (mut partial, mut before) = (0.0, 0);
            let quota = |weight: &f64| {
                partial += weight;
                let end = (num_samples as f64 * (partial / sum) + 0.5) as u64;
                end - std::mem::replace(&mut before, end)
            };
            Ok(weights.iter().map(quota).collect())
        };
        let counts: Vec<Vec<u64>> = weights.iter().map(quotas).collect::<Result<_>>()?;
        Ok(Selection(Kind::Portioned(Arc::new(Portions {
            num_samples,
            counts,
            starts,
            members,
        }))))
    }

    /// Returns the number of samples of each group in each epoch, if the selection has quotas.
    pub(crate) fn portions(&self) -> Option<&[Vec<u64>]> {
        match &self.0 {
            Kind::Portioned(portions) => Some(&portions.counts),
            Kind::First(_) | Kind::Listed(_) | Kind::Drawn(_) => None,
        }
    }

    /// Returns the number of samples per epoch, which is constant.
    #[must_use]
    pub fn len(&self) -> u64 {
        match &self.0 {
            Kind::First(records) => *records,
            Kind::Listed(records) => records.len() as u64,
            Kind::Drawn(sampler) => sampler.num_samples,
            Kind::Portioned(portions) => portions.num_samples,
        }
    }

    /// Returns whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the indices of one epoch. Free except for draws and quotas, which are computed here.
    pub(super) fn indices(&self, seed: u64, epoch: u64) -> Indices {
        let key = Key::root(seed);
        match &self.0 {
            Kind::First(_) => Indices::First,
            Kind::Listed(records) => Indices::Listed(Arc::clone(records)),
            Kind::Drawn(sampler) => {
                Indices::Drawn(sampler.draw(key.child(epoch).domain(Domain::Draws)))
            }
            Kind::Portioned(portions) => {
                Indices::Drawn(portions.assign(key.domain(Domain::Portions), epoch))
            }
        }
    }
}

impl Portions {
    fn assign(&self, key: Key, epoch: u64) -> Vec<u32> {
        let mut indices = Vec::with_capacity(usize::try_from(self.num_samples).unwrap_or(0));
        let last = self.counts.len() - 1;
        let listed = usize::try_from(epoch).map_or(last, |epoch| epoch.min(last));
        for (group, &count) in self.counts[listed].iter().enumerate() {
            let members = &self.members[self.starts[group]..self.starts[group + 1]];
            let before = self.counts[..listed]
                .iter()
                .map(|counts| u128::from(counts[group]));
            let stayed = u128::from(epoch - listed as u64) * u128::from(count);
            let start = before.sum::<u128>() + stayed;
            let times = times(members.len(), key.child(group as u64), start, count);
            for (&record, times) in members.iter().zip(times) {
                indices.extend(std::iter::repeat_n(record, times as usize));
            }
        }
        indices
    }
}

/// Returns how often each of `members` members occurs among the `count` samples from number `at` on.
fn times(members: usize, key: Key, mut at: u128, count: u64) -> Vec<u32> {
    let mut times = vec![0u32; members];
    let size = members as u128;
    let end = at + u128::from(count);
    while at < end {
        // Up to the end of the current cycle through all members.
        let (pass, first) = (at / size, at % size);
        let until = end.min((pass + 1) * size);
        if until - at == size {
            // A whole cycle counts each member once, in any order.
            let passes = (end - at) / size;
            times.iter_mut().for_each(|times| *times += passes as u32);
            at += passes * size;
            continue;
        }
        let order = Permutation::new(members as u64, key.child(pass as u64));
        for i in first..first + (until - at) {
            times[order.at(i as u64) as usize] += 1;
        }
        at = until;
    }
    times
}

impl WeightedSampler {
    fn draw(&self, key: Key) -> Vec<u32> {
        let universe = self
            .members
            .iter()
            .max()
            .map_or(0, |&last| last as usize + 1);
        let mut counts = vec![0u32; universe];
        for v in 0..self.num_samples {
            let key = key.child(v);
            let group = self.alias.group(key);
            let (start, end) = (self.starts[group], self.starts[group + 1]);
            let member = u64::from(start) + key.child(3).below(u64::from(end - start));
            counts[self.members[member as usize] as usize] += 1;
        }
        let mut indices = Vec::with_capacity(usize::try_from(self.num_samples).unwrap_or(0));
        for (record, &count) in (0u32..).zip(&counts) {
            indices.extend(std::iter::repeat_n(record, count as usize));
        }
        indices
    }
}

/// The indices of one epoch, as a map from index to record.
#[derive(Debug)]
pub(super) enum Indices {
    /// Index `v` is record `v`.
    First,
    Listed(Arc<[u32]>),
    /// In ascending order; a record that was drawn several times is repeated.
    Drawn(Vec<u32>),
}

impl Indices {
    /// Returns the record of index `v`, which must be below the number of samples.
    pub(super) fn record(&self, v: u64) -> u64 {
        match self {
            Indices::First => v,
            Indices::Listed(records) => u64::from(records[v as usize]),
            Indices::Drawn(records) => u64::from(records[v as usize]),
        }
    }

    /// Returns the number of earlier indices of the same record.
    pub(super) fn occurrence(&self, v: u64) -> u64 {
        match self {
            Indices::First | Indices::Listed(_) => 0,
            Indices::Drawn(records) => {
                let record = records[v as usize];
                v - records.partition_point(|&other| other < record) as u64
            }
        }
    }
}

/// Selects among weighted groups in constant time (alias method).
#[derive(Debug)]
struct Alias {
    /// For each column, as a fraction of 2^32: below this value the column's own group is selected.
    thresholds: Vec<u64>,
    aliases: Vec<u32>,
}

const WHOLE: u64 = 1 << 32;

/// Returns the sum of weights, if they are valid.
fn checked_sum(weights: &[f64]) -> Result<f64> {
    let refused = |found: String| {
        let expected = "finite numbers of at least 0, one of them above 0";
        Err(Error::option("weights", found, expected))
    };
    if let Some(bad) = weights.iter().find(|w| !w.is_finite() || **w < 0.0) {
        return refused(bad.to_string());
    }
    let sum: f64 = weights.iter().sum();
    if !(sum > 0.0 && sum.is_finite()) {
        return refused(format!("a sum of {sum}"));
    }
    Ok(sum)
}

impl Alias {
    /// Builds columns of equal probability. With `p[i] = weights[i] * n / sum`, groups with `p < 1`
    /// and the others are two stacks, filled in ascending order. While neither is empty, `s` and
    /// `l` are popped from them, column `s` keeps `p[s]` (times 2^32, rounded down) and gets the
    /// alias `l`, and `l`, with `p[l] = (p[l] + p[s]) - 1`, is pushed to the stack for its new value. Columns
    /// that remain at the end always select their own group.
    fn new(weights: &[f64]) -> Result<Self> {
        let sum = checked_sum(weights)?;
        let n = weights.len();
        let mut parts: Vec<f64> = weights.iter().map(|w| w * n as f64 / sum).collect();
        let mut thresholds = vec![WHOLE; n];
        let mut aliases: Vec<u32> = (0u32..).take(n).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..n).partition(|&i| parts[i] < 1.0);
        while let (Some(&s), Some(&l)) = (small.last(), large.last()) {
            small.pop();
            thresholds[s] = (parts[s] * WHOLE as f64) as u64;
            aliases[s] = l as u32;
            parts[l] = (parts[l] + parts[s]) - 1.0;
            if parts[l] < 1.0 {
                large.pop();
                small.push(l);
            }
        }
        Ok(Alias {
            thresholds,
            aliases,
        })
    }

    fn group(&self, key: Key) -> usize {
        let column = key.child(1).below(self.thresholds.len() as u64) as usize;
        if key.child(2).below(WHOLE) < self.thresholds[column] {
            column
        } else {
            self.aliases[column] as usize
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(selection: &Selection, epochs: u64, records: usize) -> Vec<u64> {
        let mut counts = vec![0; records];
        for epoch in 0..epochs {
            let indices = selection.indices(3, epoch);
            for v in 0..selection.len() {
                counts[indices.record(v) as usize] += 1;
            }
        }
        counts
    }

    #[test]
    fn groups_are_drawn_by_their_weights() {
        // Three groups of 1, 2 and 5 records; the second one is never drawn.
        let starts = vec![0, 1, 3, 8];
        let members = vec![4, 0, 7, 1, 2, 3, 5, 6];
        let selection = Selection::drawn(1000, starts, members, &[3.0, 0.0, 1.0]).unwrap();
        let counts = counts(&selection, 100, 8);
        assert_eq!((counts[0], counts[7]), (0, 0));
        let near = |found: u64, expected: f64| {
            // Six standard deviations of a binomial distribution.
            let sigma = (expected * (1.0 - expected / 1e5)).sqrt();
            assert!((found as f64 - expected).abs() < 6.0 * sigma, "{counts:?}");
        };
        near(counts[4], 75_000.0);
        for member in [1, 2, 3, 5, 6] {
            near(counts[member], 5_000.0);
        }
    }

    #[test]
    fn alias_tables_hold_the_weights_exactly() {
        let weights = [0.5, 7.0, 0.0, 1e-3, 2.0, 2.0, 40.0];
        let table = Alias::new(&weights).unwrap();
        let mut mass = vec![0u64; weights.len()];
        for (column, (&threshold, &alias)) in
            table.thresholds.iter().zip(&table.aliases).enumerate()
        {
            mass[column] += threshold;
            mass[alias as usize] += WHOLE - threshold;
        }
        let sum: f64 = weights.iter().sum();
        for (found, weight) in mass.iter().zip(weights) {
            let part = *found as f64 / (WHOLE as f64 * weights.len() as f64);
            assert!((part - weight / sum).abs() < 1e-9, "{part} {weight}");
        }
        assert_eq!(mass[2], 0, "a weight of 0 is never drawn");
    }

    #[test]
    fn indices_count_earlier_occurrences_of_their_record() {
        let selection = Selection::drawn(50, vec![0, 3], vec![2, 5, 9], &[1.0]).unwrap();
        let indices = selection.indices(1, 0);
        let mut seen = [0u64; 10];
        for v in 0..50 {
            let record = indices.record(v) as usize;
            assert_eq!(indices.occurrence(v), seen[record]);
            seen[record] += 1;
            assert!(v == 0 || indices.record(v - 1) <= indices.record(v));
        }
        assert_eq!(seen.iter().sum::<u64>(), 50);
        assert_eq!(seen[2] + seen[5] + seen[9], 50);
    }

    /// Over any number of epochs, the counts of a group's records differ by at most one.
    #[test]
    fn portions_go_through_each_group_evenly() {
        let starts = vec![0, 3, 3, 10, 110];
        let members: Vec<u32> = (0..110).map(|i| i * 2).collect();
        let weights = [0.5, 0.0, 0.2, 0.3];
        let selection =
            Selection::portioned(97, starts.clone(), members, &[weights.to_vec()]).unwrap();
        let portions = selection.portions().unwrap()[0].clone();
        assert_eq!(portions, [49, 0, 19, 29]);
        assert_eq!(selection.len(), 97);
        for epochs in [1, 2, 5, 31] {
            let counts = counts(&selection, epochs, 220);
            for (group, portion) in portions.iter().enumerate() {
                let of = (starts[group]..starts[group + 1]).map(|member| counts[member * 2]);
                let of: Vec<u64> = of.collect();
                assert_eq!(of.iter().sum::<u64>(), portion * epochs);
                if let (Some(most), Some(least)) = (of.iter().max(), of.iter().min()) {
                    assert!(most - least <= 1, "{epochs} epochs: {of:?}");
                }
            }
        }
        // No overflow in a distant epoch.
        let Indices::Drawn(far) = selection.indices(3, u64::MAX) else {
            panic!("portions are dealt");
        };
        assert_eq!(far.len(), 97);
        assert!(far.is_sorted());
    }

    /// With quotas that change, no record of a group repeats before all others came either.
    #[test]
    fn quotas_of_each_epoch_continue_the_group() {
        let weights = [
            vec![1.0, 0.0],
            vec![1.0, 3.0],
            vec![0.0, 1.0],
            vec![1.0, 1.0],
        ];
        let starts = vec![0, 7, 30];
        let of = |weights: &[Vec<f64>]| {
            Selection::portioned(20, starts.clone(), (0..30).collect(), weights).unwrap()
        };
        let selection = of(&weights);
        assert_eq!(
            selection.portions().unwrap(),
            [[20, 0], [5, 15], [0, 20], [10, 10]]
        );
        for epochs in [1, 2, 3, 4, 5, 40] {
            let counts = counts(&selection, epochs, 30);
            for group in [&counts[..7], &counts[7..]] {
                let least = group.iter().min().unwrap();
                assert!(
                    group.iter().max().unwrap() - least <= 1,
                    "{epochs}: {counts:?}"
                );
            }
        }
        let records = |selection: &Selection, epoch| match selection.indices(3, epoch) {
            Indices::Drawn(records) => records,
            _ => panic!("portions are dealt"),
        };
        // Weights that stay are those of a mix without a schedule, and the last ones stay.
        let constant = [
            of(&weights[3..]),
            of(&[weights[3].clone(), weights[3].clone()]),
        ];
        for epoch in [0, 1, 2, 9, u64::MAX] {
            assert_eq!(records(&constant[0], epoch), records(&constant[1], epoch));
            assert_eq!(records(&selection, epoch).len(), 20);
        }
        assert!(records(&selection, 2).iter().all(|&record| record >= 7));
    }

    #[test]
    fn each_pass_has_its_own_order() {
        let members = (0..100).collect();
        let selection = Selection::portioned(50, vec![0, 100], members, &[vec![2.0]]).unwrap();
        let half = |epoch| match selection.indices(8, epoch) {
            Indices::Drawn(records) => records,
            _ => panic!("portions are dealt"),
        };
        let mut pass = [half(0), half(1)].concat();
        pass.sort_unstable();
        assert!(pass.into_iter().eq(0..100));
        assert_ne!(half(0), half(2));
        assert_ne!(half(1), half(3));
    }

    #[test]
    fn invalid_weights_are_refused() {
        for bad in [
            &[][..],
            &[0.0],
            &[-1.0, 2.0],
            &[f64::NAN],
            &[f64::MAX, f64::MAX],
            &[1.0, f64::INFINITY],
        ] {
            assert!(Alias::new(bad).is_err(), "{bad:?}");
            let starts = vec![0; bad.len() + 1];
            assert!(Selection::portioned(1, starts, Vec::new(), &[bad.to_vec()]).is_err());
        }
    }
}
