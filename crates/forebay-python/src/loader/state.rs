//! The state of a loader: a dictionary with a few numbers, and the options that it must agree with.

use forebay_batch::digest::EpochDigest;
use forebay_loader::plan::Shuffle;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

use crate::failure::{Failure, Kind};
use crate::pump::EpochPosition;

/// Version of the dictionary.
const VERSION: u64 = 1;

/// The options that determine the order of samples. The batch size and the transform are not among them, and may change. So
/// may the rank and the world size, which are kept for the digest.
pub(crate) struct Identity<'a> {
    pub(crate) fingerprint: &'a str,
    pub(crate) sample_fingerprint: Option<&'a str>,
    pub(crate) split: &'a str,
    pub(crate) records: u64,
    /// Samples per epoch.
    pub(crate) samples: u64,
    /// Text that describes which records an epoch is made of.
    pub(crate) sampling: String,
    /// The label of the first class in batches, if there is one.
    pub(crate) label_base: Option<i64>,
    pub(crate) seed: u64,
    pub(crate) virtual_ranks: u64,
    pub(crate) shuffle: Shuffle,
    /// The rank whose batches the digest covers.
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
}

impl Identity<'_> {
    pub(crate) fn save<'py>(
        &self,
        py: Python<'py>,
        place: EpochPosition,
        digest: &EpochDigest,
    ) -> PyResult<Bound<'py, PyDict>> {
        let state = PyDict::new(py);
        state.set_item("version", VERSION)?;
        state.set_item("fingerprint", self.fingerprint)?;
        state.set_item("sample_fingerprint", self.sample_fingerprint)?;
        state.set_item("split", self.split)?;
        state.set_item("records", self.records)?;
        state.set_item("seed", self.seed)?;
        state.set_item("virtual_ranks", self.virtual_ranks)?;
        state.set_item("shuffle", self.shuffle.to_string())?;
        state.set_item("sampling", &self.sampling)?;
        state.set_item("label_base", self.label_base)?;
        state.set_item("epoch", place.epoch)?;
        state.set_item("position", place.position)?;
        let parts = fields(py, digest)?;
        // As text, because not every JSON reader has 64-bit integers.
        parts.set_item("value", format!("{:016x}", digest.value))?;
        parts.set_item("rank", self.rank)?;
        parts.set_item("world_size", self.world_size)?;
        state.set_item("digest", parts)?;
        Ok(state)
    }

    /// Returns the digest of a state, and the rank and world size whose batches it covers.
    pub(crate) fn digest(
        state: &Bound<'_, PyMapping>,
    ) -> PyResult<Option<(EpochDigest, (u64, u64))>> {
        let Ok(parts) = state.get_item("digest") else {
            return Ok(None);
        };
        let refused = || {
            let message = "not a state of a loader: \"digest\" is of the wrong kind";
            PyErr::from(Failure::new(Kind::State, message))
        };
        let parts = parts.cast::<PyMapping>().map_err(|_| refused())?;
        let value: String = field(parts, "value")?;
        let value = u64::from_str_radix(&value, 16).map_err(|_| refused())?;
        let rank: u64 = field(parts, "rank")?;
        let world_size: u64 = field(parts, "world_size")?;
        let digest = EpochDigest {
            epoch: field(parts, "epoch")?,
            since: field(parts, "since")?,
            until: field(parts, "until")?,
            batches: field(parts, "batches")?,
            samples: field(parts, "samples")?,
            value,
            complete: field(parts, "complete")?,
        };
        Ok(Some((digest, (rank, world_size))))
    }

    /// Returns the position of a state. Fails if it is the state of another stream.
    pub(crate) fn load(&self, state: &Bound<'_, PyMapping>) -> PyResult<EpochPosition> {
        let version: u64 = field(state, "version")?;
        if version != VERSION {
            let message = format!("the state is of version {version}, this is version {VERSION}");
            return Err(Failure::new(Kind::State, message).into());
        }
        // Datasets without keys have no sample fingerprint.
        let samples: Option<String> = field(state, "sample_fingerprint")?;
        let fingerprint: String = field(state, "fingerprint")?;
        match (samples, self.sample_fingerprint) {
            (Some(found), Some(expected)) => agree("sample_fingerprint", found, expected)?,
            _ => agree("fingerprint", fingerprint, self.fingerprint)?,
        }
        agree("split", field::<String>(state, "split")?, self.split)?;
        agree("records", field::<u64>(state, "records")?, self.records)?;
        agree("seed", field::<u64>(state, "seed")?, self.seed)?;
        agree(
            "virtual_ranks",
            field::<u64>(state, "virtual_ranks")?,
            self.virtual_ranks,
        )?;
        let shuffle = self.shuffle.to_string();
        agree("shuffle", field::<String>(state, "shuffle")?, shuffle)?;
        // Checked before the sampling, which may contain labels. A resumed model expects the labels of its run.
        let shown =
            |base: Option<i64>| base.map_or_else(|| "None".to_owned(), |base| base.to_string());
        agree(
            "label_base",
            shown(field(state, "label_base")?),
            shown(self.label_base),
        )?;
        agree(
            "sampling",
            field::<String>(state, "sampling")?,
            self.sampling.as_str(),
        )?;
        let place = EpochPosition {
            epoch: field(state, "epoch")?,
            position: field(state, "position")?,
        };
        if place.position > self.samples {
            let message = format!(
                "the state's position is {}, an epoch has {} samples",
                place.position, self.samples
            );
            return Err(Failure::new(Kind::State, message).into());
        }
        Ok(place)
    }
}

/// Returns the fields of a digest, except its value.
pub(crate) fn fields<'py>(py: Python<'py>, digest: &EpochDigest) -> PyResult<Bound<'py, PyDict>> {
    let fields = PyDict::new(py);
    fields.set_item("epoch", digest.epoch)?;
    fields.set_item("batches", digest.batches)?;
    fields.set_item("samples", digest.samples)?;
    fields.set_item("since", digest.since)?;
    fields.set_item("until", digest.until)?;
    fields.set_item("complete", digest.complete)?;
    Ok(fields)
}

fn field<'py, T>(state: &Bound<'py, PyMapping>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py>,
{
    let refused = |what: &str| {
        let message = format!("not a state of a loader: {name:?} {what}");
        PyErr::from(Failure::new(Kind::State, message))
    };
    let value = state.get_item(name).map_err(|_| refused("is missing"))?;
    value.extract().map_err(|_| refused("is of the wrong kind"))
}

fn agree<A, B>(name: &str, found: A, expected: B) -> PyResult<()>
where
    A: PartialEq<B> + std::fmt::Display,
    B: std::fmt::Display,
{
    if found == expected {
        return Ok(());
    }
    let message = format!(
        "the state is of another stream of samples: {name} is {found} there and {expected} here"
    );
    Err(Failure::new(Kind::State, message).into())
}
