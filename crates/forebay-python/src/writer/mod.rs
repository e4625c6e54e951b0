//! The native part of `forebay/_writer.py`: a writer of datasets.
//!
//! It waits without the interpreter, and converts values. Python code converts objects of PIL, numpy and torch to bytes and
//! numbers.

mod value;

use std::collections::BTreeMap;

use forebay_image::SeekDensity;
use forebay_pack::{
    DatasetFormat, DatasetWriter, Error, ImageEncoding, RecordDraft, RecordFormat, WriterOptions,
};
use forebay_shard::manifest::ClassEntry;
use forebay_shard::{BlockCompression, Column, Schema, ShardFormat};
use forebay_store::{Cancel, Location};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::{Failure, Kind, store_hint};
use crate::patience::{Deadline, SLICE, patiently};
use crate::storage::{StorageOptions, reading};

/// A writer of one dataset. One thread calls it at a time: `forebay.Writer` has a lock.
#[pyclass(module = "forebay._forebay", name = "_DatasetWriter")]
pub(crate) struct PyDatasetWriter {
    writer: Option<DatasetWriter>,
    cancel: Cancel,
    location: String,
    schema: Schema,
    process: u32,
}

impl Drop for PyDatasetWriter {
    fn drop(&mut self) {
        // In a forked child, the drop would wait for threads that do not exist there, and for locks that may never be
        // released.
        if self.process != std::process::id() {
            std::mem::forget(self.writer.take());
        }
    }
}

#[pymethods]
impl PyDatasetWriter {
    #[new]
    #[pyo3(signature = (location, features, options, classes, storage_options))]
    fn new(
        py: Python<'_>,
        location: String,
        features: Vec<(String, String)>,
        options: &Bound<'_, PyDict>,
        classes: Vec<String>,
        storage_options: StorageOptions,
    ) -> PyResult<PyDatasetWriter> {
        let cancel = Cancel::new();
        let schema = schema(features)?;
        let place = Location::parse(&location).map_err(|e| Failure::new(Kind::Option, e))?;
        let mut made = WriterOptions::new(place, schema);
        made.upload.store = reading(false, &storage_options, &cancel)?.store;
        made.classes = classes
            .into_iter()
            .map(|name| ClassEntry { name, text: None })
            .collect();
        made.number_classes = Given(options).take("number_classes")?.unwrap_or(false);
        Given(options).into_options(&mut made)?;
        let waits_for = || format!("the destination {location}");
        let (end, taken) = (Deadline::after(None), cancel.clone());
        let writer = patiently(py, end, waits_for, &cancel, move || {
            Ok(DatasetWriter::create(made, &taken)?)
        })?;
        // Labels that are class names are text columns until the classes have numbers.
        let schema = writer.schema().clone();
        Ok(PyDatasetWriter {
            writer: Some(writer),
            cancel,
            location,
            schema,
            process: std::process::id(),
        })
    }

    /// Samples of each split that are stored already.
    fn stored(&self) -> BTreeMap<String, u64> {
        let stored = self.writer.iter().flat_map(DatasetWriter::stored);
        stored
            .map(|(split, records)| (split.to_owned(), records))
            .collect()
    }

