//! Files that annotations name: images, masks, and annotations in files of their own.

use crate::error::{Error, Result};
use crate::name_forms::FileForms;
use forebay_image::Limits;
use std::io::{ErrorKind, Read};
use std::path::{Component, Path, PathBuf};

/// Largest size of a mask or an annotation of one image.
const MAX_BYTES: u64 = 64 << 20;

/// Returns whether a name from an annotation stays inside the directory of its files.
pub(super) fn is_inside(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    !name.is_empty() && parts.all(|part| matches!(part, Component::Normal(_)))
}

/// Returns the size of a file; `None` if no such file exists.
pub(super) fn size_of(path: &Path) -> Result<Option<u64>> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(meta.is_file().then_some(meta.len())),
        Err(error) => match error.kind() {
            // A list may contain names that are invalid as file names.
            ErrorKind::NotFound
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidFilename => Ok(None),
            _ => Err(Error::io(path, "stat", error)),
        },
    }
}

/// Finds a file that a list names, in any Unicode form of the name. Returns the name on disk and the size; `None` if no such
/// file exists.
pub(super) fn find_listed(
    dir: &Path,
    name: &Path,
    forms: &FileForms,
) -> Result<Option<(PathBuf, u64)>> {
    if let Some(bytes) = size_of(&dir.join(name))? {
        return Ok(Some((name.to_path_buf(), bytes)));
    }
    // An ASCII name has only one form, and file names have no zero bytes.
    if name.as_os_str().is_ascii() || name.as_os_str().as_encoded_bytes().contains(&0) {
        return Ok(None);
    }
    match forms.find(dir, name) {
        Ok((own, meta)) => Ok(meta.is_file().then_some((own, meta.len()))),
        Err(error) => match error.kind() {
            ErrorKind::InvalidInput => Err(Error::source(dir, error.to_string())),
            ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::InvalidFilename => Ok(None),
            _ => Err(Error::io(dir.join(name), "stat", error)),
        },
    }
}

/// Reads a file of at most `MAX_BYTES` bytes.
pub(super) fn read_limited(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file =
        forebay_shard::storage::open_file(path).map_err(|error| Error::io(path, "open", error))?;
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    match read.map_err(|error| Error::io(path, "read", error))? as u64 {
        ..=MAX_BYTES => Ok(bytes),
        _ => Err(Error::source(path, "it is larger than 64 MiB")),
    }
}

/// Reads an image. Fails if its size is no longer `size`, the size at the time of listing.
pub(super) fn read_listed(path: &Path, size: u64) -> Result<Vec<u8>> {
    let bytes = forebay_shard::storage::read_file(path);
    let bytes = bytes.map_err(|error| Error::io(path, "read", error))?;
    unchanged(path, &bytes, size)?;
    Ok(bytes)
}

fn unchanged(path: &Path, bytes: &[u8], size: u64) -> Result<()> {
    match bytes.len() as u64 == size {
        true => Ok(()),
        false => {
            let what = "it changed since it was listed: run the command again";
            Err(Error::source(path, what))
        }
    }
}

/// Returns the hash of a file.
pub(super) fn digest_of(path: &Path) -> Result<[u8; 32]> {
    let read = || -> std::io::Result<[u8; 32]> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(forebay_shard::storage::open_file(path)?)?;
        Ok(*hasher.finalize().as_bytes())
    };
    read().map_err(|error| Error::io(path, "read", error))
}

/// Reads the mask of a record. Checks that its size is still `bytes`, that loaders can decode it, and that its width and height
/// are those of its image.
pub(super) fn read_mask(path: &Path, bytes: u64, record: u64, image: [u32; 2]) -> Result<Vec<u8>> {
    let mask = read_limited(path)?;
    unchanged(path, &mask, bytes)?;
    let refused = |what: String| Error::record(path, record, what);
    let checked = forebay_image::check_mask(&mask, &Limits::default());
    let (width, height) = checked.map_err(|error| refused(error.to_string()))?;
    let [own_width, own_height] = image;
    if (width, height) != (own_width, own_height) {
        return Err(refused(format!(
            "the mask has {width}x{height}, and its image {own_width}x{own_height}: masks have the size of their image"
        )));
    }
    Ok(mask)
}
