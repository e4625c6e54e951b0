//! Finds files of a format that the index of the source does not name. They are not read, so each is a finding.

use super::conversion::Conversion;
use super::places::Place;
use super::{FormatInfo, RecordInput, RecordSource};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason};
use forebay_cache::read_storage;
use forebay_store::Location;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;

/// Most directories of a source that are searched.
const MAX_DIRS: usize = 64;

/// Returns a finding for each file of the format that the index of the source does not name.
pub(super) fn find(
    format: &FormatInfo,
    input: &RecordInput,
    source: &RecordSource,
) -> Result<Vec<Finding>> {
    // Files that the user named, and single files, need no index.
    let is_file = input.location.local_path().is_ok_and(Path::is_file);
    if !input.files.is_empty() || !input.splits.is_empty() || is_file {
        return Ok(Vec::new());
    }
    let index = match format.index_name {
        Some(name) => name,
        None => {
            let (root, storage) = read_storage(&input.location, &input.read)?;
            let known = Conversion::load(&root, &*storage)?;
            match known.is_some_and(|known| known.to == format.name) {
                true => Conversion::FILE_NAME,
                false => return Ok(Vec::new()),
            }
        }
    };
    let files = source.splits.iter().flat_map(|split| &split.files);
    let names = files.map(|file| name_below(&input.location, file.path()));
    let Some(read) = names.collect::<Option<BTreeSet<String>>>() else {
        return Ok(Vec::new());
    };
    let endings: BTreeSet<&str> = format.extensions.iter().copied().collect();
    let stem = |name: &str| {
        let ends = endings.iter().filter_map(|ending| {
            let end = name.rfind(ending)? + ending.len();
            // A number may follow the extension.
            let rest = name.get(end..).unwrap_or_default();
            let is_numbered = rest.starts_with('-') && rest.ends_with(|c: char| c.is_ascii_digit());
            Some(if is_numbered { name.len() } else { end })
        });
        ends.max()
            .map(|end| name.get(..end).unwrap_or(name).to_owned())
    };
    // A shard may exist both plain and compressed.
    let known: BTreeSet<String> = read.iter().filter_map(|name| stem(name)).collect();
    let place = Place::open(&input.location, &input.read)?;
    let mut dirs: BTreeSet<String> = read.iter().map(|name| dir_of(name).to_owned()).collect();
    if format.index_name.is_some() && input.split.is_none() {
        dirs.insert(String::new());
        dirs.extend(permitted(place.dirs())?.into_iter().take(MAX_DIRS));
    }
    let mut findings = Vec::new();
    for dir in dirs {
        for name in permitted(place.files(&dir))? {
            let name = match dir.is_empty() {
                true => name,
                false => format!("{dir}/{name}"),
            };
            if stem(&name).is_some_and(|stem| !known.contains(&stem)) {
                let detail = format!("{index} does not name it, so its records are not read");
                let (action, reason) = (Action::Skipped, Reason::NotIndexed);
                findings.push(Finding::new(action, reason, name.as_bytes(), detail));
            }
        }
    }
    Ok(findings)
}

/// Returns the name of a file relative to a location; `None` if the file is not below it.
fn name_below(location: &Location, path: &Path) -> Option<String> {
    if let Ok(root) = location.local_path() {
        return Some(path.strip_prefix(root).ok()?.to_str()?.to_owned());
    }
    // Paths have single slashes, also after the scheme.
    let plain = |text: &str| text.replacen("://", ":/", 1);
    let (root, path) = (plain(&location.to_string()), plain(path.to_str()?));
    let name = path.strip_prefix(root.trim_end_matches('/'))?;
    Some(name.strip_prefix('/')?.to_owned())
}

fn dir_of(name: &str) -> &str {
    name.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Returns no names if permission is denied, since then no file of the source is in that directory.
fn permitted(names: Result<Vec<String>>) -> Result<Vec<String>> {
    match names {
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::PermissionDenied => {
            Ok(Vec::new())
        }
        names => names,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_below_their_location() {
        for (location, path, name) in [
            ("/a/b", "/a/b/c/d.mds", Some("c/d.mds")),
            ("s3://bucket/x/", "s3:/bucket/x/d.mds", Some("d.mds")),
            ("s3://bucket/x", "s3://bucket/xy/d.mds", None),
            ("/a/b", "/a/c", None),
        ] {
            let location = Location::parse(location).unwrap();
            let found = name_below(&location, Path::new(path));
            assert_eq!(found.as_deref(), name, "{path}");
        }
    }
}
