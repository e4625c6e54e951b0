//! Tests of a cache in one process. `tests/cache_processes.rs` tests several processes.

mod room;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use super::*;

const BLOCK: u32 = 4096;
const HEADER: usize = 4096;

/// A remote object, with a log of the fetched ranges.
struct Far {
    name: String,
    bytes: Vec<u8>,
    fetched: Mutex<Vec<Range<u64>>>,
    is_down: AtomicBool,
}

impl Far {
    fn new(name: &str, len: usize) -> Self {
        let mut state = name
            .bytes()
            .fold(1_u64, |hash, b| hash.wrapping_mul(31) + u64::from(b));
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 56) as u8
        };
        Self {
            name: name.to_owned(),
            bytes: (0..len).map(|_| next()).collect(),
            fetched: Mutex::default(),
            is_down: AtomicBool::new(false),
        }
    }

    fn open(&self, cache: &Cache) -> CachedObject {
        cache.object(
            "s3://bucket/set",
            &self.name,
            Some("v1"),
            self.bytes.len() as u64,
        )
    }

    fn fetch(&self, range: Range<u64>, out: &mut [u8]) -> Result<()> {
        if self.is_down.load(Ordering::Relaxed) {
            return Err(Error::io(
                &self.name,
                "fetch",
                std::io::ErrorKind::ConnectionReset,
            ));
        }
        out.copy_from_slice(&self.bytes[range.start as usize..range.end as usize]);
        self.fetched.lock().unwrap().push(range);
        Ok(())
    }

    #[track_caller]
    fn read(&self, cache: &Cache, object: &CachedObject, range: Range<usize>) {
        let mut out = vec![0; range.len()];
        cache
            .read_at(object, range.start as u64, &mut out, &|range, out| {
                self.fetch(range, out)
            })
            .unwrap();
        assert!(
            out == self.bytes[range.clone()],
            "bytes {range:?} of {}",
            self.name
        );
    }

    /// The range of the only fetch since the last call.
    #[track_caller]
    fn take_only(&self) -> Range<u64> {
        let fetched = self.take_fetched();
        assert_eq!(fetched.len(), 1, "{fetched:?}");
        fetched[0].clone()
    }

    fn take_fetched(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.fetched.lock().unwrap())
    }
}

fn options(dir: Option<&Path>, disk_blocks: u64, memory_blocks: u64) -> CacheOptions {
    CacheOptions {
        dir: dir.map(Path::to_owned),
        disk_bytes: Some((64 << 10) + disk_blocks * (2 * u64::from(BLOCK) + (8 << 10))),
        memory_bytes: memory_blocks * memory::cost(u64::from(BLOCK)),
        block_bytes: BLOCK,
        ..CacheOptions::default()
    }
}

fn block_files(dir: &Path) -> BTreeMap<PathBuf, u64> {
    let mut found = BTreeMap::new();
    for object in std::fs::read_dir(dir.join("blocks")).unwrap() {
        for file in std::fs::read_dir(object.unwrap().path()).unwrap() {
            let file = file.unwrap();
            found.insert(file.path(), file.metadata().unwrap().len());
        }
    }
    found
}

#[test]
fn any_range_is_read_correctly_with_any_tiers() {
    let far = Far::new("a", 50 * BLOCK as usize + 77);
    for (disk, memory) in [
        (Some(100), 0),
        (Some(20), 0),
        (Some(20), 16),
        (None, 16),
        (None, 100),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::open(&options(
            disk.map(|_| dir.path()),
            disk.unwrap_or(0),
            memory,
        ))
        .unwrap();
        let object = far.open(&cache);
        let (len, mut state) = (far.bytes.len(), 7_usize);
        for _ in 0..300 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let start = (state >> 20) % len;
            let most = if state % 3 == 0 {
                5 * BLOCK as usize
            } else {
                500
            };
            let end = len.min(start + (state >> 40) % most);
            far.read(&cache, &object, start..end);
        }
        far.read(&cache, &object, 0..len);
        far.read(&cache, &object, len..len);
        let stats = cache.stats();
        assert!(stats.hits() > 100, "{stats:?}");
        assert!(
            stats.disk.used_bytes <= stats.disk.limit_bytes.max(1),
            "{stats:?}"
        );
        assert!(
            stats.memory.used_bytes <= stats.memory.limit_bytes,
            "{stats:?}"
        );
        assert!(stats.warnings.is_empty(), "{stats:?}");
        let mut buf = [0; 2];
        let beyond = cache.read_at(&object, len as u64 - 1, &mut buf, &|_, _| unreachable!());
        assert!(beyond.unwrap_err().to_string().contains("2 bytes"));
        assert!(
            cache
                .read_at(&object, u64::MAX, &mut buf, &|_, _| unreachable!())
                .is_err()
        );
    }
}

