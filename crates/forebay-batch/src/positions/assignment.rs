//! The positions that each rank takes of a global batch, for any number of ranks.

use super::permutation::{Domain, Key};
use super::virtual_ranks::VirtualRanks;
use super::windows::{Window, Windows};
use crate::splitmix::GOLDEN;

/// Largest global batch whose windows are divided between ranks: those of a batch have to be sorted.
const MAX_CUT: u64 = 1 << 24;

/// The parameters of an order with windows. The orders without windows have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowedOrder {
    /// Number of virtual ranks.
    pub virtual_ranks: u64,
    /// Records of a block.
    pub block_records: u64,
    /// Blocks of a window.
    pub window_blocks: u64,
    /// Seed of the order.
    pub seed: u64,
    /// Whether each epoch has another order; otherwise all have that of epoch 0.
    pub reshuffle: bool,
    /// How often each sample occurs in an epoch.
    pub repeats: u64,
}

/// The part of a rank in the global batches of an epoch.
///
/// The global batch that begins at `s` has the positions `s .. s + batch_size * world_size`; those from `samples` on are
/// padding. With `V` virtual ranks and `W` ranks:
///
/// - If the order has no windows, if `W` divides `V`, or if a global batch has more than 2^24 positions, rank `r` has the
///   positions `s + r + i * W`. If `W` divides `V`, these are whole virtual ranks.
/// - Otherwise the ranks form `g = gcd(V, W)` classes of `w = W / g` neighbors. Class `c = r / w` has the positions
///   `s + c + i * g`, which are those of `V / g` virtual ranks. Sorted by (spread place of the virtual rank, window, place
///   in the window, position), the real ones are cut into `w` slices whose lengths differ by at most one, the longer ones
///   first. Rank `r` has slice `r % w` in ascending order, then padding. So ranks divide few windows, and each rank has
///   neighboring records of a window that is divided.
/// - The virtual rank of residue `k * m mod V / g` has spread place `k`, where `m` is the number coprime to `V / g` that is
///   nearest to `floor(V / g * 0x9e3779b97f4a7c15 / 2^64)` (of two, the smaller one). The virtual ranks with one position more than the others move
///   on with each batch; in this order they hardly move the cuts.
///
/// Which samples a global batch has does not depend on the assignment, so neither do states of loaders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Assignment {
    /// Positions of an epoch, at most 2^48.
    pub samples: u64,
    /// Samples in a batch of a rank, at least 1.
    pub batch_size: u64,
    /// The rank, below `world_size`.
    pub rank: u64,
    /// Number of ranks. A global batch has at most 2^48 positions.
    pub world_size: u64,
    /// The order of the epoch, if it has windows.
    pub order: Option<WindowedOrder>,
}

impl WindowedOrder {
    fn is_valid(&self) -> bool {
        (1..=1 << 24).contains(&self.virtual_ranks)
            && (1..=1 << 32).contains(&self.block_records)
            && (1..=1 << 20).contains(&self.window_blocks)
            && self.repeats > 0
    }
}

impl Assignment {
    /// Returns the number of positions in a global batch.
    #[must_use]
    pub fn global_size(&self) -> u64 {
        self.batch_size * self.world_size
    }

    /// Returns the order if ranks divide its windows, so that a rank has parts of them.
    #[must_use]
    pub fn divided(&self) -> Option<&WindowedOrder> {
        self.order.as_ref().filter(|order| {
            order.is_valid()
                && !order.virtual_ranks.is_multiple_of(self.world_size)
                && self.global_size() <= MAX_CUT
        })
    }

    /// Returns the positions of the rank in the global batch of `epoch` that begins at `start`: real ones in ascending
    /// order, then padding, from `samples` on.
    #[must_use]
    pub fn positions(&self, epoch: u64, start: u64) -> Vec<u64> {
        match self.divided() {
            Some(order) => self.slice(&Cutter::new(order, self.samples, epoch), start),
            None => (0..self.batch_size)
                .map(|i| start + self.rank + i * self.world_size)
                .collect(),
        }
    }

    fn slice(&self, cutter: &Cutter, start: u64) -> Vec<u64> {
        let virtual_ranks = cutter.virtual_ranks.count();
        let classes = gcd(virtual_ranks, self.world_size);
        let ranks = self.world_size / classes;
        let (class, number) = (self.rank / ranks, self.rank % ranks);
        // The positions of the class are `first + classes * x`, for the real ones with `x` from `begin` on.
        let (begin, first) = ((start + class) / classes, (start + class) % classes);
        let real = self.samples.saturating_sub(start).min(self.global_size());
        let real = real.saturating_sub(class).div_ceil(classes);
        let before = |number: u64| number * (real / ranks) + number.min(real % ranks);
        let (low, high) = (before(number), before(number + 1));

        // `x` modulo `residues` stands for the virtual rank.
        let residues = virtual_ranks / classes;
        let step = spread(residues);
        let (each, longer) = (real / residues, real % residues);
        let mut mine = Vec::new();
        let (mut residue, mut at) = (0, 0);
        while at < high {
            let nearest = (residue + residues - begin % residues) % residues;
            let count = each + u64::from(nearest < longer);
            let part = |end: u64| end.saturating_sub(at).min(count);
            cutter.cut(
                first + classes * (begin + nearest),
                count,
                (part(low), part(high)),
                &mut mine,
            );
            at += count;
            residue = (residue + step) % residues;
        }
        mine.sort_unstable();
        let padding = start + class + real * classes;
        let numbers = number * self.batch_size - low..(number + 1) * self.batch_size - high;
        mine.extend(numbers.map(|i| padding + i * classes));
        mine
    }
}

