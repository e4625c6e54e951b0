//! Measures writes of incompressible bytes; the measured time includes `fsync`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::medium::{ALIGN, Buffer};
use super::report::RunReport;
use super::run::{RunOptions, check_depth, check_memory, in_parallel};
use crate::random::Random;
use crate::{Error, Result};

/// A write benchmark on one file.
#[derive(Debug, Clone)]
pub struct WriteJob {
    /// Path of the file, which is created or overwritten, and not removed afterwards.
    pub path: PathBuf,
    /// Size of the file in bytes, rounded down to whole blocks.
    pub bytes: u64,
    /// Size of a write in bytes, up to 64 MiB.
    pub block: u32,
    /// Whether to write the blocks in pseudo-random order. Each block is written once.
    pub random: bool,
    /// Whether writes bypass the page cache (`O_DIRECT`). `block` must then be a multiple of 4096 bytes.
    pub direct: bool,
}

const LONGEST: u32 = 64 << 20;

/// Writes the file. The measured time includes the final `fsync`.
///
/// # Errors
/// The block size is invalid, the depth is not 1 to 256, the buffers need more than 4 GiB, a write fails, or the run is canceled.
pub fn write(job: &WriteJob, options: &RunOptions) -> Result<RunReport> {
    check_depth(options.depth)?;
    let aligned = !job.direct || (job.block as usize).is_multiple_of(ALIGN);
    if job.block == 0 || job.block > LONGEST || !aligned {
        return Err(format!(
            "invalid block of {} bytes: it must be 1 byte to 64 MiB, and a multiple of {ALIGN} with O_DIRECT",
            job.block
        )
        .into());
    }
    check_memory(options.depth, job.block)?;
    let fail = |what: &str, error: std::io::Error| -> Error {
        format!("cannot {what} \"{}\": {error}", job.path.display()).into()
    };
    let file = open(&job.path, job.direct).map_err(|e| fail("create", e))?;
    let block = u64::from(job.block);
    let blocks = job.bytes / block;
    let (next, syncing) = (AtomicU64::new(0), AtomicU64::new(options.depth as u64));
    // The buffers are filled before the measurement starts.
    let prepared = (0..options.depth as u64).map(|number| {
        let (mut buffer, mut random) = (Buffer::new(job.block), Random::new(number));
        random.fill(buffer.aligned());
        (buffer, random)
    });
    let prepared: Mutex<Vec<(Buffer, Random)>> = Mutex::new(prepared.collect());
    in_parallel(options, |begin, worker, stop| {
        let taken = prepared.lock().unwrap_or_else(|e| e.into_inner()).pop();
        let (mut buffer, mut random) = taken.ok_or("there is a buffer for each worker")?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= blocks || stop(worker) {
                break;
            }
            let at = if job.random {
                scatter(number, blocks)
            } else {
                number
            };
            let bytes = &mut buffer.aligned()[..job.block as usize];
            renew(bytes, &mut random);
            let start = Instant::now();
            file.write_all_at(bytes, at * block)
                .map_err(|e| fail("write", e))?;
            let (took, since) = (start.elapsed(), begin.elapsed());
            worker.done(block, took, since, options.interval);
        }
        // The worker that ends last syncs the whole file.
        match syncing.fetch_sub(1, Ordering::AcqRel) {
            1 => file.sync_all().map_err(|e| fail("fsync", e)),
            _ => Ok(()),
        }
    })
}

/// Replaces the first 16 bytes of each 4096-byte page by new random bytes, so that no file system can deduplicate the pages.
pub fn renew(bytes: &mut [u8], random: &mut Random) {
    for page in bytes.chunks_mut(ALIGN) {
        let len = page.len().min(16);
        random.fill(&mut page[..len]);
    }
}

/// Returns the block to write as number `number`: a permutation, multiplication by a step that is coprime to the block count.
fn scatter(number: u64, blocks: u64) -> u64 {
    let mut step = (blocks as f64 * 0.618) as u64 | 1;
    while gcd(step, blocks) != 1 {
        step += 2;
    }
    (u128::from(number) * u128::from(step) % u128::from(blocks.max(1))) as u64
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

#[cfg(target_os = "linux")]
fn open(path: &Path, direct: bool) -> std::io::Result<File> {
    use rustix::fs::OFlags;

    match direct {
        true => super::medium::direct(path, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC),
        false => File::create(path),
    }
}

#[cfg(not(target_os = "linux"))]
fn open(path: &Path, direct: bool) -> std::io::Result<File> {
    match direct {
        true => super::medium::open_direct(path),
        false => File::create(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_written_and_incompressible() {
        let dir = tempfile::tempdir().unwrap();
        for (random, depth) in [(false, 1), (true, 5)] {
            let job = WriteJob {
                path: dir.path().join("file"),
                bytes: 1_000_000,
                block: 8192,
                random,
                direct: false,
            };
            let report = write(&job, &RunOptions::at_depth(depth)).unwrap();
            assert_eq!((report.bytes, report.operations), (122 * 8192, 122));
            let bytes = std::fs::read(&job.path).unwrap();
            assert_eq!(bytes.len(), 122 * 8192);
            let mut blocks: Vec<&[u8]> = bytes.chunks(4096).collect();
            let all = blocks.len();
            blocks.sort_unstable();
            blocks.dedup();
            assert_eq!(blocks.len(), all, "no two pages are the same");
            let zeros = bytes.iter().filter(|&&byte| byte == 0).count();
            assert!(zeros < bytes.len() / 200, "{zeros}");
        }
    }

    #[test]
    fn scatter_is_a_permutation_of_the_blocks() {
        for blocks in [1, 2, 3, 10, 97, 1024, 30_030] {
            let mut all: Vec<u64> = (0..blocks).map(|number| scatter(number, blocks)).collect();
            assert!(blocks < 10 || !all.is_sorted());
            all.sort_unstable();
            assert!(all.into_iter().eq(0..blocks), "{blocks}");
        }
    }

    #[test]
    fn invalid_jobs_are_rejected() {
        let mut job = WriteJob {
            path: "/no/such/dir/file".into(),
            bytes: 8192,
            block: 4096,
            random: false,
            direct: false,
        };
        let error = |job: &WriteJob, depth| {
            write(job, &RunOptions::at_depth(depth))
                .unwrap_err()
                .to_string()
        };
        assert!(error(&job, 1).contains("cannot create \"/no/such/dir/file\""));
        assert!(error(&job, 0).contains("invalid depth"));
        (job.block, job.direct) = (1000, true);
        assert!(error(&job, 1).contains("invalid block of 1000"));
    }
}
