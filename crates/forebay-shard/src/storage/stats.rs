//! Read counters of a storage.

/// Counters of a storage since it was opened, in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StorageStats {
    /// Bytes fetched over the network. A hedged read counts once.
    pub fetched_bytes: u64,
    /// Requests that were repeated after a failure.
    pub retries: u64,
    /// Requests that were sent a second time because the response was late.
    pub hedges: u64,
    /// Requests of a store that charges for some; deletions are not counted.
    pub requests: u64,
    /// Their estimated price in billionths of a dollar, for a reader in the region of the data.
    pub region_nanodollars: u64,
    /// As `region_nanodollars`, for a reader at the other end of the internet.
    pub internet_nanodollars: u64,
    /// The date of the prices: 20250601 for 2025-06-01; 0 without prices.
    pub prices_as_of: u32,
    /// Counters of the cache in front of the storage, if any.
    pub cache: Option<CacheHits>,
}

/// Cache hits and misses of the readers of a storage. A block that is read in three parts counts
/// as three.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheHits {
    /// Block reads served by the cache.
    pub hits: u64,
    /// Block reads not served by the cache.
    pub misses: u64,
    /// Bytes served by the cache.
    pub hit_bytes: u64,
    /// Requested bytes not served by the cache.
    pub miss_bytes: u64,
}

impl CacheHits {
    /// Returns the sum of two counters.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    fn combine(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            hits: with(self.hits, other.hits),
            misses: with(self.misses, other.misses),
            hit_bytes: with(self.hit_bytes, other.hit_bytes),
            miss_bytes: with(self.miss_bytes, other.miss_bytes),
        }
    }
}

impl StorageStats {
    /// Returns the sum over two storages.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        self.combine(other, u64::saturating_add)
    }

    /// Returns the difference to `earlier`.
    #[must_use]
    pub fn since(self, earlier: &Self) -> Self {
        self.combine(*earlier, u64::saturating_sub)
    }

    fn combine(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            fetched_bytes: with(self.fetched_bytes, other.fetched_bytes),
            retries: with(self.retries, other.retries),
            hedges: with(self.hedges, other.hedges),
            requests: with(self.requests, other.requests),
            region_nanodollars: with(self.region_nanodollars, other.region_nanodollars),
            internet_nanodollars: with(self.internet_nanodollars, other.internet_nanodollars),
            prices_as_of: self.prices_as_of.max(other.prices_as_of),
            cache: match (self.cache, other.cache) {
                (None, None) => None,
                (a, b) => Some(a.unwrap_or_default().combine(b.unwrap_or_default(), with)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_added_and_compared() {
        let far = StorageStats {
            fetched_bytes: 100,
            retries: 3,
            hedges: 1,
            requests: 7,
            region_nanodollars: 2800,
            internet_nanodollars: 2809,
            prices_as_of: 20_250_601,
            cache: None,
        };
        let cached = StorageStats {
            cache: Some(CacheHits {
                hits: 5,
                misses: 2,
                hit_bytes: 50,
                miss_bytes: 20,
            }),
            ..far
        };
        let both = far.and(cached);
        assert_eq!((both.fetched_bytes, both.retries, both.hedges), (200, 6, 2));
        assert_eq!((both.requests, both.region_nanodollars), (14, 5600));
        assert_eq!(both.internet_nanodollars, 5618);
        assert_eq!(both.cache, cached.cache);
        assert_eq!(both.since(&far), cached);
        assert_eq!(far.since(&both).fetched_bytes, 0, "never below nothing");
    }
}
