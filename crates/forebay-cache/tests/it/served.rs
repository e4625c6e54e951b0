//! Datasets read from a web server, with and without faults.

use crate::packed;
use crate::web;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_cache::{Cache, CacheOptions};
use forebay_cache::{ReadError, ReadOptions, open_dataset, read_storage};
use forebay_shard::verify::{VerifyOptions, verify_dataset_in};
use forebay_shard::{ShardFormat, Split};
use forebay_store::{Error, Location, Retry, StoreOptions};
use packed::{Recipe, record};
use web::Web;

fn options(give_up_after: Duration) -> ReadOptions {
    let waits = (Duration::from_millis(10), Duration::from_millis(100));
    let retry = Retry {
        give_up_after,
        first_wait: waits.0,
        max_wait: waits.1,
        ..Retry::default()
    };
    ReadOptions::new(StoreOptions::new().with_retry(retry))
}

fn patient() -> ReadOptions {
    options(Duration::from_secs(600))
}

fn served(recipe: &Recipe) -> (tempfile::TempDir, Web, Location) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("set")).unwrap();
    packed::write(&dir.path().join("set"), recipe);
    let web = Web::start(dir.path());
    let location = Location::parse(format!("{}/set", web.url())).unwrap();
    (dir, web, location)
}

fn read_all(split: &Split, most_bytes: u64) {
    let mut i = 0;
    for shard in split.shards() {
        let mut scan = shard.scan(0..shard.len());
        while let Some(found) = scan.next_record().unwrap() {
            assert!(found.bytes == record(i, most_bytes), "record {i}");
            i += 1;
        }
    }
    assert_eq!(i, split.len());
}

/// The storage counts fetched bytes, retries, and cache hits and misses.
#[test]
fn reads_retries_and_cache_hits_are_counted() {
    let recipe = Recipe {
        records: 200,
        shards: 2,
        ..Recipe::default()
    };
    let (dir, web, location) = served(&recipe);
    let cache = CacheOptions {
        dir: Some(dir.path().join("cache")),
        ..CacheOptions::default()
    };
    let cache = Arc::new(Cache::open(&cache).unwrap());
    for (kept, faulty) in [
        (None, false),
        (None, true),
        (Some(&cache), false),
        (Some(&cache), false),
    ] {
        web.state.faulty.store(faulty, Ordering::SeqCst);
        let options = patient().with_cache(kept.cloned()).for_loader();
        let split = open_dataset(&location, &options)
            .unwrap()
            .split("train")
            .unwrap();
        let storage = Arc::clone(split.shards()[0].storage());
        read_all(&split, recipe.most_bytes);
        let stats = storage.stats().unwrap();
        let disk = cache.stats().disk;
        assert_eq!(stats.retries > 0, faulty, "{stats:?}");
        assert_eq!(stats.cache.is_some(), kept.is_some());
        let stored: u64 = split.shards().iter().map(|shard| shard.file_len()).sum();
        let Some(found) = stats.cache else {
            assert!(stats.fetched_bytes > stored / 2, "{stats:?} of {stored}");
            continue;
        };
        assert!(found.hits + found.misses > 0, "{stats:?}");
        // The second storage on this cache counts its own reads only.
        assert!(
            found.hit_bytes + found.miss_bytes <= 2 * stored,
            "{stats:?}"
        );
        assert!(disk.hit_bytes >= found.hit_bytes, "{disk:?} {stats:?}");
    }
    let all = cache.stats();
    assert!(all.hits() > 0 && all.misses > 0, "{all:?}");
}

