//! Classes for saving checkpoints: the staging area, drafts and handles.

// SAFETY of this file: it leaves values undropped in forked children, and it reads memory of Python objects by address
// while the interpreter runs other threads. The caller, `forebay/checkpoint.py`, keeps the object alive during the call.
#![expect(unsafe_code)]

use std::io::Write;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use forebay_staging::checkpoint::{Draft, DraftFile, Error, Request, Uploader, UploaderOptions};
use forebay_store::Cancel;
use pyo3::prelude::*;

use super::{StorageOptions, location, same_process, store_options};
use crate::failure::{Failure, Kind};
use crate::patience::{Deadline, SLICE, patiently};

/// The request for a checkpoint.
#[pyclass(frozen, module = "forebay._forebay", name = "_CheckpointRequest")]
pub(crate) struct PyRequest(Request);

#[pymethods]
impl PyRequest {
    #[new]
    #[pyo3(signature = (location, storage_options, *, metadata, overwrite, keep, rank, world_size, attempt))]
    #[expect(
        clippy::too_many_arguments,
        reason = "they are the arguments of a Python function"
    )]
    fn new(
        location: &str,
        storage_options: StorageOptions,
        metadata: &str,
        overwrite: bool,
        keep: Option<u32>,
        rank: u32,
        world_size: u32,
        attempt: Option<String>,
    ) -> PyResult<PyRequest> {
        let location = super::location(location)?;
        // Nothing cancels this flag: draining waits for the store until its buffer is closed.
        let options = store_options(storage_options, &Cancel::new())?;
        let mut request = Request::new(location, options);
        request.metadata = forebay_shard::json::from_str(metadata)
            .map_err(|error| Failure::new(Kind::Option, format!("metadata: {error}")))?;
        (request.overwrite, request.keep) = (overwrite, keep);
        (request.rank, request.world_size, request.attempt) = (rank, world_size, attempt);
        Ok(PyRequest(request))
    }
}

/// A staging area as this process uses it.
#[pyclass(frozen, module = "forebay._forebay", name = "_CheckpointBuffer")]
pub(crate) struct PyBuffer {
    buffer: ManuallyDrop<Uploader>,
    process: u32,
}

impl Drop for PyBuffer {
    fn drop(&mut self) {
        // In a forked child, the drop would wait for threads that do not exist there, and for locks that may never be
        // released.
        if same_process(self.process).is_ok() {
            // SAFETY: dropped here only, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.buffer) }
        }
    }
}

#[pymethods]
impl PyBuffer {
    #[new]
    #[pyo3(signature = (directory, max_bytes=None, bandwidth=None, keep_local=1))]
    fn new(
        py: Python<'_>,
        directory: PathBuf,
        max_bytes: Option<u64>,
        bandwidth: Option<u64>,
        keep_local: u32,
    ) -> PyResult<PyBuffer> {
        let mut options = UploaderOptions::new(directory);
        options.max_bytes = max_bytes;
        options.bandwidth = bandwidth;
        options.keep_local = keep_local;
        let buffer = py
            .detach(|| Uploader::open(options))
            .map_err(Failure::from)?;
        Ok(PyBuffer {
            buffer: ManuallyDrop::new(buffer),
            process: std::process::id(),
        })
    }

    #[getter]
    fn directory(&self) -> PathBuf {
        self.buffer.dir().to_path_buf()
    }

    /// Begins a checkpoint of about this many bytes; waits for room.
    fn begin(
        &self,
        py: Python<'_>,
        request: &PyRequest,
        bytes: u64,
        timeout: Option<f64>,
    ) -> PyResult<PyDraft> {
        same_process(self.process)?;
        request.0.check().map_err(Failure::from)?;
        let deadline = Deadline::after(duration(timeout)?);
        loop {
            let begun = py
                .detach(|| self.buffer.begin(bytes, SLICE))
                .map_err(Failure::from)?;
            if let Some(draft) = begun {
                return Ok(PyDraft {
                    draft: Mutex::new(Some(Arc::new(draft))),
                    process: self.process,
                });
            }
            deadline.check(py, || {
                let dir = self.buffer.dir().display();
                let errors = self.buffer.pending().iter().find_map(|saved| saved.error());
                match errors {
                    Some(error) => {
                        format!("room for {bytes} bytes in {dir}, which cannot be drained: {error}")
                    }
                    None => format!("room for {bytes} bytes in {dir}"),
                }
            })?;
        }
    }

