//! Verifies that every byte is as it was written.
//!
//! Verification reads everything once: every checksum, the zero padding, the index compared with the data,
//! and all of it compared with the manifest. It does not stop at the first finding: a [`VerifyReport`] lists
//! all findings, and the records that are lost.
//!
//! ```
//! use forebay_shard::verify::{VerifyOptions, verify_shard};
//! # use forebay_shard::{RecordMeta, indexed};
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("train-00000-of-00001.fbs");
//! # let file = std::fs::File::create(&path)?;
//! # let mut writer = indexed::WriterBuilder::new().from_writer(file, &path)?;
//! # writer.append(b"first", &RecordMeta::new(3, b"cat/1.jpeg"))?;
//! # writer.finish()?;
//!
//! let report = verify_shard(&path, &VerifyOptions::default(), &|_| {})?;
//! assert!(report.is_ok(), "{report}");
//! assert_eq!(report.records, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod dataset;
mod indexed;
mod mapped;
mod report;
mod salvage;
mod sum;
mod tfrecord;

use std::num::NonZero;
use std::ops::Range;
use std::path::Path;

pub use dataset::{verify_dataset, verify_dataset_in};
pub use report::{Lost, VerifyFinding, VerifyReport};
pub use salvage::{IntactRecord, ShardPlace, TakeRecord, salvage_shard_in};

use crate::checksum::Crc32c;
use crate::error::{Corruption, Error, Result};
use crate::example::{ExampleView, IMAGE_LABEL};
use crate::frame::MAX_RECORD_BYTES;
use crate::index::{self, FileKind, Index, KEY_PAGE_RECORDS, Page, page_records, pages};
use crate::samples::SampleDigest;
use crate::shard::{ShardFormat, detect_format, find_sidecar_in, key_pages};
use crate::storage::{self, LocalFiles, Storage};

/// An additional check of every record, given its shard, its number and its payload. An error
/// becomes a finding.
pub type RecordCheck<'a> = dyn Fn(&Path, u64, &[u8]) -> Result<(), String> + Sync + 'a;

/// Returns whether the verification should stop.
pub type StopCheck<'a> = dyn Fn() -> bool + Sync + 'a;

/// Options of a verification.
#[derive(Clone, Copy)]
pub struct VerifyOptions<'a> {
    /// Maximum length of a record, in bytes.
    pub max_record: u64,
    /// Number of shards to verify in parallel; `None` for one per core.
    pub threads: Option<NonZero<usize>>,
    /// The integer feature to compare with the label in the index, in records that have the feature. For a
    /// dataset, the label feature in its manifest.
    pub label_feature: Option<&'a str>,
    /// An additional check of every record, such as decoding its image.
    pub record_check: Option<&'a RecordCheck<'a>>,
    /// Called often, by every thread. After a stop, the report is marked as stopped and contains the findings
    /// so far.
    pub stop: Option<&'a StopCheck<'a>>,
}

impl Default for VerifyOptions<'_> {
    fn default() -> Self {
        Self {
            max_record: MAX_RECORD_BYTES,
            threads: None,
            label_feature: Some(IMAGE_LABEL),
            record_check: None,
            stop: None,
        }
    }
}

impl std::fmt::Debug for VerifyOptions<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyOptions")
            .field("max_record", &self.max_record)
            .field("threads", &self.threads)
            .field("label_feature", &self.label_feature)
            .field("record_check", &self.record_check.is_some())
            .field("stop", &self.stop.is_some())
            .finish()
    }
}

/// Work done since the last call. Calls come from several threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyProgress {
    /// Shards that were finished.
    pub shards: u64,
    /// Records that were read.
    pub records: u64,
    /// Bytes that were read.
    pub bytes: u64,
}

/// Receives progress.
pub type VerifyObserver<'a> = dyn Fn(VerifyProgress) + Sync + 'a;

/// Verifies one shard of either format, with its sidecar in `index/`, if any.
///
/// # Errors
/// If the file cannot be read at all. Damage is in the report.
pub fn verify_shard(
    path: impl AsRef<Path>,
    options: &VerifyOptions<'_>,
    observer: &VerifyObserver<'_>,
) -> Result<VerifyReport> {
    verify_shard_in(path, &LocalFiles::within_limits(), options, observer)
}

/// As [`verify_shard`], in any storage.
///
/// # Errors
/// As [`verify_shard`].
pub fn verify_shard_in(
    path: impl AsRef<Path>,
    storage: &dyn Storage,
    options: &VerifyOptions<'_>,
    observer: &VerifyObserver<'_>,
) -> Result<VerifyReport> {
    let path = path.as_ref();
    let format = detect_format(storage, path)?;
    let sidecar = match format {
        ShardFormat::TfRecord => {
            find_sidecar_in(path, &|sidecar| storage::exists(storage, sidecar))
        }
        ShardFormat::Indexed | ShardFormat::Mapped => None,
    };
    let mut check = ShardCheck::new(path, storage, options, observer);
    match check.verify(format, sidecar.as_deref()) {
        // A read error after a stop does not mean that the shard is damaged.
        Err(Error::Io { .. }) if check.stopped() => {}
        other => other?,
    }
    match check.no_access.take() {
        Some(error) => Err(error),
        None => Ok(check.finish()),
    }
}

