//! `forebay pack`: packs a directory of images into a dataset of shards.

mod dry_run;
pub(super) mod part;
mod summary;
mod watch;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_pack::{
    Action, Cancel, ClassOrder, DatasetFormat, FinishOptions, PackOptions, Sharding, ShuffleWhen,
    SourceLayout, finish, prepare, prepare_part,
};
use forebay_shard::BlockCompression;
use forebay_store::Location;

use self::part::{StepArgs, Verb};
use crate::bad_args::BadArgs;
use crate::command::images::ImageArgs;
use crate::command::seek_points::SeekPoints;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::quantity::parse_size;
use crate::staging_args::StagingArgs;
use crate::store_args::StoreArgs;

pub(crate) use summary::Packed;
pub(crate) use watch::Watch;

/// Pack a directory of images into shards
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "forebay pack [OPTIONS] <SRC> <DST>\n       forebay pack --finish [OPTIONS] [SRC] <DST>"
)]
#[command(after_help = "\
The same command again continues an interrupted run. The bytes in DST do not depend on --jobs.
Bad images are left out and listed in DST/pack/report.jsonl; the exit code is then 3.
docs/packing.md explains the options, docs/layouts.md the layouts of SRC and the file of --labels.

Examples:
  forebay pack photos/ shards/
  forebay pack imagenet/ shards/ --format indexed --shard-size 256MiB --jobs 8
  forebay pack imagenet/ shards/ --format indexed --resize-short 400 --quality 90
  forebay pack photos/ shards/ --dry-run
  forebay pack photos/ s3://bucket/shards             uploads each shard when it is complete
  forebay pack s3://bucket/images shards/             also gs://, az://
  forebay pack --part 3/16 photos/ shards/            on the third of 16 machines
  forebay pack --finish shards/                       when all parts are there; also into a store")]
pub(crate) struct Args {
    /// Directory or archive of images; also in a store
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// Directory or URL (s3://, gs://, az://) for the dataset
    #[arg(value_name = "DST", required_unless_present = "finish")]
    destination: Option<PathBuf>,

    #[command(flatten)]
    options: OptionArgs,

    /// Show the census and the plan, write nothing
    #[arg(short = 'n', long, conflicts_with = "step", help_heading = "Run")]
    pub(super) dry_run: bool,

    /// Replace the dataset or unfinished pack in DST
    #[arg(long, conflicts_with_all = ["part", "finish"], help_heading = "Run")]
    overwrite: bool,

    #[command(flatten)]
    step: StepArgs,
}

