//! Determines from file names whether SRC of a command is a dataset or records of another tool.

use std::path::{Path, PathBuf};

use forebay_pack::{
    RecordFormat, RecordInput, expand_braces, has_braces, image_list, pickled_advice,
};
use forebay_store::{Location, Object, Store, StoreOptions};

use super::foreign_args::ForeignArgs;
use crate::failure::Failure;
use crate::input::show;

/// Name of the file that lists the shards of a split, in formats with such a list.
const INDEX: &str = "index.json";
/// The directory whose file names identify COCO, since its splits may have any names.
const ANNOTATIONS: &str = "annotations";
/// Extension of a Zarr store, a directory that counts as one file.
const STORE: &str = ".zarr";
/// Maximum number of subdirectories of a source to list.
const DIRS_SEEN: usize = 16;

/// Returns the format and the input if SRC names records of another tool, as a directory or prefix, a brace pattern, or
/// several files. Returns `None` for a dataset and for local TFRecords.
pub(crate) fn foreign_source(
    sources: &[PathBuf],
    given: Option<RecordFormat>,
    foreign: &ForeignArgs,
    store: &StoreOptions,
) -> Result<Option<(RecordFormat, RecordInput)>, Failure> {
    let source = sources
        .first()
        .ok_or_else(|| Failure::usage("no SRC is named"))?;
    let text = source.to_str().unwrap_or_default();
    let mut files = Vec::new();
    let mut location = Location::parse(source)?;
    if sources.len() > 1 {
        for source in sources {
            files.push(Location::parse(source)?);
        }
        let dir = text.rsplit_once('/').map_or(".", |(dir, _)| dir);
        location = Location::parse(dir)?;
    } else if has_braces(text) && !source.exists() {
        let names = expand_braces(text).map_err(Failure::usage)?;
        for name in &names {
            files.push(Location::parse(name)?);
        }
        let dir = text.rsplit_once('/').map_or(".", |(dir, _)| dir);
        // The name of the directory may have braces too.
        let dir = dir.split('{').next().unwrap_or_default();
        location = Location::parse(if dir.is_empty() { "." } else { dir })?;
    }
    let format = match given {
        Some(format) => Some(format),
        None => {
            let names = match files.is_empty() {
                true => names_at(&location, store)?,
                false => vec![text.to_owned()],
            };
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let found = RecordFormat::detect(&names);
            if found.is_none()
                && let Some((name, advice)) = names
                    .iter()
                    .find_map(|name| Some((name, pickled_advice(name)?)))
            {
                return Err(Failure::usage(format!("{name}: {advice}")));
            }
            let listed = || Some(RecordFormat::IMAGE_LIST).filter(|_| image_list(&names).is_some());
            found.map(|(format, _)| format).or_else(listed)
        }
    };
    // Local TFRecords are handled by the caller, which derives splits from file names. In a store, they are foreign records.
    let is_shards = |format: RecordFormat| {
        format == RecordFormat::DATASET
            || (format == RecordFormat::TFRECORD && !location.is_remote())
    };
    let Some(format) = format.filter(|format| !is_shards(*format)) else {
        return Ok(None);
    };
    let mut input = RecordInput::new(location);
    input.files = files;
    input.split.clone_from(&foreign.split);
    input.features = foreign.records();
    Ok(Some((format, input)))
}

/// Returns the error of `command`, which needs a dataset, if SRC has files of another tool; `None` if it has none.
pub(crate) fn needs_dataset(source: &Path, store: &StoreOptions, command: &str) -> Option<Failure> {
    let foreign = ForeignArgs::default();
    let found = foreign_source(&[source.to_path_buf()], None, &foreign, store);
    let (format, _) = found.ok()??;
    let place = show(source);
    let (verb, what) = match format.is_read_in_place() {
        true => (
            "index",
            "makes an index, and leaves the files where they are",
        ),
        false => ("convert", "copies its records"),
    };
    let to = if verb == "index" {
        "--output DIR"
    } else {
        "DIR"
    };
    Some(
        Failure::new(format!("{place} has {}, and no index", format.title())).hint(format!(
            "`forebay {verb} {place} {to}` {what}; then `forebay {command} DIR`"
        )),
    )
}

/// Returns the names in a directory or prefix, and names in its subdirectories that identify a format. For a file, returns its
/// own name.
fn names_at(location: &Location, store: &StoreOptions) -> Result<Vec<String>, Failure> {
    let Ok(path) = location.local_path() else {
        let name = match location.parent_and_name() {
            Ok(Some((_, name))) => name,
            // The root of a bucket, or a repository of the Hub, whose name and revision may have a dot in them.
            _ => String::new(),
        };
        if RecordFormat::detect(&[&name]).is_some() {
            return Ok(vec![name]);
        }
        let store = Store::open(location, store)?;
        let listing = store.list_dir("")?;
        if name.contains('.') && listing.objects.is_empty() && listing.dirs.is_empty() {
            return Ok(vec![name]);
        }
        let keys = |objects: Vec<Object>| objects.into_iter().map(|object| object.key);
        let mut names: Vec<String> = keys(listing.objects).collect();
        let stores = listing.dirs.iter().filter(|name| name.ends_with(STORE));
        names.extend(stores.cloned());
        let shown: Vec<&str> = names.iter().map(String::as_str).collect();
        if RecordFormat::detect(&shown).is_none() {
            for dir in listing.dirs.iter().take(DIRS_SEEN) {
                names.extend(keys(store.list_dir(dir)?.objects));
            }
        }
        return Ok(names);
    };
    if !path.is_dir() {
        return Ok(path.to_str().map(str::to_owned).into_iter().collect());
    }
    let names = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    let mut all = names(path);
    let dirs = all.iter().filter(|name| path.join(name).is_dir());
    for dir in dirs.take(DIRS_SEEN).cloned().collect::<Vec<_>>() {
        let below = names(&path.join(&dir)).into_iter();
        let shows_format = |name: &String| {
            let mut ends = RecordFormat::all().flat_map(RecordFormat::names_in_split_dirs);
            let is_annotations = dir == ANNOTATIONS && name.ends_with(".json");
            name == INDEX || is_annotations || ends.any(|end| name.ends_with(end))
        };
        let shown = below.filter(shows_format);
        all.extend(shown.map(|name| format!("{dir}/{name}")));
    }
    Ok(all)
}
