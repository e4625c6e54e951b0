//! The findings of a verification.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// All findings, in the order of the shards.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Number of shards read.
    pub shards: u64,
    /// Number of intact records.
    pub records: u64,
    /// Size of the shards in bytes.
    pub bytes: u64,
    /// The problems.
    pub findings: Vec<VerifyFinding>,
    /// The records that cannot be read because of these problems.
    pub lost: Vec<Lost>,
    /// Whether the verification was stopped early; the state of unread parts is unknown.
    pub stopped: bool,
}

impl VerifyReport {
    /// Returns whether everything was read without a finding.
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty() && !self.stopped
    }

    /// Returns the number of lost records, as far as it is known from indexes.
    pub fn lost_records(&self) -> u64 {
        let known = self.lost.iter().filter_map(|lost| lost.records.as_ref());
        known.map(|records| records.end - records.start).sum()
    }

    pub(super) fn add(&mut self, other: Self) {
        self.shards += other.shards;
        self.records += other.records;
        self.bytes += other.bytes;
        self.findings.extend(other.findings);
        self.lost.extend(other.lost);
        self.stopped |= other.stopped;
    }
}

impl fmt::Display for VerifyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings
            .iter()
            .try_for_each(|finding| writeln!(f, "{finding}"))?;
        self.lost
            .iter()
            .try_for_each(|lost| writeln!(f, "{lost}"))?;
        write!(
            f,
            "{} shards, {} intact records, {} bytes: {} findings{}",
            self.shards,
            self.records,
            self.bytes,
            self.findings.len(),
            if self.stopped { ", stopped" } else { "" }
        )
    }
}

/// A problem that the verification found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyFinding {
    /// The file.
    pub path: PathBuf,
    /// The record's number in the shard, if the problem concerns a record.
    pub record: Option<u64>,
    /// Offset in the file, if known.
    pub offset: Option<u64>,
    /// The property that was compared.
    pub what: String,
    /// The expected value.
    pub expected: Option<String>,
    /// The actual value.
    pub found: Option<String>,
}

impl VerifyFinding {
    pub(super) fn of_record(path: PathBuf, record: u64, what: String) -> Self {
        Self {
            path,
            record: Some(record),
            offset: None,
            what,
            expected: None,
            found: None,
        }
    }
}

impl From<Error> for VerifyFinding {
    fn from(error: Error) -> Self {
        let plain = |path: PathBuf, what: String| Self {
            path,
            record: None,
            offset: None,
            what,
            expected: None,
            found: None,
        };
        match error {
            Error::Corrupt(damage) => Self {
                path: damage.shard,
                record: damage.record,
                offset: Some(damage.offset),
                what: damage.what,
                expected: Some(damage.expected.into()),
                found: Some(damage.found.into()),
            },
            Error::Mismatch {
                path,
                what,
                expected,
                found,
            } => Self {
                expected: Some(expected),
                found: Some(found),
                ..plain(path, what)
            },
            Error::Io { path, op, source } => plain(path, format!("cannot {op}: {source}")),
            Error::Manifest { path, problem } | Error::Unsupported { path, problem } => {
                plain(path, problem)
            }
            Error::Version { ref path, .. } | Error::Feature { ref path, .. } => {
                let text = error.to_string();
                let prefix = format!("{}: ", path.display());
                plain(
                    path.clone(),
                    text.strip_prefix(&prefix).unwrap_or(&text).to_owned(),
                )
            }
            other => plain(PathBuf::new(), other.to_string()),
        }
    }
}

impl fmt::Display for VerifyFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.path.display())?;
        match (self.record, self.offset) {
            (Some(record), Some(offset)) => write!(f, "record {record} at byte {offset}: ")?,
            (Some(record), None) => write!(f, "record {record}: ")?,
            (None, Some(offset)) => write!(f, "at byte {offset}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.what)?;
        match (&self.expected, &self.found) {
            (Some(expected), Some(found)) => write!(f, ": expected {expected}, found {found}"),
            _ => Ok(()),
        }
    }
}

/// Records that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lost {
    /// The shard.
    pub path: PathBuf,
    /// Their numbers in the shard, if known from an index.
    pub records: Option<Range<u64>>,
    /// Their byte range in the file.
    pub bytes: Range<u64>,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: lost: ", self.path.display())?;
        match &self.records {
            Some(records) if records.end - records.start == 1 => {
                write!(f, "record {}", records.start)?;
            }
            Some(records) => write!(f, "records {} to {}", records.start, records.end - 1)?,
            None => f.write_str("an unknown number of records")?,
        }
        write!(f, " in bytes {} to {}", self.bytes.start, self.bytes.end)
    }
}
