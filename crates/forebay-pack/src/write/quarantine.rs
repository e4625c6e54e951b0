//! The directory to which bad files are copied, under their paths in the source.

use super::source::Sources;
use crate::census::Census;
use crate::error::{Error, Result};
use crate::options::{OnBad, PackOptions};
use forebay_formats::escape;
use forebay_formats::key_path::join;
use forebay_store::{AtomicFile, Durability};
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Maximum number of different files with the same name; further ones are numbered up to this.
const MAX_NAMESAKES: u32 = 1000;
/// Maximum length of a name in bytes. Names in archives may be longer: they are truncated, with a hash that keeps them distinct.
const MAX_NAME_BYTES: usize = 200;
const COMPARE_BYTES: usize = 64 << 10;

/// The directory of bad files.
#[derive(Debug)]
pub(crate) struct Quarantine<'a> {
    dir: &'a Path,
    durability: Durability,
}

impl<'a> Quarantine<'a> {
    pub(crate) fn new(dir: &'a Path, durability: Durability) -> Self {
        Self { dir, durability }
    }

    /// Returns the quarantine of a pack, if it has one.
    pub(super) fn of(options: &'a PackOptions) -> Option<Self> {
        match &options.on_bad {
            OnBad::Quarantine(dir) => Some(Self::new(dir, options.durability)),
            OnBad::Skip | OnBad::Fail => None,
        }
    }

    /// Copies the images that the census left out because of their format.
    pub(super) fn keep_left_out(
        &self,
        census: &Census,
        sources: &Sources,
        stopped: &dyn Fn() -> bool,
    ) -> Result<()> {
        let mut content = Vec::new();
        for (number, split) in census.splits().iter().enumerate() {
            for entry in split.left_out() {
                if stopped() {
                    return Ok(());
                }
                content.clear();
                let file = sources.entry(number, &entry);
                let read = file.and_then(|file| file.append_to(entry.size, &mut content));
                let path = join(split.dir(), &entry.key());
                // The report says that the file is in quarantine, so a file that cannot be copied is an error.
                read.map_err(|(reason, detail)| {
                    let (path, reason) = (escape(&path), reason.text());
                    let what = format!("{path}, which belongs into quarantine: {reason} {detail}");
                    Error::source(census.src(), what.trim_end())
                })?;
                self.keep(&path, &content)?;
            }
        }
        Ok(())
    }

    /// Copies a file atomically, without replacing another file: if the name is taken by a different file, a number is appended
    /// to the name. If the same file exists, nothing changes, so a continued run does not add copies.
    pub(crate) fn keep(&self, path: &[u8], content: &[u8]) -> Result<()> {
        let target = self.dir.join(below(path));
        let fail = |op: &'static str| {
            let target = target.clone();
            move |error: io::Error| Error::io(target, op, error)
        };
        let parent = target.parent().unwrap_or(self.dir);
        std::fs::create_dir_all(parent).map_err(|error| Error::io(parent, "create", error))?;
        for number in 0..MAX_NAMESAKES {
            let name = match number {
                0 => target.clone(),
                number => {
                    let mut name = target.clone().into_os_string();
                    name.push(format!(".{number}"));
                    name.into()
                }
            };
            match is_same(&name, content) {
                Ok(true) => return Ok(()),
                Ok(false) => continue,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fail("read")(error)),
            }
            let mut file = AtomicFile::create(&name)?;
            file.write_all(content).map_err(fail("write"))?;
            if file.commit_new(self.durability)? {
                return Ok(());
            }
        }
        let what = format!("{MAX_NAMESAKES} other files of that name are there already");
        Err(fail("quarantine")(io::Error::other(what)))
    }
}

/// Returns the path of a source file below the quarantine. It never leads outside, whatever names an archive contains.
fn below(path: &[u8]) -> PathBuf {
    let parts = path.split(|byte| *byte == b'/');
    let named = parts.filter(|part| !part.is_empty() && *part != b".");
    named.map(name).collect()
}

fn name(part: &[u8]) -> OsString {
    if part == b".." {
        return "_..".into();
    }
    if part.len() <= MAX_NAME_BYTES {
        return OsStr::from_bytes(part).to_owned();
    }
    let mut cut = part[..MAX_NAME_BYTES].to_vec();
    cut.push(b'-');
    cut.extend_from_slice(&blake3::hash(part).to_hex().as_bytes()[..16]);
    OsString::from_vec(cut)
}

/// Returns whether a file has this content.
fn is_same(path: &Path, content: &[u8]) -> io::Result<bool> {
    let meta = std::fs::symlink_metadata(path)?;
    if !meta.is_file() || meta.len() != content.len() as u64 {
        return Ok(false);
    }
    let mut file = forebay_shard::storage::open_file(path)?;
    let mut buffer = vec![0; COMPARE_BYTES];
    let mut rest = content;
    loop {
        let read = match file.read(&mut buffer) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        match (read, rest.strip_prefix(&buffer[..read])) {
            (0, _) => return Ok(rest.is_empty()),
            (_, Some(after)) => rest = after,
            (_, None) => return Ok(false),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_below() {
        let long = [b"a/", vec![b'x'; 300].as_slice()].concat();
        for (path, expected) in [
            (b"a/b c.jpg".as_slice(), "a/b c.jpg"),
            (b"/etc/passwd", "etc/passwd"),
            (b"../../x", "_../_../x"),
            (b"./a//b", "a/b"),
        ] {
            assert_eq!(below(path), Path::new(expected));
        }
        assert_eq!(below(b"a/\xff\n").as_os_str().as_bytes(), b"a/\xff\n");
        let cut = below(&long);
        assert_eq!(cut.file_name().unwrap().len(), MAX_NAME_BYTES + 17);
        let other = below(&[long.as_slice(), b"y"].concat());
        assert_ne!(cut, other);
    }

    #[test]
    fn files_are_never_replaced_and_equal_files_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        let quarantine = Quarantine::new(dir.path(), Durability::Cached);
        let read = |name: &str| std::fs::read(dir.path().join(name)).ok();
        for content in [b"one".as_slice(), b"two", b"one", b"two", b""] {
            quarantine.keep(b"a/b", content).unwrap();
        }
        assert_eq!(read("a/b").unwrap(), b"one");
        assert_eq!(read("a/b.1").unwrap(), b"two");
        assert_eq!(read("a/b.2").unwrap(), b"");
        assert_eq!(std::fs::read_dir(dir.path().join("a")).unwrap().count(), 3);
        // A link is not the same as a file, and is not followed.
        std::fs::write(dir.path().join("victim"), "v").unwrap();
        std::os::unix::fs::symlink("victim", dir.path().join("link")).unwrap();
        quarantine.keep(b"link", b"v").unwrap();
        assert_eq!(read("link.1").unwrap(), b"v");
        assert!(quarantine.keep(b"a/b/c", b"below a file").is_err());
    }
}
