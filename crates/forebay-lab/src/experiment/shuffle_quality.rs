//! How far neighbors of a dataset are spread over the batches of an epoch.

use std::collections::BTreeSet;

const SPREAD_CHUNK: u64 = 64;
/// Shuffle quality: the number of chunks of 64 neighbors that a batch has samples of, in percent of the largest possible
/// number.
pub(super) const SPREAD: &str = "% different chunks in a batch";

/// Returns the number of different chunks that a batch has samples of, divided by the largest possible number, as a mean over
/// all batches.
pub(super) fn spread(samples: &[u64], batch: u64, all: u64) -> f64 {
    let chunks = |samples: &[u64]| {
        samples
            .iter()
            .map(|sample| sample / SPREAD_CHUNK)
            .collect::<BTreeSet<u64>>()
            .len()
    };
    let batches = samples.chunks(batch as usize);
    let most = |batch: &[u64]| (batch.len() as u64).min(all.div_ceil(SPREAD_CHUNK)).max(1) as f64;
    let shares: Vec<f64> = batches
        .map(|batch| chunks(batch) as f64 / most(batch))
        .collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_counts_different_chunks() {
        let in_order: Vec<u64> = (0..128).collect();
        assert_eq!(spread(&in_order, 64, 128), 0.5, "one chunk of two");
        let apart: Vec<u64> = (0..64).map(|number| number * 64).collect();
        assert_eq!(spread(&apart, 16, 4096), 1.0);
        assert_eq!(spread(&[], 16, 4096), 0.0);
    }
}
