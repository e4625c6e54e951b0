//! `forebay rm`: removes objects, prefixes and datasets.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use forebay_shard::manifest::FILE_NAME as MANIFEST;
use forebay_staging::checkpoint::Checkpoint;
use forebay_store::{Location, Object, ObjectOrTree, Store, for_each_parallel};
use serde_json::json;

use super::checkpoint::AreaArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::paint::printable;
use crate::quantity;
use crate::store_args::StoreArgs;

/// Number of parallel deletions; each is one request.
const PARALLEL: usize = 16;

/// Remove objects, and with -r everything below a location
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A dataset's manifest goes first, so that no reader finds half a dataset. Removed objects are printed, and cannot be
restored. Directories that become empty are removed too. Only files that Forebay could list are removed: links, sockets and
devices stay. A checkpoint is removed as a whole, unless it is pinned, being read or not uploaded yet.

Examples:
  forebay rm s3://bucket/datasets/imagenet/notes.txt
  forebay rm -r -n s3://bucket/datasets/old      shows what would be removed
  forebay rm -r s3://bucket/datasets/old
  forebay rm -r /fast/imagenet
  forebay rm -r s3://bucket/run/step-1000        a checkpoint")]
pub(crate) struct Args {
    /// Objects, files; with -r prefixes, directories, datasets
    #[arg(value_name = "LOCATION", required = true)]
    locations: Vec<PathBuf>,

    /// Remove everything below LOCATION
    #[arg(short, long)]
    recursive: bool,

    /// Show what would be removed
    #[arg(short = 'n', long)]
    dry_run: bool,

    #[command(flatten)]
    area: AreaArgs,

    #[command(flatten)]
    store: StoreArgs,
}

/// The objects or the checkpoint to remove at a location.
enum Found {
    Objects(ObjectOrTree, Vec<Object>),
    Checkpoint(Checkpoint),
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let options = args.store.options_until(console);
    let (mut objects, mut bytes) = (0, 0);
    // All locations are resolved first, so that an invalid one fails the command before anything is removed.
    let mut found = Vec::new();
    for location in &args.locations {
        let checkpoint = match args.recursive {
            true => args.area.find(location, &options)?,
            false => None,
        };
        found.push(match checkpoint {
            Some(checkpoint) => Found::Checkpoint(checkpoint),
            None => {
                let location = Location::parse(location)?;
                let (source, objects) = find(&location, args.recursive, &options)?;
                Found::Objects(source, objects)
            }
        });
    }
    let verb = match args.dry_run {
        true => "would remove",
        false => "removed",
    };
    for found in found {
        let (source, listed) = match found {
            Found::Objects(source, listed) => (source, listed),
            Found::Checkpoint(checkpoint) => {
                let parts = checkpoint.manifest().parts.iter();
                objects += parts.map(|part| part.files.len() as u64).sum::<u64>();
                bytes += checkpoint.manifest().bytes();
                let location = checkpoint.location();
                if !args.dry_run {
                    args.area.remove(checkpoint, &options)?;
                }
                console.line(format!("{verb} {}", printable(&location)));
                continue;
            }
        };
        for object in &listed {
            let name = source.store().location().join(&object.key);
            console.line(format!("{verb} {}", printable(&name.to_string())));
            objects += 1;
            bytes += object.len;
        }
        if !args.dry_run {
            remove(source.store(), &listed)?;
            if source.object().is_none()
                && let Ok(root) = source.store().location().local_path()
            {
                remove_empty_directories(root);
            }
        }
    }
    console.line(format!(
        "{} {}, {}",
        if args.dry_run {
            "Would remove"
        } else {
            "Removed"
        },
        quantity::counted(objects, "object", "objects"),
        quantity::bytes(bytes)
    ));
    console.event(
        "summary",
        &json!({
            "command": "rm",
            "exit_code": 0,
            "dry_run": args.dry_run,
            "objects": objects,
            "bytes": bytes,
        }),
    );
    Ok(Outcome::Done)
}

/// Returns the objects to remove at a location, manifests first.
fn find(
    location: &Location,
    recursive: bool,
    options: &forebay_store::StoreOptions,
) -> Result<(ObjectOrTree, Vec<Object>), Failure> {
    let source = ObjectOrTree::find(location, options)?;
    let store = source.store();
    if let Some(object) = source.object() {
        let objects = vec![object.clone()];
        return Ok((source, objects));
    }
    if !recursive {
        return Err(Failure::usage(format!("{location} is not one object"))
            .hint("-r removes everything below it; -n shows what that is"));
    }
    if is_root(location) {
        return Err(Failure::usage(format!(
            "{location} is a whole file system, home directory or bucket: name something below it"
        )));
    }
    let mut objects = store.list_all("")?.objects;
    if objects.is_empty() {
        return Err(Failure::new(format!("there is nothing at {location}")));
    }
    objects.sort_by_key(|object| !object.key.ends_with(MANIFEST));
    Ok((source, objects))
}

/// Returns whether the location is a file system root, the home directory or a bucket: such a location is probably a mistake.
fn is_root(location: &Location) -> bool {
    match location.local_path() {
        Ok(path) => {
            let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            path.parent().is_none() || std::env::home_dir().is_some_and(|home| home == path)
        }
        Err(_) => {
            let text = location.to_string();
            let below = text.split_once("://").map_or("", |(_, rest)| rest);
            !below.trim_end_matches('/').contains('/')
        }
    }
}

/// Deletes the manifests one after the other, then the other objects in parallel. Without its manifest, a partly deleted
/// dataset cannot be opened.
fn remove(store: &Store, objects: &[Object]) -> Result<(), Failure> {
    let manifests = objects.partition_point(|object| object.key.ends_with(MANIFEST));
    for object in &objects[..manifests] {
        store.delete(&object.key)?;
    }
    for_each_parallel(&objects[manifests..], PARALLEL, |object| {
        Ok(store.delete(&object.key)?)
    })
}

fn remove_empty_directories(root: &std::path::Path) {
    // Deepest directories first. `remove_dir` fails for a directory that is not empty, which then stays.
    for entry in walkdir::WalkDir::new(root)
        .contents_first(true)
        .into_iter()
        .flatten()
    {
        if entry.file_type().is_dir() {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}
