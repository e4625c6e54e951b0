//! `forebay cp`: copies objects, directories and datasets between locations.

use std::path::PathBuf;

use clap::Args as ClapArgs;

use super::copying::{self, How, Job};
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::store_args::StoreArgs;

/// Copy an object, a directory or a whole dataset to another place
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Of a dataset, shards and indexes are copied in parallel and compared with the manifest's checksums;
the manifest follows once all of them are there. The same command again continues where the last one
ended: what is there with the same checksum stays.

Examples:
  forebay cp shards/ s3://bucket/imagenet
  forebay cp s3://bucket/imagenet /fast/imagenet --bandwidth 100MiB
  forebay cp gs://bucket/imagenet s3://other/imagenet       through this machine
  forebay cp https://example.org/imagenet shards/           a dataset on a web server
  forebay cp -r photos/ s3://bucket/photos                  a directory that is no dataset
  forebay cp --delete-extra -n datasets/ s3://bucket/datasets    what would be copied and deleted
  forebay cp model.bin s3://bucket/models/")]
pub(crate) struct Args {
    /// An object, a file, a dataset, or with -r a directory or prefix
    #[arg(value_name = "SRC")]
    source: PathBuf,

    /// Destination; one object goes below a name that ends in /
    #[arg(value_name = "DST")]
    destination: PathBuf,

    /// Also what is no dataset: everything below SRC
    #[arg(short, long)]
    recursive: bool,

    /// Make DST equal to SRC, everything below it: after all else, remove objects of DST that SRC does not have. An object of
    /// the same size that is not older counts as equal where neither side knows a checksum
    #[arg(long)]
    delete_extra: bool,

    #[command(flatten)]
    pub(super) how: How,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let job = Job {
        source: &args.source,
        destination: &args.destination,
        recursive: args.recursive || args.delete_extra,
        delete: args.delete_extra,
        how: &args.how,
        store: &args.store,
    };
    copying::run(&job, console)
}
