//! The writing half of the connection: grants credit, releases memory, answers and requests.

use std::thread;
use std::time::{Duration, Instant};

use forebay_wire::{FrameWriter, Message, Socket, wire};

use super::{Queue, lock};
use crate::options::Via;

fn credit(bytes: u64, waited: Duration) -> wire::Credit {
    wire::Credit {
        bytes,
        waited_us: u64::try_from(waited.as_micros()).unwrap_or(u64::MAX),
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
        let mut state = self.state();
        let via = Via::of(writer.get_ref());
        let connection = state.link.begin(server, via, more, Instant::now());
        let room = state.credit.begin(budget);
        let offered = state.handover.clear();
        let waited = state.counters.waited();
        drop(state);
        drop(offered);
        writer.write(&credit(room, waited).into(), &[])?;
        *slot = Some((connection, writer));
        self.state().link.connected();
        Ok(connection)
    }

    /// Unregisters the connection; credit is not sent until there is a new one.
    pub(crate) fn disconnected(&self) {
        *lock(&self.writer) = None;
        self.state().link.disconnected();
    }

    /// Sends a message if there is a connection. Errors surface where the connection is read.
    pub(crate) fn send(&self, message: &Message) {
        if let Some((_, writer)) = &mut *lock(&self.writer) {
            let _ = writer.write(message, &[]);
        }
    }

    /// As [`Queue::send`], unless another thread is sending for all of `limit`.
    pub(super) fn send_within(&self, message: &Message, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            match self.writer.try_lock() {
                Ok(mut slot) => {
                    if let Some((_, writer)) = &mut *slot {
                        let _ = writer.write(message, &[]);
                    }
                    return;
                }
                Err(_) if Instant::now() >= until => return,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        }
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
        let mut state = self.state();
        // During a switch, it is granted to the next server instead.
        if state.handover.hold_back(bytes) {
            return;
        }
        let bytes = state.credit.grant(bytes);
        let waited = state.counters.waited();
        drop(state);
        if bytes > 0 {
            let _ = writer.write(&credit(bytes, waited).into(), &[]);
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
