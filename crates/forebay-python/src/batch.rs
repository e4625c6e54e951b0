//! A batch as Python sees it.
//!
//! Owns the names and the conversions to numpy and torch; the memory is
//! [`Array`]'s.

use forebay_wire::batch::{FLAG_FAILED, FLAG_PADDING};
use forebay_wire::{Batch, Dtype, Layout, Mixed};
use pyo3::exceptions::{PyImportError, PyIndexError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyIterator, PyTuple};

use crate::array::Array;
use crate::failure::{Failure, Kind};

/// One of a batch's arrays, with the numpy view of it once somebody asked.
struct Column {
    array: Py<Array>,
    numpy: PyOnceLock<Py<PyAny>>,
}

impl Column {
    fn new(py: Python<'_>, array: Array) -> PyResult<Column> {
        Ok(Column {
            array: Py::new(py, array)?,
            numpy: PyOnceLock::new(),
        })
    }

    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
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

    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let from_dlpack = FROM_DLPACK.import(py, "torch", "from_dlpack")?;
        from_dlpack.call1((&self.array,))
    }
}

/// Decoded samples, and where in the epoch they are.
///
/// Also the pair `(images, labels)`: `images, labels = batch` works. All arrays are
/// views of the batch's own memory, may be written, and keep it alive; it goes back to
/// a pool when the last array or tensor of it is gone. `numpy.from_dlpack`,
/// `torch.from_dlpack` and `jax.dlpack.from_dlpack` take the batch itself for its images.
#[pyclass(frozen, module = "forebay", name = "Batch")]
pub(crate) struct PyBatch {
    images: Column,
    labels: Column,
    /// Labels of partners, and shares.
    mixed: Option<(Column, Column)>,
    /// The labels and what they were mixed with, for [`PyBatch::one_hot`].
    classes: Vec<i64>,
    partners: Option<Mixed>,
    samples: Column,
    /// Number of its dataset, for each sample of a mix.
    datasets: Option<Column>,
    padding: Column,
    failed: Column,
    shape: [usize; 4],
    layout: Layout,
    dtype: Dtype,
    /// The epoch, from 0.
    #[pyo3(get)]
    epoch: u64,
    /// The number of the batch in its epoch, from 0; the same on every rank.
    #[pyo3(get)]
    step: u64,
    /// How many samples of the epoch all ranks together were given before this batch.
    #[pyo3(get)]
    position: u64,
    /// A checksum of which samples are in the batch, and where.
    #[pyo3(get)]
    digest: u64,
}

impl PyBatch {
    /// Takes over a batch, its labels moved by `shift` where there is one. `starts` are the numbers of the first records of
    /// the datasets of a mix.
    pub(crate) fn new(
        py: Python<'_>,
        batch: Batch,
        shift: i64,
        starts: Option<&[u64]>,
    ) -> PyResult<PyBatch> {
        let mut labels = batch.labels;
        let mut partners = batch.mixed.map(|mixed| *mixed);
        if shift != 0 {
            let others = partners.iter_mut().flat_map(|mixed| &mut mixed.labels);
            for label in labels.iter_mut().chain(others).filter(|label| **label >= 0) {
                *label += shift;
            }
        }
        let mixed = match &partners {
            None => None,
            Some(Mixed { labels, lam }) => {
                let (lam, count) = (lam.clone(), lam.len());
                Some((
                    Column::new(py, Array::numbers(labels.clone()))?,
                    Column::new(py, Array::floats(lam, vec![count]))?,
                ))
            }
        };
        let datasets = starts.map(|starts| {
            let of = |sample: &u64| starts.partition_point(|start| start <= sample) as i64 - 1;
            let datasets = batch.samples.iter().map(of).collect();
            Column::new(py, Array::numbers(datasets))
        });
        let samples = batch.samples.into_iter().map(|s| s as i64).collect();
        let flagged = |flag| batch.flags.iter().map(|&f| f & flag != 0).collect();
        let (padding, failed) = (flagged(FLAG_PADDING), flagged(FLAG_FAILED));
        Ok(PyBatch {
            images: Column::new(py, Array::pixels(batch.images, batch.dtype, batch.shape))?,
            labels: Column::new(py, Array::numbers(labels.clone()))?,
            mixed,
            classes: labels,
            partners,
            samples: Column::new(py, Array::numbers(samples))?,
            datasets: datasets.transpose()?,
            padding: Column::new(py, Array::mask(padding))?,
            failed: Column::new(py, Array::mask(failed))?,
            shape: batch.shape,
            layout: batch.layout,
            dtype: batch.dtype,
            epoch: batch.epoch,
            step: batch.step,
            position: batch.position,
            digest: batch.digest,
        })
    }
}

