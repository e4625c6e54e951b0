//! Decodes chosen records of a dataset, for map-style datasets: `forebay/_random_access.py` is in front of it.

use forebay_loader::{Batch, Loader, Shuffle};
use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::PyDataset;
use crate::batch::PyBatch;
use crate::failure::{Failure, Kind};
use crate::loader::{Keywords, options_of};

/// Makes batches of any records of one split, as a `Loader` makes them.
#[pyclass(frozen, module = "forebay._forebay", name = "SampleDecoder")]
pub(crate) struct SampleDecoder {
    dataset: Py<PyDataset>,
    options: forebay_loader::Options,
}

#[pymethods]
impl SampleDecoder {
    #[new]
    #[pyo3(signature = (dataset, options, threads))]
    fn new(
        dataset: Bound<'_, PyDataset>,
        options: &Bound<'_, PyDict>,
        threads: usize,
    ) -> PyResult<SampleDecoder> {
        let names = dataset.get().view.splits.len();
        if names != 1 {
            let message =
                format!("the dataset has {names} splits: choose one, by split(name).dataset()");
            return Err(Failure::new(Kind::Option, message).into());
        }
        let mut keywords = Keywords::new(dataset.py(), "dataset", Some(options))?;
        let mut options = options_of(&mut keywords)?;
        keywords.end()?;
        (options.shuffle, options.drop_last) = (Shuffle::NONE, false);
        (options.threads, options.readers, options.batches_ahead) = (threads, 1, 1);
        // Each call has a loader of its own, and ends before points that it learned are of use.
        options.learn_seek_points = 0;
        let decoder = SampleDecoder {
            dataset: dataset.unbind(),
            options,
        };
        Ok(decoder)
    }

    /// The number in the split of each index into the dataset; negative ones count from its end.
    fn numbers(&self, indices: Vec<i64>) -> PyResult<Vec<u64>> {
        let cut = self.dataset.get().view.cut;
        let number = |index| {
            let message = || format!("there is no sample {index}: there are {}", cut.len);
            cut.number(index)
                .ok_or_else(|| PyIndexError::new_err(message()))
        };
        indices.into_iter().map(number).collect()
    }

    /// The batch of the samples with these numbers, which ascend.
    fn batch(&self, py: Python<'_>, numbers: Vec<u64>, seed: u64, epoch: u64) -> PyResult<PyBatch> {
        let dataset = self.dataset.get();
        let (view, mut options) = (&dataset.view, self.options.clone());
        options.batch_size = numbers.len() as u64;
        options.seed = seed;
        options.sampling.indices = numbers.into();
        let split = view.splits[0].clone();
        let name = split.name().to_owned();
        let waits_for = || format!("records of {name}");
        let batch = dataset.reached.patiently(py, waits_for, move || {
            let mut loader = Loader::resume(split, options, (epoch, 0), None)?;
            let batch: Option<Batch> = loader.next_batch()?;
            batch.ok_or_else(|| Failure::new(Kind::Other, "a batch of no records"))
        })?;
        PyBatch::new(py, batch, None, true)
    }
}
