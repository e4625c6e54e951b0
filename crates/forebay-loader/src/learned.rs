//! Seek points that decode threads recorded, kept for later epochs.
//!
//! Nothing is evicted: an epoch takes each record once, so no record is needed sooner than another.
//! When the limit is reached, records that have points keep them, and others get none.

mod files;

pub use files::share_learned_seek_points;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use forebay_image::LearnedPoints;
use forebay_shard::Split;

use crate::stats::LearnedStats;
use files::Files;

/// Default of [`Options::learn_seek_points`](crate::Options::learn_seek_points).
pub(crate) const DEFAULT_BYTES: u64 = 128 << 20;

/// Number of maps with a lock of their own.
const PARTS: usize = 64;

/// Number of records without points after which those of other processes are looked for.
const SYNC_AFTER: u64 = 256;

type Part = HashMap<u64, LearnedPoints>;

/// The seek points that the loaders of a split have learned. All loaders of a process that read the
/// same split share them, and the last owner frees them: a loader, or a program that keeps this. Other processes may share
/// them too: see [`share_learned_seek_points`].
#[derive(Debug)]
pub struct LearnedSeekPoints {
    parts: [Mutex<Part>; PARTS],
    images: AtomicU64,
    bytes: AtomicU64,
    is_full: AtomicBool,
    /// Records without points that were asked for.
    misses: AtomicU64,
    /// The latest epoch, and 1.
    epoch: AtomicU64,
    /// Entries of points that `files` does not have yet.
    unsaved: Mutex<Vec<u8>>,
    files: Option<Mutex<Files>>,
}

impl Default for LearnedSeekPoints {
    fn default() -> Self {
        Self::new(None)
    }
}

