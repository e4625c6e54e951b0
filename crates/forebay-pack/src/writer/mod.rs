//! Datasets that a program writes sample by sample.
//!
//! [`DatasetWriter::write`] validates each sample against the schema. Samples are sent in batches to a thread that
//! encodes each batch in parallel (`record`), appends the records in order and divides them into shards (`shards`), while
//! another thread makes finished shards durable. So the caller continues meanwhile, and at most three batches wait. The output
//! depends on the samples and the options alone. Destination, journal and publication are those of a pack. Formats of
//! other tools are written by a conversion at the end (`converted`).

mod converted;
mod draft;
mod keys;
mod options;
mod queue;
mod record;
mod repeat;
mod session;
mod shards;

pub use draft::{DraftPixels, DraftValue, RecordDraft};
pub use options::{ImageEncoding, WriterOptions};
pub use session::WriteSummary;

use crate::error::{Error, Result, SampleError};
use crate::observer::Cancel;
use converted::Converted;
use forebay_image::{Decoder, Limits};
use forebay_shard::schema::LABEL;
use forebay_shard::{RecordMeta, Schema};
use keys::LastKeys;
use queue::{End, Queue};
use record::Checked;
use repeat::{Progress, SampleAction};
use session::{Session, Started};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Size in bytes at which a batch is sent.
const BATCH_BYTES: u64 = 16 << 20;
/// Maximum number of samples of a batch.
const BATCH_SAMPLES: usize = 4096;
/// Time after which a batch is sent even if it is small, because a killed process loses the samples that were not sent.
const BATCH_TIME: Duration = Duration::from_secs(1);
/// Interval at which a waiting write checks whether it was cancelled.
const LOOK: Duration = Duration::from_millis(100);
/// Maximum number of splits of a dataset, each of which has an open shard.
const MAX_SPLITS: usize = 200;
/// Number of preceding samples whose keys a new key must differ from; few shards have more samples.
const COMPARED_KEYS: usize = 1 << 20;

/// Writes a dataset, one sample after the other.
///
/// The dataset is published by [`close`](Self::close). A writer that is dropped before leaves its finished shards in the
/// destination, for a writer that [resumes](WriterOptions::resume).
///
/// ```
/// use forebay_pack::{Cancel, DatasetWriter, DatasetFormat, RecordDraft, WriterOptions};
/// use forebay_shard::{Column, Schema};
///
/// let dir = tempfile::tempdir()?;
/// let columns = [("image", "image"), ("label", "label"), ("caption", "text")];
/// let columns = columns.map(|(name, kind)| Ok(Column::new(name, kind.parse()?)));
/// let columns: Result<_, forebay_shard::schema::ParseColumnTypeError> = columns.into_iter().collect();
/// let mut options = WriterOptions::new(dir.path().join("mine").as_path(), Schema::new(columns?)?);
/// options.format = DatasetFormat::INDEXED;
/// let mut writer = DatasetWriter::create(options, &Cancel::new())?;
/// # let png = forebay_image::encode_png(&[1, 2, 3], 1, 1);
/// let sample = RecordDraft::new("train").key("a.png").value("image", png);
/// writer.write(sample.value("label", 3).value("caption", "a dot"))?;
/// assert_eq!(writer.close()?.records(), 1);
/// let dataset = forebay_shard::Dataset::open(dir.path().join("mine"))?;
/// assert_eq!(dataset.split("train")?.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DatasetWriter {
    options: Arc<WriterOptions>,
    shown: PathBuf,
    cancel: Cancel,
    decoder: Decoder,
    progress: Progress,
    resumed_shards: u64,
    batch: Vec<Checked>,
    batch_bytes: u64,
    /// Time of the first sample of the batch.
    batch_begin: Option<Instant>,
    /// The conversion at the end, for a format of another tool.
    converted: Option<Converted>,
    /// The numbers of classes, if labels are class names: as published, or in the order of their first samples.
    class_numbers: Option<BTreeMap<String, i64>>,
    last_keys: LastKeys,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Samples are sent to the writing thread.
    Writing(Arc<Queue>, JoinHandle<Result<WriteSummary>>),
    /// The dataset is published already, and samples are only compared with it.
    Complete(Box<forebay_shard::Manifest>),
    Closed,
}

