//! Datasets in other tools' formats, and datasets whose classes are numbered at the end: samples are collected in
//! indexed shards, which `close` converts.

use super::options::WriterOptions;
use super::record::{Checked, RecordEncoder};
use super::session::{WRITER_KEY, WriteSummary};
use crate::convert::{ConvertOptions, ConvertSource, OutputFormat, convert};
use crate::error::{Error, Result};
use crate::observer::Cancel;
use crate::options::{DatasetFormat, OnBad};
use forebay_cache::{ReadOptions, read_storage};
use forebay_formats::records::{Conversion, RecordFormat, RecordInput, SinkOptions, SourceFacts};
use forebay_shard::Manifest;
use forebay_shard::manifest::{FILE_NAME, FeatureEntry};
use forebay_shard::schema::{Column, ColumnType, IMAGE, LABEL, Schema};
use forebay_store::{Location, Store};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The conversion of the samples after they are written.
#[derive(Debug)]
pub(super) struct Converted {
    format: OutputFormat,
    /// Whether labels are class names, which the conversion numbers.
    number_classes: bool,
    /// The temporary directory of the samples.
    samples: PathBuf,
    dst: Location,
    overwrite: bool,
    /// The published dataset that the same options made, for a writer that resumes.
    published: Option<Box<Manifest>>,
    /// Whether it was checked that the format can hold the columns.
    is_checked: bool,
}

impl Converted {
    /// Changes the options of such a dataset to those for writing its samples. `None` for shards that are written directly.
    ///
    /// # Errors
    /// If the destination is not empty, or the format cannot be written.
    pub(super) fn of(options: &mut WriterOptions) -> Result<Option<Self>> {
        let format = match options.records_format {
            Some((format, _)) if !format.is_written() => {
                let what = format!("{} cannot be written", format.title());
                return Err(Error::Options(what));
            }
            Some((format, compression)) => OutputFormat::Records(format, compression),
            None if options.number_classes => OutputFormat::Shards(options.format),
            None => return Ok(None),
        };
        let published = published(options)?;
        if published.is_none() {
            check_destination(options)?;
        }
        let samples = samples_dir(options)?;
        let dst = std::mem::replace(&mut options.dst, Location::from(samples.as_path()));
        options.format = DatasetFormat::INDEXED;
        if options.records_format.is_some() {
            // Files of other tools have no seek points.
            options.seek_points = None;
        }
        if options.number_classes {
            options.schema = with_text_labels(&options.schema)?;
        }
        let (_, plan) = options.identity();
        let arguments = format.arguments(options.index_text);
        let is_same = |found: &Manifest| {
            is_of_plan(&found.pack, &plan)
                && arguments
                    .iter()
                    .all(|(name, value)| has(found, name, value))
        };
        let published = match published {
            Some(found) if is_same(&found) => {
                // The last writer may have been killed after publishing and before removing its samples.
                let left = Manifest::load(&samples).ok();
                if left.is_some_and(|left| is_of_plan(&left.pack, &plan)) {
                    std::fs::remove_dir_all(&samples)
                        .map_err(|error| Error::io(&samples, "remove", error))?;
                }
                Some(Box::new(found))
            }
            Some(_) => {
                let path = crate::publish::upload::shown(&dst);
                return Err(Error::Occupied { path });
            }
            None => None,
        };
        Ok(Some(Self {
            format,
            number_classes: options.number_classes,
            samples,
            dst,
            published,
            overwrite: options.overwrite,
            is_checked: false,
        }))
    }

    /// Returns the destination, for messages.
    pub(super) fn shown(&self) -> PathBuf {
        crate::publish::upload::shown(&self.dst)
    }

    /// Returns the published dataset, with which samples are compared instead of being written.
    pub(super) fn take_published(&mut self) -> Option<Box<Manifest>> {
        self.published.take()
    }

    /// Checks by the first sample that the format can hold its columns.
    pub(super) fn check(&mut self, options: &WriterOptions, sample: &Checked) -> Result<()> {
        let OutputFormat::Records(format, compression) = self.format else {
            return Ok(());
        };
        if std::mem::replace(&mut self.is_checked, true) {
            return Ok(());
        }
        let columns = options.schema.columns().iter();
        let features: Vec<Vec<FeatureEntry>> = columns.map(|column| column.features()).collect();
        let record = RecordEncoder::new(options, &features).encode(sample)?;
        let facts = SourceFacts {
            label_base: i64::from(options.label_base),
            classes: options.classes.clone(),
            features: options.schema.features(),
            schema: options.schema.clone(),
            is_own: true,
            ..SourceFacts::default()
        };
        let mut sink = SinkOptions::default();
        sink.compression = compression;
        sink.first_record = Some(record.bytes);
        let created = format.create(&facts, &sink);
        created.map(drop).map_err(Error::Options)
    }

