//! What leaves the server over the network, where its bandwidth is bounded: by weights, batch by batch.
//!
//! Without a bound nothing is done here: the system shares a full line among connections, whoever they belong to. With one, a
//! batch waits until the line is free and it is its turn: the name that has had the fewest bytes for its weight is
//! next. Nothing is held while a batch is sent, so a client that reads slowly takes nobody's turn.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forebay_loader::Share;

/// How often whoever waits looks whether its stream is over.
const LOOK: Duration = Duration::from_millis(100);

/// The line to all clients together.
pub(crate) struct Outgoing {
    /// Bytes a second; none for no bound.
    bandwidth: Option<f64>,
    line: Mutex<Line>,
    changed: Condvar,
}

/// Who waits for the line; knows no clock of its own.
#[derive(Default)]
struct Line {
    /// When what was let through will have gone.
    free_at: Option<Instant>,
    /// Of what was let through last: where those begin who had nothing to send before.
    now: f64,
    next_ticket: u64,
    parties: Vec<Party>,
}

struct Party {
    share: Share,
    /// Bytes over weight.
    used: f64,
    waiting: VecDeque<u64>,
}

impl Line {
    fn queue(&mut self, share: &Share) -> u64 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let now = self.now;
        match self.parties.iter_mut().find(|party| party.share == *share) {
            Some(party) => {
                if party.waiting.is_empty() {
                    party.used = party.used.max(now);
                }
                party.waiting.push_back(ticket);
            }
            None => self.parties.push(Party {
                share: share.clone(),
                used: now,
                waiting: VecDeque::from([ticket]),
            }),
        }
        ticket
    }

    /// Whose turn it is.
    fn turn(&mut self) -> Option<&mut Party> {
        let waiting = self.parties.iter_mut().filter(|p| !p.waiting.is_empty());
        waiting.reduce(|a, b| if b.used < a.used { b } else { a })
    }

    /// Lets a ticket through if it is its turn.
    fn pass(&mut self, ticket: u64, bytes: u64) -> bool {
        let Some(party) = self.turn() else {
            return false;
        };
        if party.waiting.front() != Some(&ticket) {
            return false;
        }
        party.waiting.pop_front();
        let began = party.used;
        party.used += bytes as f64 / party.share.weight();
        self.now = self.now.max(began);
        // Who is not ahead of anybody need not be remembered.
        let now = self.now;
        self.parties
            .retain(|p| !p.waiting.is_empty() || p.used > now);
        true
    }

    fn give_up(&mut self, ticket: u64) {
        for party in &mut self.parties {
            party.waiting.retain(|waiting| *waiting != ticket);
        }
    }
}

impl Outgoing {
    /// A line of so many bytes a second; 0 is no bound.
    pub(crate) fn new(bandwidth: u64) -> Self {
        Outgoing {
            bandwidth: (bandwidth > 0).then_some(bandwidth as f64),
            line: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until so many bytes may be sent, or until `over`.
    pub(crate) fn pass(&self, share: &Share, bytes: u64, over: impl Fn() -> bool) {
        let Some(bandwidth) = self.bandwidth else {
            return;
        };
        let mut line = self.lock();
        let ticket = line.queue(share);
        loop {
            if over() {
                line.give_up(ticket);
                break;
            }
            let now = Instant::now();
            let free_at = line.free_at.unwrap_or(now);
            if free_at <= now && line.pass(ticket, bytes) {
                let takes = Duration::from_secs_f64(bytes as f64 / bandwidth);
                line.free_at = Some(now + takes);
                break;
            }
            // Whoever's turn it is waits for the line, the others for those before them.
            let wait = match free_at.saturating_duration_since(now) {
                Duration::ZERO => LOOK,
                left => left.min(LOOK),
            };
            (line, _) = self
                .changed
                .wait_timeout(line, wait)
                .unwrap_or_else(PoisonError::into_inner);
        }
        drop(line);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many bytes go through, in order of parties that always have something to send.
    fn bytes(parties: &[(f64, u64)], rounds: usize) -> Vec<u64> {
        let shares: Vec<Share> = parties.iter().map(|p| Share::new(p.0)).collect();
        let mut line = Line::default();
        let mut tickets: Vec<u64> = shares.iter().map(|share| line.queue(share)).collect();
        let mut sent = vec![0; parties.len()];
        for _ in 0..rounds {
            let who = (0..parties.len())
                .find(|&who| line.pass(tickets[who], parties[who].1))
                .unwrap();
            sent[who] += parties[who].1;
            tickets[who] = line.queue(&shares[who]);
        }
        sent
    }

    #[test]
    fn bytes_go_by_weight() {
        let sent = bytes(&[(1.0, 10), (3.0, 10)], 4000);
        assert!((29_000..31_000).contains(&sent[1]), "{sent:?}");
        // Large batches come less often.
        let sent = bytes(&[(1.0, 40), (1.0, 10)], 5000);
        let ratio = sent[0] as f64 / sent[1] as f64;
        assert!((0.95..1.05).contains(&ratio), "{sent:?}");
    }

    #[test]
    fn nothing_is_saved_up_or_left_behind() {
        let mut line = Line::default();
        let (one, two) = (Share::default(), Share::default());
        for _ in 0..100 {
            let ticket = line.queue(&one);
            assert!(line.pass(ticket, 10));
        }
        let mut wins = 0;
        for _ in 0..10 {
            let (a, b) = (line.queue(&one), line.queue(&two));
            if line.pass(b, 10) {
                wins += 1;
            }
            line.give_up(a);
            line.give_up(b);
        }
        assert!(wins <= 6, "{wins}");
        let ticket = line.queue(&one);
        line.give_up(ticket);
        let last = line.queue(&two);
        assert!(line.pass(last, 1));
        assert!(line.parties.len() <= 1);
    }

    #[test]
    fn all_get_through_and_who_is_over_does_not_wait() {
        let outgoing = Outgoing::new(1_000_000_000);
        std::thread::scope(|scope| {
            for weight in 1..5 {
                let outgoing = &outgoing;
                let share = Share::new(f64::from(weight));
                scope.spawn(move || {
                    for _ in 0..50 {
                        outgoing.pass(&share, 100_000, || false);
                    }
                });
            }
        });
        let slow = Outgoing::new(1);
        slow.pass(&Share::default(), 1 << 40, || false);
        slow.pass(&Share::default(), 1 << 40, || true);
        Outgoing::new(0).pass(&Share::default(), u64::MAX, || false);
    }
}
