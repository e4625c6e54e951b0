//! Writes files strictly below a directory.
//!
//! A key becomes a path component by component. `..`, `.`, empty components (so also absolute keys) and NUL are
//! refused. Each directory is opened relative to its parent without following links, so links in
//! the destination have no effect, even if they are created concurrently.
//!
//! One process writes a tree at a time. Another process may write a subtree as a separate tree; temporary files of
//! both never have the same name.

use crate::error::{Error, Result};
use forebay_store::{DirLock, clean_stale_at, create_temporary_at};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Number of bytes per step when comparing with an existing file.
const COMPARE_BYTES: usize = 64 << 10;

/// The destination.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    fd: OwnedFd,
    /// Directories from which temporary files of killed processes were already removed.
    cleaned: Mutex<HashSet<Vec<u8>>>,
    _lock: DirLock,
}

/// The access of one thread to the tree. The directory of the last file stays open.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    tree: &'a Tree,
    open: Option<(Vec<u8>, OwnedFd)>,
    path: Vec<u8>,
}

/// Outcome of writing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    New,
    /// A file with the same content exists already.
    There,
}

/// The reason why a file was not written.
#[derive(Debug)]
pub(super) enum Failure {
    /// This key cannot become a file here; other keys may.
    Key(String),
    Error(Error),
}

impl Failure {
    /// Classifies an error of the system: it concerns either this file only, or the whole destination.
    fn of(path: &Path, op: &'static str, errno: Errno) -> Self {
        let is_of_all = matches!(
            errno,
            Errno::NOSPC
                | Errno::DQUOT
                | Errno::IO
                | Errno::ROFS
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::STALE
                | Errno::INTR
        );
        match is_of_all {
            true => Self::Error(Error::io(path, op, errno)),
            false => Self::Key(format!(
                "cannot be a file here: {}",
                std::io::Error::from(errno)
            )),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

impl Tree {
    /// Creates the directory if necessary, and locks it.
    pub(super) fn open(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root).map_err(|e| Error::io(root, "create the directory", e))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd =
            rustix::fs::open(root, flags, Mode::empty()).map_err(|e| Error::io(root, "open", e))?;
        Ok(Self {
            root: root.to_path_buf(),
            fd,
            cleaned: Mutex::default(),
            _lock: DirLock::acquire(root)?,
        })
    }

    pub(super) fn writer(&self) -> Writer<'_> {
        Writer {
            tree: self,
            open: None,
            path: Vec::new(),
        }
    }

    /// Syncs the whole file system: one call instead of one for each of a million files.
    pub(super) fn sync(&self) -> Result<()> {
        rustix::fs::syncfs(&self.fd)
            .map_err(|e| Error::io(&self.root, "sync the file system of", e))
    }

    /// Removes temporary files of killed processes from a directory, the first time it is used.
    fn clean(&self, dir: &[u8], fd: &OwnedFd) -> Result<(), Errno> {
        // The lock is held during the removal: without file locks, another thread's file would look like a leftover.
        let mut cleaned = self.cleaned.lock().unwrap_or_else(|e| e.into_inner());
        if !cleaned.contains(dir) {
            clean_stale_at(fd)?;
            cleaned.insert(dir.to_vec());
        }
        Ok(())
    }

    fn path(&self, below: &[u8]) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        self.root.join(OsStr::from_bytes(below))
    }
}

impl Writer<'_> {
    /// Writes a file below the tree's root. Never replaces a file with another content.
    pub(super) fn put(
        &mut self,
        prefix: &[u8],
        key: &[u8],
        content: &[u8],
    ) -> Result<WriteOutcome, Failure> {
        check_key(key).map_err(|why| Failure::Key(why.to_owned()))?;
        self.path.clear();
        if !prefix.is_empty() {
            self.path.extend_from_slice(prefix);
            self.path.push(b'/');
        }
        self.path.extend_from_slice(key);
        let slash = self.path.iter().rposition(|b| *b == b'/');
        let (dir, name) = match slash {
            Some(at) => (self.path[..at].to_vec(), self.path[at + 1..].to_vec()),
            None => (Vec::new(), self.path.clone()),
        };
        self.enter(&dir)?;
        let Some((_, fd)) = &self.open else {
            return Err(Failure::Key("has no directory".to_owned()));
        };
        let at = |op: &'static str| {
            let path = self.tree.path(&self.path);
            move |errno: Errno| Failure::of(&path, op, errno)
        };
        if let Some(same) = compare(fd, &name, content).map_err(at("read"))? {
            return if same {
                Ok(WriteOutcome::There)
            } else {
                Err(differs())
            };
        }
        let (mut file, temporary) =
            create_temporary_at(fd, OsStr::new("export")).map_err(at("create"))?;
        let remove = || {
            let _ = rustix::fs::unlinkat(fd, &temporary, AtFlags::empty());
        };
        if let Err(error) = file.write_all(content) {
            remove();
            let path = self.tree.path(&self.path);
            return Err(Failure::Error(Error::io(path, "write", error)));
        }
        // The file is renamed while it is open and therefore locked, so that no process removes it as a leftover.
        let placed = rename_new(fd, &temporary, &name);
        drop(file);
        match placed {
            Ok(()) => Ok(WriteOutcome::New),
            Err(Errno::EXIST) => {
                // Another record with the same key was written first.
                remove();
                match compare(fd, &name, content).map_err(at("read"))? {
                    Some(true) => Ok(WriteOutcome::There),
                    _ => Err(differs()),
                }
            }
            Err(errno) => {
                remove();
                Err(at("publish")(errno))
            }
        }
    }

    /// Opens a directory below the root, and creates missing directories.
    fn enter(&mut self, dir: &[u8]) -> Result<(), Failure> {
        if self.open.as_ref().is_some_and(|(open, _)| open == dir) {
            return Ok(());
        }
        self.open = None;
        let fail = |op: &'static str, errno| Failure::of(&self.tree.path(dir), op, errno);
        let mut fd = self
            .tree
            .fd
            .try_clone()
            .map_err(|e| Failure::Error(Error::io(&self.tree.root, "open", e)))?;
        for component in dir.split(|b| *b == b'/').filter(|c| !c.is_empty()) {
            match rustix::fs::mkdirat(&fd, component, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(fail("create the directory", errno)),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            fd = match rustix::fs::openat(&fd, component, flags, Mode::empty()) {
                Ok(fd) => fd,
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    let what = "leads through a link or a file instead of a directory, and links are not followed";
                    return Err(Failure::Key(what.to_owned()));
                }
                Err(errno) => return Err(fail("open", errno)),
            };
        }
        self.tree.clean(dir, &fd).map_err(|e| fail("clear", e))?;
        self.open = Some((dir.to_vec(), fd));
        Ok(())
    }
}

