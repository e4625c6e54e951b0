//! `forebay inspect`: what is in a dataset or a shard.

mod figures;
pub(super) mod sheet;
mod show;

use std::path::PathBuf;

use clap::Args as ClapArgs;

use crate::console::Console;
use crate::contents::Contents;
use crate::failure::{Failure, Outcome};
use crate::store_args::StoreArgs;

use figures::{ImageFigures, IndexFigures};
use show::Findings;

/// Show what is in a dataset or a shard
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Splits, shards, bytes, features, classes and how big the records are, from manifest and indexes
alone. With --deep every record is read too: exact sizes of the images, formats, dimensions.

Examples:
  forebay inspect shards/
  forebay inspect shards/ --deep
  forebay inspect shards/ --contact-sheet images.png
  forebay inspect shards/train-00000-of-00004 --json
  forebay inspect s3://bucket/shards")]
pub(crate) struct Args {
    /// A dataset (the directory or URL with forebay.json) or one shard
    #[arg(value_name = "DATASET|SHARD")]
    path: PathBuf,

    /// Read every record: sizes, formats and dimensions of the images themselves
    #[arg(long)]
    deep: bool,

    /// Write a PNG with images from all over the dataset, each with its class
    #[arg(long, value_name = "FILE")]
    contact_sheet: Option<PathBuf>,

    /// List all classes, not only the first
    #[arg(long)]
    all_classes: bool,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let contents = Contents::open(&args.path, &args.store.options())?;
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
        all_classes: args.all_classes,
    };
    findings.print(console);
    if let Some(path) = &args.contact_sheet {
        sheet::write(path, &contents, &splits, console)?;
    }
    findings.event(console);
    Ok(if images.is_some_and(|images| images.unreadable > 0) {
        Outcome::SomeUnreadable
    } else {
        Outcome::Done
    })
}
