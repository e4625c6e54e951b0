//! Estimates what an epoch of a dataset in a store costs.

use forebay_cache::{ReadOptions, store_of};
use forebay_store::{Cost, Location, Store, Usage};
use serde::Serialize;

use crate::Result;
use crate::storage::ReadJob;

/// The estimated cost of an epoch that is read from a store.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EpochCost {
    /// Bytes that an epoch reads.
    pub bytes: u64,
    /// Requests of an epoch whose reads are as long as those of the loader.
    pub requests: u64,
    /// The cost without a cache, and of the first epoch with one.
    pub cost: Cost,
    /// The cost of later epochs with a cache that holds all of the dataset.
    pub cached_cost: Cost,
    /// The size from which on a read costs at most 1 % more over the internet because it is a request.
    pub large_read_bytes: Option<u64>,
    /// The estimate in words, with its origin.
    pub text: String,
}

/// Estimates an epoch of `bytes` bytes, read as in `job`; `None` for local files.
pub(super) fn epoch_cost(
    place: &Location,
    read: &ReadOptions,
    bytes: f64,
    job: &ReadJob,
) -> Result<Option<EpochCost>> {
    let Some(store) = store_of(place) else {
        return Ok(None);
    };
    let Some(tariff) = Store::open(&store, &read.store)?.tariff() else {
        return Ok(None);
    };
    let usage = Usage {
        gets: (bytes / read_bytes(job)).ceil() as u64,
        received_bytes: bytes as u64,
        ..Usage::default()
    };
    let cost = tariff.cost(&usage);
    let mut text = format!(
        "an epoch reads {} in {} requests of {}: {}; with --cache-dir, and room for all of it, only the first epoch costs that",
        size(bytes),
        usage.gets,
        size(read_bytes(job)),
        tariff.price(&cost),
    );
    if let Some(large) = tariff.large_read_bytes() {
        text += &format!(
            "; over the internet, requests are at most 1 % of the cost of reads of {:.0} kB or more",
            large as f64 / 1e3
        );
    }
    Ok(Some(EpochCost {
        bytes: usage.received_bytes,
        requests: usage.gets,
        cost,
        cached_cost: Cost::default(),
        large_read_bytes: tariff.large_read_bytes(),
        text,
    }))
}

pub(super) fn size(bytes: f64) -> String {
    match bytes {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes => format!("{:.1} MB", bytes / 1e6),
    }
}

/// Returns the size of the read that a byte is in, on average: the few short reads at the start of a loader hardly count.
fn read_bytes(job: &ReadJob) -> f64 {
    let squares = job.ops().iter().map(|op| f64::from(op.len).powi(2));
    (squares.sum::<f64>() / job.bytes().max(1) as f64).max(1.0)
}

#[cfg(test)]
mod tests {
    use forebay_store::StoreOptions;

    use super::*;

    #[test]
    fn an_epoch_has_a_price_with_its_arithmetic() {
        let endpoint = "https://s3.us-east-1.amazonaws.com";
        let mut options = StoreOptions::new().with_endpoint(endpoint);
        options.anonymous = true;
        let read = ReadOptions::new(options);
        // Reads of 3.5 MB, and a few of the first batch.
        let mut ops = ReadJob::sequential([("shard", 350_000_000)], 3_500_000).unwrap();
        let first = ReadJob::sequential([("shard", 350_000)], 110_000).unwrap();
        let all = [first.ops(), ops.ops()].concat();
        ops = ReadJob::new(ops.files().to_vec(), all).unwrap();
        let mean = read_bytes(&ops);
        assert!((3_490_000.0..3_500_000.0).contains(&mean), "{mean}");
        let job = ReadJob::sequential([("shard", 350_000_000)], 3_500_000).unwrap();
        let place = Location::parse("s3://bucket/imagenet").unwrap();
        let cost = epoch_cost(&place, &read, 138e9, &job).unwrap().unwrap();
        assert_eq!((cost.requests, cost.cost.in_region), (39_429, 15_771_600));
        assert_eq!(cost.cost.over_internet, 12_435_771_600);
        assert_eq!(
            cost.text,
            "an epoch reads 138.0 GB in 39429 requests of 3.5 MB: $0.0158 in the region, $12.44 over the internet \
             (estimated from list prices of Amazon S3 Standard, us-east-1 as of 2025-06-01); with --cache-dir, and room for all \
             of it, only the first epoch costs that; over the internet, requests are at most 1 % of the cost of reads of 444 kB \
             or more"
        );
        let local = Location::parse("/no/such/dataset").unwrap();
        assert_eq!(epoch_cost(&local, &read, 1e9, &job).unwrap(), None);
    }
}
