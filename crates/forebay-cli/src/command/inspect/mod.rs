//! `forebay inspect`: prints the contents of a dataset, shard or checkpoint.

mod figures;
pub(super) mod sheet;
mod show;

use std::path::PathBuf;

use clap::Args as ClapArgs;
use forebay_pack::RecordFormat;

use super::checkpoint::{AreaArgs, has_checkpoints};
use super::foreign_args::ForeignArgs;
use super::record_files::{self, local_tfrecords};
use super::record_source::foreign_source;
use crate::console::Console;
use crate::contents::Contents;
use crate::failure::{Failure, Outcome};
use crate::store_args::StoreArgs;

use figures::{ImageFigures, IndexFigures};
use show::Findings;

/// Show what is in a dataset, a shard or a checkpoint
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Splits, shards, bytes, features, classes and how big the records are, from manifest and indexes
alone. With --deep every record is read too: exact sizes of the images, formats, dimensions. With -v
all classes are listed, not only the first.

Examples:
  forebay inspect shards/
  forebay inspect shards/ --deep
  forebay inspect shards/ --contact-sheet images.png
  forebay inspect shards/ --contact-sheet cats.png --split train --class cat,lynx
  forebay inspect shards/ --contact-sheet worst.png --split train --indices indices.json
  forebay inspect shards/train-00000-of-00004 --json
  forebay inspect s3://bucket/shards
  forebay inspect parquet/                    files of another tool: splits, columns, sizes
  forebay inspect s3://bucket/run             the complete checkpoints of a run")]
pub(crate) struct Args {
    /// A dataset (the directory or URL with forebay.json), one shard, files of another tool, a checkpoint, or its run
    #[arg(value_name = "DATASET|SHARD|CHECKPOINT|RUN")]
    path: PathBuf,

    /// Read every record: sizes, formats and dimensions of the images themselves
    #[arg(long)]
    deep: bool,

    #[command(flatten)]
    sheet: sheet::SheetArgs,

    #[command(flatten)]
    area: AreaArgs,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let store = args.store.options();
    if has_checkpoints(&args.path) && args.area.inspect(&args.path, &store, console)? {
        return Ok(Outcome::Done);
    }
    let foreign = ForeignArgs::default();
    let paths = std::slice::from_ref(&args.path);
    let tfrecords = || Some((RecordFormat::TFRECORD, local_tfrecords(&args.path)?));
    let found = foreign_source(paths, None, &foreign, &store).ok();
    if let Some((format, input)) = found.and_then(|found| found.or_else(tfrecords)) {
        if args.deep || args.sheet.contact_sheet.is_some() {
            return Err(Failure::usage(format!(
                "{} is read without --deep and --contact-sheet",
                format.title()
            ))
            .hint("`forebay verify --deep` decodes its images; `forebay convert` makes a dataset of it"));
        }
        return record_files::inspect(&args.path, format, &input, console);
    }
    let contents = match Contents::open(&args.path, &store) {
        // Checkpoints are looked up last, since this lists every directory.
        Err(failure)
            if failure.is_missing()
                && !args.path.is_dir()
                && args.area.inspect(&args.path, &store, console)? =>
        {
            return Ok(Outcome::Done);
        }
        contents => contents?,
    };
    let splits = contents.shards()?;
    let index = IndexFigures::of(&splits);
    let images = if args.deep {
        Some(ImageFigures::read(
            &splits,
            contents.record_features(),
            console,
        )?)
    } else {
        None
    };
    let findings = Findings {
        contents: &contents,
        splits: &splits,
        index: &index,
        images: images.as_ref(),
    };
    findings.print(console);
    args.sheet.write(&contents, console)?;
    findings.event(console);
    Ok(if images.is_some_and(|images| images.unreadable > 0) {
        Outcome::SomeUnreadable
    } else {
        Outcome::Done
    })
}
