//! Zarr, versions 2 and 3: hierarchies of arrays in directories, stores and zips.

mod codec;
mod file;
mod metadata;
mod nodes;
#[cfg(test)]
pub(super) mod tests;
mod write;

use super::CreateSink;
use super::arrays::{self, ArrayFile, ArraySink};
use super::conversion::Conversion;
use super::places::by_split;
use super::{Format, FormatInfo, RecordInput, RecordSource};
use crate::error::{Error, Result};
use file::{ARRAY_2, NODE_3, ZarrFile};
use forebay_store::{Location, Store};
use nodes::Nodes;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

pub(super) struct Zarr;

const EXTENSION: &str = ".zarr";
/// Extension of a hierarchy in a zip.
const ZIP: &str = ".zarr.zip";
/// Name of the metadata of a group in version 2.
const GROUP_2: &str = ".zgroup";
/// Names by which a directory is recognized as a hierarchy.
const MARKS: [&str; 3] = [NODE_3, GROUP_2, ARRAY_2];
/// Most directories of a location that are searched.
const MAX_DIRS: usize = 64;

impl Format for Zarr {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "zarr",
            title: "a Zarr store",
            extensions: &[EXTENSION, ZIP],
            names_in_split_dirs: &[EXTENSION, ZIP],
            advice: "`forebay convert SRC DST --format indexed` makes records of the rows of arrays",
            ..FormatInfo::NONE
        }
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let mut all = names.iter().copied();
        let has = |name: &&str| {
            let name = name.trim_end_matches('/');
            MARKS.contains(&name) || self.info().extensions.iter().any(|end| name.ends_with(end))
        };
        all.find(has)
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let is_one = |_: &Path| is_named(&input.location);
        let (root, conversion) = Conversion::of_source(input, self.info().name, is_one)?;
        let mut splits = Vec::new();
        for (split, places) in find(input, conversion.as_ref())? {
            let mut files: Vec<Arc<dyn ArrayFile>> = Vec::new();
            for (name, location) in places {
                let stem = name.split('.').next().unwrap_or_default();
                files.push(Arc::new(ZarrFile::open(
                    Nodes::open(&location, input)?,
                    stem,
                )?));
            }
            splits.push((split, files));
        }
        if splits.is_empty() {
            return Err(Error::source(&root, "there is no Zarr store here"));
        }
        arrays::open(splits, input, conversion.as_ref(), &root)
    }

    fn writer(&self) -> Option<CreateSink> {
        Some(|facts, options| {
            write::Encoder::new(options.compression)?;
            Ok(Box::new(ArraySink::new(facts, options, &write::FORMAT)?))
        })
    }
}

/// Returns whether a location has the name of a hierarchy.
fn is_named(location: &Location) -> bool {
    let text = location.to_string();
    let text = text.trim_end_matches('/');
    text.ends_with(EXTENSION) || text.ends_with(ZIP)
}

/// Returns the last part of a location.
fn name_of(location: &Location) -> String {
    let text = location.to_string();
    let name = text.trim_end_matches('/').rsplit('/').next();
    name.unwrap_or_default().to_owned()
}

/// Hierarchies of each split, with their names.
type Found = BTreeMap<String, Vec<(String, Location)>>;

/// Finds the hierarchies of each split. The first of these that applies is used: the files of the conversion, the files that
/// the user named, the location itself, hierarchies in it, or those in a directory for each split.
fn find(input: &RecordInput, conversion: Option<&Conversion>) -> Result<Found> {
    let at = |location: &Location| (name_of(location), location.clone());
    if let Some(conversion) = conversion {
        let splits = conversion.splits.iter().map(|split| {
            let shards = split.shards.iter();
            let places = shards.map(|shard| at(&input.location.join(&shard.name)));
            (split.name.clone(), places.collect())
        });
        return Ok(splits.collect());
    }
    if !input.files.is_empty() {
        let files = input.files.iter().map(at).collect();
        return Ok(by_split(files, input.split.as_deref()));
    }
    let here = || Ok(by_split(vec![at(&input.location)], input.split.as_deref()));
    if is_named(&input.location) {
        return here();
    }
    let store = Store::open(&input.location, &input.read.store)?;
    let top = store.list_dir("")?;
    if top
        .objects
        .iter()
        .any(|object| MARKS.contains(&object.key.as_str()))
    {
        return here();
    }
    let below = |dir: &str| -> Result<Vec<(String, Location)>> {
        let listed = store.list_dir(dir)?;
        let zips = listed.objects.into_iter().map(|object| object.key);
        let zips = zips.filter(|key| key.ends_with(ZIP));
        let dirs = listed
            .dirs
            .into_iter()
            .filter(|key| key.ends_with(EXTENSION));
        let mut keys: Vec<String> = dirs.chain(zips).collect();
        keys.sort();
        Ok(keys
            .iter()
            .map(|key| at(&input.location.join(key)))
            .collect())
    };
    let found = below("")?;
    if !found.is_empty() {
        return Ok(by_split(found, input.split.as_deref()));
    }
    let mut splits = Found::new();
    for dir in top
        .dirs
        .iter()
        .filter(|dir| !dir.starts_with('.'))
        .take(MAX_DIRS)
    {
        let found = below(dir)?;
        if !found.is_empty() {
            let split = input.split.as_ref().unwrap_or(dir);
            splits.entry(split.clone()).or_default().extend(found);
        }
    }
    Ok(splits)
}
