//! Datasets in formats of other tools: samples are collected in indexed shards, which `close` converts.

use super::options::WriterOptions;
use super::record::{Checked, RecordEncoder};
use super::session::{WRITER_KEY, WriteSummary};
use crate::convert::{ConvertOptions, ConvertSource, OutputFormat, convert};
use crate::error::{Error, Result};
use crate::observer::Cancel;
use crate::options::DatasetFormat;
use forebay_cache::{ReadOptions, read_storage};
use forebay_formats::records::{Conversion, RecordFormat, SinkOptions, SourceFacts};
use forebay_shard::example::RecordFeatures;
use forebay_shard::manifest::{EpochOrder, FILE_NAME, FeatureEntry};
use forebay_shard::{BlockCompression, Manifest};
use forebay_store::{Location, Store};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The conversion of the samples that follows their writing.
#[derive(Debug)]
pub(super) struct Converted {
    format: RecordFormat,
    compression: BlockCompression,
    /// The directory of the samples.
    samples: PathBuf,
    dst: Location,
    overwrite: bool,
    /// The dataset, if these options and some samples made it, for a writer that resumes.
    published: Option<Box<Manifest>>,
    /// Whether the format has been asked whether it can hold the columns.
    is_checked: bool,
}

impl Converted {
    /// Turns the options of such a dataset into those of its samples. None for shards.
    ///
    /// # Errors
    /// A destination that holds something, or a format that is not written.
    pub(super) fn of(options: &mut WriterOptions) -> Result<Option<Self>> {
        let Some((format, compression)) = options.records_format else {
            return Ok(None);
        };
        if !format.is_written() {
            return Err(Error::Options(format!(
                "{} cannot be written",
                format.title()
            )));
        }
        let published = published(options)?;
        if published.is_none() {
            check_destination(options)?;
        }
        let samples = samples_dir(options)?;
        let dst = std::mem::replace(&mut options.dst, Location::from(samples.as_path()));
        options.format = DatasetFormat::INDEXED;
        // Files of other tools have none.
        options.seek_points = None;
        let (_, plan) = options.identity();
        let is_same = |found: &Published| found.is_of(format, compression, &plan);
        let published = match published {
            Some(found) if is_same(&found) => {
                // The last writer may have been killed between publishing and this.
                let left = Manifest::load(&samples).ok();
                if left.is_some_and(|left| is_of_plan(&left.pack, &plan)) {
                    std::fs::remove_dir_all(&samples)
                        .map_err(|error| Error::io(&samples, "remove", error))?;
                }
                Some(Box::new(found.0.to_manifest()))
            }
            Some(_) => {
                let path = crate::upload::shown(&dst);
                return Err(Error::Occupied { path });
            }
            None => None,
        };
        Ok(Some(Self {
            format,
            compression,
            samples,
            dst,
            published,
            overwrite: options.overwrite,
            is_checked: false,
        }))
    }

    /// The destination in words.
    pub(super) fn shown(&self) -> PathBuf {
        crate::upload::shown(&self.dst)
    }

    /// The dataset that is published, with which the samples are only compared.
    pub(super) fn take_published(&mut self) -> Option<Box<Manifest>> {
        self.published.take()
    }

    /// Checks with the first sample that the format can hold its columns.
    pub(super) fn check(&mut self, options: &WriterOptions, sample: &Checked) -> Result<()> {
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
            record_features: RecordFeatures::default(),
            schema: options.schema.clone(),
            foreign: None,
            pack: BTreeMap::new(),
            identity: BTreeMap::new(),
            order: EpochOrder::default(),
            findings: Vec::new(),
            is_own: true,
            label: None,
            warnings: Vec::new(),
        };
        let mut sink = SinkOptions::default();
        sink.compression = self.compression;
        sink.first_record = Some(record.bytes);
        let created = self.format.create(&facts, &sink);
        created.map(drop).map_err(Error::Options)
    }

    /// Removes the directory of the samples if a writer that ended left none in it.
    pub(super) fn remove_empty(&self) {
        // A directory that is not empty stays, as one that another writer has locked.
        let _ = std::fs::remove_dir(&self.samples);
    }

    /// Converts the samples, which are published, and removes them.
    pub(super) fn finish(
        &self,
        options: &WriterOptions,
        written: WriteSummary,
        cancel: &Cancel,
    ) -> Result<WriteSummary> {
        let source = ConvertSource::Dataset(Location::from(self.samples.as_path()));
        let format = OutputFormat::Records(self.format, self.compression);
        let mut conversion = ConvertOptions::new(source, self.dst.clone(), format);
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
            ..written
        })
    }
}

/// The facts of a dataset that is published.
struct Published(Conversion);

impl Published {
    /// Whether a writer of these options made it.
    fn is_of(&self, format: RecordFormat, compression: BlockCompression, plan: &str) -> bool {
        let codec = self.0.pack.get("codec").and_then(|codec| codec.as_str());
        self.0.to == format.name()
            && codec == Some(compression.to_string().as_str())
            && is_of_plan(&self.0.pack, plan)
    }
}

fn is_of_plan(pack: &BTreeMap<String, serde_json::Value>, plan: &str) -> bool {
    pack.get(WRITER_KEY).and_then(|digest| digest.as_str()) == Some(plan)
}

/// Reads what is published in the destination, for a writer that resumes.
fn published(options: &WriterOptions) -> Result<Option<Published>> {
    if !options.resume {
        return Ok(None);
    }
    let read = ReadOptions::new(options.upload.store.clone());
    let (root, storage) = read_storage(&options.dst, &read)?;
    Ok(Conversion::load(&root, &*storage)?.map(Published))
}

/// Refuses a destination that a conversion would refuse in the end.
fn check_destination(options: &WriterOptions) -> Result<()> {
    if options.overwrite {
        return Ok(());
    }
    let shown = crate::upload::shown(&options.dst);
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

/// The directory of the samples: beside the destination or, for a store, beside the staging area.
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
