//! Random cache states, made page by page, against the share that a [`Watch`] finds.

use std::collections::BTreeSet;
use std::fs::File;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

use super::{
    COLD, Evictor, FileBytes, Footprint, FsClass, Method, Mount, Prober, Watch, Way, page_bytes,
};
use crate::random::Random;

/// The files of all runs: a few small ones, as images are, and larger ones, as shards are.
struct Pool {
    files: Vec<(PathBuf, u64)>,
}

impl Pool {
    /// None where pages cannot be dropped: the file system keeps them in memory, or is none that is known.
    fn new(dir: &Path) -> Option<Self> {
        let class = Mount::of(dir)?.class();
        if !matches!(class, FsClass::Disk | FsClass::Overlay) {
            return None;
        }
        let mut random = Random::new(7);
        let files = (0..12).map(|number: u64| {
            let len = match number {
                0..6 => 3_000 + random.below(300_000),
                6..10 => 1_000_000 + random.below(1_000_000),
                _ => 8_000_000 + random.below(1_000_000),
            };
            let path = dir.join(format!("{number}"));
            let mut bytes = vec![0; len as usize];
            random.fill(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
            File::open(&path).unwrap().sync_all().unwrap();
            (path, len)
        });
        Some(Self {
            files: files.collect(),
        })
    }
}

/// Files with a known state, and the reads of a run.
#[derive(Debug)]
struct Case {
    parts: Vec<FileBytes>,
    /// Resident pages of each file.
    resident: Vec<BTreeSet<u64>>,
    rounds: u64,
}

/// Drops all pages, reads some of them one by one, and drops some of those again.
fn construct(path: &Path, len: u64, random: &mut Random) -> BTreeSet<u64> {
    let page = page_bytes();
    let file = File::open(path).unwrap();
    // Without readahead each page is a folio of its own, which can be dropped alone.
    fadvise(&file, 0, None, Advice::Random).unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    let pages = len.div_ceil(page);
    let mut resident = BTreeSet::new();
    let percent = match random.below(6) {
        0 => 0,
        1 => 100,
        2 => random.below(8),
        3 => 92 + random.below(8),
        _ => random.below(101),
    };
    // In runs, as caches have them, or scattered.
    let run = 1 + random.below(64);
    for start in (0..pages).step_by(run as usize) {
        if random.below(100) < percent {
            for number in start..(start + run).min(pages) {
                file.read_at(&mut [0], number * page).unwrap();
                resident.insert(number);
            }
        }
    }
    for number in resident.clone() {
        if random.below(20) == 0 {
            fadvise(
                &file,
                number * page,
                NonZeroU64::new(page),
                Advice::DontNeed,
            )
            .unwrap();
            resident.remove(&number);
        }
    }
    resident
}

impl Case {
    fn new(pool: &Pool, random: &mut Random) -> Self {
        let mut files = pool.files.clone();
        random.shuffle(&mut files);
        files.truncate(1 + random.below(5) as usize);
        let resident = files
            .iter()
            .map(|(path, len)| construct(path, *len, random))
            .collect();
        let whole = random.below(2) == 0;
        let parts = files.into_iter().map(|(path, len)| {
            let ranges = (!whole).then(|| ranges(len, random));
            FileBytes { path, ranges }
        });
        Self {
            parts: parts.collect(),
            resident,
            rounds: 1 + random.below(4) / 3,
        }
    }

    /// Bytes that are delivered, and those among them that have to come from the device.
    fn truth(&self) -> (u64, f64) {
        let page = page_bytes();
        let (mut delivered, mut absent) = (0, 0);
        for (part, resident) in self.parts.iter().zip(&self.resident) {
            for range in self.ranges(part) {
                delivered += range.end - range.start;
                for number in range.start / page..range.end.div_ceil(page) {
                    if !resident.contains(&number) {
                        absent +=
                            range.end.min((number + 1) * page) - range.start.max(number * page);
                    }
                }
            }
        }
        let delivered = delivered * self.rounds;
        (delivered, absent as f64 / delivered as f64)
    }

    fn ranges(&self, part: &FileBytes) -> Vec<Range<u64>> {
        let len = part.path.metadata().unwrap().len();
        let whole = || std::iter::once(0..len).collect();
        part.ranges.clone().unwrap_or_else(whole)
    }

