//! Finds the rank of a job that all others wait for.

use std::fmt;

/// Activity of one rank of a job in a time window.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RankPace {
    /// The rank.
    pub rank: u64,
    /// Seconds of the window during which the rank took batches.
    pub seconds: f64,
    /// Images that the rank took.
    pub images: u64,
    /// Batches that the rank took.
    pub batches: u64,
    /// Fraction of its time during which it waited for batches.
    pub waits: f64,
}

/// A rank that is slower than the others. Its `Display` form is a sentence.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Straggler {
    /// The rank.
    pub rank: u64,
    /// Images per second that the rank takes.
    pub images_per_s: f64,
    /// Fraction of its time during which it waits for batches.
    pub waits: f64,
    /// Median of the other ranks' images per second.
    pub others_images_per_s: f64,
    /// Median of the fraction of time during which the other ranks wait for batches.
    pub others_wait: f64,
}

/// A rank that waits for more than this fraction, while the others hardly wait, holds them up.
const WAITS: f64 = 0.15;
/// Ranks that wait for less than this fraction hardly wait.
const HARDLY_WAITS: f64 = 0.05;
/// A rank below this fraction of the others' rate is slower.
const SLOWER: f64 = 0.8;
/// Smaller differences in the number of batches are noise, since batches are taken one by one.
const BATCHES: f64 = 4.0;

impl Straggler {
    /// Returns the rank that the others wait for, if there is one.
    ///
    /// Ranks that synchronize after each step all take batches at the pace of the slowest rank. If its batches
    /// are late, only this rank waits for batches, and the others wait for it within their steps. If ranks do not
    /// synchronize, the slowest one takes fewer batches. A rank with slow training steps in a job that
    /// synchronizes cannot be told from the others.
    #[must_use]
    pub fn find(ranks: &[RankPace]) -> Option<Straggler> {
        let longest = ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max);
        // Streams that have just begun are not compared.
        let settled = |rank: &&RankPace| rank.seconds > 0.8 * longest && rank.batches > 0;
        let ranks: Vec<&RankPace> = ranks.iter().filter(settled).collect();
        let rate = |rank: &RankPace| rank.images as f64 / rank.seconds;
        let found = ranks.iter().filter_map(|rank| {
            let others = || ranks.iter().filter(|other| other.rank != rank.rank);
            if others().count() == 0 {
                return None;
            }
            let straggler = Straggler {
                rank: rank.rank,
                images_per_s: rate(rank),
                waits: rank.waits,
                others_images_per_s: median(others().map(|other| rate(other)).collect()),
                others_wait: median(others().map(|other| other.waits).collect()),
            };
            let behind =
                median(others().map(|other| other.batches as f64).collect()) - rank.batches as f64;
            let is_starved = straggler.waits > WAITS
                && straggler.others_wait < HARDLY_WAITS
                && straggler.images_per_s < 1.1 * straggler.others_images_per_s;
            let is_slower = straggler.images_per_s < SLOWER * straggler.others_images_per_s
                && behind >= BATCHES;
            (is_starved || is_slower).then_some(straggler)
        });
        // The rank that loses the most time.
        let loss = |straggler: &Straggler| {
            straggler.waits - straggler.images_per_s / straggler.others_images_per_s
        };
        found.max_by(|a, b| loss(a).total_cmp(&loss(b)))
    }
}

impl fmt::Display for Straggler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: f64| (part * 100.0).round();
        write!(
            f,
            "straggler-bound: rank {} takes {:.0} images/s and waits {} % of its time for batches, the other ranks take {:.0} \
             and wait {} %; ",
            self.rank,
            self.images_per_s,
            percent(self.waits),
            self.others_images_per_s,
            percent(self.others_wait),
        )?;
        match self.waits > WAITS {
            true => write!(
                f,
                "compare its server and its network with theirs: in a job that synchronizes after each step all wait for it"
            ),
            false => write!(
                f,
                "its own steps are slower: compare its machine with theirs"
            ),
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => 0.0,
        count if count % 2 == 1 => values[count / 2],
        count => f64::midpoint(values[count / 2 - 1], values[count / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Finds the straggler among ranks that took the given numbers of batches of 100 images in ten seconds, with these waits.
    fn find(ranks: &[(u64, f64)]) -> Option<Straggler> {
        let pace = |(rank, &(batches, waits)): (usize, &(u64, f64))| RankPace {
            rank: rank as u64,
            seconds: 10.0,
            images: 100 * batches,
            batches,
            waits,
        };
        Straggler::find(&ranks.iter().enumerate().map(pace).collect::<Vec<_>>())
    }

    #[test]
    fn the_rank_that_the_others_wait_for_is_found() {
        let late = find(&[(40, 0.01), (40, 0.6), (40, 0.02), (41, 0.0)]).unwrap();
        assert_eq!(late.rank, 1);
        assert_eq!(
            late.to_string(),
            "straggler-bound: rank 1 takes 400 images/s and waits 60 % of its time for batches, the other ranks take 400 and \
             wait 1 %; compare its server and its network with theirs: in a job that synchronizes after each step all wait for it"
        );
        let slow = find(&[(40, 0.01), (40, 0.0), (20, 0.0)]).unwrap();
        assert_eq!(slow.rank, 2);
        assert!(
            slow.to_string()
                .ends_with("compare its machine with theirs")
        );
        // A rank that waits because it is faster is not a straggler.
        let fast = find(&[(40, 0.0), (90, 0.5)]);
        assert_eq!(fast.map(|found| found.rank), Some(0));
        // If two are late, the one that waits longer is found.
        let two = find(&[(40, 0.3), (40, 0.5), (40, 0.0), (40, 0.0), (40, 0.0)]);
        assert_eq!(two.map(|found| found.rank), Some(1));
    }

    #[test]
    fn similar_ranks_have_no_straggler() {
        for ranks in [
            &[(40, 0.0), (40, 0.02), (40, 0.01)][..],
            // All ranks wait, because the source of the batches is slow.
            &[(40, 0.5), (40, 0.6), (40, 0.55)],
            // A difference of a few batches is noise.
            &[(4, 0.0), (3, 0.0), (4, 0.0)],
            &[(40, 0.9)],
            &[],
        ] {
            assert_eq!(find(ranks), None, "{ranks:?}");
        }
    }

    #[test]
    fn a_stream_that_has_just_begun_is_not_compared() {
        let pace = |rank, seconds, batches, waits| RankPace {
            rank,
            seconds,
            images: batches,
            batches,
            waits,
        };
        let ranks = [
            pace(0, 10.0, 40, 0.0),
            pace(1, 10.0, 40, 0.0),
            pace(2, 1.0, 2, 0.9),
        ];
        assert_eq!(Straggler::find(&ranks), None);
        let odd = [pace(0, f64::NAN, 1, f64::NAN), pace(1, 10.0, 4, 0.0)];
        assert_eq!(Straggler::find(&odd), None);
    }
}
