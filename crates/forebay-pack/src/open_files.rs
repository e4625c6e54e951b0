//! The limit of open files, and the number of threads that it allows.

use crate::error::{Error, Result};

/// Number of files that a thread opens in advance of the file that it reads.
pub(crate) const AHEAD_FILES: usize = 8;
/// Number of image files that a thread has open at the same time.
const FILES_PER_THREAD: u64 = 1 + AHEAD_FILES as u64;
/// Number of files per shard that is being written: the shard itself, a finished shard that waits, and a sidecar.
const SHARDS_PER_JOB: u64 = 3;
/// Number of other open files of the process.
const FILES_BESIDE: u64 = 24;
/// Number of threads that read slow files: enough concurrent requests for a disk or a network.
pub(crate) const SLOW_THREADS: usize = 32;
/// Number of threads that read from a store, whose responses take tens of milliseconds regardless of their number.
pub(crate) const STORE_THREADS: usize = 64;

/// Returns an error if the limit of open files is too low for even one thread.
pub(crate) fn check() -> Result<()> {
    threads_within(limit(), 1, 1, 1, SLOW_THREADS).map(|_| ())
}

/// Returns the limit of open files.
pub(crate) fn limit() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current.unwrap_or(u64::MAX)
}

/// Returns the number of working threads, and the number of further threads that read slow files, within the limit.
pub(crate) fn threads_within(
    limit: u64,
    jobs: usize,
    shards: usize,
    sources: u64,
    slow_threads: usize,
) -> Result<(usize, usize)> {
    let room = limit.saturating_sub(FILES_BESIDE + sources);
    let most = room / (FILES_PER_THREAD + SHARDS_PER_JOB);
    if most == 0 {
        let needed = FILES_BESIDE + sources + FILES_PER_THREAD + SHARDS_PER_JOB;
        return Err(Error::OpenFiles { limit, needed });
    }
    if shards == 0 {
        return Ok((0, 0));
    }
    let jobs = jobs.min(usize::try_from(most).unwrap_or(usize::MAX));
    let left = (room - jobs as u64 * (FILES_PER_THREAD + SHARDS_PER_JOB)) / FILES_PER_THREAD;
    let readers = slow_threads.saturating_sub(jobs);
    Ok((
        jobs,
        readers.min(usize::try_from(left).unwrap_or(usize::MAX)),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_stay_within_the_limit_of_open_files() {
        for limit in [37, 64, 100, 256, 1024, u64::MAX] {
            for jobs in [1, 2, 16, 100, 100_000] {
                let (jobs, readers) = threads_within(limit, jobs, 5, 1, SLOW_THREADS).unwrap();
                let open = FILES_BESIDE
                    + 1
                    + jobs as u64 * (FILES_PER_THREAD + SHARDS_PER_JOB)
                    + readers as u64 * FILES_PER_THREAD;
                assert!(jobs >= 1 && open <= limit, "{limit} {jobs} {readers}");
            }
        }
        assert_eq!(threads_within(1024, 2, 5, 1, 32).unwrap(), (2, 30));
        assert!(threads_within(36, 1, 1, 1, 32).is_err());
        assert_eq!(threads_within(1024, 2, 0, 1, 32).unwrap(), (0, 0));
    }
}
