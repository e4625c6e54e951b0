//! `forebay index` with mapped shards: an index of records that stay in the files of another tool.

use std::num::NonZeroUsize;
use std::path::Path;

use clap::builder::PossibleValuesParser;
use forebay_cache::ReadOptions;
use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, OutputFormat, RecordFormat, SeekPointChange, convert,
};
use forebay_store::Location;

use crate::account;
use crate::bad_args::BadArgs;
use crate::command::convert::summary::{self, Verb};
use crate::command::convert::{Watch, shards};
use crate::command::record_source::foreign_source;
use crate::command::seek_points::SeekPoints;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::paint::printable;
use crate::store_args::StoreArgs;

/// Options of mapped shards.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Mapped shards")]
pub(super) struct InPlaceArgs {
    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = PossibleValuesParser::new(RecordFormat::all().map(RecordFormat::name)),
        hide_possible_values = true,
        help = from_help()
    )]
    from: Option<String>,

    /// Seek points for each JPEG, stored in the index: auto, on or dense; crops then decode faster
    #[arg(long, value_name = "WHICH", hide_possible_values = true)]
    seek_points: Option<SeekPoints>,

    /// Leave this feature out of the records; give it several times for several
    #[arg(long, value_name = "FEATURE")]
    drop_feature: Vec<String>,

    #[command(flatten)]
    bad: BadArgs,

    #[command(flatten)]
    store: StoreArgs,
}

fn from_help() -> String {
    let formats = RecordFormat::all().filter(|format| format.is_read_in_place());
    let names: Vec<&str> = formats.map(RecordFormat::name).collect();
    format!(
        "Format of the files: {} [default: recognized by names]",
        names.join(", ")
    )
}

/// Returns the options of a conversion to mapped shards. Returns `None` for TFRecords without seek points, which get an index
/// file for each shard instead.
pub(super) fn options(
    args: &super::Args,
    console: &Console,
) -> Result<Option<ConvertOptions>, Failure> {
    let own = &args.in_place;
    let store = own.store.options_until(console);
    let given = own.from.as_deref().and_then(RecordFormat::named);
    let found = foreign_source(&args.paths, given, &args.foreign, &store)?;
    let points = own.seek_points.and_then(SeekPoints::density);
    let source = match (found, args.paths.as_slice()) {
        (Some((format, input)), _) => ConvertSource::Records(format, Box::new(input)),
        (None, [path]) if points.is_some() => shards(path, &args.foreign, &store)?.0,
        (None, _) if points.is_some() => {
            return Err(
                Failure::usage("--seek-points: several TFRecord files are named")
                    .hint("name their directory"),
            );
        }
        (None, _) => return Ok(None),
    };
    let Some(output) = &args.output else {
        let what = match &source {
            ConvertSource::Records(format, input) if input.splits.is_empty() => format.title(),
            _ => "TFRecords with seek points in their index",
        };
        return Err(
            Failure::usage(format!("--output is missing: these are {what}")).hint(
                "--output DIR names the directory of the index; the files stay where they are",
            ),
        );
    };
    let mut options = ConvertOptions::new(
        source,
        Location::parse(Path::new(output))?,
        OutputFormat::Mapped,
    );
    if let Some(density) = points {
        options.seek_points = SeekPointChange::Make(density);
    }
    options.read = ReadOptions::new(store.clone());
    options.upload.store = store;
    options.drop_features = own.drop_feature.iter().cloned().collect();
    options.on_bad = own.bad.on_bad.clone();
    options.max_bad = own.bad.max_bad();
    options.jobs = args.jobs.map(NonZeroUsize::get);
    options.overwrite = args.overwrite;
    Ok(Some(options))
}

pub(super) fn run(options: &ConvertOptions, console: &Console) -> Result<Outcome, Failure> {
    let watch = Watch::start(console, "indexing", None);
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let summary = convert(options, &watch, &cancel)?;
    drop(watch);
    for note in &summary.notes {
        console.note(printable(note));
    }
    summary::print(&summary, Verb::Indexed, console);
    Ok(account::outcome(summary.account.as_ref()))
}
