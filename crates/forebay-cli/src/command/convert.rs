//! `forebay convert`: rewrites a dataset in another format, with another shard size, or with or without seek points.

pub(super) mod summary;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Args as ClapArgs, ValueEnum};
use forebay_cache::{ReadOptions, read_storage};
use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, ImageChange, Observer, OutputFormat, ProgressiveChange,
    RecordFormat, RecordInput, SeekPointChange, ShardDone, Sharding, Stage, convert, convert_part,
    finish_conversion, plan_conversion,
};
use forebay_shard::{BlockCompression, Manifest, ShardFormat};
use forebay_store::{Location, StoreOptions};

use self::summary::Verb;
use super::foreign_args::ForeignArgs;
use super::index::names;
use super::pack::part::{self, StepArgs, Verb as PartOf};
use super::pack::{Kind, codec_help, format_of};
use super::record_source::foreign_source;
use super::seek_points::SeekPoints;
use crate::account;
use crate::bad_args::BadArgs;
use crate::command::images::ImageArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, MANIFEST, local};
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity::parse_size;
use crate::staging_args::StagingArgs;
use crate::store_args::StoreArgs;
use serde_json::json;

/// Convert a dataset to another format, number of shards or encoding of images
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Records keep their order, keys, labels and all other features; images stay as they are, byte for
byte. Shards are written in parallel and read back before the manifest is published. The same
command again continues an interrupted run; the result is the same, byte for byte, whatever --jobs is.

Examples:
  forebay convert shards/ indexed/ --format indexed
  forebay convert shards/ faster/ --seek-points auto        loaders decode crops faster
  forebay convert shards/ plain/ --format tfrecord --seek-points off
  forebay convert shards/ faster/ --progressive baseline --seek-points auto
  forebay convert shards/ fast/ --format indexed --images fast
  forebay convert imagenet-tfrecords/ fbs/ --format indexed --shard-size 512MiB
  forebay convert part.tfrecord dataset/ --image-feature img --label-feature y --label-base 0
  forebay convert 'wds/train-{000..127}.tar' fbs/ --format indexed --shard-size 256MiB
  forebay convert shards/ wds/ --format webdataset
  forebay convert cifar.npz fbs/ --format indexed
  forebay convert --part 3/16 shards/ s3://bucket/fbs --format indexed     on the third of 16 machines
  forebay convert --finish shards/ s3://bucket/fbs --format indexed        when all parts are there

SRC is a dataset, or files that another tool wrote: a directory of them, one file, or a pattern. --from lists
the formats. The features that hold image and label are found by their names, and printed. Records without an
image are refused. docs/formats.md says what each format can hold.")]
pub(crate) struct Args {
    /// The dataset, or files of another tool; train-{000..127}.tar names many
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// Destination of the new dataset: a directory, or s3://, gs://, az://
    #[arg(value_name = "DST")]
    destination: PathBuf,

    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = outputs(),
        hide_possible_values = true,
        help = output_help(),
        help_heading = "Shards"
    )]
    format: Option<String>,

    #[arg(
        long,
        value_name = "FORMAT",
        value_parser = PossibleValuesParser::new(RecordFormat::all().map(RecordFormat::name)),
        hide_possible_values = true,
        help = input_help()
    )]
    from: Option<String>,

    /// Leave this feature out of the records; give it several times for several
    #[arg(long, value_name = "FEATURE")]
    drop_feature: Vec<String>,

    #[command(flatten)]
    bad: BadArgs,

    /// Number of shards for each split [default: records stay together as they are]
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "shard_size",
        help_heading = "Shards"
    )]
    shards: Option<NonZeroU32>,

    /// Approximate size of a shard [default: records stay together as they are]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Shards")]
    shard_size: Option<u64>,

    #[arg(long, value_name = "CODEC", help = codec_help(), help_heading = "Shards")]
    codec: Option<BlockCompression>,

    /// New seek points for each JPEG: auto, on or dense; off removes them [default: they stay as they are]
    #[arg(
        long,
        value_name = "WHICH",
        hide_possible_values = true,
        help_heading = "Shards"
    )]
    seek_points: Option<SeekPoints>,

    /// Progressive JPEGs: keep, baseline (same pixels, crops decode faster, the original can be restored) or original
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "keep",
        hide_possible_values = true,
        help_heading = "Shards"
    )]
    progressive: Progressive,

    #[command(flatten)]
    images: ImageArgs,

    /// Put a BLAKE3 hash of each shard into the manifest
    #[arg(long, help_heading = "Shards")]
    blake3: bool,

    /// Leave out the text index (.idx) that NVIDIA DALI reads
    #[arg(long, help_heading = "Shards")]
    no_dali_index: bool,

    #[command(flatten)]
    foreign: ForeignArgs,

    /// Shards written at the same time [default: the cores of the machine or container]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    /// Replace the dataset, or the unfinished one, that is in DST
    #[arg(long, conflicts_with_all = ["part", "finish"])]
    overwrite: bool,

    #[command(flatten)]
    step: StepArgs,

    #[command(flatten)]
    staging: StagingArgs,

    #[command(flatten)]
    store: StoreArgs,
}

