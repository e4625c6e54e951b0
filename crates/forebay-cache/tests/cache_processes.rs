//! A cache directory shared by several processes: single fetches, killed processes, no file descriptors left, no space left.
//!
//! The child processes run this test binary; environment variables select their task.

use std::io::{BufRead, BufReader, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forebay_cache::{Cache, CacheOptions, CachedObject, contents};
use forebay_store::Result;

const BLOCK: u64 = 16 << 10;
const OBJECTS: u64 = 6;
const LEN: u64 = 10 * BLOCK + 100;

/// The task of a child process, and its directory.
const TASK: &str = "FOREBAY_TEST_TASK";
const PLACE: &str = "FOREBAY_TEST_PLACE";

fn options(dir: &Path, blocks: u64) -> CacheOptions {
    CacheOptions {
        dir: Some(dir.to_owned()),
        disk_bytes: Some((64 << 10) + blocks * (BLOCK + (12 << 10))),
        block_bytes: BLOCK as u32,
        ..CacheOptions::default()
    }
}

fn object(cache: &Cache, number: u64) -> CachedObject {
    cache.object(
        "s3://bucket/set",
        &format!("shard-{number}"),
        Some("v1"),
        LEN,
    )
}

/// Returns byte `at` of an object.
fn byte(object: u64, at: u64) -> u8 {
    ((at ^ (at >> 8) ^ (at >> 16)).wrapping_mul(31) + object * 7) as u8
}

fn far(object: u64) -> impl Fn(Range<u64>, &mut [u8]) -> Result<()> {
    move |range, out| {
        out.iter_mut()
            .zip(range)
            .for_each(|(to, at)| *to = byte(object, at));
        Ok(())
    }
}

fn check(object: u64, start: u64, bytes: &[u8]) {
    let right = bytes
        .iter()
        .zip(start..)
        .all(|(got, at)| *got == byte(object, at));
    assert!(right, "object {object} from byte {start} on");
}

/// The command that runs this test binary as a child with a task.
fn child(task: &str, place: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([
            "--exact",
            "child_process",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(TASK, task)
        .env(PLACE, place)
        .stdin(Stdio::null())
        .stdout(Stdio::piped());
    command
}

#[test]
fn child_process() {
    let Some(place) = std::env::var_os(PLACE).map(PathBuf::from) else {
        return;
    };
    match std::env::var(TASK).unwrap().as_str() {
        "read" => read_in_an_order_of_its_own(&place),
        "churn" => churn(&place),
        "starve" => starve(&place),
        other => panic!("{other}?"),
    }
}

/// A pseudo-random generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// Reads all objects in an order that depends on the process, and logs the fetched ranges.
fn read_in_an_order_of_its_own(place: &Path) {
    let log = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(place.join("log"))
        .unwrap();
    let cache = Cache::open(&options(&place.join("cache"), 200)).unwrap();
    let mut dice = Dice(u64::from(std::process::id()));
    for turn in 0..3 * OBJECTS {
        let number = if turn < OBJECTS {
            (turn + dice.below(2)) % OBJECTS
        } else {
            turn % OBJECTS
        };
        let object = object(&cache, number);
        let start = dice.below(4) * BLOCK;
        let end = if turn < 2 * OBJECTS {
            start + 5 * BLOCK
        } else {
            LEN
        };
        let start = if turn < 2 * OBJECTS { start } else { 0 };
        let mut buf = vec![0; (end - start) as usize];
        let fetch = |range: Range<u64>, out: &mut [u8]| {
            let line = format!("{number} {} {}\n", range.start, range.end);
            (&log).write_all(line.as_bytes()).unwrap();
            far(number)(range, out)
        };
        cache.read_at(&object, start, &mut buf, &fetch).unwrap();
        check(number, start, &buf);
    }
    assert!(cache.stats().warnings.is_empty(), "{:?}", cache.stats());
}

#[test]
fn several_processes_fetch_each_block_once() {
    let dir = tempfile::tempdir().unwrap();
    let children: Vec<Child> = (0..4)
        .map(|_| child("read", dir.path()).spawn().unwrap())
        .collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    let mut fetched = vec![false; (OBJECTS * LEN) as usize];
    for line in log.lines() {
        let numbers: Vec<u64> = line
            .split(' ')
            .map(|number| number.parse().unwrap())
            .collect();
        for at in numbers[1]..numbers[2] {
            let at = (numbers[0] * LEN + at) as usize;
            assert!(!fetched[at], "fetched twice: {line}");
            fetched[at] = true;
        }
    }
    assert!(fetched.iter().all(|fetched| *fetched));
    let found = contents(&dir.path().join("cache")).unwrap();
    assert_eq!(
        (found.users, found.blocks),
        (0, OBJECTS * LEN.div_ceil(BLOCK))
    );
}

/// Fills and evicts blocks until the process is killed.
fn churn(place: &Path) {
    let cache = Cache::open(&options(place, 30)).unwrap();
    println!("\nfilling");
    let mut dice = Dice(u64::from(std::process::id()));
    let mut buf = vec![0; LEN as usize];
    loop {
        let number = dice.below(OBJECTS);
        let object = object(&cache, number);
        cache.read_at(&object, 0, &mut buf, &far(number)).unwrap();
        check(number, 0, &buf);
    }
}

/// Bytes in use by the files below a directory, counted as the cache counts them.
fn taken(blocks: &Path) -> u64 {
    let mut bytes = 64 << 10;
    for object in std::fs::read_dir(blocks).unwrap() {
        for file in std::fs::read_dir(object.unwrap().path()).unwrap() {
            let len = file.unwrap().metadata().unwrap().len();
            bytes += len.next_multiple_of(4096) + (8 << 10);
        }
    }
    bytes
}

#[test]
fn killed_processes_leave_no_damage_and_no_leak() {
    let kills: u64 =
        std::env::var("FOREBAY_TEST_KILLS").map_or(100, |kills| kills.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut dice = Dice(kills);
    for kill in 0..kills {
        let mut child = child("churn", dir.path()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "filling"));
        let (since, moment) = (Instant::now(), Duration::from_micros(dice.below(12_000)));
        while since.elapsed() < moment {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let cache = Cache::open(&options(dir.path(), 30)).unwrap();
        let stats = cache.stats();
        assert_eq!(
            stats.disk.used_bytes,
            taken(&dir.path().join("blocks")),
            "after kill {kill}"
        );
        assert!(
            stats.disk.used_bytes <= stats.disk.limit_bytes,
            "after kill {kill}"
        );
        assert_eq!(
            std::fs::read_dir(dir.path().join("filling"))
                .unwrap()
                .count(),
            0
        );
        assert_eq!(
            std::fs::read_dir(dir.path().join("live")).unwrap().count(),
            1,
            "our own"
        );
        let mut buf = vec![0; LEN as usize];
        for number in 0..OBJECTS {
            let object = object(&cache, number);
            cache.read_at(&object, 0, &mut buf, &far(number)).unwrap();
            check(number, 0, &buf);
        }
        let stats = cache.stats();
        assert_eq!(
            (stats.disk.damaged, stats.warnings),
            (0, Vec::new()),
            "after kill {kill}"
        );
    }
}

/// Reads with a cache when no file descriptor is left.
fn starve(place: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let cache = Cache::open(&options(place, 100)).unwrap();
    let limit = Rlimit {
        current: Some(64),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut held = Vec::new();
    while let Ok(file) = std::fs::File::open("/dev/null") {
        held.push(file);
    }
    let mut buf = vec![0; LEN as usize];
    for _ in 0..3 {
        let object = object(&cache, 0);
        cache.read_at(&object, 0, &mut buf, &far(0)).unwrap();
        check(0, 0, &buf);
    }
    let stats = cache.stats();
    assert_eq!(
        (stats.disk.stored, stats.warnings.len()),
        (0, 1),
        "{stats:?}"
    );
    assert!(stats.warnings[0].contains("ulimit -n"), "{stats:?}");
    drop(held);
    for _ in 0..2 {
        let object = object(&cache, 0);
        cache.read_at(&object, 0, &mut buf, &far(0)).unwrap();
        check(0, 0, &buf);
    }
    assert_eq!(cache.stats().disk.stored, 11, "{:?}", cache.stats());
}

#[test]
fn reads_bypass_the_cache_without_descriptors() {
    let dir = tempfile::tempdir().unwrap();
    let output = child("starve", dir.path()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stdout)
    );
}

/// A small tmpfs, unmounted on drop.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "tmpfs"])
            .arg(dir.path())
            .stderr(Stdio::null())
            .status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(dir))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_too_small_file_system_is_filled_to_its_limit() {
    let Some(mounted) = Mounted::new("4m") else {
        eprintln!("skipped: a tmpfs cannot be mounted here");
        return;
    };
    let dir = mounted.0.path().join("cache");
    let cache = Cache::open(&options(&dir, 10_000)).unwrap();
    let mut buf = vec![0; LEN as usize];
    let objects: Vec<_> = (0..40).map(|number| object(&cache, number)).collect();
    for _ in 0..2 {
        for (number, object) in (0..).zip(&objects) {
            cache.read_at(object, 0, &mut buf, &far(number)).unwrap();
            check(number, 0, &buf);
        }
    }
    let stats = cache.stats();
    assert!(stats.disk.stored > 50 && stats.disk.hits > 50, "{stats:?}");
    assert!(stats.disk.stored < 40 * 11, "{stats:?}");
    assert!(
        !stats.warnings.is_empty() && stats.warnings.len() <= 2,
        "{stats:?}"
    );
    // Another process uses the remaining space: the cache stores no more blocks, and reads still succeed.
    let mut hog = std::fs::File::create(mounted.0.path().join("hog")).unwrap();
    while hog.write_all(&[0; 4096]).is_ok() {}
    for (number, object) in (0..).zip(&objects) {
        cache.read_at(object, 0, &mut buf, &far(number)).unwrap();
        check(number, 0, &buf);
    }
}

#[test]
fn a_file_system_below_the_minimum_is_refused() {
    let Some(mounted) = Mounted::new("256k") else {
        eprintln!("skipped: a tmpfs cannot be mounted here");
        return;
    };
    let error = Cache::open(&options(&mounted.0.path().join("cache"), 100)).unwrap_err();
    assert!(error.to_string().contains("free) is too small"), "{error}");
}
