//! The transform classes of Python: values that compare, hash, print and pickle.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use forebay_image::{EvalTransform, TrainTransform, Transform};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::{Failure, Kind, unexpected};
use crate::steps;

/// Formats a number as Python does.
fn shown(value: f64) -> String {
    format!("{value:?}")
}

/// Converts a width or height in pixels. `Transform::validate` checks the maximum.
fn side(name: &str, pixels: i64) -> Result<u32, Failure> {
    u32::try_from(pixels).map_err(|_| {
        let message = format!("invalid transform: {name} is {pixels} pixels, expected 1 or more");
        Failure::new(Kind::Option, message)
    })
}

fn checked(transform: Transform) -> PyResult<()> {
    transform
        .validate()
        .map_err(|e| Failure::new(Kind::Option, e).into())
}

/// Returns a hash of the numbers; equal values have equal hashes.
fn hashed(numbers: &[f64]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for number in numbers {
        // 0.0 and -0.0 are equal, so they must have the same hash.
        (number + 0.0).to_bits().hash(&mut hasher);
    }
    hasher.finish()
}

/// A random crop, resized to a square, and sometimes mirrored: for training.
///
/// As torchvision's RandomResizedCrop and RandomHorizontalFlip with Pillow's pixels.
/// The random numbers of a sample depend on the loader's seed, the epoch and the
/// sample, and on nothing else.
///
/// Parameters
/// ----------
/// size : int, default 224
///     Side of the output in pixels.
/// scale : tuple of float, default (0.08, 1.0)
///     Least and greatest area of the crop, as a part of the image's.
/// ratio : tuple of float, default (3/4, 4/3)
///     Least and greatest width / height of the crop.
/// flip : float, default 0.5
///     Probability of the mirror image.
///
/// Raises
/// ------
/// OptionError
///     A value out of its range.
///
/// Examples
/// --------
/// >>> forebay.TrainTransform(160, scale=(0.25, 1.0))
/// TrainTransform(160, scale=(0.25, 1.0), ratio=(0.75, 1.3333333333333333), flip=0.5)
#[pyclass(
    frozen,
    eq,
    from_py_object,
    module = "forebay",
    name = "TrainTransform"
)]
#[derive(Clone, PartialEq)]
pub(crate) struct PyTrainTransform(pub(crate) TrainTransform);

#[pymethods]
impl PyTrainTransform {
    #[new]
    #[pyo3(
        signature = (size=224, *, scale=(0.08, 1.0), ratio=(0.75, 4.0 / 3.0), flip=0.5),
        text_signature = "(size=224, *, scale=(0.08, 1.0), ratio=(0.75, 1.3333333333333333), flip=0.5)"
    )]
    fn new(size: i64, scale: (f64, f64), ratio: (f64, f64), flip: f64) -> PyResult<Self> {
        let transform = TrainTransform {
            size: side("size", size)?,
            scale,
            ratio,
            flip,
        };
        checked(Transform::Train(transform))?;
        Ok(PyTrainTransform(transform))
    }

    /// Side of the output in pixels.
    #[getter]
    fn size(&self) -> u32 {
        self.0.size
    }

    /// Least and greatest area of the crop, as a part of the image's.
    #[getter]
    fn scale(&self) -> (f64, f64) {
        self.0.scale
    }

    /// Least and greatest width / height of the crop.
    #[getter]
    fn ratio(&self) -> (f64, f64) {
        self.0.ratio
    }

    /// Probability of the mirror image.
    #[getter]
    fn flip(&self) -> f64 {
        self.0.flip
    }

    fn __hash__(&self) -> u64 {
        let TrainTransform {
            size,
            scale,
            ratio,
            flip,
        } = self.0;
        hashed(&[f64::from(size), scale.0, scale.1, ratio.0, ratio.1, flip])
    }

    fn __repr__(&self) -> String {
        let TrainTransform {
            size,
            scale,
            ratio,
            flip,
        } = self.0;
        format!(
            "TrainTransform({size}, scale=({}, {}), ratio=({}, {}), flip={})",
            shown(scale.0),
            shown(scale.1),
            shown(ratio.0),
            shown(ratio.1),
            shown(flip)
        )
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((u32,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("scale", self.0.scale)?;
        named.set_item("ratio", self.0.ratio)?;
        named.set_item("flip", self.0.flip)?;
        Ok(((self.0.size,), named))
    }
}

/// The short side resized, then the centre cut out: for validation.
///
/// As torchvision's Resize and CenterCrop with Pillow's pixels, in one step.
///
/// Parameters
/// ----------
/// size : int, default 224
///     Side of the output in pixels.
/// resize : int, default 256
///     The image's short side after the resize in pixels; at least `size`.
///
/// Raises
/// ------
/// OptionError
///     A value out of its range.
#[pyclass(frozen, eq, from_py_object, module = "forebay", name = "EvalTransform")]
#[derive(Clone, PartialEq)]
pub(crate) struct PyEvalTransform(pub(crate) EvalTransform);

#[pymethods]
impl PyEvalTransform {
    #[new]
    #[pyo3(signature = (size=224, *, resize=256))]
    fn new(size: i64, resize: i64) -> PyResult<Self> {
        let transform = EvalTransform {
            resize: side("resize", resize)?,
            crop: side("size", size)?,
        };
        checked(Transform::Eval(transform))?;
        Ok(PyEvalTransform(transform))
    }

    /// Side of the output in pixels.
    #[getter]
    fn size(&self) -> u32 {
        self.0.crop
    }

    /// The image's short side after the resize in pixels.
    #[getter]
    fn resize(&self) -> u32 {
        self.0.resize
    }

    fn __hash__(&self) -> u64 {
        hashed(&[f64::from(self.0.crop), f64::from(self.0.resize)])
    }

    fn __repr__(&self) -> String {
        format!("EvalTransform({}, resize={})", self.0.crop, self.0.resize)
    }

    fn __getnewargs_ex__<'py>(&self, py: Python<'py>) -> PyResult<((u32,), Bound<'py, PyDict>)> {
        let named = PyDict::new(py);
        named.set_item("resize", self.0.resize)?;
        Ok(((self.0.crop,), named))
    }
}

