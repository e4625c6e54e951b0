//! Reads checkpoints and lists them.

use std::path::PathBuf;
use std::sync::Arc;

use forebay_staging::checkpoint::{self, Checkpoint, CheckpointEntry, FileEntry};
use forebay_store::{BandwidthShare, Cancel, Location, StoreOptions};
use pyo3::prelude::*;

use super::{StorageOptions, location, store_options};
use crate::array::Array;
use crate::failure::{Failure, Kind};
use crate::patience::{Deadline, patiently};

/// A complete checkpoint. Retention on this host leaves it alone while this is there. One that Ctrl-C ended the reading of
/// reads no more.
#[pyclass(frozen, module = "forebay._forebay", name = "_Checkpoint")]
pub(crate) struct PyCheckpoint {
    checkpoint: Arc<Checkpoint>,
    /// Ends all waits for the store.
    cancel: Cancel,
}

/// Runs `work` on a thread. On Ctrl-C, raises `cancel` and returns without waiting for the thread.
fn stoppable<T: Send + 'static>(
    py: Python<'_>,
    waits_for: String,
    cancel: &Cancel,
    work: impl FnOnce(&Cancel) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let flag = cancel.clone();
    let end = Deadline::after(None);
    patiently(py, end, || waits_for.clone(), cancel, move || work(&flag))
}

impl PyCheckpoint {
    fn file(&self, rank: u32, name: &str) -> Result<FileEntry, Failure> {
        let part = self.checkpoint.manifest().parts.get(rank as usize);
        let file = part.and_then(|part| part.file(name)).cloned();
        file.ok_or_else(|| {
            let message = format!(
                "{} has no file {name:?} of rank {rank}",
                self.checkpoint.location()
            );
            Failure::new(Kind::MissingCheckpoint, message)
        })
    }

    /// Returns `length` bytes that `read` writes.
    fn fill(
        &self,
        py: Python<'_>,
        rank: u32,
        name: &str,
        length: u64,
        read: impl FnOnce(&Checkpoint, &FileEntry, &mut [u8], &Cancel) -> checkpoint::Result<()>
        + Send
        + 'static,
    ) -> PyResult<Array> {
        let file = self.file(rank, name)?;
        let checkpoint = Arc::clone(&self.checkpoint);
        let waits_for = format!("{name} of {}", checkpoint.location());
        let bytes = stoppable(py, waits_for, &self.cancel, move |cancel| {
            let mut bytes = Vec::new();
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            bytes.try_reserve_exact(length).map_err(|_| {
                Failure::new(
                    Kind::Checkpoint,
                    format!("there is no memory for the {length} bytes of {}", file.name),
                )
            })?;
            bytes.resize(length, 0);
            read(&checkpoint, &file, &mut bytes, cancel)?;
            Ok(bytes)
        })?;
        Ok(Array::bytes(bytes))
    }
}

#[pymethods]
impl PyCheckpoint {
    #[new]
    fn new(
        py: Python<'_>,
        location: &str,
        storage_options: StorageOptions,
        area: Option<PathBuf>,
    ) -> PyResult<PyCheckpoint> {
        let place = super::location(location)?;
        let cancel = Cancel::new();
        let options = store_options(storage_options, &cancel)?;
        let waits_for = format!("the manifest of {place}");
        let opened = stoppable(py, waits_for, &cancel, move |_| {
            Checkpoint::open(&place, &options, area.as_deref()).map_err(Failure::from)
        })?;
        let checkpoint = Arc::new(opened);
        Ok(PyCheckpoint { checkpoint, cancel })
    }

    #[getter]
    fn location(&self) -> String {
        self.checkpoint.location()
    }

    /// Whether the fast disk has it.
    #[getter]
    fn is_local(&self) -> bool {
        self.checkpoint.is_local()
    }

    /// The parts as JSON: content, metadata and files of each rank.
    fn parts(&self) -> PyResult<String> {
        let parts = serde_json::to_string(&self.checkpoint.manifest().parts);
        Ok(parts.map_err(|error| Failure::new(Kind::Other, error))?)
    }

    /// All bytes of a file, compared with its checksum.
    fn read(&self, py: Python<'_>, rank: u32, name: &str) -> PyResult<Array> {
        let length = self.file(rank, name)?.bytes;
        self.fill(
            py,
            rank,
            name,
            length,
            move |checkpoint, file, bytes, cancel| checkpoint.read(rank, file, bytes, cancel),
        )
    }

