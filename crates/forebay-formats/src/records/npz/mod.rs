//! NumPy arrays: `.npz` archives, and directories of `.npy` files.

mod file;
mod write;

use super::CreateSink;
use super::arrays::{self, ArrayFile, ArraySink};
use super::conversion::Conversion;
use super::places::{Place, files_at};
use super::{Format, FormatInfo, RecordInput, RecordSource};
use crate::archive::Archive;
use crate::error::{Error, Result};
use file::NpyFile;
use std::path::Path;
use std::sync::Arc;

pub(super) struct Npz;

const NPZ: &str = ".npz";
const NPY: &str = ".npy";
/// Split of arrays that are directly in the directory of the source.
const DEFAULT_SPLIT: &str = "train";

impl Format for Npz {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "npz",
            title: "NumPy arrays",
            extensions: &[NPZ, NPY],
            names_in_split_dirs: &[NPZ, NPY],
            advice: "`forebay convert SRC DST --format indexed` makes records of the rows of arrays",
            ..FormatInfo::NONE
        }
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let is_file = |root: &Path| {
            let end = root.extension();
            end.is_some_and(|end| end == "npz" || end == "npy")
        };
        let (root, conversion) = Conversion::of_source(input, self.info().name, is_file)?;
        let mut splits = Vec::new();
        for (split, files) in arrays::places::find(input, conversion.as_ref(), &[NPZ])? {
            let files = files
                .into_iter()
                .map(|(name, archive)| -> Result<Arc<dyn ArrayFile>> {
                    match name.ends_with(NPY) {
                        true => Ok(Arc::new(NpyFile::of_npy(
                            archive.shown(),
                            vec![(name, archive)],
                        )?)),
                        false => Ok(Arc::new(NpyFile::of_npz(archive)?)),
                    }
                });
            splits.push((split, files.collect::<Result<_>>()?));
        }
        let dirs = match !input.files.is_empty() || is_file(&root) || conversion.is_some() {
            true => Vec::new(),
            false => npy_dirs(input)?,
        };
        if !splits.is_empty() && !dirs.is_empty() {
            let what = "it has .npz and .npy files: convert the files of each kind by themselves";
            return Err(Error::source(&root, what));
        }
        for (split, dir, files) in dirs {
            let file: Arc<dyn ArrayFile> = Arc::new(NpyFile::of_npy(root.join(dir), files)?);
            splits.push((split, vec![file]));
        }
        if splits.is_empty() {
            return Err(Error::source(&root, "there are no .npz or .npy files here"));
        }
        arrays::open(splits, input, conversion.as_ref(), &root)
    }

    fn writer(&self) -> Option<CreateSink> {
        Some(|facts, options| Ok(Box::new(ArraySink::new(facts, options, &write::FORMAT)?)))
    }
}

/// A directory of arrays: its split, its name relative to the source, and its files.
type NpyDir = (String, String, Vec<(String, Archive)>);

/// Returns the directories with arrays: the source itself, or one for each split.
fn npy_dirs(input: &RecordInput) -> Result<Vec<NpyDir>> {
    let is_array = |name: &str| name.ends_with(NPY);
    let files = files_at(&input.location, &input.read, &is_array)?;
    if !files.is_empty() {
        let split = input.split.clone();
        let split = split.unwrap_or_else(|| DEFAULT_SPLIT.to_owned());
        return Ok(vec![(split, String::new(), files)]);
    }
    let mut found = Vec::new();
    for dir in Place::open(&input.location, &input.read)?.dirs()? {
        let wanted = input.split.as_ref().is_none_or(|split| *split == dir);
        let files = match wanted {
            true => files_at(&input.location.join(&dir), &input.read, &is_array)?,
            false => Vec::new(),
        };
        if !files.is_empty() {
            found.push((dir.clone(), dir, files));
        }
    }
    Ok(found)
}
