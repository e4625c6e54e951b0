//! Repair: converts the intact records of a damaged dataset, and lists what is lost.
//!
//! Each shard becomes a shard with the same number, without its lost records. A repair works as every conversion:
//! it can be resumed, and the manifest is published last.

use super::conversion::convert_source;
use super::damaged;
use super::losses::read_lost;
use super::options::{ConvertOptions, ConvertSource};
use super::summary::ConvertSummary;
use crate::error::{Error, Result};
use crate::observer::{Cancel, Observer, Stage};
use crate::prepare::refuse_nesting;
use crate::publish::destination::{PACK_DIR, REPORT};
use crate::publish::upload;
use forebay_shard::verify::Lost;
use forebay_store::Location;
use std::path::PathBuf;

/// Options of a repair. Start from [`RepairOptions::new`] and change fields.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairOptions {
    /// The damaged dataset.
    pub src: Location,
    /// Options for writing the repaired dataset. Their format is ignored: it is that of the source.
    pub convert: ConvertOptions,
    /// The label of the first class, for a manifest that is too damaged to contain it.
    pub label_base: i64,
}

impl RepairOptions {
    /// Creates options that copy the intact records of `src` to `dst`.
    pub fn new(src: impl Into<Location>, dst: impl Into<Location>) -> Self {
        let src = src.into();
        let source = ConvertSource::Dataset(src.clone());
        Self {
            src,
            convert: ConvertOptions::new(source, dst, crate::DatasetFormat::TfRecord),
            label_base: 1,
        }
    }
}

/// The result of a repair.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RepairSummary {
    /// The written dataset.
    pub converted: ConvertSummary,
    /// Number of lost records, as far as the source's manifest or its indexes show.
    pub lost_records: u64,
    /// Number of places in which records were lost.
    pub lost_places: u64,
    /// Number of findings of damage in the shards.
    pub damage: u64,
    /// The lost records, as in the report; empty if the dataset was already complete and its report is not available here.
    pub lost: Vec<Lost>,
    /// Descriptions of what is lost of the manifest.
    pub notes: Vec<String>,
    /// The report about damaged and lost parts, if there are any.
    pub report: Option<PathBuf>,
}

/// Writes the intact records of a damaged dataset as a new one. Records, blocks, indexes and the manifest may be damaged,
/// and shards may be missing. Observers get the same calls as from [`convert`](super::convert).
///
/// # Errors
/// See [`Error`]. Damage is not an error: it is in the summary and the report.
pub fn repair(
    options: &RepairOptions,
    observer: &dyn Observer,
    cancel: &Cancel,
) -> Result<RepairSummary> {
    let mut convert = options.convert.clone();
    if let Ok(root) = options.src.local_path() {
        for dir in upload::written(&convert.dst, &convert.upload)? {
            refuse_nesting(root, &dir)?;
        }
    }
    observer.stage(Stage::Census);
    let damaged = damaged::open(&options.src, &convert.read, options.label_base)?;
    convert.format = damaged.format.into();
    convert.of_shards().validate().map_err(Error::Options)?;
    let converted = convert_source(&convert, damaged.source, observer, cancel)?;
    let report = converted.root.join(PACK_DIR).join(REPORT);
    let counts = converted.repaired;
    Ok(RepairSummary {
        lost_records: counts.lost_records,
        lost_places: counts.lost_places,
        damage: counts.damage,
        lost: read_lost(&report)?,
        notes: damaged.notes,
        report: (counts.lost_places + counts.damage > 0).then_some(report),
        converted,
    })
}
