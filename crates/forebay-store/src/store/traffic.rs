//! Request counters of this process per bucket or web server, for monitoring.

use std::sync::Arc;

use crate::{Cost, Tariff, Usage};

/// The requests to one bucket or web server, from all stores of this process together.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Scheme and bucket, or host: `s3://bucket`. It contains no key, user name or query.
    pub store: String,
    /// Requests, retries included.
    pub requests: u64,
    /// Requests and bytes that the store charges for.
    pub usage: Usage,
    /// The estimated price of `usage`.
    pub cost: Cost,
    /// The prices of the estimate.
    pub tariff: Arc<Tariff>,
    /// Retries among `requests`.
    pub retries: u64,
    /// Responses that asked to slow down.
    pub throttles: u64,
    /// Late reads that were requested a second time.
    pub hedges: u64,
    /// Operations that failed after all retries.
    pub failures: u64,
    /// Bytes of ranges that were read.
    pub read_bytes: u64,
    /// Range reads of which the first byte arrived.
    pub reads: u64,
    /// The sum of the times from request to first byte, over `reads`, in seconds.
    pub first_byte_s: f64,
    /// The median and the 95th percentile of the latency of recent reads, in seconds; `None` before the first read.
    pub usual_s: Option<(f64, f64)>,
    /// Requests in flight.
    pub in_flight: u64,
    /// The current limit of requests in flight.
    pub limit: u64,
}

impl Traffic {
    /// Returns what was used after `earlier` was counted, of the stores that were used since; other counters stay.
    #[must_use]
    pub fn since(earlier: &[Traffic]) -> Vec<Traffic> {
        let mut now = Traffic::of_this_process();
        for traffic in &mut now {
            if let Some(before) = earlier.iter().find(|before| before.store == traffic.store) {
                let less = |now: u64, before: u64| now.saturating_sub(before);
                traffic.usage = traffic.usage.combine(&before.usage, less);
                traffic.cost = traffic.tariff.cost(&traffic.usage);
            }
        }
        now.retain(|traffic| traffic.usage != Usage::default());
        now
    }

    /// Returns what the requests and bytes cost, with the origin of the estimate: `$0.0004 in the region, ...`.
    #[must_use]
    pub fn price(&self) -> String {
        self.tariff.price(&self.cost)
    }

    pub(super) fn add(&mut self, other: &Traffic) {
        self.requests += other.requests;
        self.usage = self.usage.combine(&other.usage, u64::saturating_add);
        let sum = |a: u64, b: u64| a.saturating_add(b);
        self.cost = Cost {
            in_region: sum(self.cost.in_region, other.cost.in_region),
            over_internet: sum(self.cost.over_internet, other.cost.over_internet),
        };
        self.retries += other.retries;
        self.throttles += other.throttles;
        self.hedges += other.hedges;
        self.failures += other.failures;
        self.read_bytes += other.read_bytes;
        self.reads += other.reads;
        self.first_byte_s += other.first_byte_s;
        self.usual_s = match (self.usual_s, other.usual_s) {
            (Some(a), Some(b)) => Some((a.0.max(b.0), a.1.max(b.1))),
            (a, b) => a.or(b),
        };
        self.in_flight += other.in_flight;
        self.limit += other.limit;
    }
}
