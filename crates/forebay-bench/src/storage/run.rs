//! Performs a [`ReadJob`] with a fixed number of reads in flight.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use forebay_store::Cancel;

use super::job::{ReadJob, ReadOp};
use super::medium::{Buffer, Handle, Medium};
use super::report::{RunReport, Worker};
use crate::{Error, Result};

/// Maximum number of reads in flight. Each has its own thread and buffer.
pub(super) const DEEPEST: usize = 256;
/// Limit of the memory of all buffers together, in bytes.
const MEMORY: u64 = 4 << 30;
/// Jobs of at most this many files keep all files open. Larger jobs open the file for each read, as loaders of single files do.
const KEPT_OPEN: usize = 128;

/// Options of [`run`] and [`write()`](super::write()).
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Number of reads or writes in flight, 1 to 256. The next one of the job starts when one ends.
    pub depth: usize,
    /// Length of the intervals of [`RunReport::intervals`].
    pub interval: Duration,
    /// Time limit of the run. Operations that have not started by then are skipped, except the first one of each thread.
    pub limit: Option<Duration>,
    /// Cancels the run, which then returns an error.
    pub cancel: Cancel,
}

impl RunOptions {
    /// Returns options with `depth` reads in flight and intervals of 100 ms.
    pub fn at_depth(depth: usize) -> Self {
        Self {
            depth,
            interval: Duration::from_millis(100),
            limit: None,
            cancel: Cancel::new(),
        }
    }
}

/// Starts all reads of a job in order, and discards their bytes.
///
/// # Errors
/// The depth is not 1 to 256, the buffers need more than 4 GiB, a read fails, or the run is canceled.
pub fn run(job: &ReadJob, medium: &Medium, options: &RunOptions) -> Result<RunReport> {
    check_depth(options.depth)?;
    check_memory(options.depth, job.longest())?;
    let reader = Reader {
        job,
        medium,
        kept: (job.files().len() <= KEPT_OPEN && !medium.keeps_files_itself())
            .then(|| job.files().iter().map(|_| OnceLock::new()).collect()),
    };
    let next = AtomicUsize::new(0);
    in_parallel(options, |begin, worker, stop| {
        let mut buffer = Buffer::new(job.longest());
        loop {
            let Some(op) = job.ops().get(next.fetch_add(1, Ordering::Relaxed)) else {
                return Ok(());
            };
            if stop(worker) {
                return Ok(());
            }
            let start = Instant::now();
            reader.perform(op, &mut buffer)?;
            if !op.announce {
                let (took, since) = (start.elapsed(), begin.elapsed());
                worker.done(u64::from(op.len), took, since, options.interval);
            }
        }
    })
}

pub(super) fn check_depth(depth: usize) -> Result<()> {
    match NonZeroUsize::new(depth) {
        Some(depth) if depth.get() <= DEEPEST => Ok(()),
        _ => Err(format!("invalid depth {depth}: it must be 1 to {DEEPEST}").into()),
    }
}

/// Returns an error if the buffers of all threads need more than [`MEMORY`] bytes.
pub(super) fn check_memory(depth: usize, longest: u32) -> Result<()> {
    let bytes = u64::from(longest) * depth as u64;
    match bytes <= MEMORY {
        true => Ok(()),
        false => Err(format!(
            "{depth} buffers of {longest} bytes need {bytes} bytes of memory: the limit is {MEMORY}; use a lower depth"
        )
        .into()),
    }
}

/// Runs `work` on each of `depth` threads. `work` gets the start time of the run, its own figures, and a function that returns
/// whether to stop: after the time limit, a cancellation, or an error of another thread. Returns the first error.
pub(super) fn in_parallel(
    options: &RunOptions,
    work: impl Fn(Instant, &mut Worker, &dyn Fn(&Worker) -> bool) -> Result<()> + Sync,
) -> Result<RunReport> {
    let failed = AtomicBool::new(false);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let begin = Instant::now();
    let stop = |worker: &Worker| {
        let passed = options.limit.is_some_and(|limit| begin.elapsed() >= limit);
        failed.load(Ordering::Relaxed)
            || options.cancel.is_cancelled()
            || passed && worker.has_done_any()
    };
    let run = || {
        let mut worker = Worker::default();
        if let Err(error) = work(begin, &mut worker, &stop) {
            failed.store(true, Ordering::Relaxed);
            let mut failure = failure.lock().unwrap_or_else(|e| e.into_inner());
            failure.get_or_insert(error);
        }
        worker
    };
    let workers: Vec<Worker> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..options.depth).map(|_| scope.spawn(run)).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|worker| worker.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    });
    let took = begin.elapsed();
    if let Some(error) = failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(error);
    }
    if options.cancel.is_cancelled() {
        return Err("it was stopped".into());
    }
    Ok(RunReport::new(workers, took, options.interval))
}

struct Reader<'a> {
    job: &'a ReadJob,
    medium: &'a Medium,
    /// Handles that stay open, by file; `None` if each read opens its file.
    kept: Option<Vec<OnceLock<Arc<Handle>>>>,
}

