//! What the server may send: the room that it is granted, and the messages that say so.
//!
//! Owns the writing half of the connection.

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
    /// A connection on which a stream is open: grants it all the room there is. Tells its number.
    pub(crate) fn connected(
        &self,
        server: &str,
        mut writer: FrameWriter<Socket>,
        lanes: Vec<Socket>,
        budget: u64,
    ) -> forebay_wire::Result<u64> {
        // Whoever takes a batch meanwhile waits for the writer and then finds
        // that its credit belonged to an older connection.
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
            state.lanes = lanes;
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

    /// The connection is gone: credits have nowhere to go.
    pub(crate) fn disconnected(&self) {
        *lock(&self.writer) = None;
        let mut state = self.state();
        state.socket = None;
        state.lanes.clear();
    }

    /// Sends a message if there is a connection. A failure shows where the
    /// connection is read.
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

    /// Whether the server may send `bytes`; uses that up, and `next` follows. Where sizes vary it may if it may send
    /// anything.
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

    /// Room for another batch, unless the connection it was taken from is gone.
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
                // The next server gets it.
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

    /// Tells the server that a batch in shared memory is needed no more, unless the connection it came over is gone.
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
