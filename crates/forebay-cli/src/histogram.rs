//! A histogram of sizes by powers of two, in the form that the usual `find -size | awk` one-liner prints.

use serde::Serialize;

use crate::quantity::{binary, count};

/// Counts by power of two: bucket `k` counts sizes from 2^k to 2^(k+1) - 1, and zero has its own bucket.
#[derive(Debug, Clone)]
pub(crate) struct Histogram {
    zero: u64,
    buckets: [u64; 64],
}

/// One bucket as `--json` prints it: sizes of at least `from` bytes and below `below`.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub(crate) struct Bucket {
    pub(crate) from: u64,
    pub(crate) below: u64,
    pub(crate) count: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            zero: 0,
            buckets: [0; 64],
        }
    }
}

impl Histogram {
    /// Counts one size.
    pub(crate) fn add(&mut self, size: u64) {
        self.add_many(size, 1);
    }

    /// Counts a size that occurs `n` times.
    pub(crate) fn add_many(&mut self, size: u64, n: u64) {
        match size.checked_ilog2() {
            None => self.zero += n,
            Some(bits) => self.buckets[bits as usize] += n,
        }
    }

    /// Adds the counts of another histogram.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.zero += other.zero;
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
    }

    /// Returns the buckets from the first to the last one in use, including empty ones between them.
    pub(crate) fn buckets(&self) -> Vec<Bucket> {
        let mut out = Vec::new();
        if self.zero > 0 {
            out.push(Bucket {
                from: 0,
                below: 1,
                count: self.zero,
            });
        }
        let used = |n: &u64| *n > 0;
        let (Some(first), Some(last)) = (
            self.buckets.iter().position(used),
            self.buckets.iter().rposition(used),
        ) else {
            return out;
        };
        out.extend((first..=last).map(|bits| Bucket {
            from: 1 << bits,
            below: if bits == 63 {
                u64::MAX
            } else {
                1 << (bits + 1)
            },
            count: self.buckets[bits],
        }));
        out
    }

    /// Returns a line for each bucket: its lower bound in bytes, its count, and a bar.
    pub(crate) fn lines(&self, bar_width: usize) -> Vec<String> {
        self.lines_of(bar_width, binary)
    }

    /// Returns the lines with bounds in another unit.
    pub(crate) fn lines_of(&self, bar_width: usize, unit: impl Fn(u64) -> String) -> Vec<String> {
        let buckets = self.buckets();
        let most = buckets.iter().map(|b| b.count).max().unwrap_or(0).max(1);
        let number_width = count(most).len();
        buckets
            .iter()
            .map(|bucket| {
                // A bucket with a count has a visible bar.
                let share = bucket.count as f64 / most as f64;
                let least = if bucket.count > 0 {
                    0.125 / bar_width as f64
                } else {
                    0.0
                };
                format!(
                    "  {:>8}  {:>number_width$}  {}",
                    unit(bucket.from),
                    count(bucket.count),
                    bar(share.max(least), bar_width)
                )
                .trim_end()
                .to_owned()
            })
            .collect()
    }
}

/// Returns a bar for a share of the full width, in eighths of a character.
pub(crate) fn bar(share: f64, width: usize) -> String {
    const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    format!("{}{}", "█".repeat(eighths / 8), PARTS[eighths % 8])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fall_into_powers_of_two() {
        let mut histogram = Histogram::default();
        for size in [0, 1, 2, 3, 4, 1023, 1024, u64::MAX] {
            histogram.add(size);
        }
        let buckets = histogram.buckets();
        assert_eq!(
            buckets[0],
            Bucket {
                from: 0,
                below: 1,
                count: 1
            }
        );
        assert_eq!(
            buckets[2],
            Bucket {
                from: 2,
                below: 4,
                count: 2
            }
        );
        assert_eq!(buckets.last().map(|b| b.count), Some(1));
        assert_eq!(buckets.iter().map(|b| b.count).sum::<u64>(), 8);
    }

    #[test]
    fn bars_are_in_proportion() {
        let mut histogram = Histogram::default();
        histogram.add_many(1024, 8);
        histogram.add_many(2048, 4);
        assert_eq!(
            histogram.lines(4),
            ["     1 KiB  8  ████", "     2 KiB  4  ██"]
        );
        assert!(Histogram::default().lines(4).is_empty());
    }
}
