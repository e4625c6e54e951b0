//! Names that differ only in their Unicode form: macOS stores `é` as two code points, most lists have it as one.
//!
//! Names are never changed. Forms are compared only to match a name of a list with the name of a file, and only if no name
//! matches byte for byte.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use unicode_normalization::{UnicodeNormalization, is_nfc};

/// Returns a name in the composed form (NFC). Bytes that are not UTF-8 stay as they are.
pub(crate) fn composed(name: &[u8]) -> Cow<'_, [u8]> {
    match std::str::from_utf8(name) {
        Ok(text) if !name.is_ascii() && !is_nfc(text) => {
            Cow::Owned(text.nfc().collect::<String>().into_bytes())
        }
        _ => Cow::Borrowed(name),
    }
}

/// Two names of a list match a name after normalization, and neither matches byte for byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ambiguous;

/// The names of a list that are not in composed form, by their composed form.
#[derive(Debug, Clone, Default)]
pub(crate) struct NameForms(BTreeMap<Vec<u8>, Option<u32>>);

impl NameForms {
    /// Creates the index from names with their numbers.
    pub(crate) fn new<'a>(names: impl Iterator<Item = (&'a [u8], u32)>) -> Self {
        let mut forms: BTreeMap<Vec<u8>, Option<u32>> = BTreeMap::new();
        for (name, number) in names {
            if let Cow::Owned(form) = composed(name) {
                let known = forms.entry(form).or_insert(Some(number));
                *known = known.filter(|known| *known == number);
            }
        }
        Self(forms)
    }

    /// Returns the number of the listed name that equals `name` after normalization. Call this only if the list does not have
    /// `name` byte for byte. `exact` looks up a name in the list byte for byte.
    pub(crate) fn find(
        &self,
        name: &[u8],
        exact: impl FnOnce(&[u8]) -> Option<u32>,
    ) -> Result<Option<u32>, Ambiguous> {
        let form = composed(name);
        let listed = match &form {
            Cow::Owned(form) => exact(form),
            Cow::Borrowed(_) => None,
        };
        match (listed, self.0.get(form.as_ref())) {
            (found, None) => Ok(found),
            (None, Some(Some(number))) => Ok(Some(*number)),
            _ => Err(Ambiguous),
        }
    }
}

/// Finds files by the names that a list gives them, in any Unicode form.
#[derive(Debug, Default)]
pub(crate) struct FileForms {
    /// The non-ASCII names in each directory that was read, by their composed form.
    dirs: Mutex<BTreeMap<PathBuf, Arc<Names>>>,
    found: AtomicU64,
}

type Names = BTreeMap<Vec<u8>, Vec<OsString>>;

impl FileForms {
    /// Finds the file of a name below `dir`. Returns the name on disk and the file's metadata.
    pub(crate) fn find(&self, dir: &Path, name: &Path) -> io::Result<(PathBuf, Metadata)> {
        let absent = match std::fs::metadata(dir.join(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => error,
            found => return found.map(|meta| (name.to_path_buf(), meta)),
        };
        if name.as_os_str().is_ascii() {
            return Err(absent);
        }
        let mut own = PathBuf::new();
        for part in name {
            let next = own.join(part);
            own = match dir.join(&next).symlink_metadata() {
                Ok(_) => next,
                Err(_) => match self.in_dir(&dir.join(&own), part)? {
                    Some(part) => own.join(part),
                    None => return Err(absent),
                },
            };
        }
        let meta = std::fs::metadata(dir.join(&own))?;
        self.found.fetch_add(1, Ordering::Relaxed);
        Ok((own, meta))
    }

    /// Returns the name in a directory that has the same composed form as `name`.
    fn in_dir(&self, dir: &Path, name: &OsStr) -> io::Result<Option<OsString>> {
        let known = {
            let dirs = self.dirs.lock().unwrap_or_else(|e| e.into_inner());
            dirs.get(dir).cloned()
        };
        let names = match known {
            Some(names) => names,
            None => {
                let mut names = Names::new();
                for entry in std::fs::read_dir(dir)? {
                    let name = entry?.file_name();
                    if !name.is_ascii() {
                        let form = composed(name.as_bytes()).into_owned();
                        names.entry(form).or_default().push(name);
                    }
                }
                let names = Arc::new(names);
                let mut dirs = self.dirs.lock().unwrap_or_else(|e| e.into_inner());
                dirs.insert(dir.to_path_buf(), Arc::clone(&names));
                names
            }
        };
        match names
            .get(composed(name.as_bytes()).as_ref())
            .map(Vec::as_slice)
        {
            None => Ok(None),
            Some([one]) => Ok(Some(one.clone())),
            Some(_) => {
                let what = format!(
                    "two files have the name {} in other Unicode forms: write it as one of them",
                    crate::finding::escape(name.as_bytes())
                );
                Err(io::Error::new(io::ErrorKind::InvalidInput, what))
            }
        }
    }

    /// Returns the number of files that were found only after normalization.
    pub(crate) fn count(&self) -> u64 {
        self.found.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NFC: &str = "caf\u{e9}";
    const NFD: &str = "cafe\u{301}";

    #[test]
    fn a_name_is_found_in_any_form_and_never_guessed() {
        let find = |list: &[&str], name: &str| {
            let names = list.iter().map(|name| name.as_bytes()).zip(0..);
            let exact = |name: &[u8]| list.iter().position(|known| known.as_bytes() == name);
            let exact = |name: &[u8]| exact(name).map(|at| at as u32);
            NameForms::new(names).find(name.as_bytes(), exact)
        };
        assert_eq!(find(&["x", NFC], NFD), Ok(Some(1)));
        assert_eq!(find(&["x", NFD], NFC), Ok(Some(1)));
        assert_eq!(find(&["x"], NFC), Ok(None));
        // Neither of two names in other forms matches: the third form is ambiguous.
        let (mixed, one, two) = ("o\u{328}\u{304}", "\u{1eb}\u{304}", "\u{1ed}");
        assert_eq!(find(&[one, mixed], two), Err(Ambiguous));
        assert_eq!(find(&[two, mixed], one), Err(Ambiguous));
        assert_eq!(composed(b"\xffe"), b"\xffe".as_slice());
    }

    #[test]
    fn files_are_found_by_the_form_of_each_path_part() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(NFD)).unwrap();
        std::fs::write(dir.path().join(NFD).join(NFC), b"1").unwrap();
        let files = FileForms::default();
        let find = |name: &Path| files.find(dir.path(), name).map(|(name, _)| name);
        let own = Path::new(NFD).join(NFC);
        assert_eq!(find(&own).unwrap(), own);
        assert_eq!(files.count(), 0);
        assert_eq!(find(&Path::new(NFC).join(NFD)).unwrap(), own);
        assert_eq!(files.count(), 1);
        let absent = find(Path::new("\u{e9}")).unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
