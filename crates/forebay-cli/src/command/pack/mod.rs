//! `forebay pack`: a directory of images becomes a dataset of shards.

mod dry_run;
mod part;
mod summary;
mod watch;

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args as ClapArgs;
use forebay_pack::{
    Action, Cancel, FinishOptions, Format, LayoutKind, OnBadImage, PackOptions, Part, Sharding,
    ShuffleWhen, finish, prepare,
};
use forebay_store::Location;

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
#[command(after_help = "\
Looks at all of SRC first (the census), decides what goes where (the plan), writes shards in
parallel into DST and publishes the manifest last. The same command again continues an
interrupted run; the result is the same, byte for byte, whatever --jobs is.

Examples:
  forebay pack photos/ shards/ --format tfrecord
  forebay pack imagenet/ shards/ --format indexed --shard-size 256MiB --jobs 8
  forebay pack imagenet/ shards/ --format indexed --resize-short 400 --quality 90
  forebay pack photos/ shards/ --format tfrecord --dry-run
  forebay pack photos/ s3://bucket/shards --format indexed       shards are uploaded as they are done
  forebay pack s3://bucket/images shards/ --format indexed       also gs://, az://
  forebay pack photos/ shards/ --format tfrecord --part 3/16     on the third of 16 machines
  forebay pack --finish shards/                                  when all parts are there

SRC holds <class>/<file> or <split>/<class>/<file>, or is an archive of that, or ILSVRC as it is
downloaded: --help shows the trees under --layout. JPEG, PNG and WebP are told apart by content.
Images that cannot be read are skipped and listed, and the exit code is 3. Bytes of images stay
as they are unless --resize-short, --max-side or --convert-odd say otherwise; whatever was done
to an image is a line in DST/pack/report.jsonl.")]
pub(crate) struct Args {
    /// The directory of images, or an archive; also in a store
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// Where the dataset goes: a directory, or s3://, gs://, az://
    #[arg(value_name = "DST", required_unless_present = "finish")]
    destination: Option<PathBuf>,

    /// What to write: tfrecord (as TensorFlow does) or indexed (.fbs, one file with random access)
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        hide_possible_values = true,
        required_unless_present = "finish",
        help_heading = "Shards"
    )]
    format: Option<Kind>,

    /// Number of shards for each split
    #[arg(
        long,
        value_name = "N",
        conflicts_with = "shard_size",
        help_heading = "Shards"
    )]
    shards: Option<NonZeroU32>,

    /// Size of a shard, about [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size, help_heading = "Shards")]
    shard_size: Option<u64>,

    /// Codec of indexed shards: none, zstd or zstd:LEVEL [default: none]
    #[arg(long, value_name = "CODEC", help_heading = "Shards")]
    codec: Option<Codec>,

    /// Seek points beside each JPEG, so that loaders decode crops faster: auto (under 1 % of its bytes), on, off, fine
    #[arg(
        long,
        value_name = "WHICH",
        default_value = "auto",
        hide_possible_values = true,
        help_heading = "Shards"
    )]
    seek_points: SeekPoints,

    /// Progressive JPEGs: keep, or baseline (same pixels, crops decode faster, export gives the original back)
    #[arg(
        long,
        value_name = "WHAT",
        default_value = "keep",
        hide_possible_values = true,
        help_heading = "Shards"
    )]
    progressive: Progressive,

    /// Put a BLAKE3 hash of each shard into the manifest
    #[arg(long, help_heading = "Shards")]
    blake3: bool,

    /// Leave out the text index (.idx) that NVIDIA DALI reads
    #[arg(long, help_heading = "Shards")]
    no_idx: bool,

    /// How SRC is laid out: academic, kaggle, tpu, splits or classes [default: recognised by looking]
    #[arg(
        long,
        value_name = "LAYOUT",
        value_parser = parse_layout,
        long_help = layout_help(),
        help_heading = "Records"
    )]
    layout: Option<LayoutKind>,

    /// The class list, one a line in label order [default: a list found in SRC, else its directories]
    #[arg(long, value_name = "FILE", help_heading = "Records")]
    classes: Option<PathBuf>,

    /// A file of labels (CSV, TSV, JSON lines): path, label or class, and columns that become features
    #[arg(
        long,
        value_name = "FILE",
        long_help = LABELS_HELP,
        help_heading = "Records"
    )]
    labels: Option<PathBuf>,

    /// Name the split of a source without splits, or pack only this one of several
    #[arg(long, value_name = "NAME", help_heading = "Records")]
    split: Option<String>,

    /// Label of the first class: 1 as in TensorFlow's ImageNet, or 0
    #[arg(
        long,
        value_name = "0|1",
        default_value_t = 1,
        value_parser = clap::value_parser!(u8).range(0..=1),
        help_heading = "Records"
    )]
    label_base: u8,

    /// Seed of the shuffle, which every split but validation and test gets
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Records")]
    seed: u64,

    /// Keep all records in the order of their names
    #[arg(long, help_heading = "Records")]
    no_shuffle: bool,

    /// Make images smaller whose short side has more than N pixels, so that it has N
    #[arg(long, value_name = "N", long_help = SHRINK_HELP, help_heading = "Images")]
    resize_short: Option<NonZeroU32>,

    /// Make images smaller whose long side has more than N pixels, so that it has N
    #[arg(long, value_name = "N", help_heading = "Images")]
    max_side: Option<NonZeroU32>,

    /// Write odd images anew as RGB JPEG: PNG under a JPEG's name, CMYK, YCCK, JPEGs without their end
    #[arg(long, help_heading = "Images")]
    convert_odd: bool,

    /// JPEG quality of what is written anew [default: 95 for smaller images, 100 for odd ones]
    #[arg(
        long,
        value_name = "1-100",
        value_parser = clap::value_parser!(u8).range(1..=100),
        help_heading = "Images"
    )]
    quality: Option<u8>,

    /// What to do about an image that cannot be read: skip, fail or quarantine:DIR
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "skip",
        value_parser = parse_policy,
        long_help = POLICY_HELP,
        help_heading = "Images"
    )]
    on_bad_image: OnBadImage,

    /// Threads that read, convert and write [default: cores that the machine, affinity and cgroup allow]
    #[arg(short, long, value_name = "N", help_heading = "Run")]
    jobs: Option<NonZeroUsize>,

    /// Show the census and the plan, write nothing
    #[arg(short = 'n', long, help_heading = "Run")]
    dry_run: bool,

    /// Replace the dataset, or the unfinished pack, that is in DST
    #[arg(long, help_heading = "Run")]
    overwrite: bool,

    #[command(flatten)]
    staging: StagingArgs,

    #[command(flatten)]
    store: StoreArgs,

    /// Write only part I of N, numbered from 1; other machines write the others into the same DST
    #[arg(
        long,
        value_name = "I/N",
        conflicts_with_all = ["finish", "plan", "dry_run", "overwrite"],
        help_heading = "Cluster"
    )]
    part: Option<Part>,

    /// Check that all parts are there and publish the dataset: `--finish DST`, or with SRC and all options of the
    /// parts to check as well that SRC is still what was packed
    #[arg(
        long,
        conflicts_with_all = ["plan", "dry_run", "overwrite"],
        help_heading = "Cluster"
    )]
    finish: bool,

    /// Only record the plan in DST, before the first part; a plan of a SRC that has changed since is replaced
    #[arg(long, conflicts_with = "dry_run", help_heading = "Cluster")]
    plan: bool,
}

