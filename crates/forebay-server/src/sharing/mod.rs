//! Decodes a batch once for all streams that request it.
//!
//! Several trainings over the same data, for example with different learning rates, read the same
//! samples in the same order with the same transform. Streams with the same options and nearby
//! positions are *members* of one *hub*, which has one source of batches and keeps each batch until
//! all members have taken it:
//!
//! - The member that first needs the next batch makes it, on its own thread. No member waits for
//!   another one's trainer.
//! - A [`Budget`] of the server bounds the kept batches. A member that falls behind by more leaves
//!   the hub and decodes independently.
//! - A stream that starts behind a hub decodes independently up to the position that the hub had
//!   when the stream joined, and takes kept batches from there on. If it is too far behind for
//!   that, it starts a new hub.
//! - A hub with one member keeps and copies nothing: a single stream costs the same as without
//!   sharing.
//!
//! Each member gets a copy in memory that its client maps, and the last one gets the original. A
//! copy is cheap compared with decoding. Sending one buffer to several clients would avoid it, but
//! slots of shared memory would then belong to several clients.

mod hub;
mod member;
mod sums;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use forebay_image::Limits;
use forebay_loader::FairShare;
use forebay_options::LoaderOptions;
use forebay_wire::BufferPool;

use crate::source::{BatchSource, Description, Failure, StreamRequest, StreamSource};
use hub::{Arrival, Hub, StreamPosition};
use member::{Member, NewMember};

/// Maximum distance behind a hub, in batches, at which a stream can still join, regardless of the
/// budget.
const REACH: u64 = 64;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Updates are short and do not panic, so the state is valid.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A byte budget that several holders share.
pub(crate) struct Budget {
    most: u64,
    used: AtomicU64,
}

impl Budget {
    pub(crate) fn new(most: u64) -> Self {
        Budget {
            most,
            used: AtomicU64::new(0),
        }
    }

    /// Reserves `bytes` if they are available.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| {
            let used = used.checked_add(bytes)?;
            (used <= self.most).then_some(used)
        };
        self.used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    pub(crate) fn give(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// Bytes that are available.
    pub(crate) fn left(&self) -> u64 {
        self.most.saturating_sub(self.used.load(Ordering::Relaxed))
    }
}

/// A source that decodes common batches of its streams once.
pub(crate) struct Sharing {
    common: Arc<Common>,
}

struct Common {
    source: Arc<dyn StreamSource>,
    budget: Arc<Budget>,
    hubs: Mutex<Vec<Weak<Hub>>>,
    next_member: AtomicU64,
}

impl Sharing {
    pub(crate) fn new(source: Arc<dyn StreamSource>, budget: Arc<Budget>) -> Self {
        Sharing {
            common: Arc::new(Common {
                source,
                budget,
                hubs: Mutex::default(),
                next_member: AtomicU64::new(0),
            }),
        }
    }
}

impl StreamSource for Sharing {
    fn describe(&self) -> Description {
        self.common.source.describe()
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        let common = Arc::clone(&self.common);
        let asked = OpenRequest::new(request);
        let place = StreamPosition(request.epoch, request.position);
        let id = common.next_member.fetch_add(1, Ordering::Relaxed);
        let (hub, own) = match common.find(&asked.options, place, id) {
            Some((hub, Arrival::There)) => (hub, None),
            Some((hub, Arrival::OnItsWay)) => match common.source.open(request) {
                Ok(own) => (hub, Some(own)),
                Err(failure) => {
                    hub.leave(id);
                    return Err(failure);
                }
            },
            // Opened without a lock, because it may take long.
            None => common.join(&asked, place, id, common.source.open(request)?),
        };
        let info = hub.info.clone();
        let new_member = NewMember {
            id,
            place,
            info,
            asked,
        };
        Ok(Box::new(Member::new(common, new_member, hub, own)))
    }
}

/// A stream's request, kept because the stream may have to open another source.
#[derive(Clone)]
struct OpenRequest {
    options: LoaderOptions,
    max_batch_bytes: u64,
    image_limits: Limits,
    memory_bytes: Option<u64>,
    threads: Option<usize>,
    share: Option<FairShare>,
    pool: Option<BufferPool>,
}

impl OpenRequest {
    fn new(request: &StreamRequest<'_>) -> Self {
        OpenRequest {
            options: request.options.clone(),
            max_batch_bytes: request.max_batch_bytes,
            image_limits: request.image_limits,
            memory_bytes: request.memory_bytes,
            threads: request.threads,
            share: request.share.clone(),
            pool: request.pool.clone(),
        }
    }

    fn open(
        &self,
        source: &dyn StreamSource,
        place: StreamPosition,
    ) -> Result<Box<dyn BatchSource>, Failure> {
        source.open(&StreamRequest {
            options: &self.options,
            epoch: place.0,
            position: place.1,
            max_batch_bytes: self.max_batch_bytes,
            image_limits: self.image_limits,
            memory_bytes: self.memory_bytes,
            threads: self.threads,
            share: self.share.clone(),
            pool: self.pool.clone(),
        })
    }
}

impl Common {
    /// Adds a stream to a hub near its position, if there is one.
    fn find(
        &self,
        options: &LoaderOptions,
        place: StreamPosition,
        id: u64,
    ) -> Option<(Arc<Hub>, Arrival)> {
        // Declared first so that it is dropped after the lock: it may hold the last reference to a
        // hub.
        let near: Vec<Arc<Hub>>;
        let mut hubs = lock(&self.hubs);
        hubs.retain(|hub| hub.strong_count() > 0);
        near = hubs
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|hub| hub.options == *options)
            .collect();
        drop(hubs);
        near.iter().find_map(|hub| {
            let reach = self.budget.most / hub.info.batch_bytes.max(1);
            let arrival = hub.admit(id, place, reach.min(REACH))?;
            Some((Arc::clone(hub), arrival))
        })
    }

    /// Finds the hub for a stream that has opened a source at its position. The source becomes that
    /// of a new hub, or is returned for catching up with a hub that is ahead, or is dropped if
    /// another stream was first.
    fn join(
        &self,
        asked: &OpenRequest,
        place: StreamPosition,
        id: u64,
        own: Box<dyn BatchSource>,
    ) -> (Arc<Hub>, Option<Box<dyn BatchSource>>) {
        match self.find(&asked.options, place, id) {
            Some((hub, Arrival::There)) => {
                own.monitor().cancel();
                (hub, None)
            }
            Some((hub, Arrival::OnItsWay)) => (hub, Some(own)),
            None => {
                let hub = Arc::new(Hub::new(asked, place, id, own, &self.budget));
                lock(&self.hubs).push(Arc::downgrade(&hub));
                (hub, None)
            }
        }
    }
}