/// Options of a pack and of each of its parts.
#[derive(Debug, ClapArgs)]
struct OptionArgs {
    /// tfrecord (TensorFlow's), or indexed (.fbs, with random access)
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "tfrecord",
        hide_possible_values = true,
        help_heading = "Shards"
    )]
    format: Kind,

    /// Number of shards for each split
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "shard_size",
        help_heading = "Shards"
    )]
    shards: Option<NonZeroU32>,

    /// Approximate size of a shard [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Shards")]
    shard_size: Option<u64>,

    #[arg(long, value_name = "CODEC", help = codec_help(), help_heading = "Shards")]
    codec: Option<BlockCompression>,

    /// Faster crops of JPEGs by seek points: auto, on, off or dense
    #[arg(
        long,
        value_name = "WHICH",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Shards"
    )]
    seek_points: SeekPoints,

    /// Progressive JPEGs: keep, or baseline for faster crops
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

    #[arg(
        long,
        value_name = "LAYOUT",
        value_parser = PossibleValuesParser::new(layout_names()).map(|name| named_layout(&name)),
        hide_possible_values = true,
        help = format!("Layout of SRC: {} [default: detected]", layout_names().collect::<Vec<_>>().join(", ")),
        help_heading = "Records"
    )]
    layout: Option<SourceLayout>,

    /// Class list, one a line in label order [default: found in SRC]
    #[arg(long, value_name = "FILE", help_heading = "Records")]
    classes: Option<PathBuf>,

    /// Without a list: text (1, 10, 2) or natural (1, 2, 10) [default: text]
    #[arg(
        long,
        value_name = "ORDER",
        value_parser = class_orders(),
        hide_possible_values = true,
        conflicts_with = "classes",
        help_heading = "Records"
    )]
    class_order: Option<ClassOrder>,

    /// Labels and further columns of images: CSV, TSV or JSON lines
    #[arg(long, value_name = "FILE", help_heading = "Records")]
    labels: Option<PathBuf>,

    /// Name of the only split, or the one to pack of several
    #[arg(long, value_name = "NAME", help_heading = "Records")]
    split: Option<String>,

    /// Label of the first class, 1 as in TensorFlow's ImageNet
    #[arg(
        long,
        value_name = "0|1",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(0..=1),
        help_heading = "Records"
    )]
    label_base: u8,

    /// Seed of the shuffle of splits, except validation and test
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Records")]
    seed: u64,

    /// Keep records in the order of their names
    #[arg(long, help_heading = "Records")]
    no_shuffle: bool,

    /// Make images smaller whose short side has more than N pixels
    #[arg(long, value_name = "N", help_heading = "Images")]
    resize_short: Option<NonZeroU32>,

    /// Make images smaller whose long side has more than N pixels
    #[arg(long, value_name = "N", help_heading = "Images")]
    max_side: Option<NonZeroU32>,

    /// Convert to RGB JPEG: PNG, WebP and TIFF with a JPEG's name, CMYK and truncated JPEGs. A PNG named .png stays
    #[arg(long, help_heading = "Images")]
    transcode_nonstandard: bool,

    /// JPEG quality of converted images [default: 95, nonstandard 100]
    #[arg(
        long,
        value_name = "1-100",
        value_parser = clap::value_parser!(u8).range(1..=100),
        help_heading = "Images"
    )]
    quality: Option<u8>,

    #[command(flatten)]
    bad: BadArgs,

    /// Threads [default: the cores of the machine or container]
    #[arg(short, long, value_name = "N", help_heading = "Run")]
    jobs: Option<NonZeroUsize>,

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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    Tfrecord,
    Indexed,
}

/// Returns the help text of `--codec`, with the available codecs.
pub(crate) fn codec_help() -> String {
    format!("Codec of indexed shards: {}", BlockCompression::choices())
}

fn layout_names() -> impl Iterator<Item = &'static str> {
    SourceLayout::all().map(SourceLayout::name)
}

fn class_orders() -> impl TypedValueParser<Value = ClassOrder> {
    let names = PossibleValuesParser::new(ClassOrder::all().map(ClassOrder::name));
    names.map(|name| {
        let mut orders = ClassOrder::all().into_iter();
        orders
            .find(|order| order.name() == name)
            .unwrap_or_default()
    })
}

fn named_layout(name: &str) -> SourceLayout {
    SourceLayout::named(name).expect("the parser takes the names of the table only")
}

impl OptionArgs {
    /// Returns the options of the pack. `overwrite` is whether it may replace an existing dataset.
    fn config(
        &self,
        (source, destination): (&Path, &Path),
        overwrite: bool,
        console: &Console,
    ) -> Result<PackOptions, Failure> {
        let format = format_of(self.format, self.codec, "--format")?;
        let (source, destination) = (Location::parse(source)?, Location::parse(destination)?);
        let mut options = PackOptions::new(source, destination);
        options.format = format;
        if let Some(shards) = self.shards {
            options.sharding = Sharding::Count(shards.get());
        } else if let Some(bytes) = self.shard_size {
            options.sharding = Sharding::Bytes(bytes);
        }
        options.index_text = !self.no_dali_index;
        options.layout = self.layout;
        options.classes.clone_from(&self.classes);
        options.class_order = self.class_order;
        options.labels.clone_from(&self.labels);
        options.split.clone_from(&self.split);
        options.label_base = self.label_base;
        options.seed = self.seed;
        if self.no_shuffle {
            options.shuffle = ShuffleWhen::Never;
        }
        options.seek_points = self.seek_points.density();
        options.images = self.images.form().unwrap_or_default();
        options.progressive_to_baseline = self.progressive == Progressive::Baseline;
        options.on_bad = self.bad.on_bad.clone();
        options.max_bad = self.bad.max_bad();
        options.transcode_nonstandard = self.transcode_nonstandard;
        options.resize_short = self.resize_short.map(NonZeroU32::get);
        options.max_side = self.max_side.map(NonZeroU32::get);
        options.quality = self.quality;
        options.blake3 = self.blake3;
        options.jobs = self.jobs.map(NonZeroUsize::get);
        options.overwrite = overwrite;
        self.staging
            .apply(&mut options.upload, options.dst.is_remote());
        options.upload.store = self.store.options_until(console);
        options.src_store = self.store.options_until(console);
        Ok(options)
    }
}

