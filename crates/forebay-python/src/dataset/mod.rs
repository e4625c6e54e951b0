//! `open` and `Dataset`: records by number and in order.
//!
//! Owns what Python sees of a dataset. Reading and checking is forebay-shard's.

mod record;
mod view;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_shard::{RecordBlock, Split};
use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PySlice, PyTuple};

use crate::array::Array;
use crate::failure::{Failure, Kind};
use crate::patience::{Deadline, patiently};
use record::Holder;
pub(crate) use record::Record;
use view::{Cut, View};

/// Blocks kept for later runs: one is read while records of the others live.
const SPARE_BLOCKS: usize = 4;

/// A packed dataset, or a part of one: records by number, from 0, and in order.
///
/// Made by `open`. `ds[i]` reads and verifies one record, `ds[a:b:c]` is a dataset of
/// those records, and iteration reads in large pieces. Threads may share it, it pickles,
/// and it survives a fork.
#[pyclass(frozen, module = "forebay", name = "Dataset")]
pub(crate) struct PyDataset {
    dataset: Arc<forebay_shard::Dataset>,
    view: View,
}

/// Open a packed dataset.
///
/// Reads the manifest and the indexes of all shards, no records.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The directory with `forebay.json`.
///
/// Returns
/// -------
/// Dataset
///     All splits, one after the other in the order of the manifest.
///
/// Raises
/// ------
/// MissingError
///     When there is no manifest, or a shard is missing.
/// MismatchError
///     When a shard is not the one that the manifest speaks of.
/// ShardError
///     When manifest, shard or index cannot be read.
#[pyfunction]
pub(crate) fn open(py: Python<'_>, path: PathBuf) -> PyResult<PyDataset> {
    let name = path.display().to_string();
    let waits_for = || format!("the index of {name}");
    let (dataset, splits) = patiently(py, Deadline::after(None), waits_for, move || {
        let dataset = forebay_shard::Dataset::open(&path)?;
        let splits = dataset.splits().map(|name| dataset.split(name));
        let splits: Vec<Split> = splits.collect::<Result<_, _>>()?;
        Ok((dataset, splits))
    })?;
    Ok(PyDataset {
        dataset: Arc::new(dataset),
        view: View::new(splits.into()),
    })
}

/// Opens again what was pickled.
#[pyfunction]
pub(crate) fn _reopen(
    py: Python<'_>,
    path: PathBuf,
    fingerprint: String,
    splits: Vec<String>,
    cut: (i64, i64, u64),
) -> PyResult<PyDataset> {
    let whole = open(py, path)?;
    if whole.dataset.fingerprint() != fingerprint {
        let message = format!(
            "{} is not the dataset that was pickled: its fingerprint is {}, expected {fingerprint}",
            whole.dataset.root().display(),
            whole.dataset.fingerprint()
        );
        return Err(Failure::new(Kind::Mismatch, message).into());
    }
    let splits: Vec<Split> = splits
        .iter()
        .map(|name| whole.find(name).cloned())
        .collect::<Result<_, _>>()?;
    let (start, step, len) = cut;
    let mut view = View::new(splits.into());
    view.cut = Cut { start, step, len };
    Ok(PyDataset {
        dataset: whole.dataset,
        view,
    })
}

impl PyDataset {
    fn find(&self, name: &str) -> Result<&Split, Failure> {
        let found = self.view.splits.iter().find(|split| split.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = self.view.splits.iter().map(Split::name).collect();
            let message = format!(
                "{} has no split {name:?}: it has {}",
                self.dataset.root().display(),
                names.join(", ")
            );
            Failure::new(Kind::Option, message)
        })
    }

    fn part(&self, cut: Cut) -> PyDataset {
        PyDataset {
            dataset: Arc::clone(&self.dataset),
            view: View {
                splits: Arc::clone(&self.view.splits),
                cut,
            },
        }
    }
}

#[pymethods]
impl PyDataset {
    /// The directory.
    #[getter]
    fn path(&self) -> &OsStr {
        self.dataset.root().as_os_str()
    }

