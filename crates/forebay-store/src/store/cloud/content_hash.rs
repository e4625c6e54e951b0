//! The hashes that the Hugging Face Hub lists for its files: the SHA-256 of large files, and Git's SHA-1 of others.

use crate::store::Object;
use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};
use std::fmt::Write as _;

/// The hash of a file that is read from its beginning to its end, and the listed one.
pub(super) struct ContentHash {
    name: &'static str,
    listed: String,
    context: Context,
}

impl ContentHash {
    /// Begins the hash that the object was listed with; `None` if its etag is no such hash.
    pub(super) fn of(object: &Object) -> Option<Self> {
        let listed = object.etag.as_deref()?.to_ascii_lowercase();
        if !listed.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let (name, context) = match listed.len() {
            64 => ("SHA-256", Context::new(&SHA256)),
            40 => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {}\0", object.len).as_bytes());
                ("Git hash", context)
            }
            _ => return None,
        };
        Some(Self {
            name,
            listed,
            context,
        })
    }

    /// Adds the next bytes of the file.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.context.update(bytes);
    }

    /// Compares both hashes; the error says how they differ.
    pub(super) fn finish(self) -> Result<(), String> {
        let digest = self.context.finish();
        let found = digest.as_ref().iter().fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
        match found == self.listed {
            true => Ok(()),
            false => Err(format!(
                "its {} is {found}, and {} is listed",
                self.name, self.listed
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(etag: Option<&str>) -> Object {
        let mut object = Object::new("a", 6);
        object.etag = etag.map(str::to_owned);
        object
    }

    #[test]
    fn hashes_of_git_and_of_large_files_are_compared() {
        // `git hash-object` and `sha256sum` of "hello\n".
        let git = "ce013625030ba8dba906f756967f9e9ca394464a";
        let sha256 = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        for listed in [git, sha256] {
            for (text, is_equal) in [("hello\n", true), ("hellO\n", false)] {
                let mut hash = ContentHash::of(&object(Some(listed))).unwrap();
                hash.update(&text.as_bytes()[..2]);
                hash.update(&text.as_bytes()[2..]);
                let compared = hash.finish();
                assert_eq!(compared.is_ok(), is_equal, "{compared:?}");
                assert!(compared.err().is_none_or(|why| why.contains(listed)));
            }
        }
        assert!(ContentHash::of(&object(None)).is_none());
        assert!(ContentHash::of(&object(Some("\"e\""))).is_none());
    }
}
