//! The reader threads: read extents in the order in which they are needed.

use std::panic::{AssertUnwindSafe, catch_unwind};

use forebay_shard::RecordBlock;

use super::extent::Extent;
use super::shared::Shared;
use super::state::ReadJob;
use crate::error::{Error, Result};
use crate::stats::Activity;

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
        state.finish_read(me, extent, data);
        shared.advance(&mut state);
    }
}

/// Takes the next job; `None` if the pipeline is stopped.
fn take(shared: &Shared, me: usize) -> Option<ReadJob> {
    let mut state = shared.lock();
    loop {
        if state.failures.is_stopped() {
            return None;
        }
        if let Some(job) = state.next_read(me) {
            shared.wake(&state);
            return Some(job);
        }
        shared.advance(&mut state);
        if state.has_read() {
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