    /// Commits a draft. What it returns is safe.
    fn save(
        &self,
        py: Python<'_>,
        draft: &PyDraft,
        request: &PyRequest,
        content: String,
    ) -> PyResult<Saved> {
        same_process(self.process)?;
        let mut request = request.0.clone();
        request.content = content;
        let taken = draft.slot().take();
        let taken = taken.and_then(Arc::into_inner).ok_or_else(|| {
            Failure::new(
                Kind::State,
                "this draft is over, or another thread writes to it",
            )
        })?;
        let buffer = Uploader::clone(&self.buffer);
        // Ctrl-C does not interrupt the save, because the caller must learn whether the checkpoint is durable.
        let saved = py
            .detach(|| buffer.save(taken, &request))
            .map_err(Failure::from)?;
        Ok(Saved {
            saved,
            process: self.process,
        })
    }

    /// Takes up what processes that are gone have left.
    fn recover(
        &self,
        py: Python<'_>,
        prefix: Option<&str>,
        storage_options: StorageOptions,
    ) -> PyResult<Vec<Saved>> {
        same_process(self.process)?;
        let own = prefix.map(location).transpose()?;
        let is_given = !storage_options.is_empty();
        let options = store_options(storage_options, &Cancel::new())?;
        // Options with credentials for one bucket are used for that bucket only.
        let lend = |other: &forebay_store::Location| {
            let fits = own.as_ref().is_none_or(|own| {
                own.scheme() == other.scheme() && own.authority() == other.authority()
            });
            (is_given && fits).then(|| options.clone())
        };
        let found = py
            .detach(|| self.buffer.recover(&lend))
            .map_err(Failure::from)?;
        let process = self.process;
        Ok(found
            .into_iter()
            .map(|saved| Saved { saved, process })
            .collect())
    }

    /// The unfinished saves of this process, the oldest first.
    fn pending(&self) -> PyResult<Vec<Saved>> {
        same_process(self.process)?;
        let pending = self.buffer.pending().into_iter();
        Ok(pending
            .map(|saved| Saved {
                saved,
                process: self.process,
            })
            .collect())
    }

    /// Stops draining and cleans up what was under way.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        same_process(self.process)?;
        let buffer = Uploader::clone(&self.buffer);
        let waits_for = || "the drain to stop".to_owned();
        patiently(
            py,
            Deadline::after(Some(Duration::from_secs(10))),
            waits_for,
            &Cancel::new(),
            move || {
                buffer.close();
                Ok(())
            },
        )
    }
}

/// A checkpoint that is being written.
#[pyclass(frozen, module = "forebay._forebay", name = "_CheckpointDraft")]
pub(crate) struct PyDraft {
    draft: Mutex<Option<Arc<Draft>>>,
    process: u32,
}

impl PyDraft {
    fn slot(&self) -> MutexGuard<'_, Option<Arc<Draft>>> {
        self.draft.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn draft(&self) -> Result<Arc<Draft>, Failure> {
        same_process(self.process)?;
        let draft = self.slot().clone();
        draft.ok_or_else(|| Failure::new(Kind::State, "this checkpoint is committed or given up"))
    }

    /// Runs work on the draft, which Ctrl-C cancels.
    fn work(
        &self,
        py: Python<'_>,
        what: String,
        work: impl FnOnce(&Draft, &Cancel) -> Result<(), Error> + Send + 'static,
    ) -> PyResult<()> {
        let draft = self.draft()?;
        let cancel = Cancel::new();
        let flag = cancel.clone();
        let end = Deadline::after(None);
        let work = move || work(&draft, &flag).map_err(Failure::from);
        patiently(py, end, || what.clone(), &cancel, work)
    }
}

