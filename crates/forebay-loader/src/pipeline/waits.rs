//! The reads and samples in progress, and what a trainer waits for, for the message of a timeout.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::pending_batch::PendingBatch;
use crate::source::Source;

/// The work of each thread.
pub(super) struct InProgress {
    reads: Vec<Option<Work>>,
    samples: Vec<Option<Work>>,
}

struct Work {
    records: Range<u64>,
    since: Instant,
}

impl InProgress {
    pub(super) fn new(readers: usize, decoders: usize) -> Self {
        InProgress {
            reads: (0..readers).map(|_| None).collect(),
            samples: (0..decoders).map(|_| None).collect(),
        }
    }

    /// Returns the number of decode threads.
    pub(super) fn decoders(&self) -> usize {
        self.samples.len()
    }

    /// Records which records reader `me` reads from now on, if any.
    pub(super) fn read(&mut self, me: usize, records: Option<Range<u64>>) {
        self.reads[me] = records.map(Work::new);
    }

    /// Records which sample decode thread `me` decodes from now on, if any.
    pub(super) fn decode(&mut self, me: usize, sample: Option<u64>) {
        self.samples[me] = sample.map(|sample| Work::new(sample..sample + 1));
    }

    /// Describes what the trainer waits for, if `front` is the next batch.
    pub(super) fn describe(&self, front: Option<&PendingBatch>, source: &dyn Source) -> String {
        let mut parts = vec![match front {
            Some(front) => front.missing(),
            None => "the next batch was not begun".to_owned(),
        }];
        parts.extend(oldest(&self.reads).map(|(i, records, time)| {
            format!(
                "thread fb-read-{i} has been reading {} records for {:.1} s, from {}",
                records.end - records.start,
                time.as_secs_f64(),
                source.locate(records.start)
            )
        }));
        parts.extend(oldest(&self.samples).map(|(i, records, time)| {
            format!(
                "thread fb-decode-{i} has been decoding for {:.1} s, {}",
                time.as_secs_f64(),
                source.locate(records.start)
            )
        }));
        if parts.len() == 1 {
            parts.push("no thread is reading or decoding".to_owned());
        }
        parts.join("; ")
    }
}

impl Work {
    fn new(records: Range<u64>) -> Self {
        Work {
            records,
            since: Instant::now(),
        }
    }
}

/// Returns the longest work: its thread, records and time.
fn oldest(work: &[Option<Work>]) -> Option<(usize, &Range<u64>, Duration)> {
    let under_way = work.iter().enumerate();
    let under_way = under_way.filter_map(|(i, work)| Some((i, work.as_ref()?)));
    let (i, work) = under_way.min_by_key(|(_, work)| work.since)?;
    Some((i, &work.records, work.since.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Records;
    use super::*;

    #[test]
    fn the_longest_read_and_sample_are_described() {
        let mut work = InProgress::new(3, 2);
        let source = Records(100);
        let idle = work.describe(None, &source);
        assert!(
            idle.contains("no thread") && !idle.contains("fb-"),
            "{idle}"
        );
        work.read(1, Some(40..47));
        work.read(0, Some(10..20));
        work.decode(1, Some(5));
        let busy = work.describe(None, &source);
        for part in [
            "fb-read-1",
            "7 records",
            "record 40",
            "fb-decode-1",
            "record 5",
        ] {
            assert!(busy.contains(part), "{part} in {busy}");
        }
        work.read(1, None);
        work.decode(1, None);
        let later = work.describe(None, &source);
        assert!(
            later.contains("fb-read-0") && !later.contains("fb-decode"),
            "{later}"
        );
    }
}
