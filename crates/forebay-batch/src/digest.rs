//! A 64-bit digest of which samples were delivered, and at which positions of the epoch.
//!
//! A sample `s` at global position `p` of an epoch contributes
//!
//! ```text
//! value(p, s) = mix(mix(p + 0x9e3779b97f4a7c15) + s)
//! mix(z):  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9
//!          z = (z ^ (z >> 27)) * 0x94d049bb133111eb
//!          z ^ (z >> 31)
//! ```
//!
//! with all arithmetic modulo 2^64 (`mix` is the finalizer of SplitMix64). The digest of a batch is
//! the sum of the values of its samples, without padding and failed ones. The digest of an epoch is
//! the sum of the digests of its batches, and the sum over all ranks is the digest of the whole
//! epoch.
//!
//! As a sum, the digest of an epoch depends neither on the number of ranks, nor on the batch size,
//! nor on interruptions, yet a sample that is missing, duplicated or at another position changes
//! it. It detects mistakes and damage, not deliberate forgery.

use super::splitmix::{GOLDEN, mix};
use super::{Batch, FLAG_SAMPLE};

/// Returns the contribution of a sample at a position of the epoch.
#[must_use]
pub const fn value(position: u64, sample: u64) -> u64 {
    mix(mix(position.wrapping_add(GOLDEN)).wrapping_add(sample))
}

/// Returns the digest of a batch whose samples are at `positions` of the epoch, see
/// [`Assignment`](crate::positions::Assignment).
///
/// Samples whose flag is not [`FLAG_SAMPLE`] do not count; samples without a flag do.
#[must_use]
pub fn batch(positions: impl IntoIterator<Item = u64>, samples: &[u64], flags: &[u8]) -> u64 {
    let counts = |i: usize| flags.get(i).is_none_or(|&flag| flag == FLAG_SAMPLE);
    let placed = positions.into_iter().zip(samples).enumerate();
    placed
        .filter(|(i, _)| counts(*i))
        .fold(0, |sum, (_, (position, &sample))| {
            fold(sum, value(position, sample))
        })
}

/// Combines the digests of two parts of an epoch. The initial value is 0; the order does not
/// matter.
#[must_use]
pub const fn fold(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}

/// Digest of the delivered part of an epoch, for comparison across ranks and runs.
///
/// The sum of [`EpochDigest::value`] over all ranks, modulo 2^64, is the digest of the epoch; so is
/// the sum over the parts of an interrupted epoch. It does not depend on the number of ranks, the
/// batch size, servers or failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EpochDigest {
    /// Number of the epoch.
    pub epoch: u64,
    /// Position of the first counted batch, in samples of all ranks.
    pub since: u64,
    /// Position after the last counted batch, in samples of all ranks.
    pub until: u64,
    /// Number of batches.
    pub batches: u64,
    /// Samples of those batches, without padding and failed ones.
    pub samples: u64,
    /// Sum of the digests of the batches.
    pub value: u64,
    /// Whether it covers the epoch from beginning to end.
    pub complete: bool,
}

impl EpochDigest {
    /// An empty digest that starts at `position` of an epoch.
    #[must_use]
    pub fn begin(epoch: u64, position: u64) -> Self {
        EpochDigest {
            epoch,
            since: position,
            until: position,
            ..EpochDigest::default()
        }
    }

    /// Adds a delivered batch; `until` is the position after it, in samples of all ranks.
    pub fn add(&mut self, batch: &Batch, until: u64) {
        let samples = batch.flags.iter().filter(|&&flag| flag == FLAG_SAMPLE);
        self.samples += samples.count() as u64;
        self.batches += 1;
        self.until = until;
        self.value = fold(self.value, batch.digest);
    }
}

/// Digests of a stream: of the current epoch, and of the last one that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Digests {
    now: EpochDigest,
    ended: Option<EpochDigest>,
}

impl Digests {
    /// Creates the digests of a stream that starts at `position` of `epoch`.
    #[must_use]
    pub fn begin(epoch: u64, position: u64) -> Self {
        Digests {
            now: EpochDigest::begin(epoch, position),
            ended: None,
        }
    }

    /// Creates the digests of a resumed stream; continues `digest` if it leads up to `position` of
    /// `epoch`.
    #[must_use]
    pub fn resume(digest: EpochDigest, epoch: u64, position: u64) -> Self {
        let mut digests = Digests::begin(epoch, position);
        if (digest.epoch, digest.until, digest.complete) == (epoch, position, false) {
            digests.now = digest;
        } else if digest.epoch.checked_add(1) == Some(epoch) && position == 0 {
            digests.ended = Some(digest);
        }
        digests
    }

    /// Adds a delivered batch, as [`EpochDigest::add`].
    pub fn add(&mut self, batch: &Batch, until: u64) {
        self.now.add(batch, until);
    }

