//! `open` and `Dataset`: records by number and in order.
//!
//! Defines the Python API of datasets. forebay-shard reads and checks records.

mod record;
mod sample_decoder;
mod view;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use forebay_shard::{RecordBlock, Split, find_split, some_of};
use forebay_store::{Cancel, Location};
use pyo3::exceptions::{PyIndexError, PyOverflowError};
use pyo3::prelude::*;
use pyo3::types::{PyAny, PyDict, PySlice, PyTuple};

use crate::array::Array;
use crate::failure::{Failure, Kind};
use crate::patience::{Deadline, patiently};
use crate::storage::{GivenOptions, StorageOptions, location, open_dataset, reading, synthetic};
use record::Holder;
pub(crate) use record::Record;
pub(crate) use sample_decoder::SampleDecoder;
use view::{Cut, View};

/// Maximum number of blocks kept for later runs. A block is reused once no record refers to it.
const SPARE_BLOCKS: usize = 4;

/// A packed dataset, or a part of one: records by number, from 0, and in order.
///
/// Made by `open`. `ds[i]` reads and verifies one record, `ds[a:b:c]` is a dataset of
/// those records, and iteration reads in large pieces. Threads may share it, it pickles,
/// and it survives a fork. So do its records, which are read again where they are unpickled.
///
/// Examples
/// --------
/// >>> train = forebay.open("packed/").split("train")  # doctest: +SKIP
/// >>> record = train[0]  # doctest: +SKIP
/// >>> record.key, record.label, len(record.image)  # doctest: +SKIP
/// ('n01440764/n01440764_10026.JPEG', 1, 13697)
#[pyclass(frozen, module = "forebay", name = "Dataset")]
pub(crate) struct PyDataset {
    reached: Arc<DatasetAccess>,
    view: View,
}

/// The dataset, and the options that it was opened with. Every object that may read from it holds them.
struct DatasetAccess {
    dataset: forebay_shard::Dataset,
    storage_options: StorageOptions,
    /// Whether reads may take long, as those of a store do.
    is_far: bool,
    /// Ends all waits for the store.
    cancel: Cancel,
}

impl Drop for DatasetAccess {
    fn drop(&mut self) {
        // Ends reads that Ctrl-C abandoned, whose results are dropped.
        self.cancel.cancel();
    }
}

impl DatasetAccess {
    /// Runs a read that may wait for a store. Ctrl-C abandons it and does not cancel it, because other threads and
    /// later calls read from the same store.
    fn patiently<T: Send + 'static>(
        &self,
        py: Python<'_>,
        waits_for: impl Fn() -> String,
        read: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> PyResult<T> {
        patiently(py, Deadline::after(None), waits_for, &Cancel::new(), read)
    }

    /// Returns the options to open the dataset with again, if there are any.
    fn pickled_options(&self) -> Option<StorageOptions> {
        (!self.storage_options.is_empty()).then(|| self.storage_options.clone())
    }
}

