//! Flow control, without IO: how many bytes the server may still send.

use crate::sequence::{Place, Sequence};

/// The credit of the current connection.
pub(super) struct Credit {
    /// Bytes of the queued batches.
    queued: u64,
    /// Bytes the server may still send; negative after a batch whose size was not known in advance.
    outstanding: i128,
    /// Bytes that were queued beyond the budget when the connection was made; no credit is granted
    /// for them when they are taken.
    withheld: u64,
    /// Position after the batches whose headers have arrived.
    next: Place,
}

impl Credit {
    /// Creates the credit of a stream whose first batch is at `next`.
    pub(super) const fn new(next: Place) -> Self {
        Credit {
            queued: 0,
            outstanding: 0,
            withheld: 0,
            next,
        }
    }

    /// Starts a new connection with all free space of `budget`; returns its credit.
    pub(super) fn begin(&mut self, budget: u64) -> u64 {
        let room = budget.saturating_sub(self.queued);
        self.outstanding = room.into();
        self.withheld = self.queued.saturating_sub(budget);
        room
    }

    /// Consumes credit for `bytes` and advances to `next`; false if the server has no such credit.
    /// If sizes vary, any remaining credit suffices.
    pub(super) fn spend(&mut self, bytes: u64, varies: bool, next: Place) -> bool {
        let needed = if varies { 1 } else { bytes };
        let may = self.outstanding >= needed.into();
        if may {
            self.outstanding -= i128::from(bytes);
            self.next = next;
        }
        may
    }

    /// Advances past the end of an epoch, which needs no credit.
    pub(super) fn advance(&mut self, next: Place) {
        self.next = next;
    }

    /// Counts a batch that entered the queue.
    pub(super) fn queued(&mut self, bytes: u64) {
        self.queued += bytes;
    }

    /// Counts a batch that left the queue.
    pub(super) fn taken(&mut self, bytes: u64) {
        self.queued -= bytes;
    }

    /// Counts the queue as empty.
    pub(super) fn cleared(&mut self) {
        self.queued = 0;
    }

    /// Adds the credit of a batch of `bytes` that was taken; returns how much of it to grant.
    pub(super) fn grant(&mut self, bytes: u64) -> u64 {
        let kept = self.withheld.min(bytes);
        self.withheld -= kept;
        self.outstanding += i128::from(bytes - kept);
        bytes - kept
    }

    /// Returns the position at which the credit is used up, at most the end of the epoch.
    pub(super) fn used_up_at(&self, sequence: &Sequence) -> Place {
        let owed = u64::try_from(self.outstanding).unwrap_or(0);
        let batches = match sequence.varies() {
            // With varying sizes, any remaining credit allows one batch.
            true => u64::from(owed > 0),
            false => owed / sequence.batch_bytes().max(1),
        };
        sequence.ahead(self.next, batches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::tests::sequence;

    const START: Place = (0, 0);

    /// A connection with 100 bytes of credit.
    fn credit() -> Credit {
        let mut credit = Credit::new(START);
        assert_eq!(credit.begin(100), 100);
        credit
    }

    #[test]
    fn batches_of_known_size_need_their_whole_credit() {
        let mut credit = credit();
        assert!(!credit.spend(101, false, (0, 1)));
        assert!(credit.spend(60, false, (0, 1)));
        assert!(!credit.spend(41, false, (0, 2)));
        assert!(credit.spend(40, false, (0, 2)));
        assert!(!credit.spend(1, false, (0, 3)));
        assert_eq!(credit.grant(60), 60);
        assert!(credit.spend(60, false, (0, 3)));
    }

    #[test]
    fn a_batch_of_unknown_size_may_overdraw_once() {
        let mut credit = credit();
        assert!(credit.spend(99, true, (0, 1)));
        assert!(credit.spend(250, true, (0, 2)));
        assert!(!credit.spend(0, true, (0, 3)), "249 are owed");
        assert_eq!(credit.grant(249), 249);
        assert!(!credit.spend(1, true, (0, 3)), "nothing is left");
        assert_eq!(credit.grant(1), 1);
        assert!(credit.spend(1, true, (0, 3)));
    }

    #[test]
    fn a_new_connection_gets_the_free_space_only() {
        let mut credit = credit();
        credit.queued(70);
        assert_eq!(credit.begin(100), 30);
        credit.taken(70);
        assert_eq!(credit.grant(70), 70);
        credit.queued(70);
        credit.cleared();
        assert_eq!(credit.begin(100), 100);
    }

    #[test]
    fn bytes_beyond_the_budget_are_not_granted_again() {
        let mut credit = credit();
        credit.queued(340);
        assert_eq!(credit.begin(100), 0);
        assert_eq!(credit.grant(90), 0);
        assert_eq!(credit.grant(250), 100);
        assert!(credit.spend(100, false, (0, 1)));
    }

    #[test]
    fn credit_is_used_up_at_the_end_of_the_epoch_at_most() {
        let sequence = sequence(9, 30);
        let mut credit = credit();
        assert_eq!(credit.used_up_at(&sequence), (0, 6), "three batches fit");
        assert!(credit.spend(30, false, (0, 2)));
        assert_eq!(credit.used_up_at(&sequence), (0, 6));
        credit.grant(200);
        assert_eq!(credit.used_up_at(&sequence), (0, 8));
        credit.advance((1, 0));
        assert_eq!(credit.used_up_at(&sequence), (1, 8));
        // An overdrawn credit allows no batch.
        credit.spend(1000, true, (1, 2));
        assert_eq!(credit.used_up_at(&sequence), (1, 2));
    }
}
