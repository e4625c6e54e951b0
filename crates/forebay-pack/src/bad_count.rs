//! Counts bad images and records, and ends a run that has too many of them.

use crate::error::{Error, Result};
use crate::options::MaxBad;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of images or records of a run that were left out as bad, and its limit.
#[derive(Debug)]
pub(crate) struct BadCount {
    count: AtomicU64,
    limit: u64,
}

impl BadCount {
    /// Creates a count of 0 for a run of `all` images or records.
    pub(crate) fn new(max: MaxBad, all: u64) -> Self {
        Self {
            count: AtomicU64::new(0),
            limit: max.of(all),
        }
    }

    /// Adds `count` bad images or records, which `what` describes; an error above the limit.
    pub(crate) fn add(&self, count: u64, what: &dyn fmt::Display) -> Result<()> {
        let count = self.count.fetch_add(count, Ordering::Relaxed) + count;
        match count > self.limit {
            true => Err(Error::TooManyBad {
                limit: self.limit,
                last: what.to_string(),
            }),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_ends_after_too_many_bad_samples() {
        for (max, all, allowed) in [
            (MaxBad::Usual, 500, 100),
            (MaxBad::Usual, 50_000, 500),
            (MaxBad::Count(2), 50_000, 2),
            ("0.5%".parse().unwrap(), 1000, 5),
        ] {
            let count = BadCount::new(max, all);
            (0..allowed).for_each(|_| count.add(1, &"x").unwrap());
            let error = count.add(1, &"the last").unwrap_err().to_string();
            assert!(
                error.contains(&format!("more than {allowed} bad")),
                "{error}"
            );
            assert!(error.contains("the last"), "{error}");
        }
        for text in ["", "x", "101%", "-1", "-1%", "1.5"] {
            assert!(text.parse::<MaxBad>().is_err(), "{text:?}");
        }
    }
}
