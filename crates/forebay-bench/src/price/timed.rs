//! Timed runs of a loader with a consumer.

use std::cell::RefCell;
use std::thread;
use std::time::{Duration, Instant};

use forebay_loader::{Loader, Options, Stats};
use forebay_shard::Split;

use crate::measure::Measurement;
use crate::{Result, Steps};

/// This fraction (1/n) at the start of a run fills windows and queues, and is not counted.
pub(super) const FILLING: u32 = 4;

/// A run of a loader.
pub(super) struct LoaderRun {
    pub(super) measurement: Measurement,
    /// Counters of the counted part, or of the whole run if all of its images were decoded before that part.
    pub(super) stats: Stats,
    /// Bytes read since the start of the run.
    pub(super) bytes_read: u64,
}

/// Runs a loader with a consumer.
pub(super) fn run_loader(
    split: Split,
    asked: Options,
    time: Duration,
    steps: &Steps,
) -> Result<LoaderRun> {
    let loader = RefCell::new(Loader::new(split, asked)?);
    let mut begun = loader.borrow().stats();
    let mut next = || {
        let batch = loader.borrow_mut().next_batch()?;
        Ok(batch.map(|batch| batch.samples.len() as u64))
    };
    // Before the counted part, filling the windows of the shuffle reads much more than the first batches take.
    let measurement = counted(time, steps, &mut next, || begun = loader.borrow().stats())?;
    let whole = loader.borrow().stats();
    Ok(LoaderRun {
        measurement,
        bytes_read: whole.bytes_read,
        stats: counters(whole, &begun),
    })
}

/// Returns the counters of the counted part of a run, or of the whole run if its images were decoded before that part.
fn counters(whole: Stats, begun: &Stats) -> Stats {
    let counted = whole.since(begun);
    match counted.images {
        0 => whole,
        _ => counted,
    }
}

/// Takes batches until the time is up, but at least three. The first quarter of the time fills queues and is not counted, so
/// that later batches are taken at the rate at which they are made. `next` returns the number of samples of the next batch, `None`
/// at the end of an epoch; `begins` is called when the counted part begins.
pub(super) fn counted(
    time: Duration,
    steps: &Steps,
    next: &mut dyn FnMut() -> Result<Option<u64>>,
    mut begins: impl FnMut(),
) -> Result<Measurement> {
    let begin = Instant::now();
    // Start of the counted part, and samples and time of the last batch in it.
    let (mut from, mut samples, mut last, mut count) = (None, 0, begin, 0);
    let mut taken = 0;
    let mut ended = false;
    loop {
        let batch = next()?;
        let now = Instant::now();
        match (batch, from) {
            (None, _) if ended => {
                return Err("an epoch has no batches: nothing can be measured".into());
            }
            (None, _) => {
                ended = true;
                continue;
            }
            (Some(_), None) if now - begin >= time / FILLING => {
                begins();
                from = Some(now);
            }
            (Some(_), None) => {}
            (Some(of_batch), Some(_)) => {
                (samples, last) = (samples + of_batch, now);
                count += 1;
            }
        }
        ended = false;
        if now - begin >= time && count >= 2 {
            break;
        }
        let step = steps.at(taken);
        taken += 1;
        if !step.is_zero() {
            thread::sleep(step);
        }
    }
    let from = from.unwrap_or(begin);
    Ok(Measurement {
        amount: samples as f64,
        seconds: (last - from).as_secs_f64().max(1e-9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_decoded_before_the_clock_starts_have_counters() {
        let mut whole = Stats::default();
        (whole.images, whole.batches) = (8, 3);
        let mut begun = whole.clone();
        assert_eq!(counters(whole.clone(), &begun), whole);
        begun.images = 5;
        assert_eq!(counters(whole.clone(), &begun).images, 3);
    }

    #[test]
    fn queues_fill_before_the_clock_starts() {
        let mut calls = 0u32;
        let took = counted(
            Duration::from_millis(40),
            &Duration::from_millis(2).into(),
            &mut || {
                calls += 1;
                // An epoch ends after every third batch.
                Ok((!calls.is_multiple_of(4)).then_some(8))
            },
            || (),
        );
        let took = took.unwrap();
        assert!(took.amount >= 16.0 && took.seconds <= 60.0);
        assert!(
            f64::from(8 * calls) > took.amount,
            "the first quarter counts"
        );
        let empty = counted(
            Duration::from_secs(60),
            &Steps::none(),
            &mut || Ok(None),
            || (),
        );
        assert!(empty.unwrap_err().to_string().contains("no batches"));
    }
}
