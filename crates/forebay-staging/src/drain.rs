//! The threads that bring files to where they belong.
//!
//! A file is uploaded, the remote copy looked at, the journal's line written, and only then the local file deleted. What is
//! not known after a failure is looked at before it is repeated.

use super::Shared;
use super::journal::Submitted;
use super::queue::Entry;
use forebay_store::{Error, ErrorKind, Object, Result, Store, Transfer};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The wait before the second attempt; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(500);
/// The longest wait.
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// Attempts that may arrive damaged before that is an error.
const DAMAGES: u32 = 3;

/// Uploads until the area is closed.
pub(super) fn work(shared: &Shared) {
    let mut queue = shared.queue();
    loop {
        if queue.is_closing {
            return;
        }
        if !queue.is_paused && !queue.is_cleaning && !queue.unclean.is_empty() {
            let unclean = std::mem::take(&mut queue.unclean);
            queue.is_cleaning = true;
            drop(queue);
            clean(shared, &unclean);
            queue = shared.queue();
            queue.is_cleaning = false;
            shared.changed.notify_all();
            continue;
        }
        let Some(entry) = queue.next() else {
            queue = match shared.changed.wait(queue) {
                Ok(queue) => queue,
                Err(poisoned) => poisoned.into_inner(),
            };
            continue;
        };
        drop(queue);
        let id = entry.submitted.id;
        // A file whose upload panicked would be waited for for ever.
        let outcome = catch_unwind(AssertUnwindSafe(|| bring(shared, &entry)));
        let outcome = outcome
            .unwrap_or_else(|_| Err(shared.error("the upload of a file panicked, which is a bug")));
        if outcome.is_ok() {
            finish(shared, &entry);
        }
        queue = shared.queue();
        match outcome {
            Ok(()) => {}
            Err(_) if shared.stop.is_cancelled() => queue.put_back(id),
            Err(error) => {
                // Messages of stores hold no secrets: no query, no header.
                let _ = entry.session.journal().failed(id, &error.to_string());
                queue.failed(id, error);
            }
        }
        shared.changed.notify_all();
    }
}

/// Ends the uploads that a killed process of this session had begun: their parts cost money until they are removed. Only
/// those of the journal's own keys: other uploads may be live ones of other processes.
fn clean(shared: &Shared, unclean: &[Submitted]) {
    for submitted in unclean {
        let begin = Instant::now();
        let mut wait = FIRST_WAIT;
        while let Err(error) = shared
            .store(submitted)
            .and_then(|store| store.abort_uploads_of(&submitted.key))
        {
            // Who may not list uploads may still make them, and the upload itself says best what is wrong.
            if !may_pass(&error)
                || begin.elapsed() >= shared.options.patience
                || !shared.pause(&error, wait)
            {
                break;
            }
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }
}

/// The remote copy is verified: writes that down, and deletes the local one.
fn finish(shared: &Shared, entry: &Entry) {
    let mut journal = entry.session.journal();
    let noted = journal.stored(entry.submitted.id);
    let mut queue = shared.queue();
    queue.stored(entry.submitted.id);
    // If the line cannot be written, the file is removed all the same: the next session finds the remote copy.
    if let Err(error) = noted.and_then(|()| journal.shorten(queue.left())) {
        queue.untold.get_or_insert(error);
    }
    drop(queue);
    drop(journal);
    let path = entry.session.path(&entry.submitted);
    let removed = std::fs::remove_file(&path);
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            shared
                .queue()
                .untold
                .get_or_insert(Error::io(&path, "remove", error));
        }
        _ => shared.gone(&entry.session, entry.submitted.len),
    }
}

/// Uploads a file, again and again while its store does not answer.
fn bring(shared: &Shared, entry: &Entry) -> Result<()> {
    let begin = Instant::now();
    let mut wait = FIRST_WAIT;
    let mut is_known = !entry.is_found;
    let mut damages = 0;
    loop {
        let error = match attempt(shared, entry, is_known) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        // What became of it on the way is not known.
        is_known = false;
        // Bytes that a network or a store damaged are sent again; a local file that is damaged stays so.
        let is_damage = matches!(error, Error::Checksum { .. });
        damages += u32::from(is_damage);
        let is_worth_it = may_pass(&error) || (is_damage && damages <= DAMAGES);
        let gives_up = !is_worth_it || begin.elapsed() >= shared.options.patience;
        if shared.stop.is_cancelled() || gives_up {
            return Err(error);
        }
        // Files that failed together need not try again together.
        shared.pause(
            &error,
            wait.mul_f64(0.75 + 0.05 * (entry.submitted.id % 10) as f64),
        );
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// `is_known`: nothing of the file can be in the store yet.
fn attempt(shared: &Shared, entry: &Entry, is_known: bool) -> Result<()> {
    let submitted = &entry.submitted;
    let store = shared.store(submitted)?;
    let path = entry.session.path(submitted);
    let is_there = path
        .symlink_metadata()
        .is_ok_and(|meta| meta.len() == submitted.len);
    if !is_known || !is_there {
        if let Some(object) = store.head(&submitted.key)?
            && object.len == submitted.len
        {
            let sum = match object.crc32c {
                // The file itself is no more: what exists has to be looked at.
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
    let transfer = Transfer::new(&shared.stop)
        .with_crc32c(Some(submitted.crc32c))
        .with_progress(&counted)
        .with_limiter(shared.options.limiter.as_ref());
    store.upload_file(&submitted.key, &path, &transfer)?;
    let found = store.head(&submitted.key)?;
    let is_same = |object: &Object| {
        object.len == submitted.len && object.crc32c.is_none_or(|sum| sum == submitted.crc32c)
    };
    if found.as_ref().is_some_and(is_same) {
        return Ok(());
    }
    Err(Error::Changed {
        object: submitted.object(),
        why: match found {
            None => "it was just uploaded, and is not there".to_owned(),
            Some(object) => format!(
                "it was just uploaded with {} bytes, and has {} bytes of another content now",
                submitted.len, object.len
            ),
        },
    })
}

impl Shared {
    /// Waits before the next attempt, and says why meanwhile. False if the area is closed.
    fn pause(&self, error: &Error, time: Duration) -> bool {
        let mut queue = self.queue();
        queue.trouble = Some(error.to_string());
        let until = Instant::now() + time;
        while Instant::now() < until && !queue.is_closing {
            queue = self.wait_a_moment(queue);
        }
        !queue.is_closing
    }
}

/// Whether the same may succeed a while later. A refusal of the store is final.
fn may_pass(error: &Error) -> bool {
    matches!(
        error,
        Error::Request {
            kind: ErrorKind::Unreachable
                | ErrorKind::TimedOut
                | ErrorKind::Throttled
                | ErrorKind::Server
                | ErrorKind::BadAnswer,
            ..
        }
    )
}

/// The CRC32C of an object's bytes.
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