    /// Removes the directory of the samples, if it is empty.
    pub(super) fn remove_empty(&self) {
        // The directory is not empty if another writer has locked it; then removing it fails.
        let _ = std::fs::remove_dir(&self.samples);
    }

    /// Converts the samples, which are published as a dataset, and removes them.
    pub(super) fn finish(
        &self,
        options: &WriterOptions,
        written: WriteSummary,
        cancel: &Cancel,
    ) -> Result<WriteSummary> {
        let mut input = RecordInput::new(self.samples.as_path());
        if self.number_classes {
            input.features.label_feature = Some(LABEL.to_owned());
            input.features.label_base = Some(i64::from(options.label_base));
            input.features.without_images = options.schema.column(IMAGE).is_none();
        }
        let source = ConvertSource::Records(RecordFormat::DATASET, Box::new(input));
        let mut conversion = ConvertOptions::new(source, self.dst.clone(), self.format);
        conversion.index_text = options.index_text;
        conversion.on_bad = OnBad::Fail;
        conversion.overwrite = self.overwrite;
        conversion.jobs = options.jobs;
        conversion.blake3 = options.blake3;
        conversion.durability = options.durability;
        conversion.upload = options.upload.clone();
        let summary = convert(&conversion, &(), cancel)?;
        std::fs::remove_dir_all(&self.samples)
            .map_err(|error| Error::io(&self.samples, "remove", error))?;
        Ok(WriteSummary {
            root: summary.root,
            fingerprint: summary.fingerprint,
            splits: summary.splits,
            uploaded: summary.uploaded,
            account: summary.account,
            warnings: summary.warnings,
            ..written
        })
    }
}

/// Returns the schema of samples whose labels are class names.
fn with_text_labels(schema: &Schema) -> Result<Schema> {
    let columns = schema.columns().iter();
    let columns = columns.map(|column| match column.name == LABEL {
        true => Column::new(LABEL, ColumnType::Text),
        false => column.clone(),
    });
    Schema::new(columns.collect()).map_err(Error::Options)
}

/// Returns whether a dataset was made with an argument.
fn has(manifest: &Manifest, name: &str, value: &str) -> bool {
    let found = manifest.pack.get(name).and_then(|found| found.as_str());
    found == Some(value)
}

fn is_of_plan(pack: &BTreeMap<String, serde_json::Value>, plan: &str) -> bool {
    pack.get(WRITER_KEY).and_then(|digest| digest.as_str()) == Some(plan)
}

/// Reads the manifest of a dataset in the destination, for a writer that resumes.
fn published(options: &WriterOptions) -> Result<Option<Manifest>> {
    if !options.resume {
        return Ok(None);
    }
    let read = ReadOptions::new(options.upload.store.clone());
    let (root, storage) = read_storage(&options.dst, &read)?;
    if options.records_format.is_some() {
        let conversion = Conversion::load(&root, &*storage)?;
        return Ok(conversion.map(|conversion| conversion.to_manifest()));
    }
    match Manifest::load_in(&root, &*storage) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(forebay_shard::Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}

/// Refuses at the start a destination that the conversion would refuse at the end.
fn check_destination(options: &WriterOptions) -> Result<()> {
    if options.overwrite {
        return Ok(());
    }
    let shown = crate::publish::upload::shown(&options.dst);
    let names: Vec<String> = match options.dst.local_path() {
        Ok(path) => match std::fs::read_dir(path) {
            Ok(entries) => {
                let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
                names.collect()
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(Error::io(path, "list", error)),
        },
        Err(_) => {
            let listing = Store::open(&options.dst, &options.upload.store)?.list_dir("")?;
            let objects = listing.objects.into_iter().map(|object| object.key);
            objects.chain(listing.dirs).collect()
        }
    };
    let is_published = |name: &String| name == Conversion::FILE_NAME || name == FILE_NAME;
    if names.iter().any(is_published) {
        return Err(Error::Occupied { path: shown });
    }
    match names.is_empty() || options.resume {
        true => Ok(()),
        false => {
            let what = format!("it holds other files, such as {:?}", names[0]);
            Err(Error::destination(&shown, what))
        }
    }
}

/// Returns the directory of the samples: next to the destination or, for a store, next to the staging area.
fn samples_dir(options: &WriterOptions) -> Result<PathBuf> {
    let beside = |path: &Path, more: &str| {
        let name = path.file_name().ok_or_else(|| {
            let what = "its samples wait in a directory beside it, so name one below another";
            Error::destination(path, what)
        })?;
        let name = format!(".{}.samples{more}", name.to_string_lossy());
        Ok(path.with_file_name(name))
    };
    match options.dst.local_path() {
        Ok(path) => beside(path, ""),
        Err(_) => {
            let digest = blake3::hash(options.dst.to_string().as_bytes()).to_hex();
            beside(&options.upload.area_dir(), &format!("-{}", &digest[..16]))
        }
    }
}