#[pymethods]
impl PyBatch {
    /// Pixels: of shape (N, height, width, 3), or (N, 3, height, width) with layout "nchw".
    ///
    /// uint8, or what the loader's `dtype` says. bfloat16 needs the package ml_dtypes.
    #[getter]
    fn images<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.images.numpy(py)
    }

    /// The label of each sample: int64 of shape (N,); -1 for a record without one.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.labels.numpy(py)
    }

    /// The label of each sample's partner: int64 of shape (N,); None without `batch_transform`.
    ///
    /// Its own where a sample was not mixed, as padding never is.
    #[getter]
    fn labels_b<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let labels = self.mixed.as_ref().map(|(labels, _)| labels.numpy(py));
        labels.transpose()
    }

    /// The share of each sample itself: float32 of shape (N,); None without `batch_transform`.
    ///
    /// The rest is its partner's: the loss is `lam * loss(labels) + (1 - lam) * loss(labels_b)`.
    #[getter]
    fn lam<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let lam = self.mixed.as_ref().map(|(_, lam)| lam.numpy(py));
        lam.transpose()
    }

    /// Labels as probabilities of classes, mixed as the samples are.
    ///
    /// Parameters
    /// ----------
    /// num_classes : int
    ///     Number of classes. Labels are 0 to one less: see `label_base` of the loader.
    /// smoothing : float, default 0.0
    ///     What is taken from the classes of a sample and spread over all of them.
    ///
    /// Returns
    /// -------
    /// numpy.ndarray
    ///     float32 of shape (N, num_classes); rows sum to 1, or to 0 for a record without a label.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     A label that is no class.
    #[pyo3(signature = (num_classes, *, smoothing=0.0))]
    fn one_hot<'py>(
        &self,
        py: Python<'py>,
        num_classes: u32,
        smoothing: f32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let classes = num_classes as usize;
        if classes == 0 || !(0.0..=1.0).contains(&smoothing) {
            let what = format!("one_hot of {num_classes} classes with smoothing {smoothing}");
            let message = format!("{what}: expected 1 class or more, and 0 to 1");
            return Err(Failure::new(Kind::Option, message).into());
        }
        let mut rows = vec![0.0; self.classes.len() * classes];
        for (i, row) in rows.chunks_exact_mut(classes).enumerate() {
            let own = self.classes[i];
            let (other, lam) = match &self.partners {
                Some(mixed) => (mixed.labels[i], mixed.lam[i]),
                None => (own, 1.0),
            };
            for (label, share) in [(own, lam), (other, 1.0 - lam)] {
                if label < 0 {
                    continue;
                }
                let Some(class) = usize::try_from(label).ok().filter(|&class| class < classes)
                else {
                    let message = format!(
                        "label {label} is none of {classes} classes, 0 to {}: see the loader's label_base",
                        classes - 1
                    );
                    return Err(Failure::new(Kind::Option, message).into());
                };
                row[class] += share * (1.0 - smoothing);
                let part = share * smoothing / classes as f32;
                row.iter_mut().for_each(|v| *v += part);
            }
        }
        let shape = vec![self.classes.len(), classes];
        Column::new(py, Array::floats(rows, shape))?.numpy(py)
    }

    /// The number of each sample in its split: int64 of shape (N,).
    ///
    /// The records of a `Mix` are numbered through: see `Loader.dataset_starts`.
    #[getter]
    fn samples<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.samples.numpy(py)
    }

    /// The number of each sample's dataset in the `Mix`: int64 of shape (N,); None without one.
    #[getter]
    fn datasets<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let datasets = self.datasets.as_ref().map(|datasets| datasets.numpy(py));
        datasets.transpose()
    }

    /// Which samples are padding: bool of shape (N,).
    ///
    /// Only the last batch of an epoch has any, and only with `drop_last=False`.
    #[getter]
    fn padding<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.padding.numpy(py)
    }

    /// The type of the numbers in `images`: "uint8", "float32", "float16" or "bfloat16".
    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    /// Which samples could not be read or decoded, and were replaced: bool of shape (N,).
    ///
    /// Only with `on_error="skip"` or `on_error="zero"`. Metrics count samples where neither this
    /// nor `padding` is true.
    #[getter]
    fn failed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.failed.numpy(py)
    }

    /// The order of the axes of `images`: "nhwc" or "nchw".
    #[getter]
    fn layout(&self) -> &'static str {
        match self.layout {
            Layout::Nhwc => "nhwc",
            Layout::Nchw => "nchw",
        }
    }

    /// The images and the labels as numpy arrays, without a copy.
    ///
    /// Returns
    /// -------
    /// tuple of numpy.ndarray
    ///     Of shape (N, H, W, 3) or (N, 3, H, W) and the batch's `dtype`, and int64 of shape (N,).
    ///
    /// Raises
    /// ------
    /// ImportError
    ///     For bfloat16, when ml_dtypes is not installed.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, [self.images.numpy(py)?, self.labels.numpy(py)?])
    }

    /// The images and the labels as tensors of torch, without a copy.
    ///
    /// Returns
    /// -------
    /// tuple of torch.Tensor
    ///     Of shape (N, H, W, 3) or (N, 3, H, W) and the batch's `dtype`, and int64 of shape (N,),
    ///     on the CPU.
    ///
    /// Raises
    /// ------
    /// ImportError
    ///     When torch is not installed.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, [self.images.torch(py)?, self.labels.torch(py)?])
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        self.images
            .array
            .get()
            .__dlpack__(py, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        self.images.array.get().__dlpack_device__()
    }

    fn __len__(&self) -> usize {
        2
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        match index {
            0 | -2 => self.images.numpy(py),
            1 | -1 => self.labels.numpy(py),
            _ => Err(PyIndexError::new_err("a batch is a pair: images, labels")),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.numpy(py)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let [n, a, b, c] = self.shape;
        format!(
            "Batch(epoch={}, step={}, images={}[{n}, {a}, {b}, {c}], layout='{}')",
            self.epoch,
            self.step,
            self.dtype.name(),
            self.layout()
        )
    }
}
