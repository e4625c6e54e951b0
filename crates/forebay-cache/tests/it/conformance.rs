//! Objects of a store behave like local files, with and without cache and readahead.

use std::sync::Arc;

use forebay_cache::{Cache, CacheOptions, ReadOptions, RemoteStorage};
use forebay_rigs::{BUCKET, Gcs, S3Server};
use forebay_shard::storage::conformance;
use forebay_store::{Location, Put, Store, StoreOptions};

/// Runs the suite without a cache, with one in memory and with one on disk, each with and without readahead.
fn check(location: &Location, options: &StoreOptions) {
    let store = Store::open(location, options).unwrap();
    for (name, bytes) in conformance::files() {
        store.put(name, &bytes, Put::Always).unwrap();
    }
    let disk = tempfile::tempdir().unwrap();
    let cache = |memory, dir| {
        let options = CacheOptions {
            dir,
            memory_bytes: memory,
            // Small blocks, so that some of the files have several.
            block_bytes: 64 << 10,
            ..CacheOptions::default()
        };
        Some(Arc::new(Cache::open(&options).unwrap()))
    };
    for cache in [
        None,
        cache(8 << 20, None),
        cache(0, Some(disk.path().to_owned())),
    ] {
        for read_ahead_bytes in [0, 1 << 20] {
            let mut options = ReadOptions::new(options.clone()).with_cache(cache.clone());
            options.read_ahead_bytes = read_ahead_bytes;
            let storage = RemoteStorage::open(location, &options).unwrap();
            conformance::check(&storage, storage.root());
        }
    }
}

fn check_at(scheme: &str, endpoint: String, settings: Vec<(&'static str, String)>) {
    let options = settings.into_iter().fold(
        StoreOptions::new().with_endpoint(endpoint),
        |options, (name, value)| options.with(name, value),
    );
    let location = Location::parse(format!("{scheme}://{BUCKET}/a/set")).unwrap();
    check(&location, &options);
}

#[test]
fn objects_of_s3_are_read_like_files() {
    let server = S3Server::start();
    check_at("s3", server.url(), server.settings());
}

#[test]
fn objects_of_google_are_read_like_files() {
    let server = Gcs::start();
    check_at("gs", server.url(), server.settings());
}