/// The verification of one shard in progress.
struct ShardCheck<'a> {
    path: &'a Path,
    storage: &'a dyn Storage,
    options: &'a VerifyOptions<'a>,
    observer: &'a VerifyObserver<'a>,
    report: VerifyReport,
    /// The error of a file that cannot be read for want of access, which says nothing about its bytes. It ends the
    /// verification.
    no_access: Option<Error>,
    /// CRC32C of the whole file, once it has been read.
    crc32c: Option<u32>,
    /// BLAKE3 of the whole file, if requested.
    blake3: Option<String>,
    want_blake3: bool,
    /// Digest of the labels and keys in the index, if it exists and was read completely.
    samples: Option<SampleDigest>,
    /// Number of records in the manifest.
    expected_records: Option<u64>,
    /// The receiver of intact records.
    salvage: Option<salvage::Salvage<'a>>,
    /// The location of the records of a mapped shard.
    source: Option<crate::mapped::Source>,
}

impl<'a> ShardCheck<'a> {
    fn new(
        path: &'a Path,
        storage: &'a dyn Storage,
        options: &'a VerifyOptions<'a>,
        observer: &'a VerifyObserver<'a>,
    ) -> Self {
        Self {
            path,
            storage,
            options,
            observer,
            report: VerifyReport {
                shards: 1,
                ..VerifyReport::default()
            },
            no_access: None,
            crc32c: None,
            blake3: None,
            want_blake3: false,
            samples: None,
            expected_records: None,
            salvage: None,
            source: None,
        }
    }

    fn verify(&mut self, format: ShardFormat, sidecar: Option<&Path>) -> Result<()> {
        match format {
            ShardFormat::TfRecord => tfrecord::verify(self, sidecar),
            ShardFormat::Indexed => indexed::verify(self),
            ShardFormat::Mapped => mapped::verify(self),
        }
    }

    fn finish(self) -> VerifyReport {
        (self.observer)(VerifyProgress {
            shards: 1,
            ..VerifyProgress::default()
        });
        self.report
    }

    /// Returns whether to stop. After a stop, the report covers only the bytes that were read.
    fn stopped(&mut self) -> bool {
        self.report.stopped |= self.options.stop.is_some_and(|stop| stop());
        self.report.stopped
    }

    /// Adds a finding about any file.
    fn found(&mut self, error: impl Into<Error>) {
        let error = error.into();
        if let (Error::Io { source, .. }, Some(salvage)) = (&error, &mut self.salvage)
            && source.kind() != std::io::ErrorKind::UnexpectedEof
            && !self.report.stopped
        {
            self.report.stopped = true;
            salvage.failure = Some(error);
            return;
        }
        if is_no_access(&error) && !self.report.stopped {
            self.report.stopped = true;
            self.no_access = Some(error);
            return;
        }
        // A read error after a stop does not mean that the file is damaged.
        if !(matches!(error, Error::Io { .. }) && self.stopped()) {
            self.report.findings.push(VerifyFinding::from(error));
        }
    }

    /// Adds a finding about damage of this shard.
    fn damaged(&mut self, damage: Corruption) {
        self.found(damage.shard(self.path));
    }

    /// Checks the content of an intact record.
    fn record(&mut self, number: u64, payload: &[u8], index: Option<&Index>) {
        self.report.records += 1;
        (self.observer)(VerifyProgress {
            records: 1,
            ..VerifyProgress::default()
        });
        let label = index.and_then(|index| index.label(number));
        if let (Some(label), Some(name)) = (label, self.options.label_feature) {
            let stored = ExampleView::parse(payload)
                .ok()
                .and_then(|e| e.int64(name).ok()?);
            if let Some(stored) = stored.filter(|&stored| stored != label) {
                let what = format!("label in the index, against {name} in the record");
                let at = index
                    .and_then(|index| index.raw_frame(number))
                    .map_or(0, |f| f.start);
                self.damaged(Corruption::new(at, what, stored, label).record(number));
            }
        }
        if let Some(check) = self.options.record_check
            && let Err(problem) = check(self.path, number, payload)
        {
            let path = self.path.to_owned();
            self.report
                .findings
                .push(VerifyFinding::of_record(path, number, problem));
        }
        if let Some(salvage) = &mut self.salvage {
            salvage.take(number, payload, label);
        }
    }

