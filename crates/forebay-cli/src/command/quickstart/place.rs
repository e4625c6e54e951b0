//! The directories of quickstart: the output, where it replaces only its own files, and the source images.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use forebay_store::DirLock;

use crate::failure::{Failure, io_hint};
use crate::input::show;

/// Marker file: quickstart made the directory, and may remove the files that the text of the marker lists.
const MARKER: &str = ".forebay-quickstart";

const MARKER_TEXT: &str = "\
`forebay quickstart` made this directory and replaces what it wrote here at each run:
tfrecord/, indexed/, images/ and first-batch.png. Remove this file to keep them.\n";

/// Directory of the images in a checkout of the source code, relative to its root.
const SHIPPED: &str = "testdata/images";

/// The output directory of quickstart.
#[derive(Debug)]
pub(super) struct OutputDir {
    root: PathBuf,
    /// Held until quickstart ends, since another quickstart would remove the files of this run.
    _lock: DirLock,
}

impl OutputDir {
    /// Creates the directory, or removes the files that an earlier run wrote there. Returns an error if the directory has files
    /// and no marker.
    pub(super) fn take(root: &Path) -> Result<Self, Failure> {
        let failed = |what: &str, path: &Path, error: std::io::Error| {
            Failure::new(format!("cannot {what} {}: {error}", show(path)))
                .maybe_hint(io_hint(&error))
        };
        let marker = root.join(MARKER);
        match fs::read_dir(root) {
            Ok(entries) => {
                // A killed quickstart may have left only its lock files.
                let is_own =
                    |name: &OsStr| name == DirLock::FILE_NAME || name == DirLock::OWNER_FILE_NAME;
                let mut names = entries.map(|entry| entry.map(|entry| entry.file_name()));
                let is_empty = names.all(|name| name.is_ok_and(|name| is_own(&name)));
                if !is_empty && !marker.is_file() {
                    return Err(Failure::new(format!(
                        "{} holds files that quickstart did not make",
                        show(root)
                    ))
                    .hint("choose another directory with --output DIR"));
                }
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(root).map_err(|error| failed("make", root, error))?;
            }
            Err(error) => return Err(failed("open", root, error)),
        }
        let place = Self {
            root: root.to_owned(),
            _lock: DirLock::acquire(root)?,
        };
        fs::write(&marker, MARKER_TEXT).map_err(|error| failed("write", &marker, error))?;
        for path in [place.tfrecord(), place.indexed(), place.images()] {
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(failed("replace", &path, error));
                }
                _ => {}
            }
        }
        match fs::remove_file(place.contact_sheet()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed("replace", &place.contact_sheet(), error))
            }
            _ => Ok(place),
        }
    }

    pub(super) fn tfrecord(&self) -> PathBuf {
        self.root.join("tfrecord")
    }

    pub(super) fn indexed(&self) -> PathBuf {
        self.root.join("indexed")
    }

    /// Returns the directory for generated images.
    pub(super) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    pub(super) fn contact_sheet(&self) -> PathBuf {
        self.root.join("first-batch.png")
    }
}

/// Returns the directory of images to pack: the given one, or `testdata/images` if it exists. Returns `None` if quickstart has
/// to generate images.
pub(super) fn images(named: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    if let Some(named) = named {
        return match fs::metadata(named) {
            Ok(meta) if meta.is_dir() => Ok(Some(named.to_owned())),
            Ok(_) => Err(Failure::new(format!("{} is not a directory", show(named)))
                .hint("name a directory of images: <class>/<file> below it")),
            Err(error) => Err(
                Failure::new(format!("cannot open {}: {error}", show(named)))
                    .maybe_hint(io_hint(&error)),
            ),
        };
    }
    let shipped = PathBuf::from(SHIPPED);
    Ok(shipped.is_dir().then_some(shipped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_only_what_it_made() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let place = OutputDir::take(&out).unwrap();
        fs::create_dir(place.tfrecord()).unwrap();
        fs::write(place.tfrecord().join("x"), b"old").unwrap();
        fs::write(out.join("mine"), b"kept").unwrap();
        let refused = OutputDir::take(&out).unwrap_err();
        assert!(
            refused.message().contains("is in use by process"),
            "{refused}"
        );
        assert!(place.tfrecord().join("x").exists());
        drop(place);
        let place = OutputDir::take(&out).unwrap();
        assert!(!place.tfrecord().exists());
        assert_eq!(fs::read(out.join("mine")).unwrap(), b"kept");

        fs::remove_file(out.join(MARKER)).unwrap();
        fs::create_dir(place.tfrecord()).unwrap();
        let tfrecord = place.tfrecord();
        drop(place);
        let refused = OutputDir::take(&out).unwrap_err();
        assert!(refused.hint_line().unwrap().contains("--output"));
        assert!(tfrecord.exists());
    }

    #[test]
    fn a_missing_image_directory_is_named() {
        let error = images(Some(Path::new("/nonexistent/pictures"))).unwrap_err();
        assert!(error.message().contains("/nonexistent/pictures"));
    }
}
