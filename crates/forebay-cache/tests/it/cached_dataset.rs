//! Datasets read through a store and a cache: the records are the same, and each byte is fetched once.

use crate::packed;

use std::path::Path;
use std::sync::Arc;

use forebay_cache::{Cache, CacheOptions};
use forebay_cache::{ReadOptions, RemoteStorage};
use forebay_shard::{Dataset, ShardFormat, Split};
use forebay_store::{Location, Store, StoreOptions};
use packed::Recipe;

fn cache(dir: &Path, disk_bytes: u64) -> Arc<Cache> {
    let options = CacheOptions {
        dir: Some(dir.to_owned()),
        disk_bytes: Some(disk_bytes),
        block_bytes: 64 << 10,
        ..CacheOptions::default()
    };
    Arc::new(Cache::open(&options).unwrap())
}

/// Opens a directory as a store, read through a cache.
fn open(root: &Path, cache: &Arc<Cache>, read_ahead_bytes: u64) -> (Split, Arc<RemoteStorage>) {
    let store = Store::open(&Location::from(root), &StoreOptions::default()).unwrap();
    let mut options = ReadOptions::default().with_cache(Some(Arc::clone(cache)));
    options.read_ahead_bytes = read_ahead_bytes;
    let storage = Arc::new(RemoteStorage::new(store, &options));
    let seam = Arc::<RemoteStorage>::clone(&storage);
    let dataset = Dataset::options().storage(seam).open(root).unwrap();
    (dataset.split("train").unwrap(), storage)
}

fn records(split: &Split) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for shard in split.shards() {
        let mut scan = shard.scan(0..shard.len());
        while let Some(record) = scan.next_record().unwrap() {
            all.push(record.bytes.to_vec());
        }
    }
    all
}

#[test]
fn later_epochs_and_runs_fetch_nothing() {
    for (format, read_ahead) in [(ShardFormat::Indexed, 0), (ShardFormat::TfRecord, 8 << 20)] {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("set");
        std::fs::create_dir(&root).unwrap();
        let recipe = Recipe {
            format,
            ..Recipe::default()
        };
        packed::write(&root, &recipe);
        let expected: Vec<_> = (0..600).map(|i| packed::record(i, 40_000)).collect();
        for run in 0..2 {
            let cache = cache(&dir.path().join("cache"), 200 << 20);
            let (split, _) = open(&root, &cache, read_ahead);
            assert!(records(&split) == expected);
            // The second epoch stores the blocks of which the first one read only a small part.
            assert!(records(&split) == expected);
            let before = cache.stats();
            assert!(records(&split) == expected);
            let stats = cache.stats();
            assert_eq!(
                stats.fetches, before.fetches,
                "the third epoch of run {run}"
            );
            assert!(
                stats.warnings.is_empty() && stats.disk.damaged == 0,
                "{stats:?}"
            );
            assert!(run == 0 || stats.hit_rate() > 0.99, "{stats:?}");
            let used = stats.memory.used_bytes + stats.disk.used_bytes;
            assert!(used > 0 && used <= 200 << 20, "{stats:?}");
        }
    }
}

#[test]
fn a_filled_dataset_that_is_replaced_is_fetched_again() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("set");
    std::fs::create_dir(&root).unwrap();
    let recipe = Recipe {
        records: 100,
        shards: 2,
        ..Recipe::default()
    };
    packed::write(&root, &recipe);
    let cache = cache(&dir.path().join("cache"), 200 << 20);
    let (split, storage) = open(&root, &cache, 0);
    for shard in split.shards() {
        let filled = storage.fill(shard.path(), 0..u64::MAX).unwrap().unwrap();
        assert_eq!(
            filled.fetched_bytes + filled.present_bytes,
            shard.file_len()
        );
        assert_eq!(filled.refused_bytes, 0);
    }
    let before = cache.stats();
    let expected: Vec<_> = (0..100).map(|i| packed::record(i, 40_000)).collect();
    assert!(records(&split) == expected);
    assert_eq!(cache.stats().fetches, before.fetches);
    // New objects of the same names: the cached blocks belong to the old objects and must not be used.
    std::fs::remove_dir_all(&root).unwrap();
    std::fs::create_dir(&root).unwrap();
    packed::write(
        &root,
        &Recipe {
            most_bytes: 30_000,
            ..recipe
        },
    );
    let (split, _) = open(&root, &cache, 0);
    let expected: Vec<_> = (0..100).map(|i| packed::record(i, 30_000)).collect();
    assert!(records(&split) == expected);
}
