//! Copies one object.

use super::listing::Role;
use super::plan::PlannedItem;
use super::scratch::Scratch;
use super::{CopyError, CopyOptions, CopyTarget};
use forebay_shard::MAX_RECORD_BYTES;
use forebay_shard::index::{FileKind, Found, parse_suffix};
use forebay_shard::storage::SUFFIX_BYTES;
use forebay_store::{Cancel, Error, Object, ObjectOrTree, Store, Transfer};
use std::path::{Path, PathBuf};

/// The largest accepted index; the index of a million images has some tens of megabytes.
const MOST_INDEX_BYTES: u64 = 2 << 30;

/// The result of copying one object.
pub(super) enum Moved {
    Whole,
    /// The source's bytes are damaged: nothing was published.
    Damaged(String),
}

/// Copies objects from the source to the target.
pub(super) struct Mover<'a> {
    pub(super) source: &'a ObjectOrTree,
    pub(super) target: &'a CopyTarget,
    pub(super) options: &'a CopyOptions,
    pub(super) scratch: &'a Scratch,
    /// Parts of one object in flight at once.
    pub(super) parallel: usize,
    pub(super) cancel: &'a Cancel,
    pub(super) progress: &'a (dyn Fn(u64) + Sync),
}

impl Mover<'_> {
    /// Copies one object and verifies its checksum.
    pub(super) fn go(&self, planned: &PlannedItem) -> Result<Moved, CopyError> {
        let item = &planned.item;
        let (from, to) = (self.source.store(), &self.target.store);
        if let Role::Index(shard) = item.role
            && let Some(problem) = index_problem(from, &item.object, shard)?
        {
            return Ok(Moved::Damaged(problem));
        }
        let moved = match (from.location().local_path(), to.location().local_path()) {
            (_, Ok(root)) => {
                let path = root.join(&planned.key);
                make_parents(&path)?;
                self.download(&item.object, &path, item.crc32c)
            }
            (Ok(root), Err(_)) => {
                let path = root.join(&item.object.key);
                self.upload(&planned.key, &path, item.crc32c)
            }
            (Err(_), Err(_)) => self.through_here(planned),
        };
        match moved {
            Ok(()) => Ok(Moved::Whole),
            Err(error @ (Error::Checksum { .. } | Error::Damaged { .. })) => {
                Ok(Moved::Damaged(error.to_string()))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn upload(&self, key: &str, path: &Path, crc32c: Option<u32>) -> Result<(), Error> {
        let transfer = self.transfer(crc32c);
        self.target
            .store
            .upload_file(key, path, &transfer)
            .map(|_| ())
    }

    fn download(&self, object: &Object, path: &Path, crc32c: Option<u32>) -> Result<(), Error> {
        let transfer = Transfer {
            listed: Some(object),
            ..self.transfer(crc32c)
        };
        self.source
            .store()
            .download_file(&object.key, path, &transfer)
            .map(|_| ())
    }

    /// Copies from one store to another through a temporary file on this machine, so the stores need no access to each other.
    fn through_here(&self, planned: &PlannedItem) -> Result<(), Error> {
        let resting = self.scratch.place()?;
        let item = &planned.item;
        self.download(&item.object, resting.path(), item.crc32c)?;
        self.upload(&planned.key, resting.path(), item.crc32c)
    }

    fn transfer(&self, crc32c: Option<u32>) -> Transfer<'_> {
        Transfer {
            crc32c,
            progress: self.progress,
            parallel: self.parallel,
            limiter: self.options.limiter.as_ref(),
            ..Transfer::new(self.cancel)
        }
    }
}

fn make_parents(path: &Path) -> Result<(), CopyError> {
    let Some(parent) = path.parent() else {
        return Ok(());
    };
    std::fs::create_dir_all(parent).map_err(|error| Error::io(parent, "create", error).into())
}

/// Checks a binary index. Returns the problem if it is damaged or belongs to another shard.
fn index_problem(store: &Store, object: &Object, shard: u32) -> Result<Option<String>, CopyError> {
    let mut from = object.len.saturating_sub(SUFFIX_BYTES);
    let path = PathBuf::from(&object.key);
    loop {
        // The length is from the listing and `from` may be from the file's content: neither is trusted.
        if object.len - from > MOST_INDEX_BYTES {
            let what = format!("an index of {} bytes", object.len - from);
            return Ok(Some(what));
        }
        let mut suffix = vec![0; (object.len - from) as usize];
        store.read_at(&object.key, from, &mut suffix)?;
        let found = parse_suffix(
            &path,
            FileKind::Sidecar,
            object.len,
            MAX_RECORD_BYTES,
            &suffix,
        );
        return Ok(match found {
            Ok(Found::Need(range)) if range.start < from => {
                from = range.start;
                continue;
            }
            Ok(Found::Need(_)) => Some("its index is not where its end says".to_owned()),
            Ok(Found::Index(index)) => match index.shard_crc32c() {
                Some(crc) if crc != shard => Some(format!(
                    "it is the index of another shard: of one with the checksum {crc:08x}, expected {shard:08x}"
                )),
                _ => None,
            },
            Err(error) => Some(error.to_string()),
        });
    }
}
