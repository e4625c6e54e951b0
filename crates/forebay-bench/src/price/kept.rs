//! Reads from memory: the same bytes as those of a storage, without the storage.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use forebay_shard::storage::{ReadAt, Storage};
use forebay_store::for_each_parallel;

use crate::storage::{ReadJob, ReadOp, RunOptions};
use crate::{Error, Result};

/// Maximum number of bytes that are kept.
const MOST: u64 = 256 << 20;
/// Approximate number of reads of a repeated job: more than a run from memory makes.
const REPEATED: usize = 200_000;

/// Ranges of files, in memory.
#[derive(Debug, Default)]
pub(super) struct Kept(HashMap<PathBuf, Arc<Ranges>>);

/// Ranges of one file by offset.
#[derive(Debug, Default)]
struct Ranges {
    len: u64,
    by_offset: HashMap<u64, Vec<u8>>,
}

/// Performs reads of a job until its time is up or enough bytes are kept, but at least one. Returns a job that repeats these
/// reads, and their bytes.
///
/// # Errors
/// A read fails, or the job has no reads.
pub(super) fn keep(
    job: &ReadJob,
    storage: &dyn Storage,
    how: &RunOptions,
) -> Result<(ReadJob, Kept)> {
    let begin = Instant::now();
    let wanted = AtomicU64::new(0);
    let read: Mutex<Vec<(usize, Vec<u8>)>> = Mutex::default();
    let ops = job.ops().iter().enumerate().filter(|(_, op)| !op.announce);
    for_each_parallel(ops, how.depth, |(number, op)| {
        let before = wanted.fetch_add(u64::from(op.len), Ordering::Relaxed);
        let is_late = how.limit.is_some_and(|limit| begin.elapsed() >= limit);
        if before > 0 && (is_late || before + u64::from(op.len) > MOST) {
            return Ok(());
        }
        let path = &job.files()[op.file as usize].path;
        let mut bytes = vec![0; op.len as usize];
        let done = storage
            .open(path)
            .and_then(|file| file.read_exact_at(&mut bytes, op.offset));
        done.map_err(|error| {
            let (path, offset) = (path.display(), op.offset);
            Error::from(format!("cannot read \"{path}\" at {offset}: {error}"))
        })?;
        let mut read = read.lock().unwrap_or_else(PoisonError::into_inner);
        read.push((number, bytes));
        Result::Ok(())
    })?;
    let mut read = read.into_inner().unwrap_or_else(PoisonError::into_inner);
    read.sort_by_key(|(number, _)| *number);
    let ops: Vec<ReadOp> = read.iter().map(|(number, _)| job.ops()[*number]).collect();
    if ops.is_empty() {
        return Err("there are no reads to keep in memory".into());
    }
    let mut files: HashMap<PathBuf, Ranges> = HashMap::new();
    for (op, (_, bytes)) in ops.iter().zip(read) {
        let file = &job.files()[op.file as usize];
        let ranges = files.entry(file.path.clone()).or_default();
        ranges.len = file.len;
        ranges.by_offset.insert(op.offset, bytes);
    }
    let files = files.into_iter().map(|(path, file)| (path, Arc::new(file)));
    let repeated = ops.repeat((REPEATED / ops.len()).max(1));
    let job = ReadJob::new(job.files().to_vec(), repeated)?;
    Ok((job, Kept(files.collect())))
}

impl Storage for Kept {
    fn open(&self, path: &Path) -> io::Result<Arc<dyn ReadAt>> {
        match self.0.get(path) {
            Some(file) => Ok(Arc::<Ranges>::clone(file)),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        Ok(self.0.contains_key(path))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<OsString>> {
        let files = self.0.keys().filter(|file| file.parent() == Some(dir));
        Ok(files
            .filter_map(|file| Some(file.file_name()?.to_owned()))
            .collect())
    }
}

impl ReadAt for Ranges {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        let range = self.by_offset.get(&offset);
        let bytes = range.and_then(|bytes| bytes.get(..buf.len()));
        let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        buf.copy_from_slice(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_shard::storage::LocalFiles;

    use super::*;
    use crate::storage::{Medium, run};

    #[test]
    fn kept_reads_return_their_bytes_after_the_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let job = ReadJob::sequential([(path.clone(), 100_000)], 30_000).unwrap();
        let how = RunOptions::at_depth(3);
        let (again, kept) = keep(&job, &LocalFiles::within_limits(), &how).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(again.ops()[..4], *job.ops());
        assert_eq!(again.ops()[4..8], *job.ops());
        let file = kept.open(&path).unwrap();
        let mut found = vec![0; 30_000];
        file.read_exact_at(&mut found, 60_000).unwrap();
        assert!(found == bytes[60_000..90_000]);
        assert!(file.read_exact_at(&mut found, 90_000).is_err());
        assert!(file.read_exact_at(&mut found, 1).is_err());
        assert!(kept.open(&dir.path().join("b")).is_err());
        let report = run(&again, &Medium::Storage(Arc::new(kept)), &how).unwrap();
        assert_eq!(report.bytes, again.bytes());
    }

    #[test]
    fn one_read_is_kept_however_short_the_time_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [1; 1000]).unwrap();
        let job = ReadJob::sequential([(path.clone(), 1000)], 10).unwrap();
        let mut how = RunOptions::at_depth(1);
        how.limit = Some(Duration::ZERO);
        let files = LocalFiles::within_limits();
        let (again, _) = keep(&job, &files, &how).unwrap();
        assert!(again.ops().iter().all(|op| *op == job.ops()[0]));
        assert!(keep(&ReadJob::default(), &files, &how).is_err());
        std::fs::remove_file(&path).unwrap();
        let error = keep(&job, &LocalFiles::within_limits(), &how).unwrap_err();
        assert!(error.to_string().contains("a\" at 0"), "{error}");
    }
}
