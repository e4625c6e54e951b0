//! The class `Batch` of Python.
//!
//! Defines the names of a batch's arrays and their conversions to numpy and torch. [`Array`] holds the memory.

use forebay_batch::{FLAG_FAILED, FLAG_PADDING};
use forebay_shard::some_of;
use forebay_wire::{Batch, Dtype, EncodedImages, Layout, Mixed};
use pyo3::exceptions::{PyIndexError, PyKeyError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyIterator, PyList, PySlice, PyTuple};

use crate::array::Array;
use crate::column::{Column, Further};
use crate::failure::{Failure, Kind};

/// Maximum number of classes of `one_hot`. More are a mistake, and would exhaust the memory.
const MOST_CLASSES: usize = 1 << 24;

/// Images that stay encoded: their offsets, and the sizes in their headers.
struct Encoded {
    images: EncodedImages,
    offsets: Column,
    widths: Column,
    heights: Column,
}

/// Samples, and where in the epoch they are.
///
/// Also the pair `(images, labels)`: `images, labels = batch` works, and `batch["caption"]` is a column. All arrays are
/// views of the batch's own memory, may be written, and keep it alive; it goes back to
/// a pool when the last array or tensor of it is gone. `numpy.from_dlpack`,
/// `torch.from_dlpack` and `jax.dlpack.from_dlpack` take the batch itself for its images.
///
/// With `transform=KeepEncoded()` images stay encoded: there are `encoded`, `offsets`, `image_bytes`, `widths`
/// and `heights` in the place of `images`, and the first of the pair is a list of memoryviews.
///
/// Pickling copies the arrays, and a `TensorBatch` of numpy arrays is unpickled; encoded images are a list of bytes in it.
#[pyclass(frozen, module = "forebay", name = "Batch")]
pub(crate) struct PyBatch {
    /// Pixels, or the bytes of all images if they stay encoded.
    images: Column,
    encoded: Option<Encoded>,
    labels: Column,
    /// `labels_b` and `lam` of a mixed batch.
    mixed: Option<(Column, Column)>,
    /// The labels, and what they were mixed with, for [`PyBatch::one_hot`].
    classes: Vec<i64>,
    partners: Option<Mixed>,
    samples: Column,
    /// Dataset number of each sample, for a mix of datasets.
    datasets: Option<Column>,
    padding: Column,
    failed: Column,
    shape: [usize; 4],
    layout: Layout,
    dtype: Dtype,
    further: Vec<Further>,
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
    /// Converts a batch, without its padding if `trimmed` is set. `starts` holds the number of the first record of each
    /// dataset of a mix.
    pub(crate) fn new(
        py: Python<'_>,
        mut batch: Batch,
        starts: Option<&[u64]>,
        trimmed: bool,
    ) -> PyResult<PyBatch> {
        if trimmed {
            batch.trim_padding();
        }
        let labels = batch.labels;
        let partners = batch.mixed.map(|mixed| *mixed);
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
        let (images, encoded) = match batch.encoded {
            None => {
                let pixels = Array::pixels(batch.payload, batch.dtype, batch.shape);
                (pixels, None)
            }
            Some(images) => {
                let sizes = |sizes: &[u32]| {
                    let sizes = sizes.iter().map(|&size| size.into()).collect();
                    Column::new(py, Array::numbers(sizes))
                };
                let offsets = images.offsets.iter().map(|&at| at as i64).collect();
                let encoded = Encoded {
                    offsets: Column::new(py, Array::numbers(offsets))?,
                    widths: sizes(&images.widths)?,
                    heights: sizes(&images.heights)?,
                    images: *images,
                };
                let end = encoded.images.offsets.last().copied().unwrap_or(0);
                (Array::encoded(batch.payload, end as usize), Some(encoded))
            }
        };
        let further = batch.columns.into_iter();
        let further = further.map(|column| Further::new(py, &images, column));
        Ok(PyBatch {
            further: further.collect::<PyResult<_>>()?,
            images: Column::new(py, images)?,
            encoded,
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

    /// Returns the pixels. `what` names the caller in the error for encoded images.
    fn pixels(&self, what: &str) -> PyResult<&Column> {
        if self.encoded.is_none() {
            return Ok(&self.images);
        }
        let message = format!(
            "{what}: the images of this batch stay encoded, as transform=KeepEncoded() has it: see \
             image_bytes(), encoded and offsets"
        );
        Err(Failure::new(Kind::Option, message).into())
    }

    /// Returns the encoded images. `what` names the caller in the error for decoded images.
    fn raw(&self, what: &str) -> PyResult<&Encoded> {
        self.encoded.as_ref().ok_or_else(|| {
            let message = format!(
                "{what}: the images of this batch are decoded: see images, or give the loader \
                 transform=forebay.KeepEncoded()"
            );
            Failure::new(Kind::Option, message).into()
        })
    }

    /// Splits an `array` of all encoded bytes into a view of each image, which `each` converts.
    fn cut<'py>(
        &self,
        encoded: &Encoded,
        array: &Bound<'py, PyAny>,
        each: impl Fn(Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let images = (0..self.shape[0]).map(|i| each(slice(encoded, array, i)?));
        PyList::new(array.py(), images.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns images and labels as numpy arrays. Encoded images are memoryviews.
    fn pair<'py>(&self, py: Python<'py>) -> PyResult<[Bound<'py, PyAny>; 2]> {
        let bytes = self.images.numpy(py)?;
        let images = match &self.encoded {
            None => bytes,
            Some(encoded) => self.cut(encoded, &bytes, memoryview)?.into_any(),
        };
        Ok([images, self.labels.numpy(py)?])
    }
}

/// An index into a batch: a position in the pair of images and labels, or the name of an array.
#[derive(FromPyObject)]
enum Index {
    #[pyo3(transparent)]
    Number(isize),
    #[pyo3(transparent)]
    Name(String),
}

/// Names of the arrays that a batch has besides its columns; some of them may be None.
pub(crate) const NAMES: [&str; 8] = [
    "images", "labels", "samples", "datasets", "padding", "failed", "labels_b", "lam",
];

/// Returns a column, or an array of [`NAMES`].
fn named<'py>(batch: &Bound<'py, PyBatch>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let further = &batch.get().further;
    if let Some(column) = further.iter().find(|column| column.name == name) {
        return column.value(batch.py());
    }
    if NAMES.contains(&name) {
        let array = batch.getattr(name)?;
        if !array.is_none() {
            return Ok(array);
        }
    }
    let known = match further.is_empty() {
        true => "the loader has none; give it columns=[...]".to_owned(),
        false => format!(
            "expected one of {}",
            some_of(further.iter().map(|column| &column.name))
        ),
    };
    let message = format!("the batch has no column '{name}': {known}");
    Err(PyKeyError::new_err(message))
}

/// Returns the bytes of image `i` as a slice of the bytes of all images.
fn slice<'py>(
    encoded: &Encoded,
    array: &Bound<'py, PyAny>,
    i: usize,
) -> PyResult<Bound<'py, PyAny>> {
    // The range is valid: batches are validated on creation and on receipt.
    let range = encoded.images.range(i).unwrap_or_default();
    array.get_item(PySlice::new(
        array.py(),
        range.start as isize,
        range.end as isize,
        1,
    ))
}

fn memoryview(array: Bound<'_, PyAny>) -> PyResult<Bound<'_, PyAny>> {
    static MEMORYVIEW: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let memoryview = MEMORYVIEW.import(array.py(), "builtins", "memoryview")?;
    memoryview.call1((array,))
}

#[pymethods]
impl PyBatch {
    /// Pixels: of shape (N, height, width, 3), or (N, 3, height, width) with layout "nchw".
    ///
    /// uint8, or what the loader's `dtype` says. bfloat16 needs the package ml_dtypes.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     When images stay encoded.
    #[getter]
    fn images<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.pixels("images")?.numpy(py)
    }

    /// With `transform=KeepEncoded()`: the encoded images, one after the other: uint8 of shape (bytes,).
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     When images are decoded.
    #[getter]
    fn encoded<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.raw("encoded")?;
        self.images.numpy(py)
    }

