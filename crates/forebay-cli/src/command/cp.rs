//! `forebay cp`: copies objects, directories and datasets between locations.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use forebay_pack::copy::CopyMode;

use super::copying::{self, Job};
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::quantity::parse_size;
use crate::store_args::{Setting, StoreArgs, parse_pair};

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
    how: How,

    #[command(flatten)]
    store: StoreArgs,
}

/// Options of how objects are copied.
#[derive(Debug, ClapArgs)]
pub(crate) struct How {
    /// Say what would be done, and do nothing
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    /// How to detect unchanged objects: by stored checksums, or by reading objects that have none
    #[arg(
        long,
        value_name = "WHICH",
        default_value = "stored",
        hide_possible_values = true,
        help = "How to detect unchanged objects: by stored checksums, or by reading objects that have none [stored, read]"
    )]
    pub(crate) checksum: Checksum,

    /// Replace another dataset at DST; its readers will notice
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Bytes a second at most, of all transfers together
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) bandwidth: Option<u64>,

    /// Number of concurrent transfers of objects and parts of objects
    #[arg(short, long, value_name = "N", default_value = "16")]
    pub(crate) jobs: NonZeroUsize,

    /// Directory for objects on the way from store to store [default: the system's temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(crate) scratch: Option<PathBuf>,

    /// A setting of DST's store, where it is not that of SRC's
    #[arg(
        long = "to-storage-option",
        value_name = "KEY=VALUE",
        value_parser = parse_pair,
        help_heading = "Destination"
    )]
    pub(crate) to_storage_options: Vec<(String, Setting)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Checksum {
    Stored,
    Read,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let job = Job {
        source: &args.source,
        destination: &args.destination,
        mode: match args.delete_extra {
            true => CopyMode::Sync,
            false => CopyMode::Copy,
        },
        recursive: args.recursive || args.delete_extra,
        delete: args.delete_extra,
        how: &args.how,
        store: &args.store,
    };
    copying::run(&job, console)
}
