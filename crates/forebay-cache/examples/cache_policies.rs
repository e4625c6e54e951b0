//! Hit rates of eviction policies when a dataset is read epoch by epoch: the reason why the cache keeps its blocks.
//!
//! ```text
//! cargo run --release -p forebay-cache --example cache_policies
//! ```
//!
//! Each epoch reads every block once, in a new order (or always in the same order). The rates are measured after the first
//! epoch, which starts with an empty cache. "keep" is the policy of the cache: cached blocks stay. "ideal" knows all future
//! orders and evicts the block that is needed last, so no policy is better. Both have the same rate: an epoch reads each block
//! once, so only blocks that are cached at its beginning can hit, and these are at most as many as fit.

use std::collections::{BTreeSet, HashMap};

const BLOCKS: usize = 2000;
const EPOCHS: usize = 12;

/// A pseudo-random generator with the same numbers on every machine.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(z ^ (z >> 31)) * most as u128) >> 64) as usize
    }
}

fn epochs(is_shuffled: bool) -> Vec<usize> {
    let mut dice = Dice(7);
    let mut reads = Vec::new();
    let mut order: Vec<usize> = (0..BLOCKS).collect();
    for _ in 0..EPOCHS {
        if is_shuffled {
            for at in (1..BLOCKS).rev() {
                order.swap(at, dice.below(at + 1));
            }
        }
        reads.extend(&order);
    }
    reads
}

#[derive(Clone, Copy)]
enum Policy {
    Oldest,
    Random,
    Keep,
    Ideal,
}

/// The hit rate of the reads after the first epoch.
fn rate(reads: &[usize], capacity: usize, policy: Policy) -> f64 {
    // For each read, the position of the next read of the same block.
    let mut next = vec![usize::MAX; reads.len()];
    let mut seen: HashMap<usize, usize> = HashMap::new();
    for (at, block) in reads.iter().enumerate().rev() {
        next[at] = seen.insert(*block, at).unwrap_or(usize::MAX);
    }
    let mut dice = Dice(1);
    // Cached blocks by rank; the block with the highest rank is evicted.
    let mut rank_of: HashMap<usize, usize> = HashMap::new();
    let mut by_rank: BTreeSet<(usize, usize)> = BTreeSet::new();
    let mut hits = 0_usize;
    for (at, &block) in reads.iter().enumerate() {
        let rank = match policy {
            Policy::Oldest => usize::MAX - at,
            // A random rank, independent of the block's use.
            Policy::Random => dice.below(usize::MAX),
            Policy::Keep => 0,
            Policy::Ideal => next[at],
        };
        if let Some(before) = rank_of.get(&block).copied() {
            hits += usize::from(at >= BLOCKS);
            by_rank.remove(&(before, block));
        } else if rank_of.len() == capacity {
            let last = match policy {
                Policy::Random => {
                    let drawn = dice.below(usize::MAX);
                    by_rank.range((drawn, 0)..).next().or(by_rank.first())
                }
                _ => by_rank.last(),
            };
            let last = last.copied().expect("the capacity is not zero");
            let stays_out = match policy {
                Policy::Keep => true,
                Policy::Ideal => last.0 <= rank,
                _ => false,
            };
            if stays_out {
                continue;
            }
            by_rank.remove(&last);
            rank_of.remove(&last.1);
        }
        rank_of.insert(block, rank);
        by_rank.insert((rank, block));
    }
    hits as f64 / (reads.len() - BLOCKS) as f64
}

fn main() {
    for (name, is_shuffled) in [
        ("shuffled anew each epoch", true),
        ("the same order each epoch", false),
    ] {
        let reads = epochs(is_shuffled);
        println!("{name}\n  cache     LRU  random    keep   ideal");
        for percent in [10, 25, 50, 75, 90] {
            let rates = [Policy::Oldest, Policy::Random, Policy::Keep, Policy::Ideal]
                .map(|policy| 100.0 * rate(&reads, BLOCKS * percent / 100, policy));
            let [lru, random, keep, ideal] = rates;
            println!("  {percent:>3} %  {lru:>5.1} % {random:>5.1} % {keep:>5.1} % {ideal:>5.1} %");
        }
    }
}