/// Open a packed dataset.
///
/// Reads the manifest and the indexes of all shards, no records.
///
/// Parameters
/// ----------
/// path : str or os.PathLike
///     The directory with `forebay.json`, or its URL: `s3://bucket/imagenet`, `gs://`, `az://`,
///     `https://`.
/// storage_options : dict of str to str, optional
///     How a store is reached: `endpoint`, `region`, `anonymous` ("true"), `timeout` (seconds without
///     progress after which a request fails), `outage_timeout` (seconds that a store may be away before that is an
///     error), and settings by the names that other tools have, such as `aws_profile`. What is not
///     given comes from the environment. `cache_dir` keeps what is read in a directory, `cache_bytes`
///     ("200GiB") bounds it, `cache_memory_bytes` keeps that much in memory; FOREBAY_CACHE_DIR,
///     FOREBAY_CACHE_BYTES and FOREBAY_CACHE_MEMORY say so for all.
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
/// StorageError
///     When a store refuses, or cannot be reached.
///
/// Examples
/// --------
/// >>> ds = forebay.open("packed/")  # doctest: +SKIP
/// >>> ds.splits  # doctest: +SKIP
/// {'train': 1281167, 'validation': 50000}
#[pyfunction]
#[pyo3(signature = (path, *, storage_options=None))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    storage_options: Option<GivenOptions>,
) -> PyResult<PyDataset> {
    let GivenOptions(storage_options) = storage_options.unwrap_or_default();
    let place = match synthetic(&path)? {
        Some(recipe) => Err(recipe),
        None => Ok(location(&path)?),
    };
    let is_far = place.as_ref().is_ok_and(Location::is_remote);
    let cancel = Cancel::new();
    let read = reading(is_far, &storage_options, &cancel)?;
    let name = path.display().to_string();
    let waits_for = || format!("the index of {name}");
    let end = Deadline::after(None);
    let (dataset, splits) = patiently(py, end, waits_for, &cancel, move || {
        let dataset = match place {
            Ok(place) => open_dataset(&place, &read.open()?)?,
            Err(recipe) => recipe.open()?,
        };
        let splits = dataset.splits().map(|name| dataset.split(name));
        let splits: Vec<Split> = splits.collect::<Result<_, _>>()?;
        Ok((dataset, splits))
    })?;
    Ok(PyDataset {
        reached: Arc::new(DatasetAccess {
            dataset,
            storage_options,
            is_far,
            cancel,
        }),
        view: View::new(splits.into()),
    })
}

/// Opens again what was pickled.
#[pyfunction]
#[pyo3(signature = (path, fingerprint, splits, cut, storage_options=None))]
pub(crate) fn _reopen(
    py: Python<'_>,
    path: PathBuf,
    fingerprint: String,
    splits: Vec<String>,
    cut: (i64, i64, u64),
    storage_options: Option<GivenOptions>,
) -> PyResult<PyDataset> {
    let whole = open(py, path, storage_options)?;
    if whole.reached.dataset.fingerprint() != fingerprint {
        let message = format!(
            "{} is not the dataset that was pickled: its fingerprint is {}, expected {fingerprint}",
            whole.reached.dataset.root().display(),
            whole.reached.dataset.fingerprint()
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
        reached: whole.reached,
        view,
    })
}

impl PyDataset {
    fn find(&self, name: &str) -> Result<&Split, Failure> {
        let names = self.view.splits.iter().map(Split::name);
        let found = find_split(name, names);
        let mut splits = self.view.splits.iter();
        let found = splits.find(|split| Some(split.name()) == found);
        found.ok_or_else(|| {
            let message = format!(
                "{} has no split {name:?}: it has {}",
                self.reached.dataset.root().display(),
                some_of(self.view.splits.iter().map(Split::name))
            );
            Failure::new(Kind::Option, message)
        })
    }

    fn part(&self, cut: Cut) -> PyDataset {
        PyDataset {
            reached: Arc::clone(&self.reached),
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
        self.reached.dataset.root().as_os_str()
    }

    /// The format of the shards: "tfrecord" or "indexed".
    #[getter]
    fn format(&self) -> &'static str {
        self.reached.dataset.manifest().shard_format.name()
    }

    /// The identifier of this dataset.
    #[getter]
    fn fingerprint(&self) -> &str {
        self.reached.dataset.fingerprint()
    }

    /// The identity of its samples: their keys, labels and order. A conversion that keeps them keeps it. None where a
    /// sample has no key.
    #[getter]
    fn sample_fingerprint(&self) -> Option<&str> {
        self.reached.dataset.sample_fingerprint()
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

    /// The columns of a record and their types, by name: `{"image": "image", "caption": "text"}`.
    ///
    /// Loaders accept these names as `columns`. docs/columns.md describes the types.
    #[getter]
    fn columns<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let columns = PyDict::new(py);
        for column in self.reached.dataset.manifest().schema().columns() {
            columns.set_item(&column.name, column.column_type.to_string())?;
        }
        Ok(columns)
    }

    /// The classes, in the order of their labels.
    #[getter]
    fn classes(&self) -> Vec<&str> {
        let classes = self.reached.dataset.manifest().classes.iter();
        classes.map(|class| class.name.as_str()).collect()
    }

