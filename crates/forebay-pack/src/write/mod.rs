//! Writing the plan's shards: in parallel, each on its own, the same bytes whoever writes them.
//!
//! Workers read images and write shards; one more thread, the finisher, makes them durable in the order in which they
//! come: sidecars, shard, journal line. So workers go on while the disk catches up, and at most a few
//! files wait. A handful of files are open for each worker, never more.

mod read;
mod record;
mod shard;
mod source;

pub(crate) use shard::write_file;

use crate::destination::{Destination, Journal, ShardLine};
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, ShardDone};
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

/// Files that a worker has open at once, the finisher's share included: images, shard, a finished shard that waits.
const FILES_PER_JOB: u64 = 4 + read::AHEAD_FILES as u64;
/// Files that the process has open besides.
const FILES_BESIDE: u64 = 24;

/// Writes all shards of the plan but those that are done. Returns the lines of the written ones.
pub(crate) fn write_shards(
    prepared: &Prepared,
    destination: &Destination,
    journal: Journal,
    shards: &[PlannedShard],
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Vec<ShardLine>> {
    let jobs = prepared
        .options
        .decided_jobs()
        .min(jobs_by_open_files()?)
        .min(shards.len());
    let Some(sources) = source::Sources::open(prepared, destination, shards, observer, &|| {
        cancel.is_cancelled()
    })?
    else {
        return Ok(Vec::new());
    };
    let next = AtomicUsize::new(0);
    let stop = AtomicBool::new(false);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let fail = |error: Error| {
        stop.store(true, Ordering::Relaxed);
        failure
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .get_or_insert(error);
    };
    let stopped = || stop.load(Ordering::Relaxed) || cancel.is_cancelled();
    let (sender, receiver) = sync_channel::<shard::WrittenShard>(jobs.max(1));
    let mut lines = Vec::new();
    std::thread::scope(|scope| {
        let (next, fail, stopped, sources) = (&next, &fail, &stopped, &sources);
        for _ in 0..jobs {
            let sender = sender.clone();
            scope.spawn(move || {
                let mut recorder = record::Recorder::new(prepared, sources);
                while let Some(planned) = shards.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // A shard that is shorter than the steps in which it looks never would.
                    if stopped() {
                        return;
                    }
                    match shard::write(
                        prepared,
                        destination,
                        planned,
                        &mut recorder,
                        observer,
                        stopped,
                    ) {
                        Ok(Some(written)) => {
                            // The finisher hangs up only after an error, which it has reported.
                            if sender.send(written).is_err() {
                                return;
                            }
                        }
                        Ok(None) => return,
                        Err(error) => return fail(error),
                    }
                }
            });
        }
        drop(sender);
        // The finisher is this thread. What was fully written before a stop is still kept.
        let mut journal = journal;
        for written in receiver {
            match written.publish(destination, &mut journal, prepared.options.durability) {
                Ok(line) => {
                    observer.shard_done(&ShardDone {
                        name: line.name.clone(),
                        records: line.records,
                        bytes: line.bytes,
                        resumed: false,
                    });
                    lines.push(line);
                }
                Err(error) => {
                    fail(error);
                    break;
                }
            }
        }
    });
    match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(error) => Err(error),
        None => Ok(lines),
    }
}

/// How many workers the limit on open files allows.
fn jobs_by_open_files() -> Result<usize> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile)
        .current
        .unwrap_or(u64::MAX);
    let jobs = limit.saturating_sub(FILES_BESIDE) / FILES_PER_JOB;
    if jobs == 0 {
        let needed = FILES_BESIDE + FILES_PER_JOB;
        return Err(Error::OpenFiles { limit, needed });
    }
    Ok(usize::try_from(jobs).unwrap_or(usize::MAX))
}