/// Nothing: images stay as they are stored, encoded, for those who decode them elsewhere.
///
/// Batches have `encoded`, `offsets` and `image_bytes` instead of `images`, and their sizes vary. Of each
/// image the header is read, for `Batch.widths` and `Batch.heights`, and nothing else: an image that is
/// damaged further on is handed out as it is. With `on_error="zero"` a sample whose record or header cannot
/// be read is an empty image.
///
/// Options about pixels are refused with it: `layout`, `dtype`, `batch_transform`, `resize_like`,
/// `exif_orientation` and `dct_scaling`.
///
/// Examples
/// --------
/// >>> loader = forebay.Loader("packed/", transform=forebay.KeepEncoded())  # doctest: +SKIP
/// >>> for batch in loader:  # doctest: +SKIP
/// ...     encoded, labels = batch.torch()
/// ...     images = torchvision.io.decode_jpeg(encoded, device="cuda")
#[pyclass(
    frozen,
    eq,
    hash,
    from_py_object,
    module = "forebay",
    name = "KeepEncoded"
)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct PyKeepEncoded;

#[pymethods]
impl PyKeepEncoded {
    #[new]
    fn new() -> Self {
        PyKeepEncoded
    }

    #[expect(clippy::unused_self)] // a method of Python's
    fn __repr__(&self) -> &'static str {
        "KeepEncoded()"
    }
}

/// Any transform, as an argument.
pub(crate) enum AnyTransform<'py> {
    KeepEncoded,
    Train(PyTrainTransform),
    Eval(PyEvalTransform),
    List(Vec<Bound<'py, PyAny>>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for AnyTransform<'py> {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if given.is_instance_of::<PyKeepEncoded>() {
            return Ok(AnyTransform::KeepEncoded);
        }
        if let Ok(train) = given.extract() {
            return Ok(AnyTransform::Train(train));
        }
        if let Ok(eval) = given.extract() {
            return Ok(AnyTransform::Eval(eval));
        }
        let list = given.extract().map(AnyTransform::List);
        list.map_err(|_| {
            let functions = match given.is_callable() {
                true => " (functions go into forebay.Mapped)",
                false => "",
            };
            let expected = "TrainTransform, EvalTransform, KeepEncoded or a list of transforms";
            unexpected(&given, &format!("{expected}{functions}"))
        })
    }
}

impl AnyTransform<'_> {
    pub(crate) fn compile(self) -> PyResult<Transform> {
        Ok(match self {
            AnyTransform::KeepEncoded => Transform::KeepEncoded,
            AnyTransform::Train(train) => Transform::Train(train.0),
            AnyTransform::Eval(eval) => Transform::Eval(eval.0),
            AnyTransform::List(items) => Transform::List(steps::compile(&items)?),
        })
    }
}