#[test]
fn a_cache_survives_closing_and_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let far = Far::new("a", 10 * BLOCK as usize + 1);
    for run in 0..2 {
        let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
        far.read(&cache, &far.open(&cache), 0..far.bytes.len());
        assert_eq!(
            far.take_fetched().len(),
            1 - run,
            "one fetch for all blocks, then none"
        );
    }
    // Another version of the object is another object.
    let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
    let changed = cache.object("s3://bucket/set", "a", Some("v2"), far.bytes.len() as u64);
    far.read(&cache, &changed, 0..far.bytes.len());
    assert_eq!(far.take_fetched().len(), 1);
}

#[test]
fn a_small_first_read_fetches_a_part_and_later_the_block() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
    let far = Far::new("a", 3 * BLOCK as usize);
    let object = far.open(&cache);
    far.read(&cache, &object, 5000..5100);
    far.read(&cache, &object, 5100..5200);
    far.read(&cache, &object, 5200..5300);
    assert_eq!(far.take_fetched(), [5000..5100, 4096..8192]);
}

#[test]
fn threads_that_read_one_block_fetch_it_once() {
    let far = Far::new("a", 8 * BLOCK as usize);
    for (dir, memory) in [(Some(tempfile::tempdir().unwrap()), 0), (None, 16)] {
        let dir = dir.as_ref().map(|dir| dir.path());
        let cache = Cache::open(&options(dir, 100, memory)).unwrap();
        let object = far.open(&cache);
        let start = Barrier::new(8);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    start.wait();
                    far.read(&cache, &object, 0..far.bytes.len());
                });
            }
        });
        let fetched: u64 = far
            .take_fetched()
            .iter()
            .map(|range| range.end - range.start)
            .sum();
        assert_eq!(fetched, far.bytes.len() as u64);
    }
}

#[test]
fn a_failed_fetch_fails_all_waiting_readers_only() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
    let far = Far::new("a", BLOCK as usize);
    let object = far.open(&cache);
    let fetches = AtomicUsize::new(0);
    let (entered, leave) = (Barrier::new(2), Barrier::new(2));
    let read = |fetch: &Fetch<'_>| cache.read_at(&object, 0, &mut vec![0; BLOCK as usize], fetch);
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| {
            read(&|range, _| {
                fetches.fetch_add(1, Ordering::Relaxed);
                entered.wait();
                leave.wait();
                Err(Error::io(
                    "a",
                    "fetch",
                    std::io::Error::other(format!("{range:?} is gone")),
                ))
            })
        });
        entered.wait();
        let follower = scope.spawn(|| {
            read(&|_, _| {
                fetches.fetch_add(1, Ordering::Relaxed);
                Err(Error::io("a", "fetch", std::io::ErrorKind::Other))
            })
        });
        while cache.stats().waited == 0 {
            std::thread::yield_now();
        }
        leave.wait();
        for reader in [leader, follower] {
            let error = reader.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("0..4096 is gone"), "{error}");
            assert_eq!(error.io_kind(), Some(std::io::ErrorKind::Other));
        }
    });
    assert_eq!(fetches.into_inner(), 1);
    far.read(&cache, &object, 0..BLOCK as usize);
    let empty = std::fs::read_dir(dir.path().join("filling"))
        .unwrap()
        .count();
    assert_eq!(empty, 0, "nothing stays of what failed");
}

/// Closing one loader of a process does not make reads of the other loaders fail.
#[test]
fn a_cancelled_fetch_is_repeated_by_waiting_readers() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
    let far = Far::new("a", BLOCK as usize);
    let object = far.open(&cache);
    let (entered, leave) = (Barrier::new(2), Barrier::new(2));
    std::thread::scope(|scope| {
        let leader = scope.spawn(|| {
            let stopped = |_: Range<u64>, _: &mut [u8]| {
                entered.wait();
                leave.wait();
                Err(Error::Cancelled {
                    object: "a".to_owned(),
                    op: "read",
                })
            };
            cache.read_at(&object, 0, &mut vec![0; BLOCK as usize], &stopped)
        });
        entered.wait();
        let follower = scope.spawn(|| far.read(&cache, &object, 0..BLOCK as usize));
        while cache.stats().waited == 0 {
            std::thread::yield_now();
        }
        leave.wait();
        let error = leader.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Cancelled { .. }), "{error:?}");
        follower.join().unwrap();
    });
    assert_eq!(far.take_only(), 0..u64::from(BLOCK));
}

