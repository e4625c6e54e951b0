//! The reader threads: read extents in the order in which they are needed.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use forebay_shard::RecordBlock;

use super::extent::Extent;
use super::shared::Shared;
use super::state::Working;
use crate::error::{Error, Result};
use crate::stats::Activity;

/// Number of reads announced to the system beyond those in progress: enough to fill the queue of a disk,
/// and few enough that prefetched bytes are still cached when they are read.
const TOLD_AHEAD: usize = 8;

/// Reads until the pipeline is stopped, as reader number `me`.
pub(super) fn run(shared: &Shared, me: usize) {
    let clock = &shared.telemetry.readers[me];
    while let Some((extent, block, coming)) = take(shared, me) {
        clock.switch(Activity::Busy);
        for piece in &coming {
            shared.source.will_need(piece);
        }
        let data = read(shared, &extent, block);
        let mut state = shared.lock();
        state.reading[me] = None;
        state.store.finish(&extent, data);
        state.wake_waiting(&extent);
        state.store.release(extent);
        shared.advance(&mut state);
    }
}

/// Takes the next extent to read, memory for it, and the reads that follow it; `None` if the
/// pipeline is stopped.
fn take(shared: &Shared, me: usize) -> Option<(Arc<Extent>, RecordBlock, Vec<Range<u64>>)> {
    let mut state = shared.lock();
    loop {
        if state.stopped {
            return None;
        }
        if let Some((extent, block)) = state.store.next_read() {
            state.reading[me] = Some(Working {
                sample: extent.records.start,
                count: extent.records.end - extent.records.start,
                since: Instant::now(),
            });
            let coming = state.store.announce(TOLD_AHEAD);
            shared.wake(&state);
            return Some((extent, block, coming));
        }
        shared.advance(&mut state);
        if state.store.has_reads() {
            continue;
        }
        // The memory budget is exhausted.
        shared.telemetry.readers[me].switch(Activity::Blocked);
        state = shared.signals.readers.wait(state);
    }
}

fn read(shared: &Shared, extent: &Extent, mut block: RecordBlock) -> Result<RecordBlock> {
    let piece = &extent.records;
    let begun = shared.telemetry.begin_read();
    let result = catch_unwind(AssertUnwindSafe(|| {
        shared.source.read(piece, &mut block)?;
        shared.source.stored_bytes(piece)
    }));
    let bytes = match &result {
        Ok(Ok(bytes)) => Some(*bytes),
        _ => None,
    };
    shared.telemetry.end_read(&begun, bytes);
    match result {
        Ok(read) => read.map(|_| block),
        Err(_) => Err(Error::Record {
            place: Box::new(shared.source.place(piece.start)),
            what: format!(
                "reading {} records from here panicked",
                piece.end - piece.start
            ),
        }),
    }
}