    /// Verifies every page of keys in the file at `path`, and computes the digest of keys and
    /// labels.
    fn keys(&mut self, path: &Path, index: &Index) {
        let Some(place) = &index.keys else {
            self.samples = index.is_empty().then(SampleDigest::default);
            // A text index has no information about keys. A binary index without pages means that no record has a
            // key.
            if let Some(salvage) = &mut self.salvage {
                salvage.keys.are_none = true;
            }
            return;
        };
        let mut samples = Some(SampleDigest::default());
        let mut ahead = storage::open(self.storage, path)
            .map(|file| key_pages(&file, self.storage, place))
            .unwrap_or_default();
        for (page, ends) in (0..pages(index.len())).zip(place.directory.windows(2)) {
            let (offset, len) = (place.offset + ends[0], (ends[1] - ends[0]) as usize);
            ahead.advance(offset);
            let records = page_records(page, index.len());
            let file = storage::open(self.storage, path);
            let checked = file.and_then(|file| {
                let mut bytes = vec![0; len];
                storage::read_exact_at(&*file, path, &mut bytes, offset)?;
                let first = page * KEY_PAGE_RECORDS;
                let page = Page::parse(&bytes, records, offset);
                let page = page.map_err(|damage| damage.shard(path))?;
                for (key, record) in page.iter().zip(first..) {
                    if let Some(samples) = &mut samples {
                        samples.push(index.label(record), key);
                    }
                    if let Some(salvage) = &mut self.salvage {
                        salvage.keys.push(record, key);
                    }
                }
                Ok(())
            });
            if let Err(error) = checked {
                self.found(error);
                samples = None;
            }
        }
        self.samples = samples;
    }

    /// Opens an index; problems become findings.
    fn index(&mut self, path: &Path, kind: FileKind) -> Option<Index> {
        let index = crate::shard::read_index(self.storage, path, kind, self.options.max_record);
        let index = index.map_err(|error| self.found(error)).ok()?;
        if self
            .salvage
            .as_ref()
            .is_some_and(|salvage| !salvage.trusts(&index))
        {
            let problem = "is the index of another file than the manifest means: it is not used";
            self.found(Error::Unsupported {
                path: path.to_owned(),
                problem: problem.to_owned(),
            });
            return None;
        }
        Some(index)
    }

    /// Compares a value of this file with the expected one, and adds a finding if they differ.
    fn compare(&mut self, what: &str, expected: impl ToString, found: impl ToString) {
        let (expected, found) = (expected.to_string(), found.to_string());
        if expected != found {
            let (path, what) = (self.path.to_owned(), what.to_owned());
            self.found(Error::Mismatch {
                path,
                what,
                expected,
                found,
            });
        }
    }

    /// Reads a file to its end, and keeps the checksums of the whole file.
    fn sum(&mut self, file: sum::SummedFile<'_>) -> Result<Crc32c> {
        let sums = file
            .drain()
            .map_err(|error| Error::io(self.path, "read", error))?;
        self.crc32c = Some(sums.crc.value());
        self.blake3 = sums.blake3();
        Ok(sums.crc)
    }

    /// Adds lost records, whose places in the concatenated frames the index has.
    fn lose(&mut self, index: &Index, records: Range<u64>) {
        let start = index.offsets.start(records.start).unwrap_or(0);
        let end = index.offsets.start(records.end).unwrap_or(start);
        self.lost(Some(records), start..end);
    }

    /// Adds lost records, with their range in the concatenated frames.
    fn lost(&mut self, records: Option<Range<u64>>, bytes: Range<u64>) {
        self.report.lost.push(Lost {
            path: self.path.to_owned(),
            records,
            bytes,
        });
    }
}

/// Whether a file could not be read because its store, or the system, refused access or could not be reached.
fn is_no_access(error: &Error) -> bool {
    use std::io::ErrorKind::{NotConnected, PermissionDenied, TimedOut};
    matches!(error, Error::Io { source, .. } if matches!(source.kind(), PermissionDenied | NotConnected | TimedOut))
}

/// Checks that the header of a file is zero-padded and belongs to this file. Readers that start
/// at the end of a file never read the header.
fn check_header(
    check: &mut ShardCheck<'_>,
    path: &Path,
    kind: FileKind,
) -> Option<index::layout::Header> {
    let header = read_header(check.storage, path, kind);
    header.map_err(|error| check.found(error)).ok()
}

fn read_header(
    storage: &dyn Storage,
    path: &Path,
    kind: FileKind,
) -> Result<index::layout::Header> {
    let file = storage::open(storage, path)?;
    let mut piece = [0; index::PIECE_BYTES];
    storage::read_exact_at(&*file, path, &mut piece, 0)?;
    index::layout::Header::decode(&piece, kind, path)
}
