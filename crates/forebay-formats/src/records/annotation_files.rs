//! Annotations and masks that lie in files of their own beside images.

use crate::error::{Error, Result};
use forebay_image::Limits;
use std::io::Read;
use std::path::{Component, Path};

/// No mask or annotation of one image is larger.
const MAX_BYTES: u64 = 64 << 20;

/// Returns whether a name that an annotation gives stays in the directory of its files.
pub(super) fn is_inside(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Reads a small file.
pub(super) fn read_limited(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = forebay_shard::open_file(path).map_err(|error| Error::io(path, "open", error))?;
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    match read.map_err(|error| Error::io(path, "read", error))? as u64 {
        ..=MAX_BYTES => Ok(bytes),
        _ => Err(Error::source(path, "it is larger than 64 MiB")),
    }
}

/// Reads a mask that had `size` bytes when it was listed, and checks that loaders can decode it.
pub(super) fn read_mask(path: &Path, size: u64) -> Result<Vec<u8>> {
    let bytes = read_limited(path)?;
    if bytes.len() as u64 != size {
        let what = "it changed since it was listed: run the command again";
        return Err(Error::source(path, what));
    }
    let checked = forebay_image::check_mask(&bytes, &Limits::default());
    checked.map_err(|error| Error::source(path, error.to_string()))?;
    Ok(bytes)
}
