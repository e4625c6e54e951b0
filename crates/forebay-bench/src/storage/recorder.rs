//! A storage wrapper that records the reads of its callers, so that a run can repeat them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_shard::storage::{ReadAt, ReadProfile, Storage, StorageStats};

use super::job::{JobFile, ReadJob, ReadOp};
use crate::Result;

/// Longer reads are recorded as several reads of at most this many bytes.
const PIECE: u64 = 64 << 20;

/// Forwards all calls to another storage, and records reads and readahead hints in the order in which they start.
#[derive(Debug, Clone)]
pub struct Recorder {
    inner: Arc<dyn Storage>,
    log: Arc<Log>,
}

/// The result of a recording.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The recorded reads and readahead hints.
    pub job: ReadJob,
    /// The highest number of reads that were in flight at once.
    pub depth: usize,
}

#[derive(Debug, Default)]
struct Log {
    state: Mutex<State>,
    in_flight: AtomicUsize,
    most: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    numbers: HashMap<PathBuf, u32>,
    files: Vec<JobFile>,
    /// The storage of each file: mapped shards refer to files in other storages.
    storages: Vec<Arc<dyn Storage>>,
    ops: Vec<ReadOp>,
}

impl Recorder {
    /// Wraps a storage whose reads are recorded.
    pub fn new(inner: Arc<dyn Storage>) -> Self {
        Self {
            inner,
            log: Arc::default(),
        }
    }

    /// Discards the reads recorded so far, for example those of opening a dataset.
    pub fn clear(&self) {
        self.log.lock().ops.clear();
        self.log.most.store(0, Ordering::Relaxed);
    }

    /// Returns the reads since the last [`clear`](Self::clear).
    ///
    /// # Errors
    /// A read ends beyond the length that its file had at the first open: the file has grown since.
    pub fn recorded(&self) -> Result<Recorded> {
        let state = self.log.lock();
        Ok(Recorded {
            job: ReadJob::new(state.files.clone(), state.ops.clone())?,
            depth: self.log.most.load(Ordering::Relaxed).max(1),
        })
    }

    /// Returns a storage that holds the recorded files only, and does not record.
    pub fn files(&self) -> Arc<dyn Storage> {
        let state = self.log.lock();
        let paths = state.files.iter().map(|file| file.path.clone());
        let files = paths.zip(state.storages.iter().cloned()).collect();
        Arc::new(RecordedFiles(files))
    }
}

impl Log {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No call leaves the lists half updated, so they stay valid after a panic of another thread.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self, path: &Path, len: u64, storage: &Arc<dyn Storage>) -> u32 {
        let mut state = self.lock();
        if let Some(&number) = state.numbers.get(path) {
            return number;
        }
        let number = state.files.len() as u32;
        state.numbers.insert(path.to_owned(), number);
        state.files.push(JobFile::from((path, len)));
        state.storages.push(Arc::clone(storage));
        number
    }

    fn add(&self, file: u32, announce: bool, range: Range<u64>) {
        let mut state = self.lock();
        let mut offset = range.start;
        while offset < range.end {
            let len = (range.end - offset).min(PIECE);
            state.ops.push(ReadOp {
                file,
                announce,
                len: len as u32,
                offset,
            });
            offset += len;
        }
    }

    /// Records a read, performs it, and counts it as in flight until it returns.
    fn read<T>(
        &self,
        file: u32,
        range: Range<u64>,
        read: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.add(file, false, range);
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        let result = read();
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        result
    }
}

impl Storage for Recorder {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        let inner = self.inner.open(path)?;
        let number = self.log.number(path, inner.len(), &self.inner);
        Ok(Arc::new(RecordedFile {
            inner,
            number,
            log: Arc::clone(&self.log),
        }))
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        self.inner.list(dir)
    }

    fn expect(&self, dir: &Path, files: usize) {
        self.inner.expect(dir, files);
    }

    fn open_location(&self, location: &str) -> io::Result<(PathBuf, Arc<dyn Storage>)> {
        let (path, inner) = self.inner.open_location(location)?;
        let log = Arc::clone(&self.log);
        Ok((path, Arc::new(Self { inner, log })))
    }

    fn stats(&self) -> Option<StorageStats> {
        self.inner.stats()
    }

    fn read_profile(&self) -> ReadProfile {
        self.inner.read_profile()
    }
}