    /// Ends the current epoch.
    pub fn end(&mut self) {
        let complete = self.now.since == 0;
        self.ended = Some(EpochDigest {
            complete,
            ..self.now
        });
        self.now = EpochDigest::begin(self.now.epoch.wrapping_add(1), 0);
    }

    /// Continues at another position.
    pub fn seek(&mut self, epoch: u64, position: u64) {
        if (self.now.epoch, self.now.until) != (epoch, position) {
            self.now = EpochDigest::begin(epoch, position);
        }
    }

    /// Returns the digest of the epoch of the last batch: of the current epoch, or of the last one
    /// that ended if the current one has no batch yet.
    #[must_use]
    pub fn latest(&self) -> EpochDigest {
        match self.ended {
            Some(ended) if self.now.batches == 0 => ended,
            _ => self.now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first value is the published first output of SplitMix64 for seed 0; the others were
    /// computed in Python from the formula above.
    #[test]
    fn known_values() {
        assert_eq!(mix(GOLDEN), 0xe220_a839_7b1d_cdaf);
        assert_eq!(value(0, 0), 0x4821_8226_ff3c_d4bf);
        assert_eq!(value(7, 123_456_789), 0xd8bb_20cc_8e9c_ae50);
        assert_eq!(batch(0.., &[3, 1, 2], &[0, 0, 0]), 0x0d30_712d_0c19_c362);
        assert_eq!(batch(0.., &[], &[]), 0);
    }

    #[test]
    fn epoch_digests_ignore_world_size_and_batch_size() {
        let order: Vec<u64> = (0..96).map(|p| p * 37 % 96).collect();
        let whole = batch(0.., &order, &[0; 96]);
        for (world, size) in [(1, 8), (2, 4), (4, 12), (8, 3), (3, 32)] {
            let global = world * size;
            let mut sum = 0;
            for position in (0..96).step_by(global) {
                for rank in 0..world {
                    let samples: Vec<u64> = (0..size)
                        .map(|i| order[position + rank + i * world])
                        .collect();
                    let positions = (position as u64 + rank as u64..).step_by(world);
                    let part = batch(positions, &samples, &[]);
                    sum = fold(sum, part);
                }
            }
            assert_eq!(sum, whole, "{world} ranks, batches of {size}");
        }
    }

    #[test]
    fn order_and_repetition_show_and_padding_does_not() {
        let whole = batch(0.., &[5, 6, 7], &[0, 0, 0]);
        assert_ne!(whole, batch(0.., &[6, 5, 7], &[0, 0, 0]));
        assert_ne!(whole, batch(0.., &[5, 6, 7, 7], &[0, 0, 0, 0]));
        assert_ne!(whole, batch(3.., &[5, 6, 7], &[0, 0, 0]));
        assert_eq!(whole, batch(0.., &[5, 6, 7, 5], &[0, 0, 0, 1]));
    }

    fn of(epoch: u64, position: u64, digest: u64) -> Batch {
        Batch {
            epoch,
            step: 0,
            position,
            payload: crate::BufferPool::new(0).take(0),
            encoded: None,
            dtype: crate::Dtype::Uint8,
            mixed: None,
            shape: [3, 0, 0, 0],
            layout: crate::Layout::Nhwc,
            labels: vec![0; 3],
            samples: vec![1, 2, 3],
            flags: vec![0, 1, 2],
            columns: Vec::new(),
            digest,
        }
    }

    #[test]
    fn the_latest_epoch_is_the_one_of_the_last_batch() {
        let mut digests = Digests::begin(3, 0);
        digests.add(&of(3, 0, u64::MAX), 6);
        digests.add(&of(3, 6, 3), 10);
        let whole = EpochDigest {
            epoch: 3,
            since: 0,
            until: 10,
            batches: 2,
            samples: 2,
            value: 2,
            complete: false,
        };
        assert_eq!(digests.latest(), whole);
        // A seek to the current position.
        digests.seek(3, 10);
        assert_eq!(digests.latest(), whole);
        let resumed = Digests::resume(whole, 3, 10);
        assert_eq!(resumed, digests);
        digests.end();
        let whole = EpochDigest {
            complete: true,
            ..whole
        };
        assert_eq!(digests.latest(), whole);
        assert_eq!(Digests::resume(whole, 4, 0), digests);
        digests.add(&of(4, 0, 7), 6);
        assert_eq!((digests.latest().epoch, digests.latest().value), (4, 7));
        // Batches delivered before the seek target are unknown here.
        digests.seek(4, 3);
        digests.add(&of(4, 3, 9), 9);
        digests.end();
        let part = digests.latest();
        assert_eq!((part.since, part.value, part.complete), (3, 9, false));
        let other = Digests::resume(part, 7, 2);
        assert_eq!(other, Digests::begin(7, 2));
    }
}
