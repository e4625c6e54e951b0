//! Validates the order of a stream: each batch once, in sequence. No IO.

use forebay_batch::positions::Assignment;
use forebay_batch::{FLAG_FAILED, FLAG_PADDING, FLAG_SAMPLE, digest};
use forebay_options::{OnError, StreamInfo};
use forebay_wire::text::printable_start;
use forebay_wire::wire;

/// Limit of the number of records and of the size of a global batch, so that sums stay far below
/// 2^64.
const MOST: u64 = 1 << 48;

/// An epoch and a position in it, in samples.
pub(crate) type Place = (u64, u64);

/// A value that contradicts the expected sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SequenceError {
    pub(crate) what: &'static str,
    pub(crate) expected: String,
    pub(crate) found: String,
}

fn same<T: PartialEq + std::fmt::Debug>(
    what: &'static str,
    expected: T,
    found: T,
) -> Result<(), SequenceError> {
    if expected == found {
        return Ok(());
    }
    Err(SequenceError {
        what,
        expected: format!("{expected:?}"),
        found: format!("{found:?}"),
    })
}

/// The parameters of a stream that determine its messages.
#[derive(Debug, Clone)]
struct Expected {
    records: u64,
    assignment: Assignment,
    drop_last: bool,
    /// Whether failed samples may be replaced.
    replaces: bool,
    batch_bytes: u64,
    /// Whether images are encoded.
    raw: bool,
    /// Names of the columns.
    columns: Vec<String>,
}

/// The parameters and the position of a stream, which determine its next message.
#[derive(Debug, Clone)]
pub(crate) struct Sequence {
    stream: Expected,
    epoch: u64,
    position: u64,
    /// Batches of the epoch that this connection sent.
    batches: u64,
    digest: u64,
}

impl Sequence {
    /// Creates the sequence of the stream that `info` describes, starting at a position.
    pub(crate) fn new(info: &StreamInfo, epoch: u64, position: u64) -> Result<Self, SequenceError> {
        let (batch_size, rank, world_size) = (info.batch_size(), info.rank(), info.world_size());
        let sequence = Sequence {
            stream: Expected {
                records: info.records,
                assignment: info.assignment(),
                drop_last: info.options.drop_last != Some(false),
                replaces: matches!(info.options.on_error, Some(OnError::Skip | OnError::Zero)),
                batch_bytes: info.batch_bytes,
                raw: info.options.keeps_encoded(),
                columns: info.options.columns.clone().unwrap_or_default(),
            },
            epoch,
            position,
            batches: 0,
            digest: 0,
        };
        let sizes = [batch_size, world_size, info.batch_bytes];
        let global_size = batch_size.checked_mul(world_size);
        if sizes.contains(&0)
            || rank >= world_size
            || global_size.is_none_or(|size| size > MOST)
            || info.records > MOST
            || info.samples > MOST
        {
            return Err(SequenceError {
                what: "the opened stream",
                expected: "possible sizes and a rank within its world".to_owned(),
                found: format!(
                    "{} records, batches of {batch_size} samples and {} bytes, rank {rank} of {world_size}",
                    info.records, info.batch_bytes
                ),
            });
        }
        Ok(sequence)
    }

    /// Position of the next batch.
    pub(crate) fn place(&self) -> Place {
        (self.epoch, self.position)
    }

    /// Number of the epoch of the next batch.
    pub(crate) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Payload size of a batch in bytes; if sizes vary, the part that is known in advance.
    pub(crate) fn batch_bytes(&self) -> u64 {
        self.stream.batch_bytes
    }

    /// Samples per global batch.
    pub(crate) fn global_size(&self) -> u64 {
        self.stream.assignment.global_size()
    }

    /// Returns whether batches vary in size: those with encoded images or with columns.
    pub(crate) fn varies(&self) -> bool {
        self.stream.raw || !self.stream.columns.is_empty()
    }

    /// Resets the counts of the connection; the position stays.
    pub(crate) fn reconnected(&mut self) {
        self.batches = 0;
        self.digest = 0;
    }

    fn is_at_end(&self) -> bool {
        self.ends_at(self.position)
    }

    fn ends_at(&self, position: u64) -> bool {
        let left = self.stream.assignment.samples.saturating_sub(position);
        left == 0 || (self.stream.drop_last && left < self.global_size())
    }

    /// The position `batches` after a position, at most the end of its epoch.
    pub(crate) fn ahead(&self, (epoch, mut position): Place, batches: u64) -> Place {
        for _ in 0..batches {
            if self.ends_at(position) {
                break;
            }
            position = self.after(position);
        }
        (epoch, position)
    }

