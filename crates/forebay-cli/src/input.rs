//! What a path on the command line is: a dataset with its manifest, or one shard. Recognised by
//! looking, never by name alone.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use forebay_store::Location;

use crate::failure::{Failure, io_hint};
use crate::paint::printable;

/// The manifest's name in a dataset's root.
pub(crate) const MANIFEST: &str = "forebay.json";

/// The local path that the user's text names: a path, or a `file://` URL.
pub(crate) fn local(text: &Path) -> Result<PathBuf, Failure> {
    Ok(Location::parse(text)?.local_path()?.to_owned())
}

/// A path whose kind is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Input {
    /// A directory that holds a manifest.
    Dataset(PathBuf),
    /// A file that is not a manifest.
    Shard(PathBuf),
}

impl Input {
    /// Looks at `path`: a dataset's root, its manifest, or a shard.
    pub(crate) fn recognise(path: &Path) -> Result<Self, Failure> {
        let path = &local(path)?;
        let meta = fs::metadata(path).map_err(|error| {
            Failure::new(format!("cannot open {}: {error}", show(path))).maybe_hint(io_hint(&error))
        })?;
        if meta.is_file() {
            let is_manifest = path.file_name().is_some_and(|name| name == MANIFEST);
            return Ok(match path.parent() {
                Some(parent) if is_manifest && parent.as_os_str().is_empty() => {
                    Self::Dataset(PathBuf::from("."))
                }
                Some(parent) if is_manifest => Self::Dataset(parent.to_owned()),
                _ => Self::Shard(path.to_owned()),
            });
        }
        if !meta.is_dir() {
            return Err(Failure::new(format!(
                "{} is neither a directory nor a regular file",
                show(path)
            )));
        }
        match fs::symlink_metadata(path.join(MANIFEST)) {
            Ok(_) => Ok(Self::Dataset(path.to_owned())),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(no_manifest(path)),
            Err(error) => Err(Failure::new(format!(
                "cannot read {}: {error}",
                show(&path.join(MANIFEST))
            ))
            .maybe_hint(io_hint(&error))),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Dataset(path) | Self::Shard(path) => path,
        }
    }

    /// The same for commands that need a whole dataset.
    pub(crate) fn dataset(path: &Path) -> Result<PathBuf, Failure> {
        match Self::recognise(path)? {
            Self::Dataset(root) => Ok(root),
            Self::Shard(file) => Err(Failure::new(format!(
                "{} is a file, not a dataset",
                show(&file)
            ))
            .hint(format!("name the directory that holds its {MANIFEST}"))),
        }
    }
}

/// A directory without a manifest: say what it looks like and what would help.
fn no_manifest(root: &Path) -> Failure {
    let failure = Failure::new(format!(
        "{} is not a dataset: it holds no {MANIFEST}",
        show(root)
    ));
    let Ok(entries) = fs::read_dir(root) else {
        return failure.hint("check its permissions");
    };
    let mut names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    names.sort();
    let unfinished = names.iter().any(|path| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.starts_with(".forebay"))
    });
    let looks_like_shard = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.contains("-of-") || name.ends_with(".tfrecord"))
    };
    if unfinished {
        failure.hint("an unfinished pack lies there: run the same `forebay pack` command again and it continues")
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

/// A path for a message.
pub(crate) fn show(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_recognised_by_what_they_hold() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let missing = Input::recognise(&root.join("missing")).unwrap_err();
        assert!(missing.message().contains("missing"), "{missing}");

        let empty = Input::recognise(root).unwrap_err();
        assert!(empty.hint_line().unwrap().contains("forebay pack"));

        fs::write(root.join("train-00000-of-00001"), b"").unwrap();
        let foreign = Input::recognise(root).unwrap_err();
        assert!(foreign.hint_line().unwrap().contains("forebay index"));

        fs::write(root.join(MANIFEST), b"{}").unwrap();
        let dataset = Input::Dataset(root.to_owned());
        assert_eq!(Input::recognise(root).unwrap(), dataset);
        assert_eq!(Input::recognise(&root.join(MANIFEST)).unwrap(), dataset);
        let shard = root.join("train-00000-of-00001");
        assert_eq!(
            Input::recognise(&shard).unwrap(),
            Input::Shard(shard.clone())
        );
        assert!(Input::dataset(&shard).is_err());
    }
}