#[pymethods]
impl PyDraft {
    fn create(&self, py: Python<'_>, name: &str) -> PyResult<PyDraftFile> {
        let draft = self.draft()?;
        let file = py.detach(|| draft.create(name)).map_err(Failure::from)?;
        Ok(PyDraftFile {
            file: Mutex::new(Some(file)),
            process: self.process,
        })
    }

    fn finish(&self, py: Python<'_>, file: &PyDraftFile) -> PyResult<()> {
        let draft = self.draft()?;
        let Some(file) = file.slot().take() else {
            return Ok(());
        };
        Ok(py.detach(|| draft.finish(file)).map_err(Failure::from)?)
    }

    fn path(&self, py: Python<'_>, name: &str) -> PyResult<PathBuf> {
        let draft = self.draft()?;
        Ok(py.detach(|| draft.path(name)).map_err(Failure::from)?)
    }

    fn adopt(&self, py: Python<'_>, name: String) -> PyResult<()> {
        let what = format!("the checksum of {name}");
        self.work(py, what, move |draft, cancel| draft.adopt(&name, cancel))
    }

    fn copy_file(&self, py: Python<'_>, name: String, source: PathBuf) -> PyResult<()> {
        let what = format!("a copy of {}", source.display());
        self.work(py, what, move |draft, cancel| {
            draft.copy_file(&name, &source, cancel)
        })
    }

    fn copy_dir(&self, py: Python<'_>, source: PathBuf) -> PyResult<()> {
        let what = format!("a copy of {}", source.display());
        self.work(py, what, move |draft, cancel| {
            draft.copy_dir(&source, cancel)
        })
    }

    /// Gives the draft up; what was written is removed.
    fn abort(&self, py: Python<'_>) {
        if self.process == std::process::id() {
            let draft = self.slot().take();
            py.detach(|| drop(draft));
        }
    }
}

impl Drop for PyDraft {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // In a forked child, the files belong to the parent, and the threads do not exist.
            std::mem::forget(self.slot().take());
        }
    }
}

/// A file of a checkpoint that is being written.
#[pyclass(frozen, module = "forebay._forebay", name = "_CheckpointFile")]
pub(crate) struct PyDraftFile {
    file: Mutex<Option<DraftFile>>,
    process: u32,
}

impl PyDraftFile {
    fn slot(&self) -> MutexGuard<'_, Option<DraftFile>> {
        self.file.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[pymethods]
impl PyDraftFile {
    /// Writes `length` bytes from `address`, which the caller holds.
    fn write(&self, py: Python<'_>, address: usize, length: usize) -> PyResult<()> {
        same_process(self.process)?;
        if length == 0 {
            return Ok(());
        }
        let written = py.detach(|| {
            let mut slot = self.slot();
            let Some(file) = slot.as_mut() else {
                return Err(Failure::new(Kind::State, "this file is closed"));
            };
            // SAFETY: the caller keeps the object with these bytes alive during this call. If Python code changes the bytes
            // meanwhile, old and new bytes are mixed in what is written and checksummed, as with a write to a file. Only
            // plain bytes are read.
            let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, length) };
            file.write_all(bytes)
                .map_err(|error| Failure::from(file.explain(error)))
        });
        Ok(written?)
    }

    #[getter]
    fn written(&self) -> u64 {
        self.slot().as_ref().map_or(0, DraftFile::written)
    }
}

/// A checkpoint that `save` stored on the fast disk, and that is being uploaded.
#[pyclass(frozen, module = "forebay.checkpoint", name = "Saved")]
pub(crate) struct Saved {
    saved: forebay_staging::checkpoint::Saved,
    process: u32,
}

