//! The arguments of `Loader` that choose samples.

use forebay_loader::{Sampling, Weights};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::given::{Class, Classes, Indices, listed};
use super::keywords::named;
use super::refused;
use crate::failure::unexpected;

/// What was given; `None` where nothing was.
pub(crate) struct Given<'py> {
    pub(crate) indices: Option<Indices>,
    pub(crate) classes: Option<Classes>,
    pub(crate) limit: Option<u64>,
    pub(crate) weights: Option<Bound<'py, PyAny>>,
    pub(crate) class_balanced: bool,
    pub(crate) draws: Option<u64>,
    pub(crate) repeats: u64,
}

/// Options of what was given.
pub(crate) fn sampling(given: Given<'_>) -> PyResult<Sampling> {
    let mut sampling = Sampling::default();
    if let Some(Indices(mut indices)) = given.indices {
        if indices.is_empty() {
            return Err(refused("indices", "empty", "at least one number").into());
        }
        indices.sort_unstable();
        sampling.indices = indices.into();
    }
    if let Some(Classes(classes)) = given.classes {
        if classes.is_empty() {
            return Err(refused("classes", "empty", "at least one class").into());
        }
        for class in classes {
            match class {
                Class::Name(name) => sampling.classes.push(name),
                Class::Label(label) => sampling.labels.push(label),
            }
        }
    }
    for (name, number) in [("limit", given.limit), ("draws", given.draws)] {
        if number == Some(0) {
            return Err(refused(name, 0, "1 or more, or None").into());
        }
    }
    if given.repeats == 0 {
        return Err(refused("repeats", 0, "1 or more").into());
    }
    sampling.limit = given.limit.unwrap_or(0);
    sampling.draws = given.draws.unwrap_or(0);
    sampling.repeats = given.repeats;
    sampling.weights = match (given.class_balanced, given.weights) {
        (false, None) => Weights::None,
        (true, None) => Weights::Balanced,
        (false, Some(weights)) => {
            by_weights(&weights).map_err(|error| named(weights.py(), "weights", error))?
        }
        (true, Some(_)) => {
            let found = "given as well as class_balanced";
            return Err(refused("weights", found, "one of the two").into());
        }
    };
    Ok(sampling)
}

/// A dictionary is by class; anything else is a number for each record.
fn by_weights(weights: &Bound<'_, PyAny>) -> PyResult<Weights> {
    let Ok(by_class) = weights.cast::<PyDict>() else {
        let expected = "a dict of classes to numbers, or a number for each record";
        let by_sample = listed(weights)?.extract::<Vec<f32>>();
        let by_sample = by_sample.map_err(|_| unexpected(weights, expected))?;
        return Ok(Weights::BySample(by_sample.into()));
    };
    let (mut names, mut labels) = (Vec::new(), Vec::new());
    for (class, weight) in by_class {
        let weight: f64 = weight.extract()?;
        match class.extract()? {
            Class::Name(name) => names.push((name, weight)),
            Class::Label(label) => labels.push((label, weight)),
        }
    }
    match (names.is_empty(), labels.is_empty()) {
        (true, true) => Err(refused("weights", "empty", "at least one class").into()),
        (false, false) => {
            let expected = "classes by name, or by label";
            Err(refused("weights", "given for both names and labels", expected).into())
        }
        (false, true) => {
            names.sort_by(|a, b| a.0.cmp(&b.0));
            Ok(Weights::ByClass(names))
        }
        (true, false) => {
            labels.sort_by_key(|label| label.0);
            Ok(Weights::ByLabel(labels))
        }
    }
}
