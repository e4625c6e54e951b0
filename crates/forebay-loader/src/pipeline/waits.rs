//! Describes which stage waits for which, for the message of a timeout.

use super::state::{State, Working};
use crate::source::Source;

/// Describes what the trainer currently waits for.
pub(super) fn describe(state: &State, source: &dyn Source) -> String {
    let batch = match state.front() {
        Some(front) => format!(
            "{} of {} samples are missing in the batch at position {} of epoch {}",
            front.left,
            front.labels.len(),
            front.start,
            front.epoch
        ),
        None => "the next batch was not begun".to_owned(),
    };
    let oldest = |working: &[Option<Working>]| {
        working
            .iter()
            .enumerate()
            .filter_map(|(i, working)| Some((i, working.as_ref()?)))
            .min_by_key(|(_, working)| working.since)
            .map(|(i, working)| (i, working.sample, working.count, working.since.elapsed()))
    };
    let reading = oldest(&state.reading).map(|(i, sample, count, time)| {
        format!(
            "thread fb-read-{i} has been reading {count} records for {:.1} s, from {}",
            time.as_secs_f64(),
            source.locate(sample)
        )
    });
    let decoding = oldest(&state.decoding).map(|(i, sample, _, time)| {
        format!(
            "thread fb-decode-{i} has been decoding for {:.1} s, {}",
            time.as_secs_f64(),
            source.locate(sample)
        )
    });
    let mut parts = vec![batch];
    parts.extend(reading);
    parts.extend(decoding);
    if parts.len() == 1 {
        parts.push("no thread is reading or decoding".to_owned());
    }
    parts.join("; ")
}
