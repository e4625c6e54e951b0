//! Arrays of a batch for numpy and torch, and the columns that are made of them.

use forebay_batch::{BatchColumn, ColumnKind};
use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::array::Array;
use crate::failure::{Failure, Kind};

/// One of a batch's arrays, and its numpy view, which the first access creates.
pub(crate) struct Column {
    pub(crate) array: Py<Array>,
    numpy: PyOnceLock<Py<PyAny>>,
}

impl Column {
    pub(crate) fn new(py: Python<'_>, array: Array) -> PyResult<Column> {
        Ok(Column {
            array: Py::new(py, array)?,
            numpy: PyOnceLock::new(),
        })
    }

    pub(crate) fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static BFLOAT16: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let view =
            self.numpy.get_or_try_init(py, || {
                let asarray = ASARRAY.import(py, "numpy", "asarray")?;
                let view = asarray.call1((&self.array,))?;
                if !self.array.get().is_bfloat16() {
                    return Ok(view.unbind());
                }
                let bfloat16 = BFLOAT16.import(py, "ml_dtypes", "bfloat16").map_err(|cause| {
                let error = PyImportError::new_err(
                    "numpy has no bfloat16 of its own: install the package ml_dtypes, or take \
                     tensors with batch.torch() or torch.from_dlpack(batch)",
                );
                error.set_cause(py, Some(cause));
                error
            })?;
                view.call_method1("view", (bfloat16,)).map(Bound::unbind)
            })?;
        Ok(view.bind(py).clone())
    }

    pub(crate) fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let from_dlpack = FROM_DLPACK
            .import(py, "torch", "from_dlpack")
            .map_err(|cause| {
                let error = PyImportError::new_err(
                    "batch.torch() needs torch, which cannot be imported: pip install 'forebay[torch]'",
                );
                error.set_cause(py, Some(cause));
                error
            })?;
        from_dlpack.call1((&self.array,))
    }
}

/// A column that the loader was asked for, with its object of `forebay._columns`, which the first access creates.
pub(crate) struct Further {
    pub(crate) name: String,
    kind: ColumnKind,
    offsets: Option<Column>,
    arrays: Vec<Column>,
    value: PyOnceLock<Py<PyAny>>,
}

impl Further {
    /// Creates a column whose arrays are in the payload of `images`.
    pub(crate) fn new(py: Python<'_>, images: &Array, column: BatchColumn) -> PyResult<Further> {
        let arrays = column.arrays.iter().map(|array| {
            // Batches are validated on creation and on receipt, so this does not fail.
            let array = images.beside(array).ok_or_else(|| {
                let message = format!("column {:?} is beyond its batch", column.name);
                Failure::new(Kind::Other, message)
            })?;
            Column::new(py, array)
        });
        Ok(Further {
            arrays: arrays.collect::<PyResult<_>>()?,
            offsets: match column.offsets {
                Some(offsets) => Some(Column::new(py, Array::numbers(offsets))?),
                None => None,
            },
            name: column.name,
            kind: column.kind,
            value: PyOnceLock::new(),
        })
    }

    pub(crate) fn value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let value = self.value.get_or_try_init(py, || {
            let class = match (self.kind, &self.offsets) {
                (_, None) => return self.arrays[0].numpy(py).map(Bound::unbind),
                (ColumnKind::Text, _) => "Text",
                (ColumnKind::Json, _) => "Json",
                (ColumnKind::Tensors, _) => "Tensors",
                (ColumnKind::Boxes, _) => "Boxes",
                (ColumnKind::Keypoints, _) => "Keypoints",
                _ => "Ragged",
            };
            let mut parts = Vec::with_capacity(self.arrays.len() + 1);
            for part in self.arrays.iter().chain(&self.offsets) {
                parts.push(part.numpy(py)?);
            }
            let class = py.import("forebay._columns")?.getattr(class)?;
            class.call1(PyTuple::new(py, parts)?).map(Bound::unbind)
        })?;
        Ok(value.bind(py).clone())
    }
}