impl LearnedSeekPoints {
    fn new(files: Option<Files>) -> Self {
        LearnedSeekPoints {
            parts: std::array::from_fn(|_| Mutex::default()),
            images: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
            misses: AtomicU64::new(0),
            epoch: AtomicU64::new(0),
            unsaved: Mutex::default(),
            files: files.map(Mutex::new),
        }
    }

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
            let new = Arc::new(Self::new(Files::open(fingerprint, split)));
            *points = Arc::downgrade(&new);
            new
        })
    }

    fn part(&self, record: u64) -> MutexGuard<'_, Part> {
        let part = &self.parts[(record % PARTS as u64) as usize];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a copy of the points of a record, so that no lock is held while it is decoded.
    pub(crate) fn get(&self, record: u64, epoch: u64, limit: u64) -> Option<LearnedPoints> {
        let ordering = Ordering::Relaxed;
        if self.epoch.fetch_max(epoch + 1, ordering) <= epoch {
            self.sync(limit);
        }
        let found = self.part(record).get(&record).cloned();
        if found.is_none() && (self.misses.fetch_add(1, ordering) + 1).is_multiple_of(SYNC_AFTER) {
            self.sync(limit);
        }
        found
    }

    fn unsaved(&self) -> MutexGuard<'_, Vec<u8>> {
        self.unsaved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Exchanges points with other processes, unless another thread does so at the moment.
    fn sync(&self, limit: u64) {
        let Some(files) = &self.files else {
            return;
        };
        let mut files = match files.try_lock() {
            Ok(files) => files,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        files.load(limit.saturating_mul(2), |record, points| {
            self.insert(record, points, limit);
        });
        let unsaved = std::mem::take(&mut *self.unsaved());
        files.save(&unsaved);
    }

    /// Returns whether points of another record were refused, because of the limit.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Keeps the points of a record, unless better ones are known or the memory would exceed `limit`.
    pub(crate) fn keep(&self, record: u64, points: LearnedPoints, limit: u64) {
        let saved = self.files.as_ref().map(|_| points.clone());
        if self.insert(record, points, limit)
            && let Some(points) = saved
        {
            files::encode(record, &points, &mut self.unsaved());
        }
    }

    /// Does the work of [`keep`](Self::keep) in this process; returns whether the points were kept.
    fn insert(&self, record: u64, points: LearnedPoints, limit: u64) -> bool {
        let mut part = self.part(record);
        let old = part.get(&record);
        // Several threads may have decoded the record at the same time.
        if old.is_some_and(|old| !points.replaces(old)) {
            return false;
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
            return false;
        }
        // `insert` would make room in the table even for a record that is there.
        if let Some(old) = part.get_mut(&record) {
            *old = points;
            return true;
        }
        let more = capacity - part.len();
        part.reserve(more);
        part.insert(record, points);
        self.images.fetch_add(1, ordering);
        true
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

impl Drop for LearnedSeekPoints {
    /// Saves what no other process has yet.
    fn drop(&mut self) {
        if let Some(files) = &mut self.files {
            let files = files.get_mut().unwrap_or_else(PoisonError::into_inner);
            let unsaved = self
                .unsaved
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner);
            files.save(unsaved);
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

    /// The points of a process of its own.
    fn process(dir: &std::path::Path) -> LearnedSeekPoints {
        LearnedSeekPoints::new(Files::at(dir, dir.join("0123456789abcdef")).ok())
    }

    const LIMIT: u64 = 1 << 20;

    #[test]
    fn processes_share_points_by_files() {
        let dir = tempfile::tempdir().unwrap();
        let (first, second) = (process(dir.path()), process(dir.path()));
        let (few, many) = (learn(300), learn(900));
        assert!(many.replaces(&few));
        assert_eq!(first.get(1, 0, LIMIT), None);
        first.keep(1, few.clone(), LIMIT);
        second.keep(2, few.clone(), LIMIT);
        // A new epoch begins with what others have saved; the second process had nothing to find in its first.
        assert_eq!(first.get(2, 1, LIMIT), None);
        assert_eq!(second.get(1, 1, LIMIT), Some(few.clone()));
        assert_eq!(first.get(2, 2, LIMIT), Some(few.clone()));
        // Within an epoch they are found after some records that are not known.
        first.keep(1, many.clone(), LIMIT);
        first.sync(LIMIT);
        assert_eq!(second.get(1, 1, LIMIT), Some(few.clone()));
        for record in 10..10 + SYNC_AFTER {
            second.get(record, 1, LIMIT);
        }
        assert_eq!(second.get(1, 1, LIMIT), Some(many.clone()));
        // Points that were not saved yet are saved at the end.
        second.keep(3, many.clone(), LIMIT);
        drop(second);
        let later = process(dir.path());
        assert_eq!(later.get(3, 0, LIMIT), Some(many.clone()));
        assert_eq!(later.stats(0).images, 3);
    }

    #[test]
    fn files_are_read_up_to_the_first_damaged_entry() {
        let dir = tempfile::tempdir().unwrap();
        let (first, points) = (process(dir.path()), learn(300));
        for record in 0..10 {
            first.keep(record, points.clone(), LIMIT);
        }
        first.sync(LIMIT);
        let split = dir.path().join("0123456789abcdef");
        let file = std::fs::read_dir(&split).unwrap().next().unwrap();
        let file = file.unwrap().path();
        let whole = std::fs::read(&file).unwrap();
        let found = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            let other = process(dir.path());
            other.get(0, 0, LIMIT);
            other.stats(0).images
        };
        assert_eq!(found(&whole), 10);
        let entry = (whole.len() - 8) / 10;
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let before = at.checked_sub(8).map_or(0, |at| at / entry);
            assert_eq!(found(&damaged), before as u64, "{at}");
            assert_eq!(found(&whole[..at]), before as u64, "{at}");
        }
        // An entry that was incomplete is read when it is whole.
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        let other = process(dir.path());
        other.get(0, 0, LIMIT);
        assert_eq!(other.stats(0).images, 9);
        std::fs::write(&file, &whole).unwrap();
        other.get(0, 1, LIMIT);
        assert_eq!(other.stats(0).images, 10);
    }

    #[test]
    fn files_are_bounded_and_removed_when_unused() {
        let dir = tempfile::tempdir().unwrap();
        let bytes = || {
            let files = std::fs::read_dir(dir.path().join("0123456789abcdef")).unwrap();
            files
                .map(|file| file.unwrap().metadata().unwrap().len())
                .sum::<u64>()
        };
        let points = learn(300);
        for _ in 0..20 {
            let one = process(dir.path());
            for record in 0..100 {
                one.keep(record, points.clone(), 20_000);
            }
            one.get(0, 0, 20_000);
        }
        assert!((10_000..=40_000).contains(&bytes()), "{}", bytes());
        // A file that is not a directory of points stays; so does one that others use.
        let old = std::time::SystemTime::now() - std::time::Duration::from_secs(40 * 86_400);
        for name in ["aaaaaaaaaaaaaaaa", "something else"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            let opened = std::fs::File::open(dir.path().join(name)).unwrap();
            opened.set_modified(old).unwrap();
        }
        drop(process(dir.path()));
        let mut left: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["0123456789abcdef", "something else"]);
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