    /// Some bytes of a file, of which only the size is compared.
    fn read_range(
        &self,
        py: Python<'_>,
        rank: u32,
        name: &str,
        offset: u64,
        length: u64,
    ) -> PyResult<Array> {
        let length = length.min(self.file(rank, name)?.bytes);
        self.fill(
            py,
            rank,
            name,
            length,
            move |checkpoint, file, bytes, cancel| {
                checkpoint.read_range(rank, file, offset, bytes, cancel)
            },
        )
    }

    /// Writes a file to a path.
    fn export(&self, py: Python<'_>, rank: u32, name: &str, path: PathBuf) -> PyResult<()> {
        let file = self.file(rank, name)?;
        let checkpoint = Arc::clone(&self.checkpoint);
        let waits_for = format!("{name} of {}", checkpoint.location());
        stoppable(py, waits_for, &self.cancel, move |cancel| {
            checkpoint
                .export(rank, &file, &path, cancel, &|_| {})
                .map_err(Failure::from)
        })
    }
}

/// Runs `work`, a request for the checkpoints below `prefix`, on another thread.
fn of_run<T: Send + 'static>(
    py: Python<'_>,
    prefix: &str,
    storage_options: StorageOptions,
    work: impl FnOnce(&Location, &StoreOptions) -> Result<T, checkpoint::Error> + Send + 'static,
) -> PyResult<T> {
    let place = location(prefix)?;
    let cancel = Cancel::new();
    let options = store_options(storage_options, &cancel)?;
    let waits_for = format!("the checkpoints of {place}");
    stoppable(py, waits_for, &cancel, move |_| {
        work(&place, &options).map_err(Failure::from)
    })
}

/// A listed checkpoint: location, step, bytes, world size, metadata as JSON, stored, staged, pinned, and the error if its
/// manifest is invalid.
type Row = (
    String,
    Option<u64>,
    u64,
    u32,
    String,
    bool,
    bool,
    bool,
    Option<String>,
);

fn row(found: CheckpointEntry) -> Row {
    let (bytes, world_size, metadata, error) = match &found.manifest {
        Ok(manifest) => {
            let metadata = manifest.parts.first().map(|part| &part.metadata);
            let metadata = metadata.and_then(|metadata| serde_json::to_string(metadata).ok());
            (
                manifest.bytes(),
                manifest.world_size(),
                metadata.unwrap_or_default(),
                None,
            )
        }
        Err(why) => (0, 0, "{}".to_owned(), Some(why.clone())),
    };
    let CheckpointEntry {
        location,
        step,
        is_stored,
        is_staged,
        is_pinned,
        ..
    } = found;
    (
        location, step, bytes, world_size, metadata, is_stored, is_staged, is_pinned, error,
    )
}

#[pyfunction]
pub(crate) fn _checkpoint_list(
    py: Python<'_>,
    prefix: &str,
    storage_options: StorageOptions,
    area: Option<PathBuf>,
) -> PyResult<Vec<Row>> {
    of_run(py, prefix, storage_options, move |place, options| {
        let found = checkpoint::list(place, options, area.as_deref())?;
        Ok(found.into_iter().map(row).collect())
    })
}

#[pyfunction]
pub(crate) fn _checkpoint_latest(
    py: Python<'_>,
    prefix: &str,
    storage_options: StorageOptions,
    area: Option<PathBuf>,
) -> PyResult<Option<String>> {
    of_run(py, prefix, storage_options, move |place, options| {
        checkpoint::latest(place, options, area.as_deref())
    })
}

#[pyfunction]
pub(crate) fn _checkpoint_pin(
    py: Python<'_>,
    location: &str,
    storage_options: StorageOptions,
    pinned: bool,
) -> PyResult<()> {
    of_run(py, location, storage_options, move |place, options| {
        checkpoint::pin(place, options, pinned)
    })
}

/// Default directory of the staging area.
#[pyfunction]
pub(crate) fn _checkpoint_area() -> PyResult<PathBuf> {
    Ok(checkpoint::default_area().map_err(Failure::from)?)
}

/// Bandwidth share of uploads while training reads, in percent.
#[pyfunction]
pub(crate) fn _checkpoint_share(percent: u8) {
    BandwidthShare::process().set_percent(percent);
}
