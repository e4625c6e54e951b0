//! One loop over a loader, as Python's iterator.

use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

use super::PyLoader;
use crate::batch::PyBatch;

/// One loop over a loader.
#[pyclass(frozen, module = "forebay._forebay", name = "Epoch")]
pub(crate) struct Epoch {
    loader: Py<PyLoader>,
    generation: u64,
    over: AtomicBool,
}

impl Epoch {
    /// Creates the iterator of the loop with the number `generation`.
    pub(super) fn new(loader: Py<PyLoader>, generation: u64) -> Self {
        Epoch {
            loader,
            generation,
            over: AtomicBool::new(false),
        }
    }
}

#[pymethods]
impl Epoch {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<PyBatch>> {
        if self.over.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let (batch, is_last) = match self.loader.get().next(py, self.generation)? {
            Some((batch, is_last)) => (Some(batch), is_last),
            None => (None, true),
        };
        if is_last {
            self.over.store(true, Ordering::Relaxed);
        }
        Ok(batch)
    }
}
