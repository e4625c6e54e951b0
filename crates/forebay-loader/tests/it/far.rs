//! A dataset behind a simulated network is read with more concurrent reads, and gives the same batches.

use crate::dataset;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use dataset::{Recipe, write};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::{Dataset, LocalFiles, ReadAt, ReadProfile, Split, Storage};

/// Number of concurrent reads that the simulated storage waits for before it answers the first one.
const AT_ONCE: usize = 12;

/// Local files with the read profile of remote storage.
#[derive(Debug)]
struct Far {
    files: LocalFiles,
    line: Arc<Line>,
}

#[derive(Debug, Default)]
struct Line {
    state: Mutex<(usize, usize)>,
    changed: Condvar,
}

impl Line {
    /// Blocks until this many reads have been in progress together for the first time.
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        state.1 = state.1.max(state.0);
        self.changed.notify_all();
        let patience = Duration::from_secs(60);
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, patience, |state| state.1 < AT_ONCE)
            .unwrap();
        state.0 -= 1;
    }
}

#[derive(Debug)]
struct FarFile(Arc<dyn ReadAt>, Arc<Line>);

impl ReadAt for FarFile {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        if std::thread::current()
            .name()
            .is_some_and(|name| name.starts_with("fb-read"))
        {
            self.1.wait();
        }
        self.0.read_exact_at(buf, offset)
    }
}

impl Storage for Far {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        let file = self.files.open(path)?;
        Ok(Arc::new(FarFile(file, Arc::clone(&self.line))))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.files.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.files.list(dir)
    }

    fn read_profile(&self) -> ReadProfile {
        let mut profile = ReadProfile::default();
        profile.parallel = 32;
        profile.gap_bytes = 512 << 10;
        profile
    }
}

/// Returns labels, samples and a checksum of the pixels of each batch of two epochs.
fn batches(split: Split, options: &Options) -> Vec<(Vec<i64>, Vec<u64>, u64)> {
    let mut loader = Loader::new(split, options.clone()).unwrap();
    let mut found = Vec::new();
    for _ in 0..2 {
        while let Some(batch) = loader.next_batch().unwrap() {
            let sum = batch.payload.iter().map(|&byte| u64::from(byte)).sum();
            found.push((batch.labels, batch.samples, sum));
        }
    }
    found
}

#[test]
fn remote_storage_is_read_with_more_concurrency() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = Recipe {
        records: 400,
        shards: 5,
        ..Recipe::default()
    };
    write(dir.path(), &recipe);
    let near = dataset::open(dir.path());
    let line = Arc::<Line>::default();
    let far = Arc::new(Far {
        files: LocalFiles::new(8),
        line: Arc::clone(&line),
    });
    let far = Dataset::options().storage(far).open(dir.path()).unwrap();
    let far = far.split("train").unwrap();
    let mut options = Options::new(32, Transform::Train(TrainTransform::new(8)));
    options.seed = 5;
    options.threads = 2;
    assert_eq!(batches(far.clone(), &options), batches(near, &options));
    assert!(line.state.lock().unwrap().1 >= AT_ONCE);

    let loader = Loader::new(far.clone(), options.clone()).unwrap();
    assert_eq!(loader.stats().fetch.threads, 32);
    assert_eq!(
        loader.stats().storage,
        Some(dir.path().display().to_string())
    );
    // An explicit number of readers is used as given.
    options.readers = 3;
    let loader = Loader::new(far, options).unwrap();
    assert_eq!(loader.stats().fetch.threads, 3);
}
