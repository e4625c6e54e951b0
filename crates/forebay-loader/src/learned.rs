//! Seek points that decode threads recorded, kept for later epochs.
//!
//! Nothing is evicted: an epoch takes each record once, so no record is needed sooner than another.
//! When the limit is reached, records that have points keep them, and others get none.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_image::LearnedPoints;
use forebay_shard::Split;

use crate::stats::LearnedStats;

/// Default of [`Options::learn_seek_points`](crate::Options::learn_seek_points).
pub(crate) const DEFAULT_BYTES: u64 = 128 << 20;

/// Number of maps with a lock of their own.
const PARTS: usize = 64;

type Part = HashMap<u64, LearnedPoints>;

/// The seek points that the loaders of a split have learned. All loaders of a process that read the
/// same split share them, and the last owner frees them: a loader, or a program that keeps this.
#[derive(Debug)]
pub struct LearnedSeekPoints {
    parts: [Mutex<Part>; PARTS],
    images: AtomicU64,
    bytes: AtomicU64,
    is_full: AtomicBool,
}

impl Default for LearnedSeekPoints {
    fn default() -> Self {
        LearnedSeekPoints {
            parts: std::array::from_fn(|_| Mutex::default()),
            images: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        }
    }
}

impl LearnedSeekPoints {
    /// Returns the seek points that loaders of this split in this process share.
    #[must_use]
    pub fn of(split: &Split) -> Arc<Self> {
        Self::shared(split.fingerprint(), split.name())
    }

    /// Returns those of a dataset or mix and a split; without a fingerprint, ones that are not shared.
    #[must_use]
    pub fn shared(fingerprint: &str, split: &str) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<(String, String), Weak<LearnedSeekPoints>>> =
            Mutex::new(BTreeMap::new());
        if fingerprint.is_empty() {
            return Arc::default();
        }
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, points| points.strong_count() > 0);
        let points = all
            .entry((fingerprint.to_owned(), split.to_owned()))
            .or_default();
        points.upgrade().unwrap_or_else(|| {
            let new = Arc::default();
            *points = Arc::downgrade(&new);
            new
        })
    }

    fn part(&self, record: u64) -> MutexGuard<'_, Part> {
        let part = &self.parts[(record % PARTS as u64) as usize];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the points of a record, so that no lock is held while it is decoded.
    pub(crate) fn get(&self, record: u64) -> Option<LearnedPoints> {
        self.part(record).get(&record).cloned()
    }

    /// Returns whether points of another record were refused, because of the limit.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Keeps the points of a record, unless better ones are known or the memory would exceed `limit`.
    pub(crate) fn keep(&self, record: u64, points: LearnedPoints, limit: u64) {
        let mut part = self.part(record);
        let old = part.get(&record);
        // Several threads may have decoded the record at the same time.
        if old.is_some_and(|old| !points.replaces(old)) {
            return;
        }
        let capacity = match part.capacity() {
            capacity if old.is_some() || part.len() < capacity => capacity,
            capacity => (2 * capacity).max(7),
        };
        let freed = old.map_or(0, allocated) + table_bytes(part.capacity());
        let needed = allocated(&points) + table_bytes(capacity);
        let room = |held: u64| Some(held + needed - freed).filter(|held| *held <= limit);
        let ordering = Ordering::Relaxed;
        if self.bytes.fetch_update(ordering, ordering, room).is_err() {
            self.is_full.store(true, ordering);
            return;
        }
        // `insert` would make room in the table even for a record that is there.
        if let Some(old) = part.get_mut(&record) {
            *old = points;
            return;
        }
        let more = capacity - part.len();
        part.reserve(more);
        part.insert(record, points);
        self.images.fetch_add(1, ordering);
    }

    /// Returns the counters, with the number of samples that used points.
    pub(crate) fn stats(&self, samples: u64) -> LearnedStats {
        LearnedStats {
            samples,
            images: self.images.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            is_full: self.is_full(),
        }
    }
}

/// Returns the memory of points as common allocators round it: 8 bytes of their own, and a multiple
/// of 16.
fn allocated(points: &LearnedPoints) -> u64 {
    (points.memory_bytes() as u64 + 8).next_multiple_of(16)
}

/// Returns the memory of a hash table: an entry and a byte for each slot, of which an eighth stays
/// free, and 16 bytes at its end.
fn table_bytes(capacity: usize) -> u64 {
    match capacity as u64 / 7 * 8 {
        0 => 0,
        slots => slots * (size_of::<(u64, LearnedPoints)>() as u64 + 1) + 16,
    }
}

#[cfg(test)]
mod tests {
    use forebay_image::{
        Decoder, Encoded, EvalTransform, Learning, Output, RgbImage, SampleSeed, SeekPoints,
        Transform, encode_jpeg,
    };

    use super::*;

    /// Returns what a decode of a JPEG of so many rows records.
    fn learn(height: u32) -> LearnedPoints {
        let data = (0..40 * height * 3).map(|i| (i.wrapping_mul(i) >> 7) as u8);
        let image = RgbImage {
            width: 40,
            height,
            data: data.collect(),
        };
        let jpeg = encode_jpeg(&image, 95, false).unwrap();
        let transform = Transform::Eval(EvalTransform::new(8, 8));
        let mut out = vec![0; transform.output_values()];
        let learning = Learning::new(None, None);
        let encoded = Encoded {
            bytes: &jpeg,
            seek_points: SeekPoints::Learning(&learning),
        };
        let (mut decoder, seed) = (Decoder::default(), SampleSeed::default());
        let output = Output::default();
        transform
            .apply(&mut decoder, encoded, seed, &output, &mut out)
            .unwrap();
        learning.into_learned().unwrap()
    }

    #[test]
    fn memory_is_counted_and_bounded() {
        let (few, many) = (learn(300), learn(900));
        assert!(allocated(&many) > allocated(&few));
        for limit in [0, 20_000, 100_000, 1 << 20] {
            let learned = LearnedSeekPoints::default();
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let (learned, few, many) = (&learned, &few, &many);
                    scope.spawn(move || {
                        for record in 0..1000 {
                            let points = if (record + thread) % 2 == 0 {
                                few
                            } else {
                                many
                            };
                            learned.keep(record, points.clone(), limit);
                        }
                    });
                }
            });
            let (mut images, mut bytes) = (0, 0);
            for part in &learned.parts {
                let part = part.lock().unwrap();
                images += part.len() as u64;
                bytes += table_bytes(part.capacity());
                bytes += part.values().map(allocated).sum::<u64>();
            }
            let stats = learned.stats(0);
            assert_eq!((stats.images, stats.bytes), (images, bytes));
            assert!(
                bytes <= limit && stats.is_full == (images < 1000),
                "{stats:?}"
            );
            assert_eq!(images == 1000, limit == 1 << 20, "{stats:?}");
        }
    }
}
