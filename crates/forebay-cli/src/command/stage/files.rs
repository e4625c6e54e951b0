//! `forebay stage`: the packed files of a staging area.

use std::path::Path;

use forebay_staging::{AreaOptions, AreaStatus, StagingArea};
use forebay_store::{Cancel, Limiter, StoreOptions};
use serde_json::json;

use crate::console::Console;
use crate::failure::Failure;
use crate::quantity;
use crate::table::{Align, Table};

/// The packed files in a staging area.
pub(super) struct Files(AreaStatus);

impl Files {
    pub(super) fn look(area: &Path) -> Result<Self, Failure> {
        Ok(Self(StagingArea::look(area)?))
    }

    /// Returns the number and the bytes of the files that are not uploaded.
    pub(super) fn left(&self) -> (u64, u64) {
        let files = self.0.sessions.iter().flat_map(|session| &session.left);
        files.fold((0, 0), |(count, bytes), file| (count + 1, bytes + file.len))
    }

    pub(super) fn print(&self, console: &Console) {
        let columns = [
            ("packing", Align::Left),
            ("state", Align::Left),
            ("files left", Align::Right),
            ("size", Align::Right),
        ];
        let mut table = Table::new(&columns);
        for session in &self.0.sessions {
            let name = if session.title.is_empty() {
                &session.name
            } else {
                &session.title
            };
            let state = match &session.owner {
                Some(owner) => owner.clone(),
                None => "left behind".to_owned(),
            };
            let bytes = session.left.iter().map(|file| file.len).sum();
            table.row([
                name.clone(),
                state,
                quantity::count(session.left.len() as u64),
                quantity::bytes(bytes),
            ]);
            for file in &session.left {
                console.event(
                    "file",
                    &json!({
                        "session": &session.name,
                        "title": &session.title,
                        "object": &file.object,
                        "bytes": file.len,
                        "owner": session.owner.as_deref(),
                        "error": file.error.as_deref(),
                    }),
                );
            }
        }
        if !self.0.sessions.is_empty() {
            console.table(&table);
        }
        for file in self.0.sessions.iter().flat_map(|session| &session.left) {
            if let Some(error) = &file.error {
                console.warning(format!("{}: {error}", file.object));
            }
        }
    }
}

/// Uploads the files of dead processes in an area. Returns their number and bytes.
pub(super) fn recover(
    area: &Path,
    store: &StoreOptions,
    bandwidth: Option<u64>,
    console: &Console,
) -> Result<(u64, u64), Failure> {
    if Files::look(area)?.left() == (0, 0) {
        return Ok((0, 0));
    }
    let mut options = AreaOptions::new(area);
    options.store = store.clone();
    options.limiter = Some(Limiter::new(bandwidth));
    options.patience = super::PATIENCE;
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let moved = StagingArea::recover(&options, &cancel);
    if cancel.is_cancelled() {
        return Err(
            Failure::interrupted("what is not drained stays in the staging area")
                .hint("the same command continues"),
        );
    }
    let moved = moved?;
    Ok((moved.stored_files, moved.stored_bytes))
}
