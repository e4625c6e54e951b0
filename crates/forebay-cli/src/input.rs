//! Opens a location on the command line: a dataset with its manifest, or one shard. The contents decide which it is, not the
//! name.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_cache::{LocalStorage, ReadOptions};
use forebay_pack::UnfinishedBy;
use forebay_shard::{Dataset, Manifest, Shard, Storage};
use forebay_store::{DirLock, Error, Location, Store, StoreOptions};
use forebay_synthetic::{Recipe, is_synthetic};

use crate::failure::{Failure, io_hint};
use crate::paint::printable;
use crate::tfrecord_names::is_shard;

/// The manifest's name in a dataset's root.
pub(crate) const MANIFEST: &str = "forebay.json";

/// Parses a local path, or a `file://` URL.
pub(crate) fn local(text: &Path) -> Result<PathBuf, Failure> {
    Ok(Location::parse(text)?.local_path()?.to_owned())
}

/// Parses the URL of a synthetic dataset; `None` for other locations.
pub(crate) fn synthetic(text: &Path) -> Result<Option<Recipe>, Failure> {
    match text.to_str() {
        Some(url) if is_synthetic(url) => Recipe::parse(url)
            .map(Some)
            .map_err(|error| Failure::usage(error.problem).hint(error.hint)),
        _ => Ok(None),
    }
}

/// The contents of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A directory with a manifest.
    Dataset,
    /// A file that is not a manifest.
    Shard,
}

/// A location whose kind is known.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    kind: Kind,
    path: PathBuf,
    storage: Arc<dyn Storage>,
}

impl Input {
    /// Recognizes a dataset's root, its manifest, or a shard, on this machine or in a store.
    pub(crate) fn recognise(text: &Path, store: &StoreOptions) -> Result<Self, Failure> {
        Self::recognise_with(text, &ReadOptions::new(store.clone()))
    }

    fn recognise_with(text: &Path, options: &ReadOptions) -> Result<Self, Failure> {
        if let Some(recipe) = synthetic(text)? {
            let (path, storage) = recipe.storage()?;
            return Ok(Self {
                kind: Kind::Dataset,
                path,
                storage,
            });
        }
        let location = Location::parse(text)?;
        if location.is_remote() {
            return Self::remote(&location, options);
        }
        let path = location.local_path()?;
        let input = |kind, path: &Path| Self {
            kind,
            path: path.to_owned(),
            storage: Arc::new(LocalStorage::new(options.clone())),
        };
        let meta = fs::metadata(path).map_err(|error| {
            let message = format!("cannot open {}: {error}", show(path));
            let failure = match error.kind() {
                ErrorKind::NotFound => Failure::missing(message),
                _ => Failure::new(message),
            };
            failure.maybe_hint(io_hint(&error))
        })?;
        if meta.is_file() {
            let is_manifest = path.file_name().is_some_and(|name| name == MANIFEST);
            return Ok(match path.parent() {
                Some(parent) if is_manifest && parent.as_os_str().is_empty() => {
                    input(Kind::Dataset, Path::new("."))
                }
                Some(parent) if is_manifest => input(Kind::Dataset, parent),
                _ => input(Kind::Shard, path),
            });
        }
        if !meta.is_dir() {
            return Err(Failure::new(format!(
                "{} is neither a directory nor a regular file",
                show(path)
            )));
        }
        match fs::symlink_metadata(path.join(MANIFEST)) {
            Ok(_) => Ok(input(Kind::Dataset, path)),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(no_manifest(path)),
            Err(error) => Err(Failure::new(format!(
                "cannot read {}: {error}",
                show(&path.join(MANIFEST))
            ))
            .maybe_hint(io_hint(&error))),
        }
    }