impl Reader<'_> {
    fn perform(&self, op: &ReadOp, buffer: &mut Buffer) -> Result<()> {
        let path = &self.job.files()[op.file as usize].path;
        let fail = |what: &str, error: std::io::Error| -> Error {
            format!(
                "cannot {what} \"{}\" at {}: {error}",
                path.display(),
                op.offset
            )
            .into()
        };
        let handle = self
            .handle(op.file as usize, path)
            .map_err(|e| fail("open", e))?;
        let range = op.offset..op.offset + u64::from(op.len);
        if op.announce {
            handle.announce(range);
            return Ok(());
        }
        let bytes = handle.read(range, buffer).map_err(|e| fail("read", e))?;
        std::hint::black_box(bytes);
        Ok(())
    }

    fn handle(&self, file: usize, path: &Path) -> std::io::Result<Arc<Handle>> {
        let Some(kept) = &self.kept else {
            return self.medium.open(path).map(Arc::new);
        };
        if let Some(handle) = kept[file].get() {
            return Ok(Arc::clone(handle));
        }
        // Two threads may open the same file at once: the first handle is kept, the other one is closed.
        let handle = Arc::new(self.medium.open(path)?);
        Ok(Arc::clone(kept[file].get_or_init(|| handle)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::cold::{Watch, Way};
    use crate::storage::SizeMix;

    fn files(dir: &Path, count: usize, len: u64) -> Vec<(PathBuf, u64)> {
        let files = (0..count).map(|number| {
            let path = dir.join(format!("{number}"));
            let bytes: Vec<u8> = (0..len).map(|at| (at * 7 + number as u64) as u8).collect();
            std::fs::write(&path, bytes).unwrap();
            (path, len)
        });
        files.collect()
    }

    #[test]
    fn a_job_is_performed_once_at_any_depth() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), 3, 100_001);
        let job = ReadJob::sequential(files, 4096).unwrap();
        let storage = Arc::new(forebay_shard::storage::LocalFiles::within_limits());
        for medium in [Medium::Local { direct: false }, Medium::Storage(storage)] {
            for depth in [1, 7, 256] {
                let report = run(&job, &medium, &RunOptions::at_depth(depth)).unwrap();
                assert_eq!((report.bytes, report.operations), (300_003, 75));
                assert_eq!(report.depth, depth);
                assert_eq!(report.intervals.iter().sum::<u64>(), 300_003);
                assert!(report.latency(0.5) > 0.0 && report.latency(0.5) <= report.latency(1.0));
            }
        }
        for depth in [0, 257] {
            let error = run(
                &job,
                &Medium::Local { direct: false },
                &RunOptions::at_depth(depth),
            );
            assert!(error.unwrap_err().to_string().contains("1 to 256"));
        }
    }

    #[test]
    fn direct_reads_return_the_bytes_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), 1, 50_000);
        let medium = Medium::Local { direct: true };
        let handle = match medium.open(&files[0].0) {
            Ok(handle) => handle,
            // tmpfs of older kernels does not support `O_DIRECT`.
            Err(error) => return assert_eq!(error.kind(), std::io::ErrorKind::Unsupported),
        };
        let expected = std::fs::read(&files[0].0).unwrap();
        let mut buffer = Buffer::new(20_000);
        for range in [
            0..20_000,
            4095..4097,
            49_999..50_000,
            40_961..50_000,
            8192..12_288,
        ] {
            let bytes = handle.read(range.clone(), &mut buffer).unwrap();
            assert!(
                bytes == &expected[range.start as usize..range.end as usize],
                "{range:?}"
            );
        }
        let error = handle.read(49_999..50_001, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof);
        let job = ReadJob::random(files, &SizeMix::fixed(4096), 40, 2).unwrap();
        let watch = Watch::begin(&job.footprint(), Way::Direct);
        let report = run(&job, &medium, &RunOptions::at_depth(4)).unwrap();
        let proof = watch.end(report.bytes, None);
        assert!(
            proof.word() == "cold" || proof.word() == "warm",
            "{}",
            proof.line()
        );
    }

    #[test]
    fn buffers_have_a_limit() {
        check_memory(256, 16 << 20).unwrap();
        let error = check_memory(256, (16 << 20) + 1).unwrap_err().to_string();
        assert!(error.contains("use a lower depth"), "{error}");
    }

    #[test]
    fn errors_name_the_file_and_the_offset() {
        let dir = tempfile::tempdir().unwrap();
        let mut files = files(dir.path(), 200, 100);
        files[150].1 = 200;
        let job = ReadJob::whole_files(files.clone()).unwrap();
        let error = run(
            &job,
            &Medium::Local { direct: false },
            &RunOptions::at_depth(3),
        )
        .unwrap_err();
        assert!(error.to_string().contains("150\" at 0"), "{error}");
        files[150].1 = 100;
        files[3].0 = dir.path().join("gone");
        let job = ReadJob::whole_files(files).unwrap();
        let error = run(
            &job,
            &Medium::Local { direct: false },
            &RunOptions::at_depth(3),
        )
        .unwrap_err();
        assert!(error.to_string().contains("cannot open"), "{error}");
    }

    #[test]
    fn a_run_ends_at_its_time_limit_and_when_canceled() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path(), 1, 1 << 20);
        let job = ReadJob::random(files, &SizeMix::fixed(512), 3_000_000, 2).unwrap();
        let medium = Medium::Local { direct: false };
        let mut options = RunOptions::at_depth(2);
        options.limit = Some(Duration::from_millis(200));
        let report = run(&job, &medium, &options).unwrap();
        assert!(report.operations > 0 && report.operations < 3_000_000);
        options.cancel.cancel();
        assert!(
            run(&job, &medium, &options)
                .unwrap_err()
                .to_string()
                .contains("stopped")
        );
    }
}