impl DatasetWriter {
    /// Claims the destination, and starts or continues its dataset.
    ///
    /// # Errors
    /// If the options are invalid, the destination holds something else or is used by another writer, or the store cannot
    /// be reached. [`Error::Unfinished`] if an earlier writer left shards, without [`WriterOptions::resume`].
    pub fn create(mut options: WriterOptions, cancel: &Cancel) -> Result<Self> {
        options.validate().map_err(Error::Options)?;
        let mut converted = Converted::of(&mut options)?;
        let options = Arc::new(options);
        let mut class_numbers = options.number_classes.then(BTreeMap::new);
        let shown = match &converted {
            Some(converted) => converted.shown(),
            None => crate::publish::upload::shown(&options.dst),
        };
        let published = converted.as_mut().and_then(Converted::take_published);
        let started = match published {
            // The dataset is complete, so samples are only compared and not converted.
            Some(manifest) => {
                converted = None;
                if let Some(numbers) = &mut class_numbers {
                    let classes = manifest.classes.iter().map(|class| class.name.clone());
                    numbers.extend(classes.zip(manifest.label_base..));
                }
                Ok(Started::Complete(manifest))
            }
            None => Session::start(&options, cancel),
        };
        let started = started.map_err(|error| match error {
            Error::Unfinished { .. } => Error::Unfinished {
                path: shown.clone(),
            },
            // All samples were written, but the conversion was interrupted.
            Error::Occupied { .. } if converted.is_some() && !options.resume => Error::Unfinished {
                path: shown.clone(),
            },
            error => error,
        });
        if let (Err(_), Some(converted)) = (&started, &converted) {
            converted.remove_empty();
        }
        let (progress, resumed_shards, state) = match started? {
            Started::Writing(session, progress) => {
                let resumed_shards = session.resumed_shards();
                let queue = Arc::new(Queue::default());
                let for_thread = Arc::clone(&queue);
                let thread = std::thread::Builder::new()
                    .name("forebay-writer".into())
                    .spawn(move || session.run(&for_thread))
                    .map_err(|error| Error::io(&shown, "start a thread for", error))?;
                (progress, resumed_shards, State::Writing(queue, thread))
            }
            Started::Complete(manifest) => {
                let shards = manifest
                    .splits
                    .iter()
                    .map(|split| split.shards.len() as u64);
                let progress = Progress::of_complete();
                (progress, shards.sum(), State::Complete(manifest))
            }
        };
        Ok(Self {
            options,
            shown,
            cancel: cancel.clone(),
            decoder: Decoder::new(Limits::default()),
            progress,
            resumed_shards,
            batch: Vec::new(),
            batch_bytes: 0,
            batch_begin: None,
            converted,
            class_numbers,
            last_keys: LastKeys::new(COMPARED_KEYS),
            state,
        })
    }

    /// Returns the columns of the samples.
    pub fn schema(&self) -> &Schema {
        &self.options.schema
    }

    /// Returns for each split the number of samples that earlier writers stored. A resumed writer has to write the same
    /// samples first; these are only compared.
    pub fn stored(&self) -> impl Iterator<Item = (&str, u64)> {
        self.progress.stored()
    }

    /// Writes a sample, or compares it with the one that an earlier writer stored.
    ///
    /// Blocks while earlier samples wait to be encoded and stored; [`is_ready`](Self::is_ready) waits with a timeout.
    ///
    /// # Errors
    /// [`Error::Sample`] for a sample that does not match the schema: it is left out, and the next one can be written.
    /// [`Error::DifferentSamples`] if an earlier writer stored other samples. All other errors end the writer; its finished
    /// shards are kept.
    pub fn write(&mut self, draft: RecordDraft) -> Result<()> {
        while !self.is_ready(LOOK)? {
            if self.cancel.is_cancelled() {
                return Err(Error::Interrupted {
                    finished: 0,
                    total: 0,
                });
            }
        }
        let (options, progress) = (&self.options, &mut self.progress);
        let number = progress.position(&draft.split);
        let key = key_of(draft.key.as_deref(), number);
        let place = (draft.split.as_str(), number);
        let refused = |column: Option<&str>, what| refused(place, &key, column, what);
        if !forebay_formats::key_path::is_split_name(&draft.split) {
            let what = "a split has letters, digits, '_', '.' and '-' in its name and starts with a letter";
            return Err(refused(None, format!("split {:?}: {what}", draft.split)));
        }
        if number == 0 && progress.splits() >= MAX_SPLITS {
            let what = format!("more than {MAX_SPLITS} splits");
            return Err(refused(None, what));
        }
        let checked = draft::check(options, &mut self.decoder, draft.values);
        let (values, mut label, bytes) =
            checked.map_err(|(column, what)| refused(column.as_deref(), what))?;
        if let Some(numbers) = &mut self.class_numbers {
            let columns = options.schema.columns().iter();
            label = columns
                .zip(&values)
                .find_map(|(column, value)| match value {
                    Some(DraftValue::Bytes(name)) if column.name == LABEL => {
                        class_number(numbers, name)
                    }
                    _ => None,
                });
        }
        let meta = RecordMeta { label, key: &key };
        meta.check()
            .map_err(|error| refused(None, error.to_string()))?;
        if !self.last_keys.add(&draft.split, &key) {
            return Err(refused(None, "an earlier sample has its key".into()));
        }
        let step = progress
            .next(&draft.split, &meta)
            .map_err(|what| Error::DifferentSamples {
                path: self.shown.clone(),
                what,
            })?;
        if let SampleAction::Write { split, shard } = step {
            let checked = Checked {
                split,
                number,
                shard,
                key,
                label,
                values,
            };
            if let Some(converted) = &mut self.converted {
                converted.check(&self.options, &checked)?;
            }
            self.batch_bytes += bytes;
            self.batch_begin.get_or_insert_with(Instant::now);
            self.batch.push(checked);
        }
        Ok(())
    }