/// Cuts the positions that a virtual rank has in a batch.
struct Cutter {
    virtual_ranks: VirtualRanks,
    windows: Windows,
    repeats: u64,
}

impl Cutter {
    fn new(order: &WindowedOrder, samples: u64, epoch: u64) -> Self {
        let virtual_ranks = VirtualRanks::new(samples / order.repeats, order.virtual_ranks);
        let key = Key::root(order.seed).child(if order.reshuffle { epoch } else { 0 });
        Cutter {
            virtual_ranks,
            windows: Windows::new(
                virtual_ranks,
                order.block_records,
                order.window_blocks,
                key.domain(Domain::Windows),
            ),
            repeats: order.repeats,
        }
    }

    /// Returns the window of a position; none for the repetitions of the last, short row.
    fn window(&self, position: u64) -> Option<Window> {
        let (virtual_rank, j) = self.virtual_ranks.of(position);
        let index = j / self.repeats;
        let plan_position = virtual_rank + index * self.virtual_ranks.count();
        (index < self.virtual_ranks.len(virtual_rank)).then(|| self.windows.at(plan_position))
    }

    /// Adds the positions `from .. to` to `mine`, counted in the order of windows and places, of the `count` positions of
    /// a virtual rank in a batch, of which `first` is the lowest.
    fn cut(&self, first: u64, count: u64, (from, to): (u64, u64), mine: &mut Vec<u64>) {
        let position = |i: u64| first + i * self.virtual_ranks.count();
        if from == to || (from, to) == (0, count) {
            mine.extend((from..to).map(position));
            return;
        }
        let begin = self.virtual_ranks.of(first).1;
        let mut i = 0;
        while i < to {
            let end = self.window(position(i)).map_or(count, |window| {
                let index = (begin + i) / self.repeats - window.offset + window.len;
                (index * self.repeats - begin).min(count)
            });
            if from <= i && end <= to {
                mine.extend((i..end).map(position));
            } else if from < end {
                let place = |p| self.window(p).map(|window| self.windows.place(&window));
                let mut inside: Vec<_> = (i..end).map(position).map(|p| (place(p), p)).collect();
                inside.sort_unstable();
                let part = from.saturating_sub(i) as usize..(to.min(end) - i) as usize;
                mine.extend(inside[part].iter().map(|(_, p)| p));
            }
            i = end;
        }
    }
}