#[test]
fn damaged_and_truncated_blocks_are_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
    // The second block is short, so that the test is fast.
    let far = Far::new("a", BLOCK as usize + 200);
    let object = far.open(&cache);
    far.read(&cache, &object, 0..far.bytes.len());
    let files: Vec<_> = block_files(dir.path()).into_keys().collect();
    let (other, path) = (std::fs::read(&files[0]).unwrap(), &files[1]);
    let good = std::fs::read(path).unwrap();
    let used = cache.stats().disk.used_bytes;
    let damage = |bytes: &[u8], what: &str| {
        std::fs::write(path, bytes).unwrap();
        cache.disk.as_ref().unwrap().close_files();
        far.take_fetched();
        let before = cache.stats().disk.damaged;
        far.read(&cache, &object, BLOCK as usize..far.bytes.len());
        assert_eq!(far.take_only(), 4096..4296, "{what}");
        assert_eq!(cache.stats().disk.damaged, before + 1, "{what}");
        assert_eq!(std::fs::read(path).unwrap(), good, "{what}");
    };
    for at in 0..good.len() {
        let mut flipped = good.clone();
        flipped[at] ^= 1 << (at % 8);
        damage(&flipped, &format!("byte {at} flipped"));
    }
    // Within the header only every 32nd length: the tests of `block` cover all of them.
    for len in (0..HEADER).step_by(32).chain(HEADER..good.len()) {
        damage(&good[..len], &format!("cut to {len} bytes"));
    }
    damage(&[good.as_slice(), b"x"].concat(), "a byte too many");
    damage(&other, "another block of the object, whole in itself");
    assert_eq!(cache.stats().disk.used_bytes, used);
    // A block file that is open already is verified at each read.
    std::fs::write(path, [&good[..HEADER], &[0; 200]].concat()).unwrap();
    far.take_fetched();
    far.read(&cache, &object, BLOCK as usize..far.bytes.len());
    assert_eq!(far.take_fetched().len(), 1);
}

#[test]
fn open_removes_damage_of_a_power_cut() {
    let dir = tempfile::tempdir().unwrap();
    let far = Far::new("a", 4 * BLOCK as usize);
    {
        let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
        far.read(&cache, &far.open(&cache), 0..far.bytes.len());
    }
    let files: Vec<_> = block_files(dir.path()).into_keys().collect();
    std::fs::write(&files[0], "").unwrap();
    std::fs::write(&files[1], [0; 8192]).unwrap();
    std::fs::write(dir.path().join("forebay-cache.lock"), "").unwrap();
    let fill = files[2]
        .parent()
        .unwrap()
        .file_name()
        .unwrap()
        .to_str()
        .unwrap();
    std::fs::write(dir.path().join(format!("filling/{fill}-9")), [0; 5000]).unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
    let stats = cache.stats();
    assert_eq!(stats.disk.damaged, 1);
    assert_eq!(stats.disk.used_bytes, (64 << 10) + 3 * (16 << 10));
    assert_eq!(
        std::fs::read_dir(dir.path().join("filling"))
            .unwrap()
            .count(),
        0
    );
    far.take_fetched();
    far.read(&cache, &far.open(&cache), 0..far.bytes.len());
    assert_eq!(far.take_fetched().len(), 1, "blocks 0 and 1, side by side");
    assert_eq!(cache.stats().disk.damaged, 2);
}

#[test]
fn fill_returns_the_counts_of_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 16, 0)).unwrap();
    let far = Far::new("a", 20 * 4096);
    let object = far.open(&cache);
    far.read(&cache, &object, 0..2 * 4096);
    far.take_fetched();
    let fetch = |range: Range<u64>, out: &mut [u8]| far.fetch(range, out);
    let filled = cache.fill(&object, 0..u64::MAX, &fetch).unwrap();
    assert_eq!(filled.present_bytes, 2 * 4096);
    assert_eq!(filled.fetched_bytes, 14 * 4096);
    assert_eq!(filled.refused_bytes, 4 * 4096);
    assert_eq!(far.take_only(), 2 * 4096..16 * 4096);
    far.is_down.store(true, Ordering::Relaxed);
    far.read(&cache, &object, 0..16 * 4096);
    assert!(cache.fill(&object, 0..16 * 4096, &fetch).is_ok());
}