#[test]
fn each_byte_is_requested_once_in_large_pieces() {
    let recipe = Recipe {
        records: 400,
        shards: 2,
        most_bytes: 100_000,
        ..Recipe::default()
    };
    let (_dir, web, location) = served(&recipe);
    let dataset = open_dataset(&location, &patient()).unwrap();
    let split = dataset.split("train").unwrap();
    // One request for the manifest, and for each shard a HEAD and a read of its end.
    let opening = web.state.take();
    assert_eq!(opening.len(), 1 + 2 * 2, "{opening:?}");
    read_all(&split, recipe.most_bytes);
    let reads = web.state.take();
    let bytes: u64 = reads.iter().filter_map(|read| read.range_bytes).sum();
    let stored: u64 = split
        .shards()
        .iter()
        .map(|shard| shard.byte_range(0..shard.len()).unwrap())
        .map(|range| range.end - range.start)
        .sum();
    // Bytes between the record blocks of a shard may be left out.
    assert!(
        bytes <= stored && bytes + (64 << 10) >= stored,
        "{bytes} of {stored}: {reads:?}"
    );
    assert!(reads.len() < 200, "{} reads of {bytes} bytes", reads.len());
}

#[test]
fn faults_do_not_change_the_records() {
    for format in [ShardFormat::Indexed, ShardFormat::TfRecord] {
        let recipe = Recipe {
            format,
            ..Recipe::default()
        };
        let (_dir, web, location) = served(&recipe);
        web.state.faulty.store(true, Ordering::SeqCst);
        let split = open_dataset(&location, &patient())
            .unwrap()
            .split("train")
            .unwrap();
        read_all(&split, recipe.most_bytes);
        let (root, storage) = read_storage(&location, &patient()).unwrap();
        let report =
            verify_dataset_in(root, &*storage, &VerifyOptions::default(), &|_| {}).unwrap();
        assert!(report.is_ok(), "{report}");
        assert_eq!(
            (report.records, report.shards),
            (recipe.records, recipe.shards)
        );
    }
}

#[test]
fn a_short_outage_is_bridged_and_a_long_one_fails() {
    let recipe = Recipe::default();
    let (_dir, web, location) = served(&recipe);
    let split = open_dataset(&location, &patient())
        .unwrap()
        .split("train")
        .unwrap();
    web.state.take();
    web.state.away.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read_all(&split, recipe.most_bytes));
        // Wait until some requests were refused.
        while web.state.requests.lock().unwrap().len() < 10 {
            std::thread::yield_now();
        }
        web.state.away.store(false, Ordering::SeqCst);
        reader.join().unwrap();
    });
    let hurried = options(Duration::from_millis(500));
    let split = open_dataset(&location, &hurried)
        .unwrap()
        .split("train")
        .unwrap();
    web.state.away.store(true, Ordering::SeqCst);
    let error = split.read(3, &mut Vec::new()).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(ReadError::of(&error), Some(Error::Request { .. })),
        "{text}"
    );
    assert!(
        text.contains("tried") && text.contains("train-00000"),
        "{text}"
    );
}

#[test]
fn a_replaced_shard_is_detected() {
    let recipe = Recipe::default();
    let (dir, _web, location) = served(&recipe);
    let mut options = patient();
    for read_ahead in [0, 8 << 20] {
        options.read_ahead_bytes = read_ahead;
        let split = open_dataset(&location, &options)
            .unwrap()
            .split("train")
            .unwrap();
        let path = dir.path().join("set").join(recipe.name(4));
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(dir.path().join("new"), bytes).unwrap();
        std::fs::rename(dir.path().join("new"), &path).unwrap();
        let error = split.shards()[4]
            .scan(0..50)
            .next_record()
            .map(|_| ())
            .unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(ReadError::of(&error), Some(Error::Changed { .. })),
            "{text}"
        );
        assert!(text.contains(&recipe.name(4)), "{text}");
    }
}

#[test]
fn errors_name_missing_files() {
    let (dir, _web, location) = served(&Recipe::default());
    let elsewhere = location.join("nothing");
    let error = open_dataset(&elsewhere, &patient()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("/set/nothing/forebay.json"), "{text}");
    std::fs::remove_file(dir.path().join("set").join(Recipe::default().name(5))).unwrap();
    let error = open_dataset(&location, &patient())
        .unwrap()
        .split("train")
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&Recipe::default().name(5)), "{text}");
    assert!(text.contains("no such object"), "{text}");
}
