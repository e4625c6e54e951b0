//! Indexes that loaders create by themselves, for files that were named without an index.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use forebay_cache::ReadOptions;
use forebay_pack::{ConvertOptions, ConvertSource, OutputFormat, convert};
use forebay_store::{Location, StoreOptions};

use crate::command::foreign_args::ForeignArgs;
use crate::command::record_source::foreign_source;

/// An index of files, in the user's cache directory.
#[derive(Debug)]
pub struct CachedIndex {
    /// The directory of the dataset.
    pub root: PathBuf,
    /// Whether this call has read the files, and not an earlier one.
    pub is_new: bool,
    /// Size of the files in bytes.
    pub bytes: u64,
}

/// Returns an index of the WebDataset, MDS or Parquet files that a location or a pattern names. It is kept in `$XDG_CACHE_HOME`
/// or `~/.cache`. The files are read once, and again if they change. Concurrent processes wait for one another. `None` if the
/// location has no such files.
///
/// # Errors
/// A message if the files cannot be read in place, or the index cannot be written.
pub fn cached_index(place: &Path, store: &StoreOptions) -> Option<Result<CachedIndex, String>> {
    let sources = [place.to_path_buf()];
    let found = foreign_source(&sources, None, &ForeignArgs::default(), store).ok()??;
    Some(index(place, found, store))
}

fn index(
    place: &Path,
    (format, input): (forebay_pack::RecordFormat, forebay_pack::RecordInput),
    store: &StoreOptions,
) -> Result<CachedIndex, String> {
    let location = Location::parse(place).map_err(|error| error.to_string())?;
    let named = match location.local_path() {
        Ok(path) => std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()),
        Err(_) => PathBuf::from(location.to_string()),
    };
    let digest = blake3::hash(named.as_os_str().as_encoded_bytes()).to_hex();
    let dir = directory().ok_or("there is no directory for an index: HOME is not set; make one with `forebay index PLACE --output DIR`")?;
    let root = dir.join(&digest[..32]);
    let failed = |error: std::io::Error| {
        format!(
            "cannot write an index to {}: {error}; name another directory in XDG_CACHE_HOME, or make one with `forebay index PLACE \
             --output DIR`",
            dir.display()
        )
    };
    fs::create_dir_all(&dir).map_err(failed)?;
    let lock = File::create(root.with_extension("lock")).map_err(failed)?;
    lock.lock().map_err(failed)?;
    let source = ConvertSource::Records(format, Box::new(input));
    let mut options =
        ConvertOptions::new(source, Location::from(root.as_path()), OutputFormat::Mapped);
    options.read = ReadOptions::new(store.clone());
    let cancel = store.cancel.clone().unwrap_or_default();
    let done = convert(&options, &(), &cancel).or_else(|error| {
        // The next call continues an interrupted conversion.
        if cancel.is_cancelled() {
            return Err(error);
        }
        // The files have changed, or the existing index was made with other options.
        options.overwrite = true;
        convert(&options, &(), &cancel)
    });
    let summary = done.map_err(|error| error.to_string())?;
    Ok(CachedIndex {
        root,
        is_new: !summary.already_complete,
        bytes: summary.source_bytes,
    })
}

/// Returns `forebay/index` in the user's cache directory.
fn directory() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").filter(|dir| dir.is_absolute());
    let cache = cache.or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(cache.join("forebay/index"))
}