/// What becomes of progressive JPEGs.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    None,
    Zstd(i32),
}

const SHRINK_HELP: &str = "\
Make images smaller whose short side has more than N pixels, so that it has N

The aspect is kept, and no image is made larger. The pixels are those of Pillow's resize((w, h),
BILINEAR); with --max-side as well, the smaller size counts. What is made smaller becomes a JPEG
(4:2:0, --quality) without profiles and without EXIF but its orientation, and width and height in its record are the new
ones. Images that are small enough keep their bytes.";

const POLICY_HELP: &str = "\
What to do about an image that cannot be read: skip, fail or quarantine:DIR

  skip            leave it out, list it, go on; the exit code is 3
  fail            stop at the first one
  quarantine:DIR  as skip, and copy it to DIR under the path that it has in SRC";

fn parse_policy(text: &str) -> Result<OnBadImage, String> {
    match text.split_once(':') {
        None if text == "skip" => Ok(OnBadImage::Skip),
        None if text == "fail" => Ok(OnBadImage::Fail),
        Some(("quarantine", dir)) if !dir.is_empty() => Ok(OnBadImage::Quarantine(dir.into())),
        _ => Err("give skip, fail or quarantine:DIR".to_owned()),
    }
}

/// zstd's own default: most of the gain at several hundred MB/s.
const ZSTD_LEVEL: i32 = 3;

impl FromStr for Codec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "none" => Ok(Self::None),
            None if text == "zstd" => Ok(Self::Zstd(ZSTD_LEVEL)),
            Some(("zstd", level)) => match level.parse() {
                Ok(level @ 1..=22) => Ok(Self::Zstd(level)),
                _ => Err("zstd levels are 1 to 22".to_owned()),
            },
            _ => Err("a codec is none, zstd or zstd:LEVEL".to_owned()),
        }
    }
}

const LABELS_HELP: &str = "\
A file of labels: CSV, TSV or JSON lines, with a line of column names (CSV, TSV).
One column is the path of an image relative to SRC: path, file, filename or image.
One is its class: label (a number, stored as it is) or class (a name).
Every other column becomes a feature of that name: int64 if all of its values are integers, float
if all are numbers, else bytes. Directories are no classes then; images without a line are left
out and listed. Empty labels and -1 mean that there is none.";

