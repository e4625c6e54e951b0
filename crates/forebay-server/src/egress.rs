//! Egress bandwidth limit of a server, shared by weight, batch by batch.
//!
//! Without a limit this does nothing: the operating system divides the bandwidth among connections. With a limit, a batch waits
//! until the bytes sent before it have taken their time at the limit's rate, and its stream is next in the tree of shares
//! (name, client, stream). No lock is held while a batch is sent, so a client that reads slowly does not delay others.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_loader::{FairQueue, FairShare};

/// How often a waiting stream checks whether it has ended.
const LOOK: Duration = Duration::from_millis(100);

/// The limiter of the traffic to all remote clients.
pub(crate) struct EgressLimiter {
    /// Bytes per second; `None` for no limit.
    bandwidth: Option<f64>,
    queue: Mutex<SendQueue>,
    changed: Condvar,
}

/// Queue of waiting batches. It reads no clock; callers supply the time.
#[derive(Default)]
struct SendQueue {
    /// When the batches admitted so far will have been sent at the limit's rate.
    free_at: Option<Instant>,
    next_ticket: u64,
    /// Ticket number and bytes of each waiting batch.
    waiting: FairQueue<(u64, u64)>,
}

impl SendQueue {
    fn push(&mut self, share: &FairShare, bytes: u64) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.waiting.push(share, (ticket, bytes));
        ticket
    }

    /// Admits a ticket if it is next.
    fn pass(&mut self, ticket: u64) -> bool {
        let is_next = self.waiting.peek().is_some_and(|next| next.0 == ticket);
        if is_next {
            self.waiting.pop(|(_, bytes)| *bytes as f64);
        }
        is_next
    }
}

/// A sending stream. Its usage counts in the shares until it is dropped.
pub(crate) struct Sender<'a> {
    egress: &'a EgressLimiter,
    share: FairShare,
}

impl Drop for Sender<'_> {
    fn drop(&mut self) {
        self.egress.lock().waiting.leave(&self.share);
    }
}

impl EgressLimiter {
    /// Creates a limiter of `bandwidth` bytes per second; 0 for no limit.
    pub(crate) fn new(bandwidth: u64) -> Self {
        EgressLimiter {
            bandwidth: (bandwidth > 0).then_some(bandwidth as f64),
            queue: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SendQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a stream under this share.
    pub(crate) fn sender(&self, share: &FairShare) -> Sender<'_> {
        let share = share.part();
        self.lock().waiting.join(&share);
        Sender {
            egress: self,
            share,
        }
    }
}

impl Sender<'_> {
    /// Waits until `bytes` may be sent, or `over` returns true.
    pub(crate) fn pass(&self, bytes: u64, over: impl Fn() -> bool) {
        let Some(bandwidth) = self.egress.bandwidth else {
            return;
        };
        let mut queue = self.egress.lock();
        let ticket = queue.push(&self.share, bytes);
        loop {
            if over() {
                queue.waiting.remove(&self.share, |waits| waits.0 == ticket);
                break;
            }
            let now = Instant::now();
            let free_at = queue.free_at.unwrap_or(now);
            if free_at <= now && queue.pass(ticket) {
                let takes = Duration::from_secs_f64(bytes as f64 / bandwidth);
                queue.free_at = Some(now + takes);
                break;
            }
            // The stream that is next waits for the rate, the others for those before them.
            let wait = match free_at.saturating_duration_since(now) {
                Duration::ZERO => LOOK,
                left => left.min(LOOK),
            };
            (queue, _) = self
                .egress
                .changed
                .wait_timeout(queue, wait)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(queue);
        self.egress.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes admitted of each share, if all of them always have something to send.
    fn bytes(shares: &[(FairShare, u64)], rounds: usize) -> Vec<u64> {
        let mut queue = SendQueue::default();
        for (share, _) in shares {
            queue.waiting.join(share);
        }
        let push = |queue: &mut SendQueue, who: usize| queue.push(&shares[who].0, shares[who].1);
        let mut tickets: Vec<u64> = (0..shares.len()).map(|who| push(&mut queue, who)).collect();
        let mut sent = vec![0; shares.len()];
        for _ in 0..rounds {
            let who = (0..shares.len())
                .find(|&who| queue.pass(tickets[who]))
                .unwrap();
            sent[who] += shares[who].1;
            tickets[who] = push(&mut queue, who);
        }
        sent
    }

    #[test]
    fn bytes_go_by_weight() {
        let sent = bytes(
            &[(FairShare::new(1.0), 10), (FairShare::new(3.0), 10)],
            4000,
        );
        assert!((29_000..31_000).contains(&sent[1]), "{sent:?}");
        // Large batches are admitted less often.
        let sent = bytes(
            &[(FairShare::default(), 40), (FairShare::default(), 10)],
            5000,
        );
        let ratio = sent[0] as f64 / sent[1] as f64;
        assert!((0.95..1.05).contains(&ratio), "{sent:?}");
    }

    #[test]
    fn shares_do_not_grow_with_the_number_of_streams() {
        let name = FairShare::default();
        let greedy = name.part_of("greedy");
        let mut shares: Vec<(FairShare, u64)> = (0..60).map(|_| (greedy.part(), 1000)).collect();
        shares.push((name.part_of("good").part(), 10));
        let sent = bytes(&shares, 20_000);
        let greedy: u64 = sent[..60].iter().sum();
        let ratio = sent[60] as f64 / greedy as f64;
        assert!((0.9..1.1).contains(&ratio), "{ratio}: {sent:?}");
    }

    #[test]
    fn idle_streams_save_up_nothing_and_leave_no_state() {
        let egress = EgressLimiter::new(1_000_000_000);
        let (one, two) = (
            egress.sender(&FairShare::default()),
            egress.sender(&FairShare::default()),
        );
        let mut queue = egress.lock();
        for _ in 0..100 {
            let ticket = queue.push(&one.share, 10);
            assert!(queue.pass(ticket));
        }
        let mut wins = 0;
        for _ in 0..10 {
            let (a, b) = (queue.push(&one.share, 10), queue.push(&two.share, 10));
            if queue.pass(b) {
                wins += 1;
            } else {
                queue.waiting.remove(&two.share, |waits| waits.0 == b);
            }
            queue.waiting.remove(&one.share, |waits| waits.0 == a);
        }
        assert!(wins <= 6, "{wins}");
        assert!(queue.waiting.is_empty());
        drop(queue);
        drop((one, two));
        assert!(egress.lock().waiting.is_forgotten());
    }

    #[test]
    fn all_streams_progress_and_ended_ones_do_not_wait() {
        let egress = EgressLimiter::new(1_000_000_000);
        std::thread::scope(|scope| {
            for weight in 1..5 {
                let egress = &egress;
                let share = FairShare::new(f64::from(weight));
                scope.spawn(move || {
                    let sender = egress.sender(&share);
                    for _ in 0..50 {
                        sender.pass(100_000, || false);
                    }
                });
            }
        });
        let share = FairShare::default();
        let slow = EgressLimiter::new(1);
        slow.sender(&share).pass(1 << 40, || false);
        slow.sender(&share).pass(1 << 40, || true);
        EgressLimiter::new(0)
            .sender(&share)
            .pass(u64::MAX, || false);
    }
}