    /// Writes a sample: a value or None for each of some columns.
    fn write(
        &mut self,
        py: Python<'_>,
        split: String,
        key: Option<Vec<u8>>,
        values: Vec<(String, Bound<'_, PyAny>)>,
    ) -> PyResult<()> {
        let writer = self.writer.as_mut().ok_or_else(|| closed(&self.location))?;
        let mut draft = RecordDraft::new(split.clone());
        for (name, given) in values {
            if given.is_none() {
                draft = draft.without(name);
                continue;
            }
            // The writer refuses an unknown column, with the names of the known ones.
            let value = match self.schema.column(&name) {
                Some(column) => value::value(&column.column_type, &given),
                None => Ok(value::unknown()),
            };
            match value {
                Ok(value) => draft = draft.value(name, value),
                Err(problem) => {
                    let refused = writer.refusal(&split, key.as_deref(), Some(&name), problem);
                    return Err(Failure::from(refused).into());
                }
            }
        }
        if let Some(key) = key {
            draft = draft.key(key);
        }
        while !py
            .detach(|| writer.is_ready(SLICE))
            .map_err(Failure::from)?
        {
            py.check_signals()?;
        }
        py.detach(|| writer.write(draft)).map_err(Failure::from)?;
        Ok(())
    }

    /// Raises that a sample cannot be written.
    fn refuse(
        &self,
        split: &str,
        key: Option<Vec<u8>>,
        column: Option<&str>,
        problem: String,
    ) -> PyResult<()> {
        let writer = self.writer.as_ref().ok_or_else(|| closed(&self.location))?;
        let refused = writer.refusal(split, key.as_deref(), column, problem);
        Err(Failure::from(refused).into())
    }

    /// Publishes the dataset: its root, its fingerprint, (name, records, shards, bytes) of each split, the shards that were
    /// there, whether all was, the account as JSON, and warnings.
    fn close(&mut self, py: Python<'_>) -> PyResult<Closed> {
        let mut writer = self.writer.take().ok_or_else(|| closed(&self.location))?;
        let waits_for = || format!("the dataset {} to be stored", self.location);
        let end = Deadline::after(None);
        let summary = patiently(
            py,
            end,
            waits_for,
            &self.cancel,
            move || Ok(writer.close()?),
        )?;
        let splits = summary.splits.into_iter();
        let splits = splits.map(|split| (split.name, split.records, split.shards, split.bytes));
        Ok((
            summary.root.display().to_string(),
            summary.fingerprint,
            splits.collect(),
            summary.resumed_shards,
            summary.already_complete,
            summary
                .account
                .and_then(|account| serde_json::to_string(&account).ok()),
            summary.warnings,
        ))
    }

    /// Ends without publishing; finished shards stay.
    fn abandon(&mut self, py: Python<'_>) {
        let writer = self.writer.take();
        py.detach(|| drop(writer));
    }
}

type Closed = (
    String,
    String,
    Vec<(String, u64, u64, u64)>,
    u64,
    bool,
    Option<String>,
    Vec<String>,
);

fn closed(location: &str) -> Failure {
    Failure::new(Kind::Closed, format!("the writer of {location} is closed"))
}

fn schema(features: Vec<(String, String)>) -> Result<Schema, Failure> {
    let refused = |what: String| Failure::new(Kind::Option, format!("features: {what}"));
    let columns = features.into_iter().map(|(name, kind)| {
        let kind = kind
            .parse()
            .map_err(|error| refused(format!("{name:?}: {error}")))?;
        Ok(Column::new(name, kind))
    });
    let columns = columns.collect::<Result<Vec<_>, Failure>>()?;
    Schema::new(columns).map_err(refused)
}

/// Options by their Python names. Options that are not given have their defaults.
struct Given<'a, 'py>(&'a Bound<'py, PyDict>);

impl<'py> Given<'_, 'py> {
    fn take<T>(&self, name: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
    {
        match self.0.get_item(name)?.filter(|value| !value.is_none()) {
            None => Ok(None),
            Some(value) => match value.extract() {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(invalid(name, error).into()),
            },
        }
    }

    fn text(&self, name: &str) -> PyResult<Option<String>> {
        self.take(name)
    }

    fn size(&self, name: &str) -> PyResult<Option<u64>> {
        match self.0.get_item(name)?.filter(|value| !value.is_none()) {
            None => Ok(None),
            Some(value) => match value.extract::<String>() {
                Ok(text) => match forebay_cli::parse_size(&text) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(_) => Err(invalid(name, "expected bytes, such as \"256MiB\"").into()),
                },
                Err(_) => self.take(name),
            },
        }
    }