/// A wait without a timeout fails once storage has failed for this long. Shorter outages do not end it.
const PATIENCE: Duration = Duration::from_secs(300);

#[pymethods]
impl Saved {
    /// The location of the checkpoint.
    #[getter]
    fn location(&self) -> &str {
        self.saved.location()
    }

    /// The size of all its files, in bytes.
    #[getter]
    fn bytes(&self) -> u64 {
        self.saved.bytes()
    }

    /// The number of bytes that are uploaded.
    #[getter]
    fn drained(&self) -> u64 {
        self.saved.moved()
    }

    /// Whether it is complete at its destination. If not, it is safe on the fast disk of this machine.
    #[getter]
    fn done(&self) -> bool {
        self.saved.is_done()
    }

    /// Why it is not there: the exception of the last try, or None. Tries go on unless `wait` raises it.
    #[getter]
    fn error<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyAny>> {
        let error = self.saved.error()?;
        let raised: PyErr = Failure::from(&*error).into();
        Some(raised.into_value(py).into_bound(py).into_any())
    }

    /// "on its way", "failing" (tries go on), "failed" (they do not), or "done".
    #[getter]
    fn state(&self) -> &'static str {
        match (self.saved.outcome(), self.saved.error()) {
            (Some(Ok(())), _) => "done",
            (Some(Err(_)), _) => "failed",
            (None, Some(_)) => "failing",
            (None, None) => "on its way",
        }
    }

    /// The ranks whose parts of the checkpoint are still missing, while this is known.
    #[getter]
    fn missing_ranks(&self) -> Vec<u32> {
        self.saved.missing_ranks()
    }

    /// Wait until the checkpoint is complete at its destination.
    ///
    /// Other threads run meanwhile, and Ctrl-C ends the wait, not the draining.
    ///
    /// Parameters
    /// ----------
    /// timeout : float, optional
    ///     Seconds. By default until it is there, or has failed for five minutes.
    ///
    /// Raises
    /// ------
    /// TimeoutError
    ///     Time is up. The checkpoint is safe on the fast disk, and draining goes on.
    /// CheckpointError
    ///     It cannot be completed, or all tries of the last five minutes failed; these go on.
    /// ForkError
    ///     In a process forked from the one that saved.
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        same_process(self.process)?;
        let allowed = duration(timeout)?;
        let deadline = Deadline::after(allowed);
        loop {
            let outcome = py.detach(|| self.saved.wait_for(SLICE));
            match outcome {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) => return Err(Failure::from(&*error).into()),
                None => {}
            }
            // If the caller gives a timeout, transient failures are retried until then.
            let patience = if allowed.is_none() {
                PATIENCE
            } else {
                Duration::MAX
            };
            if let Some(error) = self.saved.given_up_after(patience) {
                return Err(Failure::from(&*error).into());
            }
            deadline.check(py, || {
                let place = self.saved.location();
                let ranks = self.saved.missing_ranks();
                match self.saved.error() {
                    Some(error) => format!("{place}; the last try failed: {error}"),
                    None if !ranks.is_empty() => {
                        let beside = match self.saved.is_beside_complete() {
                            true => "; another save of it is complete",
                            false => "",
                        };
                        format!("{place}: ranks {ranks:?} have not saved their parts{beside}")
                    }
                    None => format!(
                        "{place}: {} of {} bytes are there",
                        self.saved.moved(),
                        self.saved.bytes()
                    ),
                }
            })?;
        }
    }

    fn __repr__(&self) -> String {
        let state = self.state();
        format!(
            "<forebay.checkpoint.Saved {} ({state})>",
            self.saved.location()
        )
    }
}

fn duration(seconds: Option<f64>) -> Result<Option<Duration>, Failure> {
    seconds
        .map(|seconds| {
            Duration::try_from_secs_f64(seconds).map_err(|_| {
                Failure::new(
                    Kind::Option,
                    format!("timeout={seconds}: it is a number of seconds"),
                )
            })
        })
        .transpose()
}
