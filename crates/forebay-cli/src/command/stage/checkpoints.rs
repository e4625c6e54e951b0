//! `forebay stage`: the checkpoints of a staging area.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use forebay_staging::checkpoint::{
    self as checkpoint, CheckpointStatus, Saved, State, Uploader, UploaderOptions,
};
use forebay_store::StoreOptions;
use serde_json::json;

use crate::console::Console;
use crate::failure::Failure;
use crate::quantity;
use crate::table::{Align, Table};

/// Interval of checks for progress and for Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// The checkpoints in a staging area, with their states.
pub(super) struct Checkpoints(Vec<CheckpointStatus>);

impl Checkpoints {
    pub(super) fn look(area: &Path) -> Result<Self, Failure> {
        Ok(Self(checkpoint::status(area)?))
    }

    /// Returns the number and the bytes of the checkpoints that are not uploaded.
    pub(super) fn left(&self) -> (u64, u64) {
        let left = self
            .0
            .iter()
            .filter(|status| matches!(status.state, State::Staged | State::Damaged));
        left.fold((0, 0), |(count, bytes), status| {
            (count + 1, bytes + status.bytes)
        })
    }

    pub(super) fn print(&self, console: &Console) {
        let columns = [
            ("checkpoint", Align::Left),
            ("state", Align::Left),
            ("size", Align::Right),
            ("saved", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for status in &self.0 {
            let state = word(status);
            let place = match (status.location.as_str(), status.world_size) {
                ("", _) => status.path.display().to_string(),
                (place, 1) => place.to_owned(),
                (place, world) => format!("{place} (rank {} of {world})", status.rank),
            };
            let age = status.age.map_or_else(String::new, |age| {
                format!("{} ago", quantity::duration(age))
            });
            table.row([place, state.to_owned(), quantity::bytes(status.bytes), age]);
            console.event(
                "checkpoint",
                &json!({
                    "location": &status.location,
                    "state": state,
                    "rank": status.rank,
                    "world_size": status.world_size,
                    "bytes": status.bytes,
                    "age_seconds": status.age.map(|age| age.as_secs_f64()),
                    "owned": status.is_owned,
                    "error": status.error.as_deref(),
                    "path": status.path.display().to_string(),
                }),
            );
        }
        if !self.0.is_empty() {
            console.table(&table);
        }
        for status in &self.0 {
            if let Some(error) = &status.error {
                console.warning(format!("{}: {error}", status.location));
            }
        }
    }
}

fn word(status: &CheckpointStatus) -> &'static str {
    match (status.state, status.is_owned) {
        (State::Writing, true) => "being saved",
        (State::Writing, false) => "never finished",
        (State::Staged, true) => "draining",
        (State::Staged, false) => "left behind",
        (State::Stored, _) => "stored, a copy",
        _ => "damaged",
    }
}

/// The result of draining an area.
#[derive(Default)]
pub(super) struct Drained {
    pub(super) count: u64,
    pub(super) bytes: u64,
    /// The first failure; `None` if all checkpoints were uploaded.
    pub(super) failure: Option<Failure>,
    /// Number of checkpoints by the store's reason for refusing them. Each reason is printed once, since a store usually refuses
    /// all checkpoints for the same reason.
    refused: BTreeMap<String, u64>,
}

/// Uploads the checkpoints of dead processes in an area, and waits for the uploads of running processes.
pub(super) fn bring(
    area: &Path,
    options: &StoreOptions,
    bandwidth: Option<u64>,
    console: &Console,
) -> Result<Drained, Failure> {
    let mut drained = Drained::default();
    if checkpoint::status(area)?.is_empty() {
        return Ok(drained);
    }
    let mut buffer_options = UploaderOptions::new(area);
    buffer_options.bandwidth = bandwidth;
    let buffer = Uploader::open(buffer_options)?;
    let interrupt = console.interrupt().answer();
    let own = options != &StoreOptions::default();
    let mut found = Vec::new();
    let mut rest = Vec::new();
    let bar = console.bar("draining", None);
    loop {
        // Repeated when all known uploads have ended, since a process may have died meanwhile and left checkpoints.
        if rest.is_empty() {
            let more = buffer.recover(&|_| own.then(|| options.clone()))?;
            for saved in &more {
                console.note(format!("taking up {}", saved.location()));
            }
            rest.extend(more.iter().cloned());
            found.extend(more);
        }
        rest.retain(|saved: &Saved| settle(saved, &mut drained, console));
        let moved = found.iter().map(Saved::moved).sum();
        bar.update(moved, found.len() as u64, "checkpoints", moved);
        if interrupt.is_asked() {
            buffer.close();
            return Err(
                Failure::interrupted("what is not drained stays in the staging area")
                    .hint("the same command continues"),
            );
        }
        // Reading the status of a full area is slow, so it waits until this command's own uploads have ended.
        // Parts that wait for those of other ranks are this command's own too.
        let others = rest.is_empty()
            && checkpoint::status(area)?.iter().any(|status| {
                let is_own = found
                    .iter()
                    .any(|saved| saved.location() == status.location);
                let is_pending = matches!(status.state, State::Staged | State::Writing);
                status.is_owned && is_pending && !is_own
            });
        if rest.is_empty() && (!others || drained.failure.is_some()) {
            break;
        }
        std::thread::sleep(LOOK);
    }
    buffer.close();
    for (why, count) in &drained.refused {
        if let more @ 1.. = count - 1 {
            let more = quantity::counted(more, "more checkpoint", "more checkpoints");
            console.warning(format!("{more}: {why}"));
        }
    }
    Ok(drained)
}

/// Returns whether the upload of a checkpoint is still in progress. If it has ended or is given up, reports the result.
fn settle(saved: &Saved, drained: &mut Drained, console: &Console) -> bool {
    let place = saved.location();
    let failure = match saved.outcome() {
        Some(Ok(())) => {
            console.note(format!("{place} is complete"));
            drained.count += 1;
            drained.bytes += saved.bytes();
            return false;
        }
        Some(Err(error)) => error,
        None => match saved.given_up_after(super::PATIENCE) {
            Some(error) => error,
            None if saved.error().is_none() && !saved.missing_ranks().is_empty() => {
                let ranks = saved.missing_ranks();
                console.warning(match saved.is_beside_complete() {
                    true => format!(
                        "{place} is complete; this machine also has a part of another save of it, without those of ranks {ranks:?}"
                    ),
                    false => format!(
                        "{place}: this machine's part is there, those of ranks {ranks:?} are not"
                    ),
                });
                return false;
            }
            _ => return true,
        },
    };
    let is_new = match refusal(&failure) {
        Some(why) => {
            let count = drained.refused.entry(why).or_default();
            *count += 1;
            *count == 1
        }
        None => true,
    };
    if is_new {
        console.warning(format!("{place}: {failure}"));
    }
    drained.failure.get_or_insert_with(|| {
        Failure::from_error(&*failure).hint("it stays in the staging area; `forebay stage` shows it, and the same command tries again")
    });
    false
}

/// Returns the store's reason for refusing a request, without the name of the object; `None` for other errors.
fn refusal(error: &checkpoint::Error) -> Option<String> {
    match error {
        checkpoint::Error::Store(forebay_store::Error::Request { why, .. })
            if error.is_refused() =>
        {
            Some(why.clone())
        }
        _ => None,
    }
}
