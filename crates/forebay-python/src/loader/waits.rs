//! How long the trainer waited for its last batches.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use super::lock;

/// Batches whose waits are kept.
const KEPT: usize = 1024;

/// The waits for the last batches, in seconds.
#[derive(Debug, Default)]
pub(super) struct Waits(Mutex<VecDeque<f64>>);

impl Waits {
    pub(super) fn add(&self, wait: Duration) {
        let mut kept = lock(&self.0);
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(wait.as_secs_f64());
    }

    /// Returns the median, and the wait that 99 % do not exceed; `None` before the first batch.
    pub(super) fn quantiles(&self) -> Option<(f64, f64)> {
        let mut waits: Vec<f64> = lock(&self.0).iter().copied().collect();
        waits.sort_unstable_by(f64::total_cmp);
        let most = waits.len().checked_sub(1)?;
        Some((waits[most / 2], waits[most * 99 / 100]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_last_batches() {
        let waits = Waits::default();
        assert_eq!(waits.quantiles(), None);
        waits.add(Duration::from_secs(7));
        assert_eq!(waits.quantiles(), Some((7.0, 7.0)));
        for wait in 0..KEPT as u64 {
            waits.add(Duration::from_secs(KEPT as u64 - wait));
        }
        assert_eq!(waits.quantiles(), Some((512.0, 1013.0)));
    }
}