    /// With `transform=KeepEncoded()`: where each image begins in `encoded`: int64 of shape (N + 1,).
    ///
    /// The last one is the end of the last image.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     When images are decoded.
    #[getter]
    fn offsets<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.raw("offsets")?.offsets.numpy(py)
    }

    /// With `transform=KeepEncoded()`: columns of each image in pixels: int64 of shape (N,).
    ///
    /// As the image's header says; 0 for a format that Forebay does not read, or an image that failed.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     When images are decoded.
    #[getter]
    fn widths<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.raw("widths")?.widths.numpy(py)
    }

    /// With `transform=KeepEncoded()`: rows of each image in pixels: int64 of shape (N,); see `widths`.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     When images are decoded.
    #[getter]
    fn heights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.raw("heights")?.heights.numpy(py)
    }

    /// With `transform=KeepEncoded()`: the bytes of one encoded image, without a copy.
    ///
    /// Parameters
    /// ----------
    /// index : int
    ///     Which sample of the batch; from the end where it is negative.
    ///
    /// Returns
    /// -------
    /// memoryview
    ///     Empty for a sample that failed, with `on_error="zero"`.
    ///
    /// Raises
    /// ------
    /// IndexError
    ///     When there is no such sample.
    /// OptionError
    ///     When images are decoded.
    #[pyo3(signature = (index, /))]
    fn image_bytes<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Bound<'py, PyAny>> {
        let encoded = self.raw("image_bytes")?;
        let samples = self.shape[0];
        let from = if index < 0 { samples } else { 0 };
        let Some(i) = from.checked_add_signed(index).filter(|&i| i < samples) else {
            let message = format!("sample {index} of a batch of {samples}");
            return Err(PyIndexError::new_err(message));
        };
        memoryview(slice(encoded, &self.images.numpy(py)?, i)?)
    }

    /// The label of each sample: int64 of shape (N,); -1 for a record without one, -100 for padding.
    ///
    /// Counted from 0, if `label_base` of the loader does not say otherwise.
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
    ///     float32 of shape (N, num_classes); rows sum to 1, or to 0 for padding and for a record without a label.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     A label that is no class.
    #[pyo3(signature = (num_classes, *, smoothing=0.0))]
    fn one_hot<'py>(
        &self,
        py: Python<'py>,
        num_classes: i64,
        smoothing: f32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let classes = usize::try_from(num_classes).unwrap_or(0);
        if !(1..=MOST_CLASSES).contains(&classes) || !(0.0..=1.0).contains(&smoothing) {
            let what = format!("one_hot of {num_classes} classes with smoothing {smoothing}");
            let message = format!("{what}: expected 1 to {MOST_CLASSES} classes, and 0 to 1");
            return Err(Failure::new(Kind::Option, message).into());
        }
        let len = self.classes.len().saturating_mul(classes);
        let mut rows = Vec::new();
        if rows.try_reserve_exact(len).is_err() {
            let message =
                format!("one_hot of {num_classes} classes: no memory for {len} numbers of float32");
            return Err(Failure::new(Kind::Option, message).into());
        }
        rows.resize(len, 0.0);
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
    /// Only the last batch of an epoch has any, and only with `drop_last=False`, on several ranks or with `pad_last=True`.
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

    /// The order of the axes of `images`: "nhwc" or "nchw"; None when they stay encoded.
    #[getter]
    fn layout(&self) -> Option<&'static str> {
        match self.layout {
            _ if self.encoded.is_some() => None,
            Layout::Nhwc => Some("nhwc"),
            Layout::Nchw => Some("nchw"),
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
    /// OptionError
    ///     When images stay encoded.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let images = self.pixels("numpy")?.numpy(py)?;
        PyTuple::new(py, [images, self.labels.numpy(py)?])
    }

    /// The images and the labels as tensors of torch, without a copy.
    ///
    /// Returns
    /// -------
    /// tuple of torch.Tensor
    ///     Of shape (N, H, W, 3) or (N, 3, H, W) and the batch's `dtype`, and int64 of shape (N,),
    ///     on the CPU. With `transform=KeepEncoded()` the first is a list of N tensors, uint8 of shape (bytes,), as
    ///     `torchvision.io.decode_jpeg` takes them.
    ///
    /// Raises
    /// ------
    /// ImportError
    ///     When torch is not installed.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let images = self.images.torch(py)?;
        let images = match &self.encoded {
            None => images,
            Some(encoded) => self.cut(encoded, &images, Ok)?.into_any(),
        };
        PyTuple::new(py, [images, self.labels.torch(py)?])
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
        self.pixels("__dlpack__")?
            .array
            .get()
            .__dlpack__(py, stream, max_version, dl_device, copy)
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        self.images.array.get().__dlpack_device__()
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let reduce = slf
            .py()
            .import("forebay._pickling")?
            .getattr("reduce_batch")?;
        reduce.call1((slf,))
    }

    fn __len__(&self) -> usize {
        2
    }

    /// The names of the columns that the loader's option `columns` asked for, in its order.
    ///
    /// `batch["caption"]` has the values: an array with a row for each sample, or a `Ragged` column.
    #[getter]
    fn columns(&self) -> Vec<&str> {
        self.further
            .iter()
            .map(|column| column.name.as_str())
            .collect()
    }

    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: Index) -> PyResult<Bound<'py, PyAny>> {
        let (py, batch) = (slf.py(), slf.get());
        let index = match index {
            Index::Number(index) => index,
            Index::Name(name) => return named(slf, &name),
        };
        match index {
            0 | -2 => batch.pair(py).map(|[images, _]| images),
            1 | -1 => batch.labels.numpy(py),
            _ => Err(PyIndexError::new_err("a batch is a pair: images, labels")),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        PyTuple::new(py, self.pair(py)?)?.try_iter()
    }

    fn __repr__(&self) -> String {
        let [n, a, b, c] = self.shape;
        let (epoch, step) = (self.epoch, self.step);
        match (self.layout(), &self.encoded) {
            (Some(layout), _) => format!(
                "Batch(epoch={epoch}, step={step}, images={}[{n}, {a}, {b}, {c}], layout='{layout}')",
                self.dtype.name(),
            ),
            (None, encoded) => {
                let end = encoded.as_ref().and_then(|e| e.images.offsets.last());
                let bytes = end.unwrap_or(&0);
                format!("Batch(epoch={epoch}, step={step}, encoded={n} images in {bytes} bytes)")
            }
        }
    }
}
