//! Request counters of this process per bucket or web server, for monitoring.

/// The requests to one bucket or web server, from all stores of this process together.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Scheme and bucket, or host: `s3://bucket`. It contains no key, user name or query.
    pub store: String,
    /// Requests, retries included.
    pub requests: u64,
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
    pub(super) fn add(&mut self, other: &Traffic) {
        self.requests += other.requests;
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