/// Returns the number coprime to `n` that is nearest to `n` times 0.618: its multiples spread evenly over `0..n`.
fn spread(n: u64) -> u64 {
    let near = ((u128::from(n) * u128::from(GOLDEN)) >> 64) as u64;
    (0..=n)
        .flat_map(|distance| [near.saturating_sub(distance), near + distance])
        .find(|&m| m > 0 && gcd(n, m) == 1)
        .unwrap_or(1)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V: u64 = 64;

    fn order(block_records: u64, window_blocks: u64, repeats: u64) -> WindowedOrder {
        WindowedOrder {
            virtual_ranks: V,
            block_records,
            window_blocks,
            seed: 3,
            reshuffle: true,
            repeats,
        }
    }

    fn ranks(of: &Assignment, epoch: u64, start: u64) -> Vec<Vec<u64>> {
        (0..of.world_size)
            .map(|rank| Assignment { rank, ..*of }.positions(epoch, start))
            .collect()
    }

    /// The assignment is a contract between servers and clients; the values were also computed by
    /// `tools/golden/epoch_order.py`.
    #[test]
    fn golden_assignments() {
        let of = |samples, virtual_ranks, (world_size, batch_size), block_records| Assignment {
            samples,
            batch_size,
            rank: 0,
            world_size,
            order: Some(WindowedOrder {
                virtual_ranks,
                ..order(block_records, 2, 1)
            }),
        };
        assert_eq!(ranks(&of(100, 12, (5, 4), 2), 1, 80), GOLDEN_LAST);
        let ninth = ranks(&of(100, 12, (9, 12), 2), 1, 0);
        assert_eq!(ninth[4..6], GOLDEN_PADDED);
        let million = ranks(&of(1_281_167, 64, (56, 32), 32), 1, 56 * 320);
        assert_eq!(million[29][..8], GOLDEN_MILLION);
    }
    const GOLDEN_LAST: [[u64; 4]; 5] = [
        [84, 86, 91, 96],
        [81, 88, 93, 98],
        [83, 90, 95, 97],
        [80, 85, 92, 99],
        [82, 87, 89, 94],
    ];
    const GOLDEN_PADDED: [[u64; 12]; 2] = [
        [7, 19, 28, 31, 40, 43, 52, 64, 67, 76, 88, 103],
        [10, 22, 34, 46, 55, 58, 70, 79, 82, 91, 94, 106],
    ];
    const GOLDEN_MILLION: [u64; 8] = [17948, 18076, 18140, 18164, 18204, 18268, 18332, 18356];

    /// The rule, by sorting all positions of each class.
    fn sorted_and_cut(
        of: &Assignment,
        order: &WindowedOrder,
        epoch: u64,
        start: u64,
    ) -> Vec<Vec<u64>> {
        let cutter = Cutter::new(order, of.samples, epoch);
        let classes = gcd(order.virtual_ranks, of.world_size);
        let residues = order.virtual_ranks / classes;
        let step = spread(residues);
        let end = start + of.global_size();
        let mut ranks = Vec::new();
        for class in 0..classes {
            let place = |p: u64| {
                cutter
                    .window(p)
                    .map_or(u64::MAX, |w| cutter.windows.place(&w))
            };
            let spread_place =
                |p: u64| (0..residues).find(|k| k * step % residues == p / classes % residues);
            let (mut real, padding): (Vec<u64>, Vec<u64>) = (start + class..end)
                .step_by(classes as usize)
                .partition(|&p| p < of.samples);
            real.sort_by_key(|&p| (spread_place(p), place(p), p));
            let (mut real, mut padding) = (real.into_iter(), padding.into_iter());
            let count = of.world_size / classes;
            for number in 0..count {
                let len = real.len() as u64;
                let mut mine: Vec<u64> = real
                    .by_ref()
                    .take(len.div_ceil(count - number) as usize)
                    .collect();
                mine.sort_unstable();
                let missing = of.batch_size as usize - mine.len();
                mine.extend(padding.by_ref().take(missing));
                ranks.push(mine);
            }
        }
        ranks
    }

    proptest! {
        /// Ranks together have the global batch, whatever their number, in equal parts that follow the rule.
        #[test]
        fn ranks_divide_each_global_batch(
            records in 1u64..3000, world_size in 1u64..150, batch_size in 1u64..40, epoch in 0u64..3, at in 0u64..3000,
            (block, window, repeats) in (1u64..9, 1u64..4, 1u64..4), has_windows: bool,
        ) {
            let order = has_windows.then_some(order(block, window, repeats));
            let samples = records * repeats;
            let of = Assignment { samples, batch_size, rank: 0, world_size, order };
            let start = at % samples;
            let found = ranks(&of, epoch, start);
            let global = start..start + of.global_size();
            let mut all: Vec<u64> = found.iter().flatten().copied().collect();
            all.sort_unstable();
            prop_assert!(all.into_iter().eq(global));
            let real: Vec<usize> = found.iter().map(|mine| mine.iter().filter(|&&p| p < samples).count()).collect();
            prop_assert!(real.iter().max().unwrap() - real.iter().min().unwrap() <= 1);
            for (rank, mine) in found.iter().enumerate() {
                prop_assert_eq!(mine.len() as u64, batch_size);
                prop_assert!(mine[..real[rank]].is_sorted_by(|a, b| a < b) && mine[real[rank]..].iter().all(|&p| p >= samples));
                if order.is_none() || V.is_multiple_of(world_size) {
                    prop_assert!(mine.iter().copied().eq((start + rank as u64..).step_by(world_size as usize).take(mine.len())));
                }
            }
            if let Some(order) = of.divided() {
                prop_assert_eq!(&found, &sorted_and_cut(&of, order, epoch, start));
            }
        }

        /// Sizes that a peer sends never make an assignment fail.
        #[test]
        fn any_sizes_are_accepted(
            (virtual_ranks, block_records, window_blocks) in (0u64..1 << 25, 0u64..1 << 33, 0u64..1 << 21),
            (samples, start, world_size) in (0u64..1 << 48, 0u64..1 << 48, 1u64..1 << 40),
            (repeats, seed, batch_size) in (0u64..1 << 17, any::<u64>(), 1u64..100),
        ) {
            let order = WindowedOrder { virtual_ranks, block_records, window_blocks, seed, reshuffle: false, repeats };
            let rank = seed % world_size;
            let of = Assignment { samples, batch_size, rank, world_size, order: Some(order) };
            prop_assert_eq!(of.positions(1, start).len() as u64, batch_size);
            let of = Assignment { world_size: 1 + world_size % 5000, rank: 0, ..of };
            prop_assert_eq!(of.positions(1, start).len() as u64, batch_size);
        }
    }
}
