//! Support for checkpoints in `inspect`, `verify`, `export` and `rm`, which are otherwise for datasets.

use std::path::{Path, PathBuf};

use clap::Args;
use forebay_staging::checkpoint::{self, Checkpoint, default_area};
use forebay_store::{Cancel, Location, StoreOptions};
use serde_json::json;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::paint::printable;
use crate::quantity;
use crate::table::{Align, Table};

/// The staging area that checkpoints may be in.
#[derive(Debug, Args)]
pub(super) struct AreaArgs {
    /// For a checkpoint: the staging area from which it is uploaded [default: ~/.cache/forebay/stage]
    #[arg(long, value_name = "DIR")]
    staging: Option<PathBuf>,
}

impl AreaArgs {
    /// Returns the staging area of `--staging`, or the default one if it can be determined.
    fn area(&self) -> Option<PathBuf> {
        self.staging.clone().or_else(|| default_area().ok())
    }

    /// Opens the checkpoint at a location. Returns `None` if the location holds no checkpoint.
    pub(super) fn find(
        &self,
        path: &Path,
        store: &StoreOptions,
    ) -> Result<Option<Checkpoint>, Failure> {
        use checkpoint::Error;
        use forebay_store::Error::NotFound;
        let Some(location) = Location::parse(path).ok().filter(|_| !path.is_file()) else {
            return Ok(None);
        };
        match Checkpoint::open(&location, store, self.area().as_deref()) {
            Ok(found) => Ok(Some(found)),
            Err(Error::Missing { .. } | Error::Option { .. } | Error::Store(NotFound { .. })) => {
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the checkpoint at a location where no dataset was found. Returns `failure` if there is no checkpoint either, or if
    /// the dataset exists but could not be opened.
    pub(super) fn instead(
        &self,
        path: &Path,
        store: &StoreOptions,
        failure: Failure,
    ) -> Result<Checkpoint, Failure> {
        match failure.is_missing() {
            true => self.find(path, store)?.ok_or(failure),
            false => Err(failure),
        }
    }

    /// Removes a checkpoint. Returns an error if the checkpoint is pinned, being read, or not uploaded yet.
    pub(super) fn remove(&self, found: Checkpoint, store: &StoreOptions) -> Result<(), Failure> {
        let location = Location::parse(found.location())?;
        // An open checkpoint counts as being read, which would make `remove` fail.
        drop(found);
        Ok(checkpoint::remove(
            &location,
            store,
            self.area().as_deref(),
        )?)
    }

    /// Prints the files of a checkpoint, or the checkpoints of a run. Returns false if the path is neither.
    pub(super) fn inspect(
        &self,
        path: &Path,
        store: &StoreOptions,
        console: &Console,
    ) -> Result<bool, Failure> {
        if let Some(found) = self.find(path, store)? {
            print_files(&found, console);
            return Ok(true);
        }
        let Ok(run) = Location::parse(path) else {
            return Ok(false);
        };
        match checkpoint::list(&run, store, self.area().as_deref()) {
            Ok(found) if !found.is_empty() => {
                print_run(&found, console);
                Ok(true)
            }
            // The path is no run, or cannot be read. The caller tries it as a dataset, and reports the error.
            _ => Ok(false),
        }
    }
}

/// Returns whether a local directory has the manifest of a checkpoint.
pub(super) fn is_checkpoint(path: &Path) -> bool {
    path.join(checkpoint::MANIFEST_NAME).is_file()
}

/// Returns whether a local directory is a checkpoint or directly contains a checkpoint.
pub(super) fn has_checkpoints(path: &Path) -> bool {
    let below = || {
        Some(
            path.read_dir()
                .ok()?
                .flatten()
                .any(|entry| is_checkpoint(&entry.path())),
        )
    };
    is_checkpoint(path) || below().unwrap_or(false)
}

fn print_files(found: &Checkpoint, console: &Console) {
    let manifest = found.manifest();
    let columns = [
        ("rank", Align::Right),
        ("file", Align::Left),
        ("size", Align::Right),
    ];
    let mut table = Table::new(&columns);
    for (rank, part) in (0_u32..).zip(&manifest.parts) {
        for file in &part.files {
            let (name, bytes) = (file.name.as_str(), file.bytes);
            table.row([rank.to_string(), printable(name), quantity::bytes(bytes)]);
            console.event(
                "file",
                &json!({
                    "rank": rank,
                    "file": name,
                    "bytes": bytes,
                }),
            );
        }
    }
    let world_size = manifest.world_size();
    console.line(format!(
        "{}: a checkpoint of {}, {}{}",
        printable(&found.location()),
        quantity::counted(world_size.into(), "rank", "ranks"),
        quantity::bytes(manifest.bytes()),
        if found.is_local() {
            ", on this machine"
        } else {
            ""
        },
    ));
    console.table(&table);
    let summary = json!({
        "command": "inspect",
        "exit_code": 0,
        "location": found.location(),
        "world_size": world_size,
        "bytes": manifest.bytes(),
        "local": found.is_local(),
    });
    console.event("summary", &summary);
}

fn print_run(found: &[checkpoint::CheckpointEntry], console: &Console) {
    let mut table = Table::new(&[
        ("checkpoint", Align::Left),
        ("size", Align::Right),
        ("", Align::Left),
    ]);
    for one in found {
        let (bytes, world_size, error) = match &one.manifest {
            Ok(manifest) => (manifest.bytes(), manifest.world_size(), None),
            Err(why) => (0, 0, Some(why.as_str())),
        };
        let mut notes = Vec::new();
        if !one.is_stored {
            notes.push("on its way".to_owned());
        }
        if one.is_pinned {
            notes.push("pinned".to_owned());
        }
        if world_size > 1 {
            notes.push(format!("{world_size} ranks"));
        }
        notes.extend(error.map(|why| format!("damaged: {why}")));
        table.row([one.name.clone(), quantity::bytes(bytes), notes.join(", ")]);
        console.event(
            "checkpoint",
            &json!({
                "location": &one.location,
                "step": one.step,
                "bytes": bytes,
                "world_size": world_size,
                "stored": one.is_stored,
                "staged": one.is_staged,
                "pinned": one.is_pinned,
                "error": error,
            }),
        );
    }
    console.table(&table);
    let summary = json!({
        "command": "inspect",
        "exit_code": 0,
        "checkpoints": found.len(),
    });
    console.event("summary", &summary);
}

/// Compares every file of a checkpoint with its checksum.
pub(super) fn verify(found: &Checkpoint, console: &Console) -> Result<(), Failure> {
    let bytes = found.manifest().bytes();
    let files: u64 = found
        .manifest()
        .parts
        .iter()
        .map(|part| part.files.len() as u64)
        .sum();
    let bar = console.bar("verifying", Some(bytes));
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    let damage = found.verify(&cancel, &|more| {
        bar.add(more, more, "bytes");
    });
    drop(bar);
    let damage = match damage {
        Err(checkpoint::Error::Cancelled { .. }) => {
            return Err(Failure::interrupted("nothing damaged was found until then"));
        }
        other => other?,
    };
    for error in &damage {
        console.warning(error.to_string());
    }
    console.event(
        "summary",
        &json!({
            "command": "verify",
            "exit_code": i32::from(!damage.is_empty()),
            "location": found.location(),
            "files": files,
            "bytes": bytes,
            "damaged": damage.iter().map(ToString::to_string).collect::<Vec<_>>(),
        }),
    );
    if damage.is_empty() {
        console.line(format!(
            "{}: {} of {}, each as it was saved",
            found.location(),
            quantity::counted(files, "file", "files"),
            quantity::bytes(bytes)
        ));
        return Ok(());
    }
    Err(Failure::new(format!(
        "{} of {} in {} are damaged",
        quantity::count(damage.len() as u64),
        quantity::counted(files, "file", "files"),
        found.location()
    ))
    .hint("load another checkpoint: `forebay inspect` lists those of the run"))
}

/// Copies the files of a checkpoint into a directory. With several ranks and no `rank`, rank N goes into
/// the subdirectory `rank-N`.
pub(super) fn export(
    found: &Checkpoint,
    directory: &Path,
    rank: Option<u32>,
    console: &Console,
) -> Result<Outcome, Failure> {
    let manifest = found.manifest();
    let world_size = manifest.world_size();
    if let Some(rank) = rank.filter(|rank| *rank >= world_size) {
        let ranks = quantity::counted(world_size.into(), "rank", "ranks");
        return Err(Failure::usage(format!(
            "--rank {rank}: {} has {ranks}, numbered from 0",
            found.location()
        )));
    }
    let mut files = Vec::new();
    for (number, part) in (0_u32..).zip(&manifest.parts) {
        if rank.is_some_and(|rank| rank != number) {
            continue;
        }
        let below = if rank.is_none() && world_size > 1 {
            directory.join(format!("rank-{number}"))
        } else {
            directory.to_owned()
        };
        files.extend(
            part.files
                .iter()
                .map(|file| (number, file, below.join(&file.name))),
        );
    }
    if let Some((_, _, path)) = files.iter().find(|(_, _, path)| path.exists()) {
        return Err(Failure::new(format!("{} is there already", show(path)))
            .hint("name a directory that does not exist yet"));
    }
    let bytes: u64 = files.iter().map(|(_, file, _)| file.bytes).sum();
    let bar = console.bar("copying", Some(bytes));
    let cancel = Cancel::from_flag(console.interrupt().answer().flag());
    for (number, file, path) in &files {
        found.export(*number, file, path, &cancel, &|more| {
            bar.add(more, more, "bytes");
        })?;
    }
    drop(bar);
    console.line(format!(
        "Copied {} of {} into {}",
        quantity::counted(files.len() as u64, "file", "files"),
        quantity::bytes(bytes),
        show(directory)
    ));
    console.event(
        "summary",
        &json!({
            "command": "export",
            "exit_code": 0,
            "location": found.location(),
            "directory": directory.display().to_string(),
            "files": files.len(),
            "bytes": bytes,
        }),
    );
    Ok(Outcome::Done)
}
