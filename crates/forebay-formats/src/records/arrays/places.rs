//! Finds the array files at a location, by split.

use super::ArrayFile;
use crate::archive::Archive;
use crate::error::{Error, Result};
use crate::records::conversion::Conversion;
use crate::records::places::{Place, SplitFiles, by_split, files_at, named_files, written_files};
use crate::records::{FormatInfo, RecordInput, RecordSource};
use std::path::Path;
use std::sync::Arc;

/// Most directories of a location that are searched.
const MAX_DIRS: usize = 64;

/// Finds the files with one of these extensions. The first of these that applies is used: the files of the conversion, the
/// files that the user named, the location if it is a file, the files in it, or the files in its directories, one for each
/// split.
pub(in crate::records) fn find(
    input: &RecordInput,
    conversion: Option<&Conversion>,
    endings: &[&str],
) -> Result<SplitFiles> {
    if let Some(conversion) = conversion {
        return written_files(input, conversion);
    }
    if !input.files.is_empty() {
        return Ok(by_split(named_files(input)?, input.split.as_deref()));
    }
    let has_ending = |name: &str| {
        let name = unnumbered(name);
        endings.iter().any(|ending| name.ends_with(ending))
    };
    let files = files_at(&input.location, &input.read, &has_ending)?;
    if !files.is_empty() {
        return Ok(by_split(files, input.split.as_deref()));
    }
    let mut found = SplitFiles::new();
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

/// Opens a source of files with the extensions of a format, each with `open`. `what` names them in an error.
pub(in crate::records) fn open_each<F: ArrayFile + 'static>(
    info: &FormatInfo,
    input: &RecordInput,
    what: &str,
    open: impl Fn(Archive) -> Result<F>,
) -> Result<RecordSource> {
    let has_ending = |name: &str| info.extensions.iter().any(|end| name.ends_with(end));
    let is_file = |root: &Path| has_ending(&root.to_string_lossy());
    let (root, conversion) = Conversion::of_source(input, info.name, is_file)?;
    let mut splits = Vec::new();
    for (split, files) in find(input, conversion.as_ref(), info.extensions)? {
        let files = files.into_iter().map(|(_, archive)| {
            let file: Arc<dyn ArrayFile> = Arc::new(open(archive)?);
            Ok(file)
        });
        splits.push((split, files.collect::<Result<_>>()?));
    }
    if splits.is_empty() {
        return Err(Error::source(root, format!("there are no {what} here")));
    }
    super::open(splits, input, conversion.as_ref(), &root)
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
