//! Writes the shards of a plan in parallel, within and across shards, with the same bytes for any number of threads.
//!
//! Workers take runs of files (`scheduler`), build their records (`builder`), and write the pieces in order (`shard`).
//! Another thread, the finisher, makes finished shards durable in the order in which they are finished: sidecars, shard,
//! journal line. So workers continue while files are synced, and at most a few shards wait. If files are slow to read,
//! more threads than cores read them. The number of open files is limited to a few per thread.

mod builder;
mod clock;
mod examine;
mod header;
mod output;
mod piece;
mod pool;
mod quarantine;
mod read;
mod record;
mod records;
mod scheduler;
mod shard;
mod source;
mod stream;
mod transcode;

pub(crate) use examine::examine;
pub(crate) use output::{Output, open_shard};
pub(crate) use pool::{Helpers, run_beside};
pub(crate) use quarantine::Quarantine;
pub(crate) use records::RecordFileWriter;
pub(crate) use shard::WrittenShard;

use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer};
use crate::open_files::{self, threads_within};
use crate::plan::PlannedShard;
use crate::prepare::Prepared;
use crate::publish::destination::{Destination, Journal, ShardLine};
use forebay_formats::images::OpenSource;
use scheduler::{Role, WriteScheduler};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};

/// Writes all unfinished shards of the plan. Returns the journal lines of the written ones.
pub(crate) fn write_shards(
    prepared: &Prepared,
    destination: &dyn Destination,
    journal: Journal,
    shards: &[PlannedShard],
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<Vec<ShardLine>> {
    let (jobs, readers) = threads(prepared, shards.len())?;
    let Some(sources) = source::Sources::open(prepared, destination, shards, observer, &|| {
        cancel.is_cancelled()
    })?
    else {
        return Ok(Vec::new());
    };
    let open_max = destination.shards_at_once(jobs);
    let scheduler = WriteScheduler::new(prepared, shards, open_max);
    if sources.is_remote() {
        scheduler.files_are_slow();
    }
    let room = transcode::DecodeMemory::new(jobs);
    let stop = &AtomicBool::new(false);
    let failure: Mutex<Option<Error>> = Mutex::new(None);
    let fail = |error: Error| {
        stop.store(true, Ordering::Relaxed);
        failure
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .get_or_insert(error);
    };
    let stopped = || stop.load(Ordering::Relaxed) || cancel.is_cancelled();
    if let Some(quarantine) = quarantine::Quarantine::of(&prepared.options) {
        quarantine.keep_left_out(&prepared.census, &sources, &stopped)?;
    }
    let (sender, receiver) = sync_channel::<shard::WrittenShard>(jobs.max(1));
    let mut lines = Vec::new();
    let roles =
        std::iter::repeat_n(Role::Writer, jobs).chain(std::iter::repeat_n(Role::Reader, readers));
    let workers = roles.map(|role| {
        let (scheduler, fail, stopped, sources, room) =
            (&scheduler, &fail, &stopped, &sources, &room);
        let sender = sender.clone();
        move || {
            let _wake = WakeOnDrop { scheduler, stop };
            let recorder = record::Recorder::new(prepared, sources, room);
            let builder = builder::PieceBuilder::new(prepared, recorder);
            let worker = Worker {
                builder,
                stream: stream::Stream::new(scheduler, role, stopped),
                sender,
            };
            if let Err(error) = worker.work(scheduler, destination, observer, stopped) {
                fail(error);
            }
        }
    });
    let workers: Vec<_> = workers.collect();
    drop(sender);
    // This thread is the finisher. Shards that were completely written before a stop are still published.
    let finisher = || {
        let mut journal = journal;
        for written in receiver {
            match written.publish(destination, &mut journal, prepared.options.durability) {
                Ok(line) => {
                    observer.shard_done(&line.done(false));
                    lines.push(line);
                }
                Err(error) => {
                    fail(error);
                    break;
                }
            }
        }
    };
    run_beside(workers, finisher)
        .map_err(|error| Error::io(destination.dir().root(), "start threads for", error))?;
    match failure.into_inner().unwrap_or_else(|e| e.into_inner()) {
        Some(error) => Err(error),
        None => Ok(lines),
    }
}

struct Worker<'a, 'b> {
    builder: builder::PieceBuilder<'a>,
    stream: stream::Stream<'a, 'b>,
    sender: SyncSender<shard::WrittenShard>,
}

impl Worker<'_, '_> {
    fn work(
        mut self,
        scheduler: &WriteScheduler<'_>,
        destination: &dyn Destination,
        observer: &dyn Observer,
        stopped: &dyn Fn() -> bool,
    ) -> Result<()> {
        while let Some((run, piece)) = self.stream.next_run() {
            let made = self.builder.make(&run, piece, &mut self.stream, stopped)?;
            let Some(piece) = made else { break };
            self.stream.end_run();
            if let Some(written) = scheduler.put(&run, piece, destination, observer, stopped)? {
                // The finisher stops receiving only after an error, which it has reported.
                if self.sender.send(written).is_err() {
                    break;
                }
            }
        }
        Ok(())
    }
}

/// When a worker ends for any reason, wakes the workers that wait for pieces from it.
struct WakeOnDrop<'a, 'b> {
    scheduler: &'a WriteScheduler<'b>,
    stop: &'a AtomicBool,
}

impl Drop for WakeOnDrop<'_, '_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.store(true, Ordering::Relaxed);
        }
        self.scheduler.wake();
    }
}

fn threads(prepared: &Prepared, shards: usize) -> Result<(usize, usize)> {
    let census = &prepared.census;
    let sources = OpenSource::files(census.splits().len(), census.archives());
    let jobs = prepared.options.decided_jobs();
    let most = match prepared.options.src.is_remote() {
        true => open_files::STORE_THREADS,
        false => open_files::SLOW_THREADS,
    };
    threads_within(open_files::limit(), jobs, shards, sources as u64, most)
}