    fn into_options(self, options: &mut WriterOptions) -> PyResult<()> {
        let codec = self.text("codec")?;
        let codec = codec.map(|codec| codec.parse::<BlockCompression>());
        let codec = codec.transpose().map_err(|error| invalid("codec", error))?;
        let format = self.text("format")?.unwrap_or_default();
        options.format = match (format.as_str(), codec) {
            (name, None) if name == ShardFormat::TfRecord.name() => DatasetFormat::TfRecord,
            (name, codec) if name == ShardFormat::Indexed.name() => {
                DatasetFormat::Indexed(codec.unwrap_or_default())
            }
            (name, Some(_)) if name == ShardFormat::TfRecord.name() => {
                return Err(invalid(
                    "codec",
                    "TFRecord shards have none: choose format=\"indexed\"",
                )
                .into());
            }
            (name, codec) => {
                let found = RecordFormat::named(name).filter(|format| format.is_written());
                let Some(format) = found else {
                    let names = RecordFormat::all().filter(|format| format.is_written());
                    let names: Vec<_> =
                        names.map(|format| format!("{:?}", format.name())).collect();
                    let what = format!(
                        "expected \"tfrecord\", \"indexed\", {}, found {name:?}",
                        names.join(", ")
                    );
                    return Err(invalid("format", what).into());
                };
                options.records_format = Some((format, codec.unwrap_or_default()));
                DatasetFormat::INDEXED
            }
        };
        if let Some(bytes) = self.size("shard_size")? {
            options.shard_bytes = bytes;
        }
        options.shard_records = self.take("shard_records")?;
        options.label_base = self.take("label_base")?.unwrap_or(0);
        let seek_points = self.text("seek_points")?;
        options.seek_points = match seek_points.as_deref() {
            None | Some("auto") => Some(SeekDensity::Auto),
            Some("off") => None,
            Some("on") => Some(SeekDensity::Rows),
            Some("dense") => Some(SeekDensity::Fine),
            Some(other) => {
                let what =
                    format!("expected \"auto\", \"on\", \"dense\" or \"off\", found {other:?}");
                return Err(invalid("seek_points", what).into());
            }
        };
        let quality: Option<u8> = self.take("quality")?;
        let image_format = self.text("image_format")?;
        options.image_encoding = match (image_format.as_deref(), quality) {
            (None | Some("png"), None) => ImageEncoding::Png,
            (Some("jpeg"), quality) => ImageEncoding::Jpeg {
                quality: quality.unwrap_or(95),
            },
            (None | Some("png"), Some(_)) => {
                return Err(
                    invalid("quality", "PNG has none: choose image_format=\"jpeg\"").into(),
                );
            }
            (Some(other), _) => {
                let what = format!("expected \"png\" or \"jpeg\", found {other:?}");
                return Err(invalid("image_format", what).into());
            }
        };
        options.index_text = self.take("dali_index")?.unwrap_or(true);
        options.jobs = self.take("threads")?;
        options.resume = self.take("resume")?.unwrap_or(false);
        options.overwrite = self.take("overwrite")?.unwrap_or(false);
        options.upload.staging_dir = self.take("stage")?;
        options.upload.staging_bytes = self.size("stage_bytes")?;
        Ok(())
    }
}

fn invalid(name: &str, what: impl std::fmt::Display) -> Failure {
    Failure::new(Kind::Option, format!("{name}: {what}"))
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let failure = |kind| Failure::new(kind, &error);
        match &error {
            Error::Options(_) | Error::Option { .. } | Error::NoFastImages { .. } => {
                failure(Kind::Option)
            }
            Error::Sample(sample) => {
                let failure = failure(Kind::Sample)
                    .text("split", &sample.split)
                    .text("key", &sample.key)
                    .number("sample", Some(sample.number));
                match &sample.column {
                    Some(column) => failure.text("column", column),
                    None => failure,
                }
            }
            Error::Unfinished { path } => failure(Kind::DatasetExists)
                .hint(Some(
                    "resume=True continues it with the same samples, overwrite=True replaces it"
                        .into(),
                ))
                .path(path),
            Error::Occupied { path } => failure(Kind::DatasetExists)
                .hint(Some(
                    "choose another place, or replace it with overwrite=True".into(),
                ))
                .path(path),
            Error::DifferentSamples { path, .. } => failure(Kind::Write)
                .hint(Some(
                    "write the same samples in the same order, or start over with overwrite=True"
                        .into(),
                ))
                .path(path),
            Error::Closed { .. } | Error::Interrupted { .. } => failure(Kind::Closed),
            Error::Store(inner) => match inner {
                forebay_store::Error::BadLocation { .. }
                | forebay_store::Error::Unsupported { .. }
                | forebay_store::Error::Options { .. } => {
                    failure(Kind::Option).hint(store_hint(inner))
                }
                forebay_store::Error::Locked { .. } | forebay_store::Error::Io { .. } => {
                    failure(Kind::Write).hint(error.hint())
                }
                forebay_store::Error::Undelivered { .. } => {
                    failure(Kind::Storage).hint(error.hint())
                }
                _ => failure(Kind::Storage).hint(store_hint(inner)),
            },
            Error::Shard(inner) => Failure::from(inner),
            Error::Destination { path, .. }
            | Error::OtherDataset { path, .. }
            | Error::DifferentPack { path, .. }
            | Error::Claimed { path, .. }
            | Error::NoSpace { path, .. }
            | Error::Io { path, .. } => failure(Kind::Write).hint(error.hint()).path(path),
            _ => failure(Kind::Write).hint(error.hint()),
        }
    }
}