/// Returns the dataset format for a shard kind and a codec. `flag` is the name of the option for the kind, for errors.
pub(crate) fn format_of(
    kind: Kind,
    codec: Option<BlockCompression>,
    flag: &str,
) -> Result<DatasetFormat, Failure> {
    match (kind, codec.unwrap_or_default()) {
        (Kind::Indexed, compression) => Ok(DatasetFormat::Indexed(compression)),
        (Kind::Tfrecord, BlockCompression::NONE) => Ok(DatasetFormat::TfRecord),
        (Kind::Tfrecord, _) => Err(Failure::usage("TFRecord shards have no codec")
            .hint(format!("--codec goes with {flag} indexed"))),
    }
}

/// Returns a word for the action taken on a file.
fn fate(action: Action) -> &'static str {
    match action {
        Action::Skipped => "skipped",
        Action::Quarantined => "quarantined",
        Action::Kept => "kept",
        Action::Converted => "converted",
        Action::Resized => "made smaller",
        _ => "ignored",
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let Some(destination) = &args.destination else {
        // Only `--finish` needs no source: its first argument is the destination.
        return finish_parts(None, &args.source, &args.options, &cancel, console);
    };
    let paths = (args.source.as_path(), destination.as_path());
    if args.step.finish {
        let source = args.options.config(paths, false, console)?;
        return finish_parts(Some(&source), destination, &args.options, &cancel, console);
    }
    let options = args.options.config(paths, args.overwrite, console)?;
    let watch = Watch::new(console);
    if args.dry_run {
        return dry_run::show(&options, &cancel, watch, console);
    }
    if args.step.plan {
        let prepared = prepare(&options, &watch, &cancel).map_err(of_images)?;
        let was_there = prepared.record_plan(&watch)?;
        drop(watch);
        part::print_plan(&prepared, was_there, console);
        return Ok(Outcome::Done);
    }
    if let Some(part) = args.step.part {
        let prepared = prepare_part(&options, &watch, &cancel).map_err(of_images)?;
        let summary = prepared.run_part(part, &watch, &cancel)?;
        drop(watch);
        part::print(&summary, Verb::Pack, console);
        return Ok(Outcome::Done);
    }
    let summary = forebay_pack::pack(&options, &watch, &cancel).map_err(of_images)?;
    drop(watch);
    let packed = Packed::new(&summary);
    packed.print(console);
    Ok(packed.outcome())
}

/// Converts an error of a pack. If the source is invalid, the hint describes the expected directory structure.
fn of_images(error: forebay_pack::Error) -> Failure {
    let arrangement = || {
        let files = forebay_image::Format::FILES;
        format!("name a directory of {files} files: <class>/<file> or <split>/<class>/<file>")
    };
    let is_source = matches!(
        error,
        forebay_pack::Error::Source(forebay_pack::SourceError::Source { .. })
    );
    Failure::from(error).maybe_hint(is_source.then(arrangement))
}

/// Publishes the dataset of all parts. With a source, takes its census again, and compares it with the recorded plan.
fn finish_parts(
    source: Option<&PackOptions>,
    destination: &Path,
    args: &OptionArgs,
    cancel: &Cancel,
    console: &Console,
) -> Result<Outcome, Failure> {
    let watch = Watch::new(console);
    let prepared = source.map(|options| prepare(options, &watch, cancel).map_err(of_images));
    let prepared = prepared.transpose()?;
    let mut options = FinishOptions::new(Location::parse(destination)?);
    options.jobs = args.jobs.map(NonZeroUsize::get);
    let is_remote = options.dst.is_remote();
    args.staging.apply(&mut options.upload, is_remote);
    options.upload.store = args.store.options_until(console);
    let summary = finish(&options, prepared.as_ref(), &watch, cancel)?;
    drop(watch);
    let packed = Packed::joined(&summary);
    packed.print(console);
    Ok(packed.outcome())
}
