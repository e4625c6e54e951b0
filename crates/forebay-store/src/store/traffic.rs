//! Requests of this process to each bucket or web server, for monitoring.

/// The requests of one bucket, by all stores of this process together.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct Traffic {
    /// Scheme and bucket, or host: `s3://bucket`. Nothing of a key, a user or a query is in it.
    pub store: String,
    /// Tries that were made.
    pub requests: u64,
    /// Tries among them that repeated one that had failed.
    pub retries: u64,
    /// Answers that asked to slow down.
    pub throttles: u64,
    /// Reads that were asked for a second time because they were late.
    pub hedges: u64,
    /// Operations that were given up.
    pub failures: u64,
    /// Bytes of ranges that were read.
    pub read_bytes: u64,
    /// Answers to reads that began.
    pub reads: u64,
    /// Seconds from asking to the first byte, of all of these together.
    pub first_byte_s: f64,
    /// The median and the 95th percentile of the last reads' latency, in seconds; none before the first read.
    pub usual_s: Option<(f64, f64)>,
    /// Requests that are under way.
    pub in_flight: u64,
    /// Requests that may be under way at once, at the moment.
    pub limit: u64,
}

impl Traffic {
    /// The traffic of every bucket that is open in this process, by name.
    #[must_use]
    pub fn of_this_process() -> Vec<Traffic> {
        let mut all = super::cloud::traffic();
        all.sort_by(|a, b| a.store.cmp(&b.store));
        // Two endpoints may have buckets of one name.
        all.dedup_by(|more, all| {
            let same = more.store == all.store;
            if same {
                all.add(more);
            }
            same
        });
        all
    }

    fn add(&mut self, other: &Traffic) {
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
