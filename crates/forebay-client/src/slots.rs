//! Client side of the shared memory of one connection: tracks which slots hold batches.
//!
//! The server is not trusted. A slot is mapped once, within limits, and a batch may only be in a
//! slot that this side does not hold already, so two batches never share memory.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_wire::{Buffer, HostRegistry, Lender, SharedMemory, Socket, wire};

use crate::queue::Queue;

/// Maximum number of slots per connection; servers use a dozen.
const MOST: usize = 64;

/// The slots of one connection.
pub(crate) struct Slots {
    /// The known slots; `None` while a batch holds the slot's memory.
    slots: Mutex<HashMap<u32, Option<SharedMemory>>>,
    /// Maximum slot size, in bytes.
    limit: u64,
    /// Registers each slot for a device.
    registry: Option<HostRegistry>,
    /// The queue of the stream, for messages to the server. Weak, because the queue holds batches,
    /// which hold their slots.
    queue: Weak<Queue>,
    /// Number of the connection. Slots are invalid on later connections.
    connection: u64,
}

/// The error for a slot that the server named but that cannot hold the batch.
pub(crate) struct Impossible {
    pub(crate) expected: String,
    pub(crate) found: String,
}

impl Slots {
    /// Creates the registry of a connection whose batches have up to `limit` bytes.
    pub(crate) fn new(
        limit: u64,
        registry: Option<HostRegistry>,
        queue: &Arc<Queue>,
        connection: u64,
    ) -> Arc<Slots> {
        // Memory is in whole pages, and a slot may be reused for a somewhat smaller batch.
        let limit = limit.saturating_add(limit / 4).saturating_add(4 << 20);
        Arc::new(Slots {
            slots: Mutex::default(),
            limit,
            registry,
            queue: Arc::downgrade(queue),
            connection,
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Option<SharedMemory>>> {
        // Changed by single calls, so the state is valid.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the payload that `shared` describes; `socket` holds the file of a new slot.
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
            // Unmapped after the lock is released.
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
            Ok(mut memory) => {
                slots.insert(slot, None);
                drop(slots);
                if let Some(registry) = &self.registry {
                    memory.register(registry);
                }
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
            // The stream has ended: the memory is freed with its last mapping.
            return;
        };
        // Free the slot before sending the release, since the server may reuse it at once.
        if let Some(place) = self.lock().get_mut(&slot) {
            *place = Some(memory);
        }
        queue.release(self.connection, slot);
    }
}
