//! Converts a directory of images to shards, and copies datasets.
//!
//! `census -> plan -> shards`: the [`Census`] lists every file with its size, and the [`Plan`] assigns the files to
//! shards in a fixed order, before the first byte is written. So any thread can write any shard
//! independently, a continued run writes the same bytes, and the output does not depend on the number of jobs.
//!
//! `prepare` takes the census and makes the plan. `run` opens the destination (`publish`), writes the shards (`write`) and
//! publishes them; `parts` lets several machines do this. `convert` and `writer` have plans of their own, and write and
//! publish in the same way.

mod against;
mod bad_count;
mod census;
mod convert;
pub mod copy;
mod differences;
mod error;
mod export;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
mod observer;
mod open_files;
mod options;
mod parts;
mod plan;
mod prepare;
mod publish;
mod report;
mod run;
mod write;
mod writer;

pub use against::{ComparisonReport, Difference, DifferenceKind, SourceComparison};
pub use census::{Census, SplitCensus};
pub use convert::{
    ConversionPlan, ConvertOptions, ConvertSource, ConvertSummary, ImageChange, OutputFormat,
    ProgressiveChange, RepairOptions, RepairSummary, SeekPointChange, convert, convert_part,
    finish_conversion, plan_conversion, repair,
};
pub use error::{Error, Result, SampleError};
pub use export::{ExportOptions, ExportSummary, export, original_image};
pub use forebay_formats::images::{EntryRef, SourceLayout};
pub use forebay_formats::records::{
    ForeignRecords, ForeignSchema, LabelForm, LabelRole, OnBadRecord, RecordFile, RecordFormat,
    RecordInput, SourceFacts, class_names, expand_braces, has_braces, image_list, pickled_advice,
};
pub use forebay_formats::{
    Action, ClassList, ClassName, ClassOrder, Error as SourceError, Finding, Reason, escape,
};
pub use forebay_shard::manifest::Account;
pub use observer::{Cancel, Observer, ShardDone, Stage};
pub use options::{
    DatasetFormat, ImageForm, MaxBad, OnBad, PackOptions, Part, Sharding, ShuffleWhen,
    UploadOptions,
};
pub use parts::{FinishOptions, PartSummary, finish};
pub use plan::{Plan, PlannedShard, PlannedSplit};
pub use prepare::{Prepared, prepare, prepare_part};
pub use publish::UnfinishedBy;
pub use report::{
    FastCount, ProgressiveCount, SeekPointCount, SkippedRecord, SplitSummary, Summary, Uploaded,
};
pub use run::pack;
pub use writer::{
    DatasetWriter, DraftPixels, DraftValue, ImageEncoding, RecordDraft, WriteSummary, WriterOptions,
};
