//! Threads and memory of a process that loads, measured from outside. There is a single test, so that
//! nothing else runs in the process.

#![cfg(target_os = "linux")]

#[path = "it/dataset/mod.rs"]
mod dataset;

use std::time::{Duration, Instant};

use dataset::Recipe;
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};

fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let mut names: Vec<String> = names.map(|name| name.trim().to_owned()).collect();
    names.retain(|name| name.starts_with("fb-"));
    names.sort();
    names
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    status.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
fn threads_and_memory_are_bounded_and_released() {
    let (_directory, split) = dataset::split(&Recipe {
        records: 600,
        ..Recipe::default()
    });
    let mut options = Options::new(32, Transform::Train(TrainTransform::new(64)));
    (options.threads, options.readers) = (2, 3);
    options.memory_bytes = 8 << 20;
    let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
    let expected = [
        "fb-decode-0",
        "fb-decode-1",
        "fb-read-0",
        "fb-read-1",
        "fb-read-2",
    ];
    let mut resident = Vec::new();
    for _ in 0..20 {
        while loader.next_batch().unwrap().is_some() {}
        assert_eq!(threads(), expected);
        resident.push(resident_bytes());
    }
    loader.seek(5, 32).unwrap();
    loader.next_batch().unwrap();
    assert_eq!(threads(), expected);
    let grown = resident[19].saturating_sub(resident[4]);
    assert!(grown < 2 << 20, "{resident:?}");

    drop(loader);
    // The kernel may list a joined thread for a short time.
    let begun = Instant::now();
    while !threads().is_empty() {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", threads());
    }
    for _ in 0..50 {
        let mut loader = Loader::new(split.clone(), options.clone()).unwrap();
        loader.next_batch().unwrap();
    }
    let grown = resident_bytes().saturating_sub(resident[19]);
    assert!(grown < 4 << 20, "{grown} bytes more after fifty loaders");
}
