//! The state of a loader: a few numbers in a dictionary, and what they must agree with.

use forebay_loader::plan::Shuffle;
use forebay_wire::batch::digest::EpochDigest;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

use crate::failure::{Failure, Kind};
use crate::pump::Place;

/// Version of the dictionary.
const VERSION: u64 = 1;

/// What the order of samples follows from. The batch size, the world size and the
/// transform are not in it: they may change.
pub(crate) struct Identity<'a> {
    pub(crate) fingerprint: &'a str,
    pub(crate) split: &'a str,
    pub(crate) records: u64,
    /// Of an epoch.
    pub(crate) samples: u64,
    /// Which records epochs are made of, in a word.
    pub(crate) sampling: String,
    pub(crate) seed: u64,
    pub(crate) lanes: u64,
    pub(crate) shuffle: Shuffle,
    /// Whose batches the digest of a state is of.
    pub(crate) rank: u64,
    pub(crate) world_size: u64,
}

/// The shuffle in one word.
pub(crate) fn shuffle_name(shuffle: Shuffle) -> String {
    match shuffle {
        Shuffle::None => "none".into(),
        Shuffle::Full => "full".into(),
        Shuffle::Blocks {
            block_records,
            window_blocks,
        } => format!("blocks:{block_records}x{window_blocks}"),
    }
}

impl Identity<'_> {
    pub(crate) fn save<'py>(
        &self,
        py: Python<'py>,
        place: Place,
        digest: &EpochDigest,
    ) -> PyResult<Bound<'py, PyDict>> {
        let state = PyDict::new(py);
        state.set_item("version", VERSION)?;
        state.set_item("fingerprint", self.fingerprint)?;
        state.set_item("split", self.split)?;
        state.set_item("records", self.records)?;
        state.set_item("seed", self.seed)?;
        state.set_item("lanes", self.lanes)?;
        state.set_item("shuffle", shuffle_name(self.shuffle))?;
        state.set_item("sampling", &self.sampling)?;
        state.set_item("epoch", place.epoch)?;
        state.set_item("position", place.position)?;
        let parts = fields(py, digest)?;
        // Not every reader of JSON has numbers of 64 bits.
        parts.set_item("value", format!("{:016x}", digest.value))?;
        parts.set_item("rank", self.rank)?;
        parts.set_item("world_size", self.world_size)?;
        state.set_item("digest", parts)?;
        Ok(state)
    }

    /// What was delivered up to the place that a state tells, if it was to this rank.
    pub(crate) fn digest(&self, state: &Bound<'_, PyMapping>) -> PyResult<Option<EpochDigest>> {
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
        Ok(Some(digest).filter(|_| (rank, world_size) == (self.rank, self.world_size)))
    }

    /// The place that a state tells, if it is a state of this stream.
    pub(crate) fn load(&self, state: &Bound<'_, PyMapping>) -> PyResult<Place> {
        let version: u64 = field(state, "version")?;
        if version != VERSION {
            let message = format!("the state is of version {version}, this is version {VERSION}");
            return Err(Failure::new(Kind::State, message).into());
        }
        agree(
            "fingerprint",
            field::<String>(state, "fingerprint")?,
            self.fingerprint,
        )?;
        agree("split", field::<String>(state, "split")?, self.split)?;
        agree("records", field::<u64>(state, "records")?, self.records)?;
        agree("seed", field::<u64>(state, "seed")?, self.seed)?;
        agree("lanes", field::<u64>(state, "lanes")?, self.lanes)?;
        let shuffle = shuffle_name(self.shuffle);
        agree("shuffle", field::<String>(state, "shuffle")?, shuffle)?;
        agree(
            "sampling",
            field::<String>(state, "sampling")?,
            self.sampling.as_str(),
        )?;
        let place = Place {
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

/// A digest by its names, but for the value.
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