    fn read(&self) {
        let mut buffer = vec![0; 128 << 10];
        for _ in 0..self.rounds {
            for part in &self.parts {
                let file = File::open(&part.path).unwrap();
                for range in self.ranges(part) {
                    let mut at = range.start;
                    while at < range.end {
                        let want = (range.end - at).min(buffer.len() as u64) as usize;
                        let got = file.read_at(&mut buffer[..want], at).unwrap();
                        assert!(got > 0);
                        at += got as u64;
                    }
                }
            }
        }
    }
}

/// Disjoint ranges in random order, aligned to nothing.
fn ranges(len: u64, random: &mut Random) -> Vec<Range<u64>> {
    let mut found = Vec::new();
    let mut at = random.below(len / 2);
    while at < len {
        let end = (at + 1 + random.below(150_000)).min(len);
        found.push(at..end);
        at = end + 1 + random.below(300_000);
    }
    random.shuffle(&mut found);
    found
}

/// The result of a campaign.
#[derive(Debug, Default)]
struct Outcome {
    runs: usize,
    /// Largest error of a share, in points of a hundred.
    largest_error: f64,
    mean_error: f64,
    called_cold: usize,
    wrongly_cold: usize,
    /// Runs with an error above two points.
    off: usize,
    /// Runs in which the counter alone was too high by more than two points: readahead.
    counter_too_high: usize,
}

/// None where states cannot be made.
fn campaign(runs: usize, methods: &'static [Method], seed: u64) -> Option<Outcome> {
    let dir = tempfile::tempdir().unwrap();
    let pool = Pool::new(dir.path())?;
    let mut outcome = Outcome::default();
    let mut random = Random::new(seed);
    for _ in 0..runs {
        let case = Case::new(&pool, &mut random);
        let (delivered, truth) = case.truth();
        let footprint = Footprint::Files(case.parts.clone());
        let mut prober = Prober::with_methods(methods);
        let watch = Watch::begin_with(&footprint, Way::Off, &mut prober);
        case.read();
        let proof = watch.end(delivered, None);
        let share = proof
            .cold_share
            .unwrap_or_else(|| panic!("{}", proof.line()));
        let error = 100.0 * (share - truth).abs();
        outcome.runs += 1;
        outcome.largest_error = outcome.largest_error.max(error);
        outcome.mean_error += error;
        outcome.off += usize::from(error > 2.0);
        if error > 2.0 {
            println!("{truth:.4} but {}: {case:?}", proof.line());
        }
        let counted = proof.read_ratio.unwrap_or(0.0);
        outcome.counter_too_high += usize::from(counted > truth + 0.02);
        if proof.word() == "cold" {
            outcome.called_cold += 1;
            // Half a page of rounding is no lie.
            outcome.wrongly_cold += usize::from(truth < COLD - 0.001);
        }
    }
    outcome.mean_error /= outcome.runs.max(1) as f64;
    Some(outcome)
}

fn check(outcome: Option<Outcome>) {
    let Some(outcome) = outcome else {
        println!(
            "skipped: the temporary directory is on a file system whose pages cannot be dropped"
        );
        return;
    };
    println!("{outcome:?}");
    assert_eq!((outcome.off, outcome.wrongly_cold), (0, 0), "{outcome:?}");
}

const EXACT: [&[Method]; 2] = [&[Method::Cachestat, Method::Mincore], &[Method::Mincore]];

#[test]
fn shares_of_constructed_cache_states_are_right() {
    for methods in EXACT {
        check(campaign(10, methods, 1));
    }
}

/// `cargo test -p forebay-bench --lib campaign -- --ignored --nocapture`, with `TMPDIR` on the file system to test.
#[test]
#[ignore = "takes minutes; its short form runs with the other tests"]
fn shares_of_500_constructed_cache_states_are_right() {
    for (number, methods) in EXACT.into_iter().enumerate() {
        check(campaign(250, methods, 100 + number as u64));
    }
}

#[test]
fn direct_reads_are_cold_whatever_is_cached() {
    let dir = tempfile::tempdir().unwrap();
    let Some(pool) = Pool::new(dir.path()) else {
        return;
    };
    let (path, len) = &pool.files[11];
    let footprint = Footprint::files([path]);
    let watch = Watch::begin(&footprint, Way::Direct);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECT;
    let Ok(direct) = rustix::fs::open(path, flags, rustix::fs::Mode::empty()) else {
        return;
    };
    let file = File::from(direct);
    let mut room = vec![0u8; (1 << 20) + 4096];
    let skip = room.as_ptr().align_offset(4096);
    let buffer = &mut room[skip..skip + (1 << 20)];
    let mut at = 0;
    while at < *len {
        at += file.read_at(buffer, at).unwrap() as u64;
    }
    let proof = watch.end(*len, None);
    assert_eq!(proof.word(), "cold", "{}", proof.line());
    assert_eq!(proof.resident_before, Some(1.0));
}

#[test]
fn eviction_makes_a_run_cold_and_reading_makes_it_warm() {
    let dir = tempfile::tempdir().unwrap();
    let Some(pool) = Pool::new(dir.path()) else {
        return;
    };
    let footprint = Footprint::files(pool.files.iter().map(|(path, _)| path));
    let bytes = pool.files.iter().map(|(_, len)| len).sum();
    let evictor = Evictor::new(super::Cold::Advise).unwrap();
    evictor.evict(&footprint).unwrap();
    let mut words = Vec::new();
    for _ in 0..2 {
        let watch = Watch::begin(&footprint, evictor.way());
        for (path, _) in &pool.files {
            std::fs::read(path).unwrap();
        }
        words.push(watch.end(bytes, None).word());
    }
    assert_eq!(words, ["cold", "warm"]);
}
