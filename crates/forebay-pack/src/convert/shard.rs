//! The file of a shard that a conversion writes, and the policy for records that it cannot hold.

use super::record::Converted;
use super::source::refused;
use crate::bad_count::BadCount;
use crate::error::Result;
use crate::observer::Observer;
use crate::options::{OnBad, PackOptions};
use crate::publish::destination::{ShardLine, SpaceReservation};
use crate::write::{Quarantine, RecordFileWriter, WrittenShard};
use forebay_formats::records::{RecordFile, SourceRecord};
use forebay_formats::{Action, Error as SourceError, Finding, Reason, escape};
use forebay_shard::mapped::Extent;
use forebay_store::Durability;
use std::collections::HashSet;

/// Bytes or records between two progress reports and checks for cancellation.
pub(super) const STEP_BYTES: u64 = 4 << 20;
pub(super) const STEP_RECORDS: u64 = 64;

/// The policy for bad records, and their count.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bad<'a> {
    pub(super) policy: &'a OnBad,
    pub(super) count: &'a BadCount,
    pub(super) durability: Durability,
}

/// Returns the bytes of a record that was read before and then refused; `None` if it cannot be read.
fn stored_record(file: &dyn RecordFile, record: u64) -> Option<Vec<u8>> {
    let file = file.unchecked().unwrap_or(file);
    let mut reader = file.read(record..record + 1).ok()?;
    let read = reader.next_record().ok()??;
    Some(read.bytes.to_vec())
}

/// A shard that is being written.
pub(super) struct ShardInProgress<'a> {
    bad: Bad<'a>,
    /// Hashes of the keys so far, if keys must be unique.
    keys: Option<HashSet<u128>>,
    observer: &'a dyn Observer,
    writer: RecordFileWriter,
    pub(super) line: ShardLine,
    /// Records and bytes that were not reported to the observer yet.
    step: (u64, u64),
}

impl<'a> ShardInProgress<'a> {
    /// With `has_unique_keys`, a record counts as bad if its key already occurs in the shard.
    pub(super) fn new(
        name: &str,
        writer: RecordFileWriter,
        bad: Bad<'a>,
        has_unique_keys: bool,
        observer: &'a dyn Observer,
    ) -> Self {
        Self {
            bad,
            keys: has_unique_keys.then(HashSet::new),
            observer,
            writer,
            line: ShardLine::new(name),
            step: (0, 0),
        }
    }

    /// Writes a converted record. Returns whether a progress step is complete.
    pub(super) fn append(
        &mut self,
        file: &dyn RecordFile,
        record: &SourceRecord<'_>,
        converted: &Converted<'_>,
        extents: &[Extent],
    ) -> Result<bool> {
        if !self.is_new_key(record.key) {
            let key = escape(record.key);
            let what = format!("its key {key:?} is that of an earlier record of this shard");
            return self.refuse(file, record.number, what).map(|()| false);
        }
        let written = SourceRecord {
            bytes: converted.bytes,
            ..*record
        };
        if let Err(what) = self.writer.append(&written, extents)? {
            return self.refuse(file, record.number, what).map(|()| false);
        }
        self.line.seek_points.add(converted.seek_point_bytes);
        self.line.progressive.add(converted.is_baseline_now);
        self.line.fast.add(converted.fast);
        if let Some(label) = record.label.filter(|label| *label >= 0) {
            let (least, most) = self.line.labels.unwrap_or((label, label));
            self.line.labels = Some((least.min(label), most.max(label)));
        }
        self.step.0 += 1;
        self.step.1 += record.bytes.len() as u64;
        let is_step = self.step.0 >= STEP_RECORDS || self.step.1 >= STEP_BYTES;
        if is_step {
            self.advance();
        }
        Ok(is_step)
    }

    /// Leaves out a bad record, or returns its error if the policy is to fail.
    pub(super) fn leave_out(&mut self, file: &dyn RecordFile, error: SourceError) -> Result<()> {
        let (path, record, what) = match error {
            SourceError::Record { path, record, what } if *self.bad.policy != OnBad::Fail => {
                (path, record, what)
            }
            error => return Err(error.into()),
        };
        let name = path
            .file_name()
            .unwrap_or(path.as_os_str())
            .as_encoded_bytes();
        let mut action = Action::Skipped;
        if let OnBad::Quarantine(dir) = self.bad.policy
            && let Some(bytes) = stored_record(file, record)
        {
            let place = [name, format!("/{record}").as_bytes()].concat();
            Quarantine::new(dir, self.bad.durability).keep(&place, &bytes)?;
            action = Action::Quarantined;
        }
        let what = format!("record {record}: {what}");
        let found = Finding::new(action, Reason::BadRecord, name, what);
        self.bad.count.add(1, &found)?;
        self.line.findings.push(found);
        Ok(())
    }

    /// Returns whether a key is new in this shard. Empty keys always count as new.
    pub(super) fn is_new_key(&mut self, key: &[u8]) -> bool {
        let Some(keys) = self.keys.as_mut().filter(|_| !key.is_empty()) else {
            return true;
        };
        let hash = blake3::hash(key);
        let mut half = [0; 16];
        half.copy_from_slice(&hash.as_bytes()[..16]);
        keys.insert(u128::from_le_bytes(half))
    }

    /// Leaves out a record that cannot be converted or that the format cannot hold, or returns the error.
    pub(super) fn refuse(
        &mut self,
        file: &dyn RecordFile,
        record: u64,
        what: String,
    ) -> Result<()> {
        if *self.bad.policy == OnBad::Fail {
            return Err(refused(file, record, what));
        }
        let path = file.path().to_path_buf();
        self.leave_out(file, SourceError::Record { path, record, what })
    }

    /// Writes the end of the shard.
    pub(super) fn finish(
        mut self,
        room: SpaceReservation,
        options: &PackOptions,
    ) -> Result<WrittenShard> {
        self.advance();
        let file = self.writer.finish()?;
        Ok(WrittenShard::converted(self.line, file, room, options))
    }

    /// Reports to the observer what was written since the last call.
    fn advance(&mut self) {
        let (records, bytes) = std::mem::take(&mut self.step);
        self.line.image_bytes += bytes;
        self.observer.advanced(records, bytes);
    }
}