/// A tree for each layout.
fn layout_help() -> String {
    let mut help = "How SRC is laid out; recognised by looking, first match first.\n\
        An archive is a tar, tar.gz, tar.zst or zip; nothing is extracted.\n"
        .to_owned();
    for layout in LayoutKind::ALL {
        help += &format!("\n{}:\n", layout.name());
        for line in layout.example().lines() {
            help += &format!("  {line}\n");
        }
    }
    help
}

fn parse_layout(text: &str) -> Result<LayoutKind, String> {
    let named = LayoutKind::ALL.iter().find(|layout| layout.name() == text);
    named.copied().ok_or_else(|| {
        let names: Vec<&str> = LayoutKind::ALL.iter().map(|layout| layout.name()).collect();
        format!("the layouts are {}", names.join(", "))
    })
}

impl Args {
    /// The options, decided.
    fn config(&self, console: &Console) -> Result<PackOptions, Failure> {
        let (Some(destination), Some(format)) = (&self.destination, self.format) else {
            return Err(Failure::usage("SRC, DST and --format go together")
                .hint("with --finish, DST alone is enough"));
        };
        let format = format_of(format, self.codec)?;
        let mut options = PackOptions::new(
            Location::parse(&self.source)?,
            Location::parse(destination)?,
        );
        options.format = format;
        if let Some(shards) = self.shards {
            options.sharding = Sharding::Count(shards.get());
        } else if let Some(bytes) = self.shard_size {
            options.sharding = Sharding::Bytes(bytes);
        }
        options.index_text = !self.no_idx;
        options.layout = self.layout;
        options.classes.clone_from(&self.classes);
        options.labels.clone_from(&self.labels);
        options.split.clone_from(&self.split);
        options.label_base = self.label_base;
        options.seed = self.seed;
        if self.no_shuffle {
            options.shuffle = ShuffleWhen::Never;
        }
        options.seek_points = self.seek_points.density();
        options.progressive_to_baseline = self.progressive == Progressive::Baseline;
        options.on_bad_image = self.on_bad_image.clone();
        options.convert_odd = self.convert_odd;
        options.resize_short = self.resize_short.map(NonZeroU32::get);
        options.max_side = self.max_side.map(NonZeroU32::get);
        options.quality = self.quality;
        options.blake3 = self.blake3;
        options.jobs = self.jobs.map(NonZeroUsize::get);
        options.overwrite = self.overwrite;
        self.staging
            .apply(&mut options.upload, options.dst.is_remote());
        options.upload.store = self.store.options_until(console);
        options.src_store = self.store.options_until(console);
        Ok(options)
    }
}

/// The format that two options ask for.
pub(crate) fn format_of(kind: Kind, codec: Option<Codec>) -> Result<Format, Failure> {
    Ok(match (kind, codec) {
        (Kind::Tfrecord, None | Some(Codec::None)) => Format::TfRecord,
        (Kind::Tfrecord, Some(Codec::Zstd(_))) => {
            return Err(Failure::usage("TFRecord shards have no codec")
                .hint("--codec goes with --format indexed"));
        }
        (Kind::Indexed, None | Some(Codec::None)) => Format::Indexed,
        (Kind::Indexed, Some(Codec::Zstd(level))) => Format::IndexedZstd(level),
    })
}

/// What became of a file, in a word.
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
    if args.finish {
        return join(&args, &cancel, console);
    }
    let options = args.config(console)?;
    let watch = Watch::new(console);
    if args.dry_run {
        return dry_run::show(&options, &cancel, watch, console);
    }
    if args.plan {
        let prepared = prepare(&options, &watch, &cancel)?;
        let was_there = prepared.record_plan(&watch)?;
        drop(watch);
        part::print_plan(&prepared, was_there, console);
        return Ok(Outcome::Done);
    }
    if let Some(part) = args.part {
        let summary = prepare(&options, &watch, &cancel)?.run_part(part, &watch, &cancel)?;
        drop(watch);
        part::print(&summary, console);
        return Ok(Outcome::Done);
    }
    let summary = forebay_pack::pack(&options, &watch, &cancel)?;
    drop(watch);
    let packed = Packed::new(&summary);
    packed.print(console);
    Ok(packed.outcome())
}

/// Joins parts: with one path that is the destination, with two the source is looked at again.
fn join(args: &Args, cancel: &Cancel, console: &Console) -> Result<Outcome, Failure> {
    let watch = Watch::new(console);
    let (dst, source) = match &args.destination {
        None => (Location::parse(&args.source)?, None),
        Some(_) => {
            let options = args.config(console)?;
            let dst = options.dst.clone();
            (dst, Some(prepare(&options, &watch, cancel)?))
        }
    };
    let mut options = FinishOptions::new(dst);
    options.jobs = args.jobs.map(NonZeroUsize::get);
    let summary = finish(&options, source.as_ref(), &watch, cancel)?;
    drop(watch);
    let packed = Packed::joined(&summary);
    packed.print(console);
    Ok(packed.outcome())
}