/// How to store progressive JPEGs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Progressive {
    Keep,
    Baseline,
    Original,
}

/// Returns the formats of other tools that `convert` can write.
fn written() -> impl Iterator<Item = RecordFormat> {
    RecordFormat::all().filter(|format| format.is_written())
}

fn outputs() -> PossibleValuesParser {
    let shards = Kind::value_variants().iter();
    let shards = shards.filter_map(|kind| kind.to_possible_value());
    let others = written().map(|format| PossibleValue::new(format.name()));
    shards.chain(others).collect::<Vec<_>>().into()
}

fn output_help() -> String {
    let names: Vec<&str> = written().map(RecordFormat::name).collect();
    format!(
        "Format to write: tfrecord, indexed (.fbs), {} [default: the format of SRC, if it is a dataset or TFRecords]",
        names.join(", ")
    )
}

fn input_help() -> String {
    let names: Vec<&str> = RecordFormat::all().map(RecordFormat::name).collect();
    format!(
        "Format of SRC: {} [default: recognized by names]",
        names.join(", ")
    )
}

impl Args {
    /// Returns the source, and its shard format. The format is `None` for records of another tool.
    fn source(&self, store: &StoreOptions) -> Result<(ConvertSource, Option<Kind>), Failure> {
        let given = self.from.as_deref().and_then(RecordFormat::named);
        let sources = std::slice::from_ref(&self.source);
        if let Some((format, input)) = foreign_source(sources, given, &self.foreign, store)? {
            return Ok((ConvertSource::Records(format, Box::new(input)), None));
        }
        let (source, kind) = shards(&self.source, &self.foreign, store)?;
        Ok((source, Some(kind)))
    }

    /// Returns the options of the conversion. The default format is that of the source.
    fn config(&self, console: &Console) -> Result<ConvertOptions, Failure> {
        let store = self.store.options_until(console);
        let (source, kind) = self.source(&store)?;
        let named = self.format.as_deref();
        let kind = match named.map(|name| Kind::from_str(name, false)) {
            Some(Ok(kind)) => Some(kind),
            Some(Err(_)) => None,
            None => kind,
        };
        let format: OutputFormat = match (kind, named.and_then(RecordFormat::named)) {
            (Some(kind), _) => format_of(kind, self.codec, "--format")?.into(),
            (None, Some(format)) => OutputFormat::Records(format, self.codec.unwrap_or_default()),
            (None, None) => {
                return Err(
                    Failure::usage("--format is missing: which format is to be written?")
                        .hint("--format indexed writes shards that loaders read fastest"),
                );
            }
        };
        let mut options = ConvertOptions::new(source, Location::parse(&self.destination)?, format);
        if let Some(shards) = self.shards {
            options.sharding = Some(Sharding::Count(shards.get()));
        } else if let Some(bytes) = self.shard_size {
            options.sharding = Some(Sharding::Bytes(bytes));
        }
        if let Some(which) = self.seek_points {
            options.seek_points = match which.density() {
                Some(density) => SeekPointChange::Make(density),
                None => SeekPointChange::Remove,
            };
        }
        options.progressive = match self.progressive {
            Progressive::Keep => ProgressiveChange::Keep,
            Progressive::Baseline => ProgressiveChange::Baseline,
            Progressive::Original => ProgressiveChange::Original,
        };
        options.images = self
            .images
            .form()
            .map_or(ImageChange::Keep, ImageChange::To);
        options.read = ReadOptions::new(store);
        options.index_text = !self.no_dali_index;
        options.drop_features = self.drop_feature.iter().cloned().collect();
        options.on_bad = self.bad.on_bad.clone();
        options.max_bad = self.bad.max_bad();
        options.blake3 = self.blake3;
        options.jobs = self.jobs.map(NonZeroUsize::get);
        options.overwrite = self.overwrite;
        self.staging
            .apply(&mut options.upload, options.dst.is_remote());
        options.upload.store = self.store.options_until(console);
        Ok(options)
    }
}

