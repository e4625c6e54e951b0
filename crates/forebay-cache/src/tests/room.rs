//! Evictions: which blocks stay if not everything fits.

use super::*;

#[test]
fn cached_blocks_stay_and_other_reads_bypass_the_cache() {
    for (dir, memory) in [(Some(tempfile::tempdir().unwrap()), 0), (None, 16)] {
        let dir = dir.as_ref().map(|dir| dir.path());
        let cache = Cache::open(&options(dir, 16, memory)).unwrap();
        let far = Far::new("a", 32 * BLOCK as usize);
        let object = far.open(&cache);
        // Each epoch reads every block once, in a different order.
        for epoch in 0..6_usize {
            far.take_fetched();
            for i in 0..32 {
                let number = (i * (2 * epoch + 3) + epoch * 11) % 32;
                far.read(&cache, &object, number * 4096..(number + 1) * 4096);
            }
            let expected = if epoch == 0 { 32 } else { 16 };
            assert_eq!(far.take_fetched().len(), expected, "epoch {epoch}");
        }
        let stats = cache.stats();
        assert_eq!(stats.disk.evictions + stats.memory.evictions, 0);
        assert!(stats.disk.used_bytes <= stats.disk.limit_bytes);
    }
}

#[test]
fn blocks_of_closed_objects_are_evicted() {
    for (dir, memory) in [(Some(tempfile::tempdir().unwrap()), 0), (None, 16)] {
        let dir = dir.as_ref().map(|dir| dir.path());
        let cache = Cache::open(&options(dir, 16, memory)).unwrap();
        let (old, new) = (Far::new("old", 16 * 4096), Far::new("new", 16 * 4096));
        let opened = old.open(&cache);
        old.read(&cache, &opened, 0..old.bytes.len());
        let object = new.open(&cache);
        new.read(&cache, &object, 0..new.bytes.len());
        assert_eq!(cache.stats().hits(), 0);
        new.take_fetched();
        drop(opened);
        for _ in 0..2 {
            new.read(&cache, &object, 0..new.bytes.len());
        }
        assert_eq!(new.take_fetched().len(), 1);
        let stats = cache.stats();
        assert_eq!(stats.disk.evictions + stats.memory.evictions, 16);
        if let Some(dir) = dir {
            let there: u64 = block_files(dir).values().map(|len| len + (8 << 10)).sum();
            assert!(there <= stats.disk.limit_bytes);
            assert_eq!(std::fs::read_dir(dir.join("blocks")).unwrap().count(), 1);
        }
    }
}

#[test]
fn blocks_not_read_again_are_evicted_unless_announced() {
    let cache = Cache::open(&options(None, 0, 16)).unwrap();
    let (old, new) = (Far::new("old", 16 * 4096), Far::new("new", 4 * 4096));
    let (kept, object) = (old.open(&cache), new.open(&cache));
    old.read(&cache, &kept, 0..old.bytes.len());
    cache.will_need(&kept, 0..14 * 4096);
    for _ in 0..2 {
        new.read(&cache, &object, 0..new.bytes.len());
        assert_eq!(cache.stats().memory.evictions, 0);
    }
    new.read(&cache, &object, 0..new.bytes.len());
    assert_eq!(
        cache.stats().memory.evictions,
        2,
        "two blocks may go, the others are needed"
    );
    cache.done_with(&kept, 0..u64::MAX);
    new.read(&cache, &object, 0..new.bytes.len());
    assert_eq!(cache.stats().memory.evictions, 4);
}

#[test]
fn a_smaller_limit_is_applied_on_open() {
    let dir = tempfile::tempdir().unwrap();
    let far = Far::new("a", 60 * 4096);
    {
        let cache = Cache::open(&options(Some(dir.path()), 100, 0)).unwrap();
        far.read(&cache, &far.open(&cache), 0..far.bytes.len());
    }
    let cache = Cache::open(&options(Some(dir.path()), 20, 0)).unwrap();
    assert_eq!(block_files(dir.path()).len(), 20);
    assert_eq!(cache.stats().disk.evictions, 40);
    assert_eq!(
        cache.stats().disk.used_bytes,
        cache.stats().disk.limit_bytes
    );
}

#[test]
fn a_too_small_limit_is_refused_with_the_minimum() {
    let dir = tempfile::tempdir().unwrap();
    let mut small = options(Some(&dir.path().join("new")), 15, 0);
    let error = Cache::open(&small).unwrap_err();
    let Error::CacheTooSmall { need_bytes, .. } = error else {
        panic!("{error}");
    };
    assert!(
        error.to_string().contains(&need_bytes.to_string()),
        "{error}"
    );
    small.disk_bytes = Some(need_bytes);
    Cache::open(&small).unwrap();
    for memory in [0, 15] {
        let error = Cache::open(&options(None, 0, memory)).unwrap_err();
        assert!(error.to_string().contains("memory"), "{error}");
    }
    for block_bytes in [0, 1, 4095, 5000, 32 << 20] {
        let wrong = CacheOptions {
            block_bytes,
            ..options(None, 0, 100)
        };
        assert!(
            Cache::open(&wrong)
                .unwrap_err()
                .to_string()
                .contains("power of two")
        );
    }
}

#[test]
fn a_full_disk_is_reported_once_and_bypassed() {
    let dir = tempfile::tempdir().unwrap();
    let said = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&said);
    let mut options = options(Some(dir.path()), 100, 0);
    options.on_warning = Some(Arc::new(move |text: &str| {
        to.lock().unwrap().push(text.to_owned())
    }));
    let cache = Cache::open(&options).unwrap();
    let far = Far::new("a", 8 * 4096);
    let object = far.open(&cache);
    far.read(&cache, &object, 0..4096);
    let used = cache.stats().disk.used_bytes;
    cache
        .disk
        .as_ref()
        .unwrap()
        .faulty
        .store(true, Ordering::Relaxed);
    for _ in 0..3 {
        far.read(&cache, &object, 0..far.bytes.len());
    }
    let said = said.lock().unwrap().clone();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(said[0].contains("no room is left"), "{said:?}");
    assert_eq!(cache.stats().warnings, said);
    assert_eq!(cache.stats().disk.used_bytes, used);
    assert_eq!(
        std::fs::read_dir(dir.path().join("filling"))
            .unwrap()
            .count(),
        0
    );
    // With free space, blocks are stored again.
    cache
        .disk
        .as_ref()
        .unwrap()
        .faulty
        .store(false, Ordering::Relaxed);
    far.read(&cache, &object, 0..far.bytes.len());
    far.take_fetched();
    far.read(&cache, &object, 0..far.bytes.len());
    assert!(far.take_fetched().is_empty());
}

#[test]
fn blocks_beyond_the_directory_limit_go_to_memory() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&options(Some(dir.path()), 16, 8)).unwrap();
    let far = Far::new("a", 24 * 4096);
    let object = far.open(&cache);
    for _ in 0..2 {
        far.read(&cache, &object, 0..far.bytes.len());
    }
    assert_eq!(far.take_fetched().len(), 1, "one fetch for both tiers");
    let stats = cache.stats();
    assert_eq!((stats.disk.stored, stats.memory.stored), (16, 8));
    assert_eq!((stats.disk.hits, stats.memory.hits), (16, 8));
}
