//! The class `Record` of Python: the bytes of a record, and its features, which are parsed on first use.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use forebay_image::{Limits, standard_image};
use forebay_shard::example::{ExampleError, FeatureKind};
use forebay_shard::{Error, ExampleView, RecordBlock, Split};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};

use super::DatasetAccess;
use crate::failure::{Failure, Kind};

/// The buffer that the bytes of a record are in.
pub(super) enum Holder {
    /// The record was read alone.
    Alone(Vec<u8>),
    /// The record is one of a run that was read together. The block lives as long as any of its records.
    Run(Arc<RecordBlock>, usize),
}

/// A record of a dataset: an image, its label, and all that was packed with them.
///
/// Its length is that of its bytes.
#[pyclass(frozen, module = "forebay", name = "Record")]
pub(crate) struct Record {
    holder: Holder,
    split: Split,
    index: u64,
    reached: Arc<DatasetAccess>,
    key: PyOnceLock<Vec<u8>>,
    features: PyOnceLock<Py<PyDict>>,
}

impl Record {
    pub(super) fn new(
        holder: Holder,
        split: Split,
        index: u64,
        reached: Arc<DatasetAccess>,
    ) -> Record {
        Record {
            holder,
            split,
            index,
            reached,
            key: PyOnceLock::new(),
            features: PyOnceLock::new(),
        }
    }

    fn bytes(&self) -> &[u8] {
        match &self.holder {
            Holder::Alone(bytes) => bytes,
            Holder::Run(block, i) => block.get(*i),
        }
    }

    /// Returns the key, which is read from the index on first use. A page of the index holds the keys of several records.
    fn read_key(&self, py: Python<'_>) -> PyResult<&[u8]> {
        let key = self.key.get_or_try_init(py, || {
            let (split, index) = (self.split.clone(), self.index);
            let read = move || split.key(index).map_err(Failure::from);
            if self.reached.is_far {
                let waits_for = || format!("the key of record {index} of {}", self.split.name());
                return self.reached.patiently(py, waits_for, read);
            }
            Ok(py.detach(read)?)
        })?;
        Ok(key.as_slice())
    }

    /// Returns the path of the shard, and the record's number in it.
    fn place(&self) -> (&Path, u64) {
        let place = self.split.locate(self.index);
        let found = place.and_then(|(s, record)| Some((self.split.shards().get(s)?, record)));
        // A record exists only after it was read, so it has a location.
        found.map_or((Path::new(""), self.index), |(shard, record)| {
            (shard.path(), record)
        })
    }

    /// Converts an error of the Example parser, with the shard and the number of the record.
    fn refuse(&self, source: ExampleError) -> Failure {
        let (path, record) = self.place();
        let shard = path.to_owned();
        Failure::from(Error::Example {
            shard,
            record,
            source,
        })
    }

    fn view(&self) -> Result<ExampleView<'_>, Failure> {
        ExampleView::parse(self.bytes()).map_err(|e| self.refuse(e))
    }

    fn read_features<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let features = PyDict::new(py);
        for feature in self.view()?.iter() {
            let list = match feature.kind().map_err(|e| self.refuse(e))? {
                FeatureKind::Bytes => {
                    let values = feature.bytes_list().map_err(|e| self.refuse(e))?;
                    PyList::new(py, values.into_iter().map(|v| PyBytes::new(py, v)))?
                }
                FeatureKind::Int64 => {
                    PyList::new(py, feature.int64s().map_err(|e| self.refuse(e))?)?
                }
                FeatureKind::Float => {
                    PyList::new(py, feature.floats().map_err(|e| self.refuse(e))?)?
                }
                _ => PyList::empty(py),
            };
            features.set_item(feature.name(), list)?;
        }
        Ok(features)
    }
}

#[pymethods]
impl Record {
    /// Name of the split it is in.
    #[getter]
    fn split(&self) -> &str {
        self.split.name()
    }

    /// Its number in the split, from 0.
    #[getter]
    fn index(&self) -> u64 {
        self.index
    }

    /// The file it is in.
    #[getter]
    fn shard(&self) -> &OsStr {
        self.place().0.as_os_str()
    }

    /// Its key: the path of the image below its split, when it was packed.
    ///
    /// Bytes that are not UTF-8 come as surrogates, as in `os.fsdecode`.
    #[getter]
    fn key<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(OsStr::from_bytes(self.read_key(py)?)
            .into_pyobject(py)?
            .into_any())
    }

    /// Its label as stored; None where it has none.
    ///
    /// Raises
    /// ------
    /// CorruptRecordError
    ///     When the record is no tensorflow.Example.
    #[getter]
    fn label(&self) -> PyResult<Option<i64>> {
        let label = self.split.record_features().label(self.view()?);
        Ok(label.map_err(|e| self.refuse(e))?)
    }

    /// The encoded image, as it was packed: a fast image is restored to its JPEG.
    ///
    /// Raises
    /// ------
    /// CorruptRecordError
    ///     When the record has no image or is no tensorflow.Example.
    /// ImageError
    ///     When it has a fast image that is damaged.
    #[getter]
    fn image<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let features = self.split.record_features();
        let image = features.image(self.view()?).and_then(|image| {
            let name = features.image.clone();
            image.ok_or(ExampleError::Missing { name })
        });
        let image = image.map_err(|e| self.refuse(e))?;
        let image = standard_image(image, &Limits::default()).map_err(|error| {
            let (path, record) = self.place();
            Failure::new(Kind::Image, error)
                .path(path)
                .number("record", Some(record))
        })?;
        Ok(PyBytes::new(py, &image))
    }

    /// All bytes of the record: a serialized tensorflow.Example.
    #[getter]
    fn data<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.bytes())
    }

    /// Every feature by name, as lists of bytes, int or float.
    ///
    /// Raises
    /// ------
    /// CorruptRecordError
    ///     When the record is no tensorflow.Example.
    #[getter]
    fn features<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let features = self
            .features
            .get_or_try_init(py, || self.read_features(py).map(Bound::unbind))?;
        Ok(features.bind(py).clone())
    }

    fn __len__(&self) -> usize {
        self.bytes().len()
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let dataset = &self.reached.dataset;
        let arguments = (
            self.index,
            dataset.root().as_os_str(),
            dataset.fingerprint(),
            self.split.name(),
            self.split.len(),
            self.reached.pickled_options(),
        );
        let again = py.import("forebay._pickling")?.getattr("record")?;
        Ok((again, arguments.into_pyobject(py)?))
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let key = match self.read_key(py) {
            // Shows no key if it is damaged, instead of failing. KeyboardInterrupt is no `PyException` and is raised.
            Err(error) if error.is_instance_of::<PyException>(py) => &[][..],
            key => key?,
        };
        Ok(format!(
            "Record(split='{}', index={}, key='{}', bytes={})",
            self.split.name(),
            self.index,
            key.escape_ascii(),
            self.bytes().len()
        ))
    }
}
