//! `forebay sync`: a place made like another one.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use forebay_store::CopyMode;

use super::copying::{self, Job};
use super::cp::How;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::store_args::StoreArgs;

/// Make a place like another one: copy what is missing or different
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
What is there with the same checksum stays. Where neither side knows a checksum, an object of the same
size that is not older stays as well; --checksum read reads instead. Files of a dataset are always
compared by checksum. Nothing is deleted without --delete, and then only below DST, after all else is
done; each deleted object is printed.

Examples:
  forebay sync shards/ s3://bucket/imagenet
  forebay sync s3://bucket/imagenet /fast/imagenet --delete
  forebay sync datasets/ s3://bucket/datasets --dry-run     several datasets at once
  forebay sync s3://a/photos s3://b/photos --checksum read --bandwidth 50MiB")]
pub(crate) struct Args {
    /// A dataset, a directory or a prefix
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// The destination, which becomes a copy of SRC
    #[arg(value_name = "DST")]
    destination: PathBuf,

    /// Remove what is at DST and not in SRC
    #[arg(long)]
    delete: bool,

    #[command(flatten)]
    how: How,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let job = Job {
        command: "sync",
        source: &args.source,
        destination: &args.destination,
        mode: CopyMode::Sync,
        recursive: true,
        delete: args.delete,
        how: &args.how,
        store: &args.store,
    };
    copying::run(&job, console)
}