fn differs() -> Failure {
    Failure::Key("is there with other content, and nothing is overwritten".to_owned())
}

fn check_key(key: &[u8]) -> Result<(), &'static str> {
    if key.contains(&0) {
        return Err("has a NUL byte in it");
    }
    for component in key.split(|b| *b == b'/') {
        match component {
            b"" => return Err("is absolute or has an empty component"),
            b"." | b".." => return Err("has a component that is . or .."),
            _ => {}
        }
    }
    Ok(())
}

/// Returns whether a file has this content; `None` if there is no file.
fn compare(dir: &OwnedFd, name: &[u8], content: &[u8]) -> Result<Option<bool>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::openat(dir, name, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        // A link is never the same as a file, whatever its target.
        Err(Errno::LOOP) => return Ok(Some(false)),
        Err(errno) => return Err(errno),
    };
    let stat = rustix::fs::fstat(&file)?;
    let is_file = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file();
    if !is_file || u64::try_from(stat.st_size) != Ok(content.len() as u64) {
        return Ok(Some(false));
    }
    let mut file = File::from(file);
    let mut buffer = vec![0; COMPARE_BYTES];
    let mut rest = content;
    while !rest.is_empty() {
        let want = rest.len().min(COMPARE_BYTES);
        let Some(part) = buffer.get_mut(..want) else {
            return Ok(Some(false));
        };
        if file.read_exact(part).is_err() || *part != rest[..want] {
            return Ok(Some(false));
        }
        rest = &rest[want..];
    }
    Ok(Some(true))
}

/// Renames without replacing an existing file, even if the file system cannot do this atomically.
fn rename_new(dir: &OwnedFd, from: &Path, to: &[u8]) -> Result<(), Errno> {
    match rustix::fs::renameat_with(dir, from, dir, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            // `link` fails if the name is taken. The caller removes the temporary name in that case.
            let linked = rustix::fs::linkat(dir, from, dir, to, AtFlags::empty());
            if linked.is_ok() {
                rustix::fs::unlinkat(dir, from, AtFlags::empty())?;
            }
            linked
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(root: &Path, key: &[u8], content: &[u8]) -> Result<WriteOutcome, Failure> {
        let tree = Tree::open(root).unwrap();
        tree.writer().put(b"", key, content)
    }

    #[test]
    fn keys_never_leave_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        for key in [
            b"../x".as_slice(),
            b"/etc/x",
            b"a/../../x",
            b"a//b",
            b"./a",
            b"",
            b"a/",
            b"..",
            b"a\0b",
        ] {
            assert!(
                matches!(put(&root, key, b"x"), Err(Failure::Key(_))),
                "{}",
                key.escape_ascii()
            );
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
    }

    #[test]
    fn links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (root, elsewhere) = (dir.path().join("root"), dir.path().join("elsewhere"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, root.join("class")).unwrap();
        std::os::unix::fs::symlink(elsewhere.join("new"), root.join("file")).unwrap();
        assert!(put(&root, b"class/x", b"x").is_err());
        assert!(put(&root, b"file", b"x").is_err());
        assert_eq!(std::fs::read_dir(elsewhere).unwrap().count(), 0);
    }

    #[test]
    fn existing_files_with_other_content_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            put(dir.path(), b"a/b.jpg", b"one").unwrap(),
            WriteOutcome::New
        );
        assert_eq!(
            put(dir.path(), b"a/b.jpg", b"one").unwrap(),
            WriteOutcome::There
        );
        assert!(put(dir.path(), b"a/b.jpg", b"two").is_err());
        assert!(put(dir.path(), b"a/b.jpg/c", b"two").is_err());
        assert!(put(dir.path(), b"a", b"two").is_err());
        assert_eq!(std::fs::read(dir.path().join("a/b.jpg")).unwrap(), b"one");
        assert_eq!(
            put(dir.path(), "ü/\u{1}".as_bytes(), b"").unwrap(),
            WriteOutcome::New
        );
    }
}