#[test]
fn foreign_directories_are_refused_and_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("thesis.tex"), "years").unwrap();
    let error = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap_err();
    assert!(matches!(error, Error::NotACache { .. }), "{error}");
    assert!(matches!(
        clear(dir.path(), None, false),
        Err(Error::NotACache { .. })
    ));
    assert!(matches!(contents(dir.path()), Err(Error::NotACache { .. })));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    // Marker files of other programs or of later versions.
    for text in [
        "",
        "{}",
        "[1]",
        "{\"forebay_cache\":2,\"block_bytes\":4096}",
        "{\"forebay_cache\":1,\"block_bytes\":5}",
    ] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("forebay-cache.json"), text).unwrap();
        let error = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap_err();
        assert!(matches!(error, Error::NotACache { .. }), "{text}: {error}");
        assert!(clear(dir.path(), None, false).is_err(), "{text}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}

#[test]
fn contents_and_clear_handle_blocks_and_foreign_files() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("cache");
    let (a, b) = (Far::new("a", 3 * 4096), Far::new("b", 4096));
    let cache = Cache::open(&options(Some(&root), 100, 0)).unwrap();
    let kept = a.open(&cache);
    a.read(&cache, &kept, 0..a.bytes.len());
    let other = cache.object("gs://elsewhere", "b", None, 4096);
    b.read(&cache, &other, 0..4096);
    drop(other);
    let found = contents(&root).unwrap();
    assert_eq!((found.blocks, found.users, found.block_bytes), (4, 1, 4096));
    assert_eq!(found.used_bytes, cache.stats().disk.used_bytes);
    let places: Vec<_> = found
        .locations
        .iter()
        .map(|at| (at.location.as_str(), at.blocks, at.in_use))
        .collect();
    assert_eq!(
        places,
        [("s3://bucket/set", 3, true), ("gs://elsewhere", 1, false)]
    );

    let one = clear(&root, Some("gs://elsewhere"), false).unwrap();
    assert_eq!((one.blocks, one.users), (1, 1));
    let foreign = root.join("blocks/readme");
    std::fs::write(&foreign, "mine").unwrap();
    let tried = clear(&root, None, true).unwrap();
    assert_eq!((tried.blocks, block_files_in(&root)), (3, 3));
    let all = clear(&root, None, false).unwrap();
    assert_eq!((all.blocks, all.left), (3, vec![foreign.clone()]));
    // An open cache continues, and its byte count is still right.
    a.read(&cache, &kept, 0..a.bytes.len());
    assert_eq!(
        cache.stats().disk.used_bytes,
        contents(&root).unwrap().used_bytes
    );
    drop((kept, cache));
    clear(&root, None, false).unwrap();
    assert_eq!(std::fs::read(&foreign).unwrap(), b"mine");
    std::fs::remove_file(&foreign).unwrap();
    // Clearing a cache without foreign files removes its directory.
    std::fs::remove_dir_all(&root).unwrap();
    drop(Cache::open(&options(Some(&root), 100, 0)).unwrap());
    clear(&root, None, false).unwrap();
    assert!(!root.exists());
}

fn block_files_in(root: &Path) -> usize {
    let mut count = 0;
    for object in std::fs::read_dir(root.join("blocks")).unwrap().flatten() {
        if object.path().is_dir() {
            count += std::fs::read_dir(object.path()).unwrap().count();
        }
    }
    count
}

#[test]
fn a_directory_keeps_its_block_size() {
    let dir = tempfile::tempdir().unwrap();
    drop(Cache::open(&options(Some(dir.path()), 100, 0)).unwrap());
    let other = CacheOptions {
        block_bytes: 8192,
        ..options(Some(dir.path()), 100, 0)
    };
    assert_eq!(Cache::open(&other).unwrap().block_bytes(), 4096);
}

#[test]
fn a_symbolic_link_at_a_blocks_path_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
    let far = Far::new("a", 4096);
    let object = far.open(&cache);
    far.read(&cache, &object, 0..4096);
    let path = block_files(dir.path()).into_keys().next().unwrap();
    let victim = dir.path().join("victim");
    std::fs::rename(&path, &victim).unwrap();
    let bytes = std::fs::read(&victim).unwrap();
    std::os::unix::fs::symlink(&victim, &path).unwrap();
    cache.disk.as_ref().unwrap().close_files();
    far.read(&cache, &object, 0..4096);
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(std::fs::read(&victim).unwrap(), bytes);
}

#[test]
fn options_and_objects_can_be_printed() {
    let cache = Cache::open(&options(None, 0, 16)).unwrap();
    let far = Far::new("a", 4096);
    let object = far.open(&cache);
    far.read(&cache, &object, 0..4096);
    assert!(format!("{:?}", options(None, 0, 16)).contains("memory_bytes"));
    assert!(format!("{object:?}").contains("bucket"));
}