#[derive(Debug)]
struct RecordedFile {
    inner: Arc<dyn ReadAt>,
    number: u32,
    log: Arc<Log>,
}

impl ReadAt for RecordedFile {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn version(&self) -> Option<&str> {
        self.inner.version()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        let read = || self.inner.read_exact_at(buf, offset);
        self.log.read(self.number, range, read)
    }

    fn read_parts_at(&self, parts: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let room: usize = parts.iter().map(|part| part.len()).sum();
        let end = offset.saturating_add(room as u64).min(self.inner.len());
        let read = || self.inner.read_parts_at(parts, offset);
        self.log.read(self.number, offset..end.max(offset), read)
    }

    fn will_need(&self, bytes: Range<u64>) {
        let end = bytes.end.min(self.inner.len());
        self.log
            .add(self.number, true, bytes.start..end.max(bytes.start));
        self.inner.will_need(bytes);
    }

    fn forget(&self, bytes: Range<u64>) {
        self.inner.forget(bytes);
    }
}

/// Maps the path of each recorded file to its storage.
#[derive(Debug)]
struct RecordedFiles(HashMap<PathBuf, Arc<dyn Storage>>);

impl Storage for RecordedFiles {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        let storage = self.0.get(path).ok_or(io::ErrorKind::NotFound)?;
        storage.open(path)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.0.contains_key(path))
    }

    fn list(&self, _: &Path) -> io::Result<Vec<OsString>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use forebay_shard::storage::MemoryStorage;

    use super::*;
    use crate::storage::{Medium, RunOptions, run};

    #[test]
    fn reads_are_recorded_in_order_and_can_be_repeated() {
        let memory = MemoryStorage::from_iter([("d/a", vec![1u8; 1000]), ("d/b", vec![2u8; 10])]);
        let recorder = Recorder::new(Arc::new(memory));
        let open = |name| recorder.open(Path::new(name)).unwrap();
        open("d/b").read_exact_at(&mut [0; 10], 0).unwrap();
        recorder.clear();
        open("d/a").will_need(900..2000);
        open("d/a").read_exact_at(&mut [0; 50], 100).unwrap();
        let (mut one, mut two) = ([0; 5], [0; 30]);
        let mut parts = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        assert_eq!(open("d/a").read_parts_at(&mut parts, 980).unwrap(), 20);
        assert!(open("d/b").read_exact_at(&mut [], 0).is_ok());
        let recorded = recorder.recorded().unwrap();
        let ops: Vec<_> = recorded
            .job
            .ops()
            .iter()
            .map(|op| (op.announce, op.offset, op.len))
            .collect();
        assert_eq!(ops, [(true, 900, 100), (false, 100, 50), (false, 980, 20)]);
        assert!(recorded.job.ops().iter().all(|op| op.file == 1));
        assert_eq!(
            (recorded.job.bytes(), recorded.job.reads(), recorded.depth),
            (70, 2, 1)
        );
        let medium = Medium::Storage(recorder.files());
        let report = run(&recorded.job, &medium, &RunOptions::at_depth(2)).unwrap();
        assert_eq!((report.bytes, report.operations), (70, 2));
        assert_eq!(
            recorder.recorded().unwrap().job.reads(),
            2,
            "a replay is not recorded"
        );
        assert!(recorder.open(Path::new("d/c")).is_err());
    }

    #[test]
    fn recorder_forwards_to_the_inner_storage() {
        let files = [("a", vec![3u8; 100_000]), ("b", vec![])];
        let memory = files
            .iter()
            .map(|(name, bytes)| (format!("d/{name}"), bytes.clone()));
        let recorder = Recorder::new(Arc::new(MemoryStorage::from_iter(memory)));
        let mut buf = vec![0; 100_000];
        recorder
            .open(Path::new("d/a"))
            .unwrap()
            .read_exact_at(&mut buf, 0)
            .unwrap();
        assert_eq!(buf, files[0].1);
        assert!(recorder.exists(Path::new("d/b")).unwrap());
        assert!(recorder.open(Path::new("d/b")).unwrap().is_empty());
        assert_eq!(
            recorder.read(Path::new("d/a"), 100_000).unwrap(),
            files[0].1
        );
        assert_eq!(recorder.read_profile(), ReadProfile::default());
        assert_eq!(recorder.stats(), None);
    }
}