/// Returns SRC as a dataset or as local TFRecord files, with its shard format.
pub(super) fn shards(
    source: &Path,
    foreign: &ForeignArgs,
    store: &StoreOptions,
) -> Result<(ConvertSource, Kind), Failure> {
    let kind_of = |manifest: Manifest| match manifest.shard_format {
        ShardFormat::TfRecord => Kind::Tfrecord,
        ShardFormat::Indexed | ShardFormat::Mapped => Kind::Indexed,
    };
    if Location::parse(source)?.is_remote() {
        let dataset = Input::dataset(source, store)?;
        let location = Location::parse(dataset.path())?;
        return Ok((
            ConvertSource::Dataset(location),
            kind_of(dataset.manifest()?),
        ));
    }
    let path = local(source)?;
    if path.join(MANIFEST).exists() {
        let kind = kind_of(Manifest::load(&path)?);
        return Ok((ConvertSource::Dataset(Location::from(path.as_path())), kind));
    }
    let (root, paths) = if path.is_dir() {
        (path.clone(), names::shards_in(&path)?)
    } else {
        // The root is the file itself, since its directory may also be the destination.
        (path.clone(), vec![path])
    };
    let mut input = RecordInput::new(root.as_path());
    input.splits = names::by_split(&paths, foreign.split.as_deref())?;
    input.features = foreign.records();
    let source = ConvertSource::Records(RecordFormat::TFRECORD, Box::new(input));
    Ok((source, Kind::Tfrecord))
}

/// Shows the progress of a conversion.
pub(super) struct Watch<'a> {
    console: &'a Console,
    bar: Bar,
}

impl<'a> Watch<'a> {
    /// Shows a progress bar with a total of `total` bytes; `None` if the total is unknown.
    pub(super) fn start(console: &'a Console, what: &'static str, total: Option<u64>) -> Self {
        Self {
            console,
            bar: console.bar(what, total),
        }
    }
}

impl Observer for Watch<'_> {
    fn stage(&self, stage: Stage) {
        let stage = stage.name();
        self.console.event("progress", &json!({"stage": stage}));
    }

    fn advanced(&self, records: u64, bytes: u64) {
        self.bar.add(records, bytes, "records");
    }

    fn shard_done(&self, shard: &ShardDone) {
        self.console.event(
            "shard",
            &json!({
                "name": &shard.name,
                "records": shard.records,
                "bytes": shard.bytes,
                "resumed": shard.resumed,
            }),
        );
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let options = args.config(console)?;
    let total = source_bytes(&options.src, &options.read);
    let watch = Watch::start(console, "converting", total);
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    if args.step.plan {
        let plan = plan_conversion(&options, &watch, &cancel)?;
        drop(watch);
        part::print_conversion(&plan, &options.dst, console);
        return Ok(Outcome::Done);
    }
    if let Some(part) = args.step.part {
        let summary = convert_part(&options, part, &watch, &cancel)?;
        drop(watch);
        part::print(&summary, PartOf::Convert, console);
        return Ok(Outcome::Done);
    }
    let summary = match args.step.finish {
        true => finish_conversion(&options, &watch, &cancel)?,
        false => convert(&options, &watch, &cancel)?,
    };
    drop(watch);
    for note in &summary.notes {
        console.note(printable(note));
    }
    summary::print(&summary, Verb::Converted, console);
    if is_copy(&options) {
        console.note("nothing was to be converted: each shard has the bytes of SRC. `forebay cp` copies a dataset faster");
    }
    Ok(account::outcome(summary.account.as_ref()))
}

/// Returns whether the conversion changed nothing: source and destination have the same shards.
fn is_copy(options: &ConvertOptions) -> bool {
    let ConvertSource::Dataset(source) = &options.src else {
        return false;
    };
    let splits = |location: &Location| {
        let (root, storage) = read_storage(location, &options.read).ok()?;
        Some(Manifest::load_in(root, &*storage).ok()?.splits)
    };
    let source = splits(source);
    source.is_some() && source == splits(&options.dst)
}

/// Returns the bytes of the source for the progress bar, or `None` on errors, which the conversion itself reports.
fn source_bytes(source: &ConvertSource, read: &ReadOptions) -> Option<u64> {
    let size = |path: &Path| std::fs::metadata(path).map(|meta| meta.len()).ok();
    match source {
        ConvertSource::Dataset(location) => {
            let (root, storage) = read_storage(location, read).ok()?;
            let manifest = Manifest::load_in(root, &*storage).ok()?;
            Some(manifest.splits.iter().map(|split| split.bytes).sum())
        }
        // Progress counts record bytes, which differ from the file sizes of formats without a list of files.
        ConvertSource::Records(_, input) if input.splits.is_empty() => None,
        ConvertSource::Records(_, input) => {
            input.splits.values().flatten().map(|path| size(path)).sum()
        }
    }
}