    /// Waits up to `timeout` until a sample can be written without blocking. Returns whether it can.
    ///
    /// # Errors
    /// The error that ended the writer.
    pub fn is_ready(&mut self, timeout: Duration) -> Result<bool> {
        let queue = match &self.state {
            State::Writing(queue, _) => Arc::clone(queue),
            State::Complete(_) => return Ok(true),
            State::Closed => return Err(self.closed()),
        };
        if queue.is_over() {
            return Err(self
                .end(End::Abandon)
                .err()
                .unwrap_or_else(|| self.closed()));
        }
        let is_full = self.batch_bytes >= BATCH_BYTES || self.batch.len() >= BATCH_SAMPLES;
        let is_old = self
            .batch_begin
            .is_some_and(|begin| begin.elapsed() >= BATCH_TIME);
        let timeout = if is_full { timeout } else { Duration::ZERO };
        if (is_full || is_old) && queue.put(&mut self.batch, timeout) {
            (self.batch_bytes, self.batch_begin) = (0, None);
            return Ok(true);
        }
        Ok(!is_full)
    }

    /// Writes the remaining samples, and publishes the dataset.
    ///
    /// # Errors
    /// The error that ended the writer; [`Error::DifferentSamples`] if an earlier writer stored more samples; an error if no
    /// sample was written or the dataset cannot be published. Finished shards are kept then.
    pub fn close(&mut self) -> Result<WriteSummary> {
        let written = self.close_samples()?;
        match &self.converted {
            None => Ok(written),
            Some(converted) => converted.finish(&self.options, written, &self.cancel),
        }
    }

    fn close_samples(&mut self) -> Result<WriteSummary> {
        match std::mem::replace(&mut self.state, State::Closed) {
            State::Closed => Err(self.closed()),
            State::Complete(manifest) => {
                let different = |what| Error::DifferentSamples {
                    path: self.shown.clone(),
                    what,
                };
                self.progress.check_whole(&manifest).map_err(different)?;
                Ok(WriteSummary::of_complete(&self.shown, &manifest))
            }
            state @ State::Writing(..) => {
                self.state = state;
                if let Err(what) = self.progress.check_end() {
                    // This error is more important than one of the thread.
                    let _ = self.end(End::Abandon);
                    let path = self.shown.clone();
                    return Err(Error::DifferentSamples { path, what });
                }
                self.end(End::Publish)
            }
        }
    }

    /// Returns the error for the next sample of a split, if the caller cannot convert it to a draft.
    pub fn refusal(
        &self,
        split: &str,
        key: Option<&[u8]>,
        column: Option<&str>,
        problem: String,
    ) -> Error {
        let number = self.progress.position(split);
        refused((split, number), &key_of(key, number), column, problem)
    }

    /// Returns the number of shards that earlier writers finished.
    pub fn resumed_shards(&self) -> u64 {
        self.resumed_shards
    }

    /// Ends the thread, and returns its result.
    fn end(&mut self, end: End) -> Result<WriteSummary> {
        let State::Writing(queue, thread) = std::mem::replace(&mut self.state, State::Closed)
        else {
            return Err(self.closed());
        };
        queue.end(end, std::mem::take(&mut self.batch));
        let ended = thread.join().unwrap_or_else(|_| {
            let what = "the thread of the writer panicked: nothing is published";
            Err(Error::destination(&self.shown, what))
        });
        if let (Err(_), Some(converted)) = (&ended, &self.converted) {
            converted.remove_empty();
        }
        ended
    }

    fn closed(&self) -> Error {
        Error::Closed {
            path: self.shown.clone(),
        }
    }
}

/// Returns the number of a class; a new class gets the next number.
fn class_number(numbers: &mut BTreeMap<String, i64>, name: &[u8]) -> Option<i64> {
    let name = std::str::from_utf8(name).ok()?.trim();
    if let Some(number) = numbers.get(name) {
        return Some(*number);
    }
    let next = numbers.values().max().map_or(0, |last| last + 1);
    numbers.insert(name.to_owned(), next);
    Some(next)
}

/// Returns the key of a sample: the given key, or else its number.
fn key_of(key: Option<&[u8]>, number: u64) -> Vec<u8> {
    match key {
        Some(key) if !key.is_empty() => key.to_vec(),
        _ => format!("{number:08}").into_bytes(),
    }
}

fn refused(
    (split, number): (&str, u64),
    key: &[u8],
    column: Option<&str>,
    problem: String,
) -> Error {
    Error::Sample(Box::new(SampleError {
        split: split.to_owned(),
        number,
        key: forebay_formats::escape(key),
        column: column.map(str::to_owned),
        problem,
    }))
}

impl Drop for DatasetWriter {
    fn drop(&mut self) {
        // There is no caller to which an error could be returned.
        let _ = self.end(End::Abandon);
    }
}