    /// Validates a batch against the expected one.
    pub(crate) fn check(&self, batch: &wire::Batch, payload_len: u64) -> Result<(), SequenceError> {
        same("epoch", self.epoch, batch.epoch)?;
        if self.is_at_end() {
            return Err(SequenceError {
                what: "end of the epoch",
                expected: format!("none of its batches after position {}", self.position),
                found: format!("a batch at position {}", batch.position),
            });
        }
        same("position", self.position, batch.position)?;
        same("step", self.position / self.global_size(), batch.step)?;
        same("encoded images", self.stream.raw, !batch.offsets.is_empty())?;
        if !self.varies() {
            same("bytes of a batch", self.stream.batch_bytes, payload_len)?;
        }
        let columns = batch.columns.iter().map(|column| &column.name);
        if !columns.eq(&self.stream.columns) {
            let found = batch.columns.iter().map(|column| column.name.as_str());
            return Err(SequenceError {
                what: "columns",
                expected: format!("{:?}", self.stream.columns),
                found: printable_start(&format!("{:?}", found.collect::<Vec<_>>()), 500)
                    .into_owned(),
            });
        }
        let samples = batch.samples.len() as u64;
        same(
            "samples of a batch",
            self.stream.assignment.batch_size,
            samples,
        )?;
        let positions = self.stream.assignment.positions(self.epoch, self.position);
        for (i, (&sample, &at)) in batch.samples.iter().zip(&positions).enumerate() {
            let flag = if at < self.stream.assignment.samples {
                FLAG_SAMPLE
            } else {
                FLAG_PADDING
            };
            let known = if self.stream.replaces {
                !FLAG_FAILED
            } else {
                !0
            };
            let found = batch.flags.get(i).map(|flag| flag & known);
            same("padding", Some(flag), found)?;
            if sample >= self.stream.records {
                return Err(SequenceError {
                    what: "sample",
                    expected: format!("less than {}", self.stream.records),
                    found: sample.to_string(),
                });
            }
        }
        let found = digest::batch(positions, &batch.samples, &batch.flags);
        same("digest", batch.digest, found)
    }

    /// Advances past a batch that was validated and received.
    pub(crate) fn advance(&mut self, digest: u64) {
        self.position = self.after(self.position);
        self.batches += 1;
        self.digest = digest::fold(self.digest, digest);
    }

    /// The position after the global batch at `position`.
    pub(crate) fn after(&self, position: u64) -> u64 {
        self.stream
            .assignment
            .samples
            .min(position + self.global_size())
    }

    /// Validates the end of an epoch against the received batches, and advances to the next epoch.
    pub(crate) fn epoch_end(&mut self, end: &wire::EpochEnd) -> Result<(), SequenceError> {
        same("epoch", self.epoch, end.epoch)?;
        if !self.is_at_end() {
            return Err(SequenceError {
                what: "batch",
                expected: format!(
                    "one at position {} of {}",
                    self.position, self.stream.assignment.samples
                ),
                found: format!("the end of epoch {}", end.epoch),
            });
        }
        same("batches of the epoch", self.batches, end.batches)?;
        same("digest of the epoch", self.digest, end.digest)?;
        self.epoch += 1;
        self.position = 0;
        self.reconnected();
        Ok(())
    }