    /// The label of the first class as stored: `Record.label` and `labels` count from it, loaders from 0.
    #[getter]
    fn label_base(&self) -> i64 {
        self.reached.dataset.manifest().label_base
    }

    /// The manifest, as JSON objects.
    #[getter]
    fn manifest<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = self
            .reached
            .dataset
            .manifest()
            .to_json()
            .map_err(Failure::from)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// The label of every record as stored, from the indexes alone: int64 of shape (len(self),); -1 where there is none.
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
    ///     Name of the split. "val", "valid", "validation" and "dev" find the one of them that there is.
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
            reached: Arc::clone(&self.reached),
            view: View::new([split].into()),
        })
    }

    /// The samples as a map-style dataset: decoded, transformed, and read by number.
    ///
    /// Parameters
    /// ----------
    /// transform : TrainTransform, EvalTransform, KeepEncoded or list
    ///     What becomes of each image.
    /// **options
    ///     See `RandomAccessDataset`.
    ///
    /// Returns
    /// -------
    /// RandomAccessDataset
    ///     For `torch.utils.data.DataLoader`, Grain and Hugging Face datasets.
    ///
    /// Raises
    /// ------
    /// OptionError
    ///     An invalid option, or a dataset of several splits.
    #[pyo3(signature = (transform=None, **options))]
    fn dataset<'py>(
        this: &Bound<'py, Self>,
        transform: Option<Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let module = this.py().import("forebay._random_access")?;
        let class = module.getattr("RandomAccessDataset")?;
        class.call((this, transform), options)
    }

    /// Show the samples in a page, as `forebay view`: in a notebook below the cell, elsewhere at `View.url`.
    ///
    /// The page has all splits, also for a part of the dataset; a contact sheet has the part alone. The page ends with
    /// `View.close`, a `with` block, or this process.
    ///
    /// Parameters
    /// ----------
    /// height : int, default 800
    ///     Height of the page in a notebook, in pixels.
    /// contact_sheet : bool, default False
    ///     Show one picture of evenly spaced samples instead: for a browser on another machine, which cannot reach the page.
    /// storage_options : dict of str to str, optional
    ///     How a store is reached; see `open`.
    /// **options
    ///     Of `forebay view`: `option` and `listen`. For a contact sheet: `class_`, a class or several, and `indices`, numbers in
    ///     the split.
    ///
    /// Returns
    /// -------
    /// View
    ///     Notebooks show it below the cell.
    ///
    /// Raises
    /// ------
    /// CommandError
    ///     When the page cannot be served; the message is that of the command.
    #[pyo3(signature = (**options))]
    fn view(&self, py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Py<PyAny>> {
        let view = py.import("forebay._view")?.getattr("view")?;
        let Cut { start, step, len } = self.view.cut;
        let is_part = self.view.cut != View::new(Arc::clone(&self.view.splits)).cut;
        let numbers = is_part.then_some((start, step, len));
        let splits: Vec<&str> = self.view.splits.iter().map(Split::name).collect();
        let view = view.call((self.path(), splits, numbers), options);
        view.map(Bound::unbind)
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
        let bytes = if self.reached.is_far {
            let view = self.view.clone();
            let waits_for = || {
                format!(
                    "record {number} of {}",
                    self.reached.dataset.root().display()
                )
            };
            self.reached.patiently(py, waits_for, move || {
                let mut bytes = Vec::new();
                view.read(number, &mut bytes)?;
                Ok(bytes)
            })?
        } else {
            let mut bytes = Vec::new();
            py.detach(|| self.view.read(number, &mut bytes))?;
            bytes
        };
        let (split, index) = self.view.place(number).ok_or_else(past_the_end)?;
        let reached = Arc::clone(&self.reached);
        let record = Record::new(Holder::Alone(bytes), split.clone(), index, reached);
        Ok(Bound::new(py, record)?.into_any())
    }

    fn __iter__(&self) -> Records {
        Records {
            view: self.view.clone(),
            reached: Arc::clone(&self.reached),
            state: Arc::default(),
        }
    }

    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let Cut { start, step, len } = self.view.cut;
        let names: Vec<&str> = self.view.splits.iter().map(Split::name).collect();
        let cut = (start, step, len);
        let options = self.reached.pickled_options();
        let arguments = (self.path(), self.fingerprint(), names, cut, options);
        let reopen = py.import("forebay._forebay")?.getattr("_reopen")?;
        Ok((reopen, arguments.into_pyobject(py)?))
    }

    fn __repr__(&self) -> String {
        let splits = self.view.splits.iter();
        let names = splits.map(|split| format!("'{}'", split.name()));
        format!(
            "Dataset('{}', splits=[{}], records={})",
            self.reached.dataset.root().display(),
            some_of(names),
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
    reached: Arc<DatasetAccess>,
    /// Locked during a read, including one that Ctrl-C abandoned.
    state: Arc<Mutex<Run>>,
}

/// The last records read, and the position of the iteration.
#[derive(Default)]
struct Run {
    /// Position of the next record in the view.
    next: u64,
    /// Number of the block's first record among all records.
    first: u64,
    block: Arc<RecordBlock>,
    /// Earlier blocks. Each is reused once no record refers to it.
    spare: Vec<Arc<RecordBlock>>,
}

impl Run {
    /// Returns the next record of the view, if there is one.
    fn advance(&mut self, view: &View) -> Result<Option<(u64, Holder)>, Failure> {
        let Some(number) = self.number(view) else {
            return Ok(None);
        };
        let holder = self.fetch(view, number)?;
        self.next += 1;
        Ok(Some((number, holder)))
    }

    /// Returns the next record of the view, if the block has it.
    fn at_hand(&mut self, view: &View) -> Option<(u64, Holder)> {
        let number = self.number(view)?;
        let i = usize::try_from(number.checked_sub(self.first)?).ok()?;
        if i >= self.block.len() {
            return None;
        }
        self.next += 1;
        Some((number, Holder::Run(Arc::clone(&self.block), i)))
    }

    /// Returns the number of the next record among all records.
    fn number(&self, view: &View) -> Option<u64> {
        view.cut.number(i64::try_from(self.next).ok()?)
    }

    /// Returns record `number` of all records. Reads a run that starts with it if the block does not have it.
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

    /// Returns a block that no record refers to, so that its memory is reused, or a new one.
    fn vacant(&mut self) -> RecordBlock {
        let free = self.spare.iter().position(|b| Arc::strong_count(b) == 1);
        free.and_then(|i| Arc::try_unwrap(self.spare.swap_remove(i)).ok())
            .unwrap_or_default()
    }
}

impl Records {
    fn lock(&self) -> MutexGuard<'_, Run> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state, unless a read holds the lock.
    fn try_lock(&self) -> Option<MutexGuard<'_, Run>> {
        match self.state.try_lock() {
            Ok(run) => Some(run),
            Err(TryLockError::Poisoned(run)) => Some(run.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

#[pymethods]
impl Records {
    fn __iter__(this: Bound<'_, Self>) -> Bound<'_, Self> {
        this
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Record>> {
        let found = if self.reached.is_far {
            // A record that is in the block already needs no thread.
            let (state, view) = (Arc::clone(&self.state), self.view.clone());
            let waits_for = || "the next records".to_owned();
            match self.try_lock().and_then(|mut run| run.at_hand(&self.view)) {
                Some(found) => Some(found),
                None => self.reached.patiently(py, waits_for, move || {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    state.advance(&view)
                })?,
            }
        } else {
            py.detach(|| self.lock().advance(&self.view))?
        };
        let Some((number, holder)) = found else {
            return Ok(None);
        };
        py.check_signals()?;
        let (split, index) = self.view.place(number).ok_or_else(past_the_end)?;
        let reached = Arc::clone(&self.reached);
        Ok(Some(Record::new(holder, split.clone(), index, reached)))
    }

    fn __length_hint__(&self) -> usize {
        // As this is only a hint, it does not wait for a read of another thread.
        let next = self.try_lock().map_or(0, |run| run.next);
        usize::try_from(self.view.cut.len.saturating_sub(next)).unwrap_or(usize::MAX)
    }
}
