//! The items that wait for the consumer, and how the stream ends after them.

use std::collections::VecDeque;

use forebay_wire::Batch;

use crate::error::{Error, Result};

/// An item of a stream.
// A box for each batch would be one more allocation, to save moving 200 bytes.
#[expect(clippy::large_enum_variant)]
pub(crate) enum Item {
    Batch(Batch),
    /// The number of the epoch that ended.
    EpochEnd(u64),
}

/// The end of a stream. It only ever moves down this list, except that `Over` follows `Failed`.
enum Phase {
    /// More items may come.
    Open,
    /// The stream ends after the queued items.
    Finished,
    /// The stream fails after the queued items.
    Failed(Error),
    /// The consumer has received the error.
    Over,
    /// The stream was interrupted, and holds no items.
    Interrupted,
}

pub(super) struct Delivery {
    items: VecDeque<Item>,
    phase: Phase,
}

impl Delivery {
    pub(super) const fn new() -> Self {
        Delivery {
            items: VecDeque::new(),
            phase: Phase::Open,
        }
    }

    /// Queues an item. Returns it if the stream was interrupted, to be dropped without the lock.
    pub(super) fn push(&mut self, item: Item) -> Option<Item> {
        if self.is_interrupted() {
            return Some(item);
        }
        self.items.push_back(item);
        None
    }

    /// Takes the next item, or the end: `Ok(None)` after the last epoch. `None` if the consumer has
    /// to wait.
    pub(super) fn pop(&mut self) -> Option<Result<Option<Item>>> {
        if self.is_interrupted() {
            return Some(Err(Error::Interrupted));
        }
        if let Some(item) = self.items.pop_front() {
            return Some(Ok(Some(item)));
        }
        match &self.phase {
            Phase::Open => None,
            Phase::Finished => Some(Ok(None)),
            _ => match std::mem::replace(&mut self.phase, Phase::Over) {
                Phase::Failed(e) => Some(Err(e)),
                _ => Some(Err(Error::Over)),
            },
        }
    }

    /// Ends the stream after the queued items; `Err` is the reason. The first end is kept.
    pub(super) fn close(&mut self, end: Result<()>) {
        if self.is_open() {
            self.phase = match end {
                Ok(()) => Phase::Finished,
                Err(e) => Phase::Failed(e),
            };
        }
    }

    /// Interrupts the stream. Returns its items, to be dropped without the lock.
    pub(super) fn interrupt(&mut self) -> VecDeque<Item> {
        self.phase = Phase::Interrupted;
        std::mem::take(&mut self.items)
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub(super) fn is_interrupted(&self) -> bool {
        matches!(self.phase, Phase::Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed() -> Delivery {
        let mut delivery = Delivery::new();
        assert!(delivery.push(Item::EpochEnd(3)).is_none());
        delivery
    }

    fn pop_item(delivery: &mut Delivery) {
        assert!(matches!(delivery.pop(), Some(Ok(Some(Item::EpochEnd(3))))));
    }

    #[test]
    fn the_end_comes_after_the_queued_items_and_stays() {
        let mut delivery = pushed();
        assert!(delivery.is_open());
        delivery.close(Ok(()));
        assert!(!delivery.is_open());
        pop_item(&mut delivery);
        for _ in 0..2 {
            assert!(matches!(delivery.pop(), Some(Ok(None))));
        }
    }

    #[test]
    fn an_open_stream_without_items_lets_the_consumer_wait() {
        let mut delivery = pushed();
        pop_item(&mut delivery);
        assert!(delivery.pop().is_none());
        assert!(delivery.is_open());
    }

    #[test]
    fn an_error_is_returned_once_and_then_the_stream_is_over() {
        let mut delivery = pushed();
        let server = "a:1".to_owned();
        delivery.close(Err(Error::TokenInClear { server }));
        delivery.close(Ok(()));
        pop_item(&mut delivery);
        assert!(matches!(
            delivery.pop(),
            Some(Err(Error::TokenInClear { .. }))
        ));
        for _ in 0..2 {
            assert!(matches!(delivery.pop(), Some(Err(Error::Over))));
        }
        assert!(!delivery.is_open());
    }

    #[test]
    fn an_interruption_drops_items_and_hides_every_other_end() {
        let mut delivery = pushed();
        assert_eq!(delivery.interrupt().len(), 1);
        assert!(delivery.push(Item::EpochEnd(4)).is_some());
        delivery.close(Ok(()));
        delivery.close(Err(Error::Over));
        for _ in 0..2 {
            assert!(matches!(delivery.pop(), Some(Err(Error::Interrupted))));
        }
        let mut failed = pushed();
        failed.close(Err(Error::Over));
        failed.interrupt();
        assert!(matches!(failed.pop(), Some(Err(Error::Interrupted))));
    }
}
