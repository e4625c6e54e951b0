//! What a reader does: read extents in the order in which they are needed.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_shard::RecordBlock;

use super::Shared;
use super::extent::Extent;
use super::state::Working;
use crate::error::{Error, Result};
use crate::stats::Activity;

/// Reads until the pipeline is stopped, as reader number `me`.
pub(super) fn run(shared: &Shared, me: usize) {
    let clock = &shared.readers[me];
    while let Some((extent, block)) = take(shared, me) {
        clock.switch(Activity::Busy);
        let data = read(shared, &extent, block);
        let mut state = shared.lock();
        state.reading[me] = None;
        state.store.finish(&extent, data);
        state.wake_waiting(&extent);
        state.store.release(extent);
        state.advance(&*shared.source);
        shared.wake(&state);
    }
}

/// The next extent to read; `None` when the pipeline is stopped.
fn take(shared: &Shared, me: usize) -> Option<(Arc<Extent>, RecordBlock)> {
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
            shared.wake(&state);
            return Some((extent, block));
        }
        state.advance(&*shared.source);
        shared.wake(&state);
        if state.store.has_reads() {
            continue;
        }
        // Everything that there is room for was read.
        shared.readers[me].switch(Activity::Blocked);
        state.idle_readers += 1;
        state = Shared::wait(&shared.to_readers, state);
        state.idle_readers -= 1;
    }
}

fn read(shared: &Shared, extent: &Extent, mut block: RecordBlock) -> Result<RecordBlock> {
    let piece = &extent.records;
    let result = catch_unwind(AssertUnwindSafe(|| {
        shared.source.read(piece, &mut block)?;
        shared.source.stored_bytes(piece)
    }));
    match result {
        Ok(Ok(bytes)) => {
            shared.bytes_read.fetch_add(bytes, Ordering::Relaxed);
            Ok(block)
        }
        Ok(Err(error)) => Err(error),
        Err(_) => Err(Error::Record {
            place: Box::new(shared.source.place(piece.start)),
            what: format!(
                "reading {} records from here panicked",
                piece.end - piece.start
            ),
        }),
    }
}
