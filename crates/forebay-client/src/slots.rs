//! The memory that a server shares with this client on one connection: which of it batches are in.
//!
//! Nothing the server says is believed. A slot is mapped once, within limits; a batch is in a slot that this side
//! does not have out already, so no two batches are ever in the same bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_wire::{Buffer, Lender, SharedMemory, Socket, wire};

use crate::queue::Queue;

/// Most slots that a connection may have: servers make a dozen.
const MOST: usize = 64;

/// The slots of one connection.
pub(crate) struct Slots {
    /// Each slot that the server named, and its memory unless a batch has it.
    slots: Mutex<HashMap<u32, Option<SharedMemory>>>,
    /// Most bytes of a slot.
    limit: u64,
    /// Of the stream: who writes to the server. It has batches, which have their slots, so it is not held here.
    queue: Weak<Queue>,
    /// Number of the connection: a later one knows nothing of these slots.
    connection: u64,
}

/// Why a batch cannot be where the server says it is.
pub(crate) struct Impossible {
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Slots {
    /// Of a connection whose batches have up to `limit` bytes.
    pub(crate) fn new(limit: u64, queue: &Arc<Queue>, connection: u64) -> Arc<Slots> {
        // Memory is in whole pages, and a larger slot may be used again for a somewhat smaller batch.
        let limit = limit.saturating_add(limit / 4).saturating_add(4 << 20);
        Arc::new(Slots {
            slots: Mutex::default(),
            limit,
            queue: Arc::downgrade(queue),
            connection,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Option<SharedMemory>>> {
        // Changed by single calls.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The payload that `shared` speaks of; `socket` has the file of memory that is new.
    pub(crate) fn payload(
        self: &Arc<Self>,
        shared: &wire::SharedPayload,
        socket: &Socket,
    ) -> Result<Buffer, Impossible> {
        let impossible = |expected: &str, found: String| Impossible {
            expected: expected.to_owned(),
            found,
        };
        for &gone in &shared.gone {
            // Unmapped after the lock is free.
            let given_up = self.lock().remove(&gone);
            if matches!(given_up, Some(None)) {
                let found = format!("slot {gone} given up while a batch is in it");
                return Err(impossible(
                    "slots that stay while batches are in them",
                    found,
                ));
            }
        }
        let slot = shared.slot;
        let memory = match shared.capacity {
            0 => self.lock().get_mut(&slot).and_then(Option::take),
            capacity => Some(self.map(slot, capacity, socket)?),
        };
        let memory = memory.ok_or_else(|| {
            impossible(
                "a batch in a slot that was announced and is free",
                format!("slot {slot}"),
            )
        })?;
        let len = usize::try_from(shared.bytes).unwrap_or(usize::MAX);
        let capacity = memory.capacity();
        let lender = Arc::clone(self) as Arc<dyn Lender>;
        Buffer::lent(memory, len, lender).ok_or_else(|| {
            let found = format!("{len} bytes in slot {slot}");
            impossible(&format!("at most {capacity} bytes"), found)
        })
    }

    fn map(&self, slot: u32, capacity: u64, socket: &Socket) -> Result<SharedMemory, Impossible> {
        let refused = |expected: String, found: String| Err(Impossible { expected, found });
        let file = socket.take_file();
        let mut slots = self.lock();
        if slots.len() >= MOST {
            return refused(format!("at most {MOST} slots"), "another one".to_owned());
        }
        if slots.contains_key(&slot) {
            let found = format!("slot {slot} a second time");
            return refused("each slot once".to_owned(), found);
        }
        if capacity > self.limit {
            let expected = format!("slots of at most {} bytes", self.limit);
            return refused(expected, capacity.to_string());
        }
        let Some(file) = file else {
            let found = format!("no file with slot {slot}");
            return refused("the file of new memory".to_owned(), found);
        };
        let bytes = usize::try_from(capacity).unwrap_or(usize::MAX);
        match SharedMemory::open(slot, &file, bytes) {
            Ok(memory) => {
                slots.insert(slot, None);
                Ok(memory)
            }
            Err(e) => refused(format!("{capacity} bytes of sealed memory"), e.to_string()),
        }
    }
}

impl Lender for Slots {
    fn give_back(&self, memory: SharedMemory) {
        let slot = memory.id();
        let Some(queue) = self.queue.upgrade() else {
            // The stream is over: the memory goes with its last map.
            return;
        };
        // Before the server knows, as it may use it at once.
        if let Some(place) = self.lock().get_mut(&slot) {
            *place = Some(memory);
        }
        queue.release(self.connection, slot);
    }
}
