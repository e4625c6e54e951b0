//! From records to records: another format, other shard sizes, seek points made or removed. Records keep their order, their
//! keys, their labels and all other features.
//!
//! A conversion runs as a pack does: it is planned whole, shards are written in parallel, each is in a journal when it is on
//! disk, an interrupted run goes on, and the manifest comes last, after every file was read back. What is converted is a
//! dataset, TFRecord files of another tool or, in a repair, what is whole of a damaged dataset.
//!
//! `conversion` opens the `source` (a `repair` that of a `damaged` dataset), makes the `plan` and calls `run`, which
//! writes the files: each `record` is changed, one by one or in `batches`, and appended to a `shard`. Then `manifest`
//! describes the result. `parts` divides the shards among several machines.

mod batches;
mod conversion;
mod damaged;
mod losses;
mod manifest;
mod mapped;
mod options;
mod parts;
mod plan;
mod record;
mod repair;
mod run;
mod shard;
mod sink;
mod source;
mod summary;

pub use conversion::convert;
pub use options::{
    ConvertOptions, ConvertSource, ImageChange, OutputFormat, ProgressiveChange, SeekPointChange,
};
pub use parts::{ConversionPlan, convert_part, finish_conversion, plan_conversion};
pub use repair::{RepairOptions, RepairSummary, repair};
pub use summary::ConvertSummary;
