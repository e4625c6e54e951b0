//! Finds the array files at a location, by split.

use crate::archive::Archive;
use crate::error::Result;
use crate::records::RecordInput;
use crate::records::conversion::Conversion;
use crate::records::places::{Place, by_split, file_at, files_at};
use std::collections::BTreeMap;

/// Most directories of a location that are searched.
const MAX_DIRS: usize = 64;

/// Files of each split, with their names.
pub(in crate::records) type Found = BTreeMap<String, Vec<(String, Archive)>>;

/// Finds the files with one of these extensions. The first of these that applies is used: the files of the conversion, the
/// files that the user named, the location if it is a file, the files in it, or the files in its directories, one for each
/// split.
pub(in crate::records) fn find(
    input: &RecordInput,
    conversion: Option<&Conversion>,
    endings: &[&str],
) -> Result<Found> {
    if let Some(conversion) = conversion {
        let mut found = Found::new();
        for split in &conversion.splits {
            let shards = split.shards.iter();
            let files = shards.map(|shard| file_at(&input.location.join(&shard.name), &input.read));
            found.insert(split.name.clone(), files.collect::<Result<_>>()?);
        }
        return Ok(found);
    }
    if !input.files.is_empty() {
        let files = input.files.iter().map(|file| file_at(file, &input.read));
        let files = files.collect::<Result<Vec<_>>>()?;
        return Ok(by_split(files, input.split.as_deref()));
    }
    let has_ending = |name: &str| {
        let name = unnumbered(name);
        endings.iter().any(|ending| name.ends_with(ending))
    };
    let files = files_at(&input.location, &input.read, &has_ending)?;
    if !files.is_empty() {
        return Ok(by_split(files, input.split.as_deref()));
    }
    let mut found = Found::new();
    let dirs = Place::open(&input.location, &input.read)?.dirs()?;
    for dir in dirs.into_iter().take(MAX_DIRS) {
        let files = files_at(&input.location.join(&dir), &input.read, &has_ending)?;
        if !files.is_empty() {
            let split = input.split.as_ref().unwrap_or(&dir);
            found.entry(split.clone()).or_default().extend(files);
        }
    }
    Ok(found)
}

/// Returns a name without the number after its extension: `a.array_record` for `a.array_record-00000-of-00001`.
fn unnumbered(name: &str) -> &str {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = name
        .rsplit_once("-of-")
        .filter(|(_, count)| is_number(count));
    let numbered = numbered.and_then(|(before, _)| before.rsplit_once('-'));
    numbered
        .filter(|(_, number)| is_number(number))
        .map_or(name, |(stem, _)| stem)
}
