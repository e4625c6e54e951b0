//! Flow control: grants the server credit for the free space in the queue. Owns the writing half of
//! the connection.

use std::time::Instant;

use forebay_wire::{FrameWriter, Message, Socket, wire};

use super::{Queue, lock};
use crate::options::Via;
use crate::sequence::Place;

fn credit(bytes: u64) -> wire::Credit {
    wire::Credit {
        bytes,
        ..wire::Credit::default()
    }
}

impl Queue {
    /// Registers a connection with an open stream and grants all free space as its credit. Returns
    /// its number.
    pub(crate) fn connected(
        &self,
        server: &str,
        mut writer: FrameWriter<Socket>,
        more: Vec<Socket>,
        budget: u64,
    ) -> forebay_wire::Result<u64> {
        // Locked first: a consumer that takes a batch meanwhile waits here, then finds that its
        // credit belonged to an older connection.
        let mut slot = lock(&self.writer);
        let (connection, room) = {
            let mut state = self.state();
            state.connection += 1;
            state.budget = budget;
            let room = budget.saturating_sub(state.queued_bytes);
            state.outstanding = room.into();
            state.withheld = state.queued_bytes.saturating_sub(budget);
            state.server = server.to_owned();
            state.via = Via::of(writer.get_ref());
            state.more = more;
            state.switch_at = None;
            state.offered = None;
            state.held_back = 0;
            state.nowhere = false;
            state.last_sign = Some(Instant::now());
            (state.connection, room)
        };
        writer.write(&credit(room).into(), &[])?;
        *slot = Some((connection, writer));
        Ok(connection)
    }

    /// Unregisters the connection; credit is not sent until there is a new one.
    pub(crate) fn disconnected(&self) {
        *lock(&self.writer) = None;
        let mut state = self.state();
        state.socket = None;
        state.more.clear();
    }

    /// Sends a message if there is a connection. Errors surface where the connection is read.
    pub(crate) fn send(&self, message: &Message) {
        if let Some((_, writer)) = &mut *lock(&self.writer) {
            let _ = writer.write(message, &[]);
        }
    }

    /// As [`Queue::send`], unless another thread is sending.
    pub(crate) fn try_send(&self, message: &Message) {
        if let Ok(mut slot) = self.writer.try_lock()
            && let Some((_, writer)) = &mut *slot
        {
            let _ = writer.write(message, &[]);
        }
    }

    /// Consumes credit for `bytes` and advances to `next`; false if the server has no such credit.
    /// If sizes vary, any remaining credit suffices.
    pub(crate) fn expect(&self, bytes: u64, varies: bool, next: Place) -> bool {
        let mut state = self.state();
        let needed = if varies { 1 } else { bytes };
        let may = state.outstanding >= needed.into();
        if may {
            state.outstanding -= i128::from(bytes);
            state.next = next;
        }
        may
    }

    /// Grants the credit of a taken batch, unless its connection is gone.
    pub(super) fn give_back(&self, connection: u64, bytes: u64) {
        let mut slot = lock(&self.writer);
        let Some((current, writer)) = &mut *slot else {
            return;
        };
        if *current != connection {
            return;
        }
        let bytes = {
            let mut state = self.state();
            if state.switch_at.is_some() {
                // Granted to the next server instead.
                state.held_back += bytes;
                return;
            }
            let kept = state.withheld.min(bytes);
            state.withheld -= kept;
            state.outstanding += i128::from(bytes - kept);
            bytes - kept
        };
        if bytes > 0 {
            let _ = writer.write(&credit(bytes).into(), &[]);
        }
    }

    /// Tells the server that a batch in shared memory is released, unless its connection is gone.
    pub(crate) fn release(&self, connection: u64, slot: u32) {
        if let Some((current, writer)) = &mut *lock(&self.writer)
            && *current == connection
        {
            let released = wire::Credit {
                released: vec![slot],
                ..wire::Credit::default()
            };
            let _ = writer.write(&released.into(), &[]);
        }
    }
}
