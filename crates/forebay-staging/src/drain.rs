//! One attempt to upload a file to its destination.
//!
//! The order is: upload the file and verify its checksum, write the journal's line, delete the local file. After a failure the
//! next attempt first checks whether the object exists at the destination already.

use super::Shared;
use super::queue::Entry;
use super::tasks::Tried;
use forebay_store::{Error, Object, Result, Store, Transfer};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Makes one attempt for a file, and records the outcome.
pub(super) fn step(shared: &Shared, entry: &Arc<Entry>) -> Tried {
    // A panic counts as a failure: otherwise callers would wait for the file for ever.
    let outcome = catch_unwind(AssertUnwindSafe(|| attempt(shared, entry)));
    let outcome = outcome
        .unwrap_or_else(|_| Err(shared.error("the upload of a file panicked, which is a bug")));
    let Err(error) = outcome else {
        finish(shared, entry);
        return Tried::Over;
    };
    let wait = entry.tries().after(&error, shared.options.patience);
    if shared.stop.is_cancelled() {
        // The area is being closed: the file stays queued.
        return Tried::Again(Duration::ZERO);
    }
    if let Some(wait) = wait {
        shared.ledger().trouble = Some(error.to_string());
        // The wait varies with the file's id, so that files that failed together are not retried together.
        return Tried::Again(wait.mul_f64(0.75 + 0.05 * (entry.submitted.id % 10) as f64));
    }
    // Error messages of stores contain no secrets (no query, no header), so they may be written to the journal.
    let id = entry.submitted.id;
    let _ = entry.session.journal().failed(id, &error.to_string());
    shared.ledger().failed(entry, error);
    Tried::Over
}

/// Called when the remote copy is verified: writes the journal's line, and deletes the local file.
fn finish(shared: &Shared, entry: &Entry) {
    let submitted = &entry.submitted;
    let mut journal = entry.session.journal();
    let noted = journal.stored(submitted.id);
    entry.is_stored.store(true, Ordering::Relaxed);
    let left = shared.left();
    let left = left
        .iter()
        .filter(|entry| !entry.is_stored.load(Ordering::Relaxed));
    // If the line cannot be written, the file is removed all the same: the next session will find the remote copy.
    let noted = noted.and_then(|()| journal.shorten(left.map(|entry| &entry.submitted)));
    drop(journal);
    let path = entry.session.path(submitted);
    let removed = match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(Error::io(&path, "remove", error))
        }
        _ => {
            shared.gone(&entry.session, submitted.len);
            Ok(())
        }
    };
    let mut ledger = shared.ledger();
    ledger.stored(submitted);
    if let Err(error) = noted.and(removed) {
        ledger.untold.get_or_insert(error);
    }
}

fn attempt(shared: &Shared, entry: &Entry) -> Result<()> {
    let submitted = &entry.submitted;
    let tries = entry.tries().begin();
    let store = shared.store(submitted)?;
    if tries.is_unclean {
        // The parts of unfinished uploads cost money until they are removed. Only uploads of the journal's own keys are
        // aborted: other processes may have other uploads in progress.
        match store.abort_uploads_of(&submitted.key) {
            Err(error) if error.may_pass() => return Err(error),
            // Without the permission to list uploads an upload may still succeed; if not, its error is more helpful.
            _ => entry.tries().is_unclean = false,
        }
    }
    let path = entry.session.path(submitted);
    let is_there = path
        .symlink_metadata()
        .is_ok_and(|meta| meta.len() == submitted.len);
    if !tries.is_new || !is_there {
        if let Some(object) = store.head(&submitted.key)?
            && object.len == submitted.len
        {
            let sum = match object.crc32c {
                // The local file is gone, and the object has no stored checksum: read the object.
                None if !is_there => Some(read_back(&store, &object)?),
                sum => sum,
            };
            if sum == Some(submitted.crc32c) {
                return Ok(());
            }
        }
        if !is_there {
            let gone = io::Error::other(
                "the staged file is gone or has another length, and its place does not hold it either",
            );
            return Err(Error::io(&path, "upload", gone));
        }
    }
    let counted = |bytes| {
        shared.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    };
    let transfer = Transfer {
        crc32c: Some(submitted.crc32c),
        progress: &counted,
        limiter: shared.options.limiter.as_ref(),
        ..Transfer::new(&shared.stop)
    };
    // `upload_file` verifies that the store received bytes with this checksum.
    store
        .upload_file(&submitted.key, &path, &transfer)
        .map(drop)
}

/// Reads an object and returns its CRC32C.
fn read_back(store: &Store, object: &Object) -> Result<u32> {
    const STEP_BYTES: u64 = 8 << 20;
    let (mut sum, mut at) = (0, 0);
    while at < object.len {
        let mut piece =
            vec![0; usize::try_from(STEP_BYTES.min(object.len - at)).unwrap_or_default()];
        store.read_at_if(object, at, &mut piece)?;
        sum = crc32c::crc32c_append(sum, &piece);
        at += piece.len() as u64;
    }
    Ok(sum)
}