    fn remote(location: &Location, options: &ReadOptions) -> Result<Self, Failure> {
        let text = location.to_string();
        let root = match text.strip_suffix(MANIFEST) {
            Some(root) if root.ends_with('/') => &Location::parse(root.trim_end_matches('/'))?,
            _ => location,
        };
        let exists = |path: &Path, storage: &Arc<dyn Storage>| {
            storage
                .exists(path)
                .map_err(|source| forebay_shard::Error::Io {
                    path: path.to_owned(),
                    op: "open",
                    source,
                })
        };
        let (path, storage) = forebay_cache::read_storage(root, options)?;
        if exists(&path.join(MANIFEST), &storage)? {
            return Ok(Self {
                kind: Kind::Dataset,
                path,
                storage,
            });
        }
        let (path, storage) = forebay_cache::shard_storage(location, options)?;
        if exists(&path, &storage)? {
            return Ok(Self {
                kind: Kind::Shard,
                path,
                storage,
            });
        }
        // Only a request for an object reports that the whole bucket is missing.
        match Store::open(root, &options.store)?.get(MANIFEST, 1) {
            Err(Error::NotFound { .. } | Error::TooLarge { .. }) | Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        Err(Failure::missing(format!(
            "{} is not a dataset: there is no {MANIFEST} in it, and no object of that name",
            show(&path)
        ))
        .hint(format!(
            "`forebay ls {}` shows what is there",
            printable(&text)
        )))
    }

    /// Returns its location.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the storage that holds it.
    pub(crate) fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Returns a shared reference to the storage.
    pub(crate) fn shared_storage(&self) -> Arc<dyn Storage> {
        Arc::clone(&self.storage)
    }

    /// Returns whether it is a dataset or a single shard.
    pub(crate) fn kind(&self) -> Kind {
        self.kind
    }

    /// Creates the input for a dataset in a local directory, whose manifest exists.
    pub(crate) fn local_dataset(root: &Path) -> Self {
        Self {
            kind: Kind::Dataset,
            path: root.to_owned(),
            storage: Arc::new(LocalStorage::new(ReadOptions::default())),
        }
    }

    /// Recognizes a location for a command that needs a whole dataset.
    pub(crate) fn dataset(text: &Path, store: &StoreOptions) -> Result<Self, Failure> {
        Self::dataset_with(text, &ReadOptions::new(store.clone()))
    }

    /// Recognizes a dataset, with all options for reading.
    pub(crate) fn dataset_with(text: &Path, options: &ReadOptions) -> Result<Self, Failure> {
        let input = Self::recognise_with(text, options)?;
        match input.kind {
            Kind::Dataset => Ok(input),
            Kind::Shard => Err(Failure::new(format!(
                "{} is a file, not a dataset",
                show(&input.path)
            ))
            .hint(format!("name the directory that holds its {MANIFEST}"))),
        }
    }

    /// Reads the dataset's manifest.
    pub(crate) fn manifest(&self) -> Result<Manifest, forebay_shard::Error> {
        Manifest::load_in(&self.path, &*self.storage)
    }

    /// Opens the dataset.
    pub(crate) fn open_dataset(&self) -> Result<Dataset, forebay_shard::Error> {
        Dataset::options()
            .storage(Arc::clone(&self.storage))
            .open(&self.path)
    }

    /// Opens the shard.
    pub(crate) fn open_shard(&self) -> Result<Shard, forebay_shard::Error> {
        let storage = Arc::clone(&self.storage);
        Shard::options().storage(storage).open(&self.path)
    }
}

/// Returns the failure for a directory without a manifest: what it looks like, and what would help.
fn no_manifest(root: &Path) -> Failure {
    let failure = Failure::missing(format!(
        "{} is not a dataset: it holds no {MANIFEST}",
        show(root)
    ));
    let Ok(entries) = fs::read_dir(root) else {
        return failure.hint("check its permissions");
    };
    let mut names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    names.sort();
    let continues = match UnfinishedBy::of(root) {
        Some(UnfinishedBy::Pack) => Some("pack"),
        Some(UnfinishedBy::Convert) => Some("convert"),
        Some(UnfinishedBy::Index) => Some("index"),
        Some(UnfinishedBy::Repair) => Some("repair"),
        _ => None,
    };
    // A process uses the directory, or was killed while it did.
    let is_in_use = root.join(DirLock::FILE_NAME).exists();
    let looks_like_shard = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(is_shard)
    };
    if let Some(command) = continues {
        failure.hint(format!(
            "an unfinished dataset lies there: run the same `forebay {command}` command again and it continues"
        ))
    } else if UnfinishedBy::of(root) == Some(UnfinishedBy::Writer) {
        failure.hint("an unfinished dataset lies there: a `forebay.Writer` or `forebay.convert` with `resume=True` and the same samples continues it")
    } else if is_in_use {
        failure.hint("a command that writes there has not finished: wait for it, or run the same command again if it was stopped")
    } else if names.iter().any(looks_like_shard) {
        failure.hint(format!(
            "for TFRecords that another tool wrote, run `forebay index {}` first",
            show(root)
        ))
    } else if names.iter().any(|path| path.is_dir()) {
        failure.hint(format!(
            "to make one from a directory of images: `forebay pack {} SHARDS --format tfrecord`",
            show(root)
        ))
    } else {
        failure.hint("name the directory that `forebay pack` or `forebay index` wrote")
    }
}

/// Explains why there is no dataset at a local path and what would help, for the Python package. `None` if there is one.
pub fn why_no_dataset(path: &Path) -> Option<String> {
    let failure = Input::dataset(path, &StoreOptions::default()).err()?;
    Some(match failure.hint_line() {
        Some(hint) => format!("{}; {hint}", failure.message()),
        None => failure.message().to_owned(),
    })
}

/// Formats a path for a message.
pub fn show(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_recognised_by_what_they_hold() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let recognise = |path: &Path| {
            let input = Input::recognise(path, &StoreOptions::default())?;
            Ok::<_, Failure>((input.kind(), input.path().to_owned()))
        };
        let missing = recognise(&root.join("missing")).unwrap_err();
        assert!(missing.message().contains("missing"), "{missing}");

        let empty = recognise(root).unwrap_err();
        assert!(empty.hint_line().unwrap().contains("forebay pack"));

        fs::write(root.join("train-00000-of-00001"), b"").unwrap();
        let foreign = recognise(root).unwrap_err();
        assert!(foreign.hint_line().unwrap().contains("forebay index"));

        fs::write(root.join(MANIFEST), b"{}").unwrap();
        let dataset = (Kind::Dataset, root.to_owned());
        assert_eq!(recognise(root).unwrap(), dataset);
        assert_eq!(recognise(&root.join(MANIFEST)).unwrap(), dataset);
        let shard = root.join("train-00000-of-00001");
        assert_eq!(recognise(&shard).unwrap(), (Kind::Shard, shard.clone()));
        assert!(Input::dataset(&shard, &StoreOptions::default()).is_err());
    }

    #[test]
    fn synthetic_urls_are_recognized_as_datasets() {
        let recognise = |text: &str| Input::recognise(Path::new(text), &StoreOptions::default());
        let input = recognise("synthetic://imagenet?records=10&pictures=1").unwrap();
        assert_eq!(input.kind(), Kind::Dataset);
        assert_eq!(input.manifest().unwrap().splits[0].records, 10);
        let wrong = recognise("synthetic://imagenet?recrods=10").unwrap_err();
        assert_eq!(wrong.exit_code(), 2);
        assert!(wrong.hint_line().unwrap().contains("records"), "{wrong}");
    }
}
