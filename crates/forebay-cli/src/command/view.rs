//! `forebay view`: a page that shows the records of any source.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use forebay_monitor::{ViewOptions, ViewSource, Viewer};
use forebay_pack::{Cancel, OnBadRecord, PackOptions, RecordFormat};
use forebay_store::{Location, StoreOptions};
use serde_json::json;

use super::foreign_args::ForeignArgs;
use super::loader_option_args::LoaderOptionArgs;
use super::record_files::tfrecords_of;
use super::record_source::foreign_source;
use crate::console::Console;
use crate::contents::Contents;
use crate::failure::{Failure, Outcome};
use crate::input::{Input, MANIFEST, synthetic};
use crate::store_args::StoreArgs;
use crate::tfrecord_names::is_shard;

/// Show the samples of a source in a browser
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Serves a page on this machine until Ctrl-C, and prints its address. The source is read in place:
datasets and shards of Forebay, records of other tools, and images that are not packed yet, local
or in a store. The page filters, sorts and draws samples, shows what a loader makes of them, lists
suspicious ones first, and writes a selection as a list for the option `indices`.

Examples:
  forebay view photos/                          a directory before packing
  forebay view shards/
  forebay view shards/ -o transform=train -o resize_like=opencv
  forebay view s3://bucket/shards
  forebay view coco/ --listen 0.0.0.0:8080      for others, with the token of the printed address")]
pub(crate) struct Args {
    /// A dataset, a shard, files of another tool, or a directory, archive or prefix of images
    #[arg(value_name = "SOURCE")]
    source: PathBuf,

    /// Address and port to listen on; others than loopback ask for the token that the printed address has [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,

    #[command(flatten)]
    loader: LoaderOptionArgs,

    #[command(flatten)]
    foreign: ForeignArgs,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let store = args.store.options_until(console);
    let is_synthetic = synthetic(&args.source)?.is_some();
    let options = ViewOptions {
        loader: args.loader.read(|_| true)?,
        is_remote: !is_synthetic && Location::parse(&args.source)?.is_remote(),
    };
    let source = open(&args.source, &args.foreign, &store)?;
    let address = args.listen.unwrap_or_else(|| ([127, 0, 0, 1], 0).into());
    let viewer = Viewer::start(address, source, options)?;
    let interrupt = console.interrupt().answer();
    console.line(viewer.url());
    console.event("viewing", &json!({"url": viewer.url()}));
    console.note("Ctrl-C ends the viewer.");
    interrupt.wait();
    console.event("summary", &json!({"command": "view", "exit_code": 0}));
    Ok(Outcome::Done)
}

/// Opens a source of any kind.
fn open(path: &Path, foreign: &ForeignArgs, store: &StoreOptions) -> Result<ViewSource, Failure> {
    if is_own(path, store)? {
        return Ok(match Contents::open(path, store)? {
            Contents::Dataset(dataset) => ViewSource::dataset(&dataset)?,
            Contents::Shard(shard) => ViewSource::shard(shard),
        });
    }
    let sources = [path.to_owned()];
    let tfrecords = || Some((RecordFormat::TFRECORD, tfrecords_of(path, is_shard)?));
    let found = foreign_source(&sources, None, foreign, store)?;
    if let Some((format, mut input)) = found.or_else(tfrecords) {
        let records = format.open(&input);
        let columns = records
            .as_ref()
            .map_or(1, |read| read.facts.columns().columns().len());
        // An archive with nothing but images may have directories of classes, and lists beside them.
        if !(path.is_file() && columns == 1) {
            return Ok(ViewSource::records(format, path, records?));
        }
        // Lists of classes are no images.
        input.on_bad_record = OnBadRecord::Skip;
        let all = || Some(ViewSource::records(format, path, format.open(&input).ok()?));
        return match images(path, foreign, store, all) {
            Ok(images) => Ok(images),
            Err(_) => Ok(ViewSource::records(format, path, records?)),
        };
    }
    images(path, foreign, store, || None)
}

/// Opens images that are not packed; see [`ViewSource::images`].
fn images(
    path: &Path,
    foreign: &ForeignArgs,
    store: &StoreOptions,
    stream: impl FnOnce() -> Option<ViewSource>,
) -> Result<ViewSource, Failure> {
    // Nothing is written, so the destination is never used.
    let mut options = PackOptions::new(Location::parse(path)?, Path::new("."));
    let records = foreign.records();
    options.split.clone_from(&foreign.split);
    options.classes = records.classes;
    options.class_order = Some(records.class_order);
    options.src_store = store.clone();
    Ok(ViewSource::images(&options, &Cancel::new(), stream)?)
}

/// Returns whether there is a dataset or a single shard at a path or URL.
fn is_own(path: &Path, store: &StoreOptions) -> Result<bool, Failure> {
    let is_own = |name: &str| {
        let is_tfrecord = path.is_file() && is_shard(name);
        is_tfrecord || name == MANIFEST || name.ends_with(".fbs")
    };
    let name = path.file_name().and_then(|name| name.to_str());
    if synthetic(path)?.is_some() || name.is_some_and(is_own) {
        return Ok(true);
    }
    // A name in a store that is no dataset may be a prefix or an archive of images.
    Ok(match Location::parse(path)?.is_remote() {
        true => Input::dataset(path, store).is_ok(),
        false => path.join(MANIFEST).exists(),
    })
}