    /// The format of the shards: "tfrecord" or "indexed".
    #[getter]
    fn format(&self) -> &'static str {
        self.dataset.manifest().shard_format.name()
    }

    /// What tells this dataset apart from every other.
    #[getter]
    fn fingerprint(&self) -> &str {
        self.dataset.fingerprint()
    }

    /// The number of records of each split, by name.
    #[getter]
    fn splits<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let splits = PyDict::new(py);
        for split in self.view.splits.iter() {
            splits.set_item(split.name(), split.len())?;
        }
        Ok(splits)
    }

    /// The classes, in the order of their labels.
    #[getter]
    fn classes(&self) -> Vec<&str> {
        let classes = self.dataset.manifest().classes.iter();
        classes.map(|class| class.name.as_str()).collect()
    }

    /// The label of the first class.
    #[getter]
    fn label_base(&self) -> i64 {
        self.dataset.manifest().label_base
    }

    /// The manifest, as JSON objects.
    #[getter]
    fn manifest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = self.dataset.manifest().to_json().map_err(Failure::from)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// The label of every record, from the indexes alone: int64 of shape (len(self),); -1 where there is none.
    #[getter]
    fn labels<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let labels = py.detach(|| {
            (0..self.view.cut.len as i64)
                .filter_map(|i| self.view.place(self.view.cut.number(i)?))
                .map(|(split, index)| split.label(index).unwrap_or(-1))
                .collect()
        });
        let array = Bound::new(py, Array::numbers(labels))?;
        py.import("numpy")?.call_method1("asarray", (array,))
    }

    /// The records of one split.
    ///
    /// Parameters
    /// ----------
    /// name : str
    ///     Name of the split.
    ///
    /// Returns
    /// -------
    /// Dataset
    ///     All records of the split, also when this is a slice.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     When there is no such split; the message has those that are.
    fn split(&self, name: &str) -> PyResult<PyDataset> {
        let split = self.find(name)?.clone();
        Ok(PyDataset {
            dataset: Arc::clone(&self.dataset),
            view: View::new([split].into()),
        })
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.view.cut.len).unwrap_or(usize::MAX)
    }

    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if let Ok(slice) = index.cast::<PySlice>() {
            let part = slice.indices(self.__len__() as isize)?;
            let part = Cut {
                start: part.start as i64,
                step: part.step as i64,
                len: part.slicelength as u64,
            };
            let cut = self.view.cut.part(part);
            let cut =
                cut.ok_or_else(|| PyOverflowError::new_err("the slice's step is too large"))?;
            return Ok(Bound::new(py, self.part(cut))?.into_any());
        }
        let given = match index.extract::<i64>() {
            Err(e) if e.is_instance_of::<PyOverflowError>(py) => None,
            other => Some(other?),
        };
        let number = given.and_then(|i| self.view.cut.number(i)).ok_or_else(|| {
            let len = self.view.cut.len;
            PyIndexError::new_err(format!("there is no record {index}: there are {len}"))
        })?;
        let mut bytes = Vec::new();
        py.detach(|| self.view.read(number, &mut bytes))?;
        let (split, index) = self.view.place(number).ok_or_else(past_the_end)?;
        let record = Record::new(Holder::Alone(bytes), split.clone(), index);
        Ok(Bound::new(py, record)?.into_any())
    }

    fn __iter__(&self) -> Records {
        Records {
            view: self.view.clone(),
            state: Mutex::new(Run::default()),
        }
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let Cut { start, step, len } = self.view.cut;
        let names: Vec<&str> = self.view.splits.iter().map(Split::name).collect();
        let arguments = (self.path(), self.fingerprint(), names, (start, step, len));
        let reopen = py.import("forebay._forebay")?.getattr("_reopen")?;
        Ok((reopen, arguments.into_pyobject(py)?))
    }

    fn __repr__(&self) -> String {
        let names: Vec<String> = self
            .view
            .splits
            .iter()
            .map(|split| format!("'{}'", split.name()))
            .collect();
        format!(
            "Dataset('{}', splits=[{}], records={})",
            self.dataset.root().display(),
            names.join(", "),
            self.view.cut.len
        )
    }
}

fn past_the_end() -> PyErr {
    PyIndexError::new_err("past the last record")
}

/// Records in order, read in runs.
#[pyclass(frozen, module = "forebay._forebay", name = "Records")]
pub(crate) struct Records {
    view: View,
    state: Mutex<Run>,
}

/// What was read last, and how far the iteration came.
#[derive(Default)]
struct Run {
    /// The next record, counted within the view.
    next: u64,
    /// Number, among all records, of the first one in the block.
    first: u64,
    block: Arc<RecordBlock>,
    /// Blocks whose records may be gone by now.
    spare: Vec<Arc<RecordBlock>>,
}

impl Run {
    /// The record `number` of all, reading a run from it on if it is not there yet.
    fn fetch(&mut self, view: &View, number: u64) -> Result<Holder, Failure> {
        let block_len = self.block.len() as u64;
        if number < self.first || number - self.first >= block_len {
            if view.cut.step != 1 {
                let mut bytes = Vec::new();
                view.read(number, &mut bytes)?;
                return Ok(Holder::Alone(bytes));
            }
            let mut block = self.vacant();
            view.read_run(number, view.cut.len - self.next, &mut block)?;
            let old = std::mem::replace(&mut self.block, Arc::new(block));
            self.first = number;
            if self.spare.len() < SPARE_BLOCKS {
                self.spare.push(old);
            }
        }
        let i = (number - self.first) as usize;
        Ok(Holder::Run(Arc::clone(&self.block), i))
    }

    /// A block that no record is in any more, so that its memory is used again.
    fn vacant(&mut self) -> RecordBlock {
        let free = self.spare.iter().position(|b| Arc::strong_count(b) == 1);
        free.and_then(|i| Arc::try_unwrap(self.spare.swap_remove(i)).ok())
            .unwrap_or_default()
    }
}

#[pymethods]
impl Records {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        let found = py.detach(|| {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let number = match i64::try_from(state.next) {
                Ok(next) => self.view.cut.number(next),
                Err(_) => None,
            };
            let Some(number) = number else {
                return Ok(None);
            };
            let holder = state.fetch(&self.view, number)?;
            state.next += 1;
            Ok::<_, Failure>(Some((number, holder)))
        })?;
        let Some((number, holder)) = found else {
            return Ok(None);
        };
        py.check_signals()?;
        let (split, index) = self.view.place(number).ok_or_else(past_the_end)?;
        Ok(Some(Record::new(holder, split.clone(), index)))
    }

    fn __length_hint__(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        usize::try_from(self.view.cut.len.saturating_sub(state.next)).unwrap_or(usize::MAX)
    }
}