    /// Describes the next item, for messages.
    pub(crate) fn next(&self) -> String {
        if self.is_at_end() {
            format!("the end of epoch {}", self.epoch)
        } else {
            format!(
                "the batch at epoch {}, position {}",
                self.epoch, self.position
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_options::LoaderOptions;

    use super::*;

    fn info(records: u64, drop_last: bool) -> StreamInfo {
        let options = r#"{"batch_size": 2, "rank": 1, "world_size": 2}"#;
        let mut options: LoaderOptions = serde_json::from_str(options).unwrap();
        options.drop_last = Some(drop_last);
        StreamInfo {
            options,
            records,
            samples: records,
            batches_per_epoch: 1,
            batch_bytes: 6,
            ..StreamInfo::default()
        }
    }

    fn batch(epoch: u64, position: u64, records: u64) -> wire::Batch {
        let at = |i: u64| position + 1 + 2 * i;
        let samples: Vec<u64> = (0..2).map(|i| at(i) % records).collect();
        let flags: Vec<u8> = (0..2).map(|i| u8::from(at(i) >= records)).collect();
        wire::Batch {
            epoch,
            step: position / 4,
            position,
            shape: vec![2, 1, 1, 3],
            labels: vec![0, 0],
            digest: digest::batch((position + 1..).step_by(2), &samples, &flags),
            samples,
            flags: flags.into(),
            ..wire::Batch::default()
        }
    }

    #[test]
    fn two_epochs_and_a_resumed_one() {
        let mut sequence = Sequence::new(&info(9, true), 0, 0).unwrap();
        for epoch in 0..2 {
            let mut sum = 0;
            for position in [0, 4] {
                let batch = batch(epoch, position, 9);
                sequence.check(&batch, 6).unwrap();
                sequence.advance(batch.digest);
                sum = digest::fold(sum, batch.digest);
            }
            let end = wire::EpochEnd {
                epoch,
                batches: 2,
                digest: sum,
            };
            assert!(sequence.check(&batch(epoch, 8, 9), 6).is_err());
            sequence.epoch_end(&end).unwrap();
        }
        let mut sequence = Sequence::new(&info(9, false), 7, 4).unwrap();
        sequence.check(&batch(7, 4, 9), 6).unwrap();
        sequence.advance(0);
        let last = batch(7, 8, 9);
        assert_eq!(last.flags[..], [1, 1]);
        sequence.check(&last, 6).unwrap();
        sequence.advance(0);
        assert_eq!(sequence.position, 9);
        assert_eq!(sequence.next(), "the end of epoch 7");
    }

    #[test]
    fn epoch_lengths_differ_and_samples_may_be_replaced() {
        let mut opened = info(9, true);
        opened.samples = 20;
        let mut sequence = Sequence::new(&opened, 0, 16).unwrap();
        let mut last = batch(0, 16, 20);
        last.samples = vec![8, 3];
        last.digest = digest::batch((17..).step_by(2), &last.samples, &last.flags);
        sequence.check(&last, 6).unwrap();
        sequence.advance(0);
        assert_eq!(sequence.next(), "the end of epoch 0");
        // A failed sample is valid if replacement was requested.
        let mut failed = batch(0, 4, 9);
        failed.flags = vec![FLAG_FAILED, 0].into();
        failed.digest = digest::batch((5..).step_by(2), &failed.samples, &failed.flags);
        let sequence = Sequence::new(&opened, 0, 4).unwrap();
        assert_eq!(sequence.check(&failed, 6).unwrap_err().what, "padding");
        opened.options.on_error = Some(OnError::Skip);
        let sequence = Sequence::new(&opened, 0, 4).unwrap();
        sequence.check(&failed, 6).unwrap();
        failed.flags = vec![FLAG_FAILED | FLAG_PADDING, 0].into();
        assert_eq!(sequence.check(&failed, 6).unwrap_err().what, "padding");
    }

    #[test]
    fn unexpected_messages_are_rejected() {
        type Change = fn(&mut wire::Batch);
        let changes: [(&str, Change); 9] = [
            ("epoch", |b| b.epoch = 1),
            ("position", |b| b.position = 8),
            ("position", |b| b.position = 0),
            ("step", |b| b.step = 7),
            ("samples of a batch", |b| b.samples.push(1)),
            ("sample", |b| b.samples[0] = 99),
            ("digest", |b| b.samples.swap(0, 1)),
            ("digest", |b| b.digest ^= 1),
            ("padding", |b| b.flags = vec![0, 1].into()),
        ];
        let mut sequence = Sequence::new(&info(12, true), 0, 0).unwrap();
        sequence.advance(batch(0, 0, 12).digest);
        for (what, change) in changes {
            let mut bad = batch(0, 4, 12);
            change(&mut bad);
            assert_eq!(sequence.check(&bad, 6).unwrap_err().what, what);
        }
        let e = sequence.check(&batch(0, 4, 12), 7).unwrap_err();
        assert_eq!(e.what, "bytes of a batch");
        let mut encoded = batch(0, 4, 12);
        encoded.offsets = vec![0, 3, 7];
        let e = sequence.check(&encoded, 7).unwrap_err();
        assert_eq!(e.what, "encoded images");
        let mut raw = info(12, true);
        raw.options.transform = serde_json::from_str(r#""keep_encoded""#).unwrap();
        let of_bytes = Sequence::new(&raw, 0, 4).unwrap();
        of_bytes.check(&encoded, 7).unwrap();
        let e = of_bytes.check(&batch(0, 4, 12), 6).unwrap_err();
        assert_eq!(e.what, "encoded images");
        let mut with_columns = info(12, false);
        with_columns.options.columns = Some(vec!["caption".to_owned()]);
        let of_columns = Sequence::new(&with_columns, 0, 4).unwrap();
        let mut described = batch(0, 4, 12);
        assert_eq!(of_columns.check(&described, 6).unwrap_err().what, "columns");
        described.columns = vec![wire::Column {
            name: "caption".to_owned(),
            ..wire::Column::default()
        }];
        of_columns.check(&described, 99).unwrap();
        assert_eq!(sequence.check(&described, 6).unwrap_err().what, "columns");
        let end = wire::EpochEnd {
            batches: 1,
            ..Default::default()
        };
        assert_eq!(sequence.epoch_end(&end).unwrap_err().what, "batch");
        for spec in [(0, 0, 1), (1, 1, 1), (1, 0, 0), (u64::MAX, 1, 2)] {
            let mut bad = info(9, true);
            let (batch_size, rank, world_size) = spec;
            bad.options.batch_size = Some(batch_size);
            bad.options.rank = Some(rank);
            bad.options.world_size = Some(world_size);
            assert!(Sequence::new(&bad, 0, 0).is_err());
        }
    }
}
