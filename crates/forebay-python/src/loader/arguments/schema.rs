//! Takes the options of the loader's schema from Python values, by the kind of each option.

use forebay_image::Transform;
use forebay_loader::Options;
use forebay_options::{
    LoaderOption, LoaderOptions, NormalizeSpec, OPTIONS, OptionKind, WeightsSpec, shown,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;

use super::given::{self, Bytes, Class, Count, numbers};
use super::keywords::{Keywords, named};
use super::refused;
use crate::batch::NAMES;
use crate::failure::unexpected;
use crate::steps;
use crate::transform::AnyTransform;

/// Takes the options of the schema.
pub(super) fn options(keywords: &mut Keywords<'_>) -> PyResult<LoaderOptions> {
    let mut options = LoaderOptions::default();
    for option in OPTIONS {
        let given = keywords.raw(option.name)?.filter(|given| !given.is_none());
        if let Some(given) = given {
            put(&mut options, option, &given)?;
        }
    }
    Ok(options)
}

/// Returns the possible values of an option in Python notation.
pub(super) fn expected(kind: OptionKind) -> String {
    kind.expected().replace('"', "'")
}

fn put(
    options: &mut LoaderOptions,
    option: &LoaderOption,
    given: &Bound<'_, PyAny>,
) -> PyResult<()> {
    let name = option.name;
    let wrong = |error| named(given.py(), name, error);
    let value = match option.kind {
        // These are not converted through JSON: lists may be long, and transforms are objects.
        OptionKind::Indices => {
            options.indices = Some(given::indices(given).map_err(wrong)?);
            return Ok(());
        }
        OptionKind::Weights => {
            options.weights = Some(weights(given).map_err(wrong)?);
            return Ok(());
        }
        OptionKind::Transform => {
            let transform = given
                .extract::<AnyTransform<'_>>()
                .map_err(wrong)?
                .compile()?;
            options.transform = Options::new(1, transform).to_schema().transform;
            return Ok(());
        }
        OptionKind::BatchTransform => {
            let mut mixed = Options::new(1, Transform::KeepEncoded);
            mixed.batch_transform = Some(steps::batch_transform(given).map_err(wrong)?);
            options.batch_transform = mixed.to_schema().batch_transform;
            return Ok(());
        }
        OptionKind::Normalize => {
            options.normalize = Some(normalize(given).map_err(wrong)?);
            return Ok(());
        }
        OptionKind::Count(_) => Value::from(given.extract::<Count>().map_err(wrong)?.number(name)?),
        OptionKind::Bytes => Value::from(given.extract::<Bytes>().map_err(wrong)?.number(name)?),
        OptionKind::Flag => {
            let flag = given.extract::<bool>();
            Value::from(flag.map_err(|_| wrong(unexpected(given, "True or False")))?)
        }
        OptionKind::Choice(names) => {
            let name = given::choice(given).map_err(wrong)?;
            let known = names.iter().find(|known| known.eq_ignore_ascii_case(&name));
            known.map_or_else(|| Value::from(name), |&known| Value::from(known))
        }
        OptionKind::Classes => given::classes(given).map_err(wrong)?,
        OptionKind::Columns => {
            let names = given.extract::<Vec<String>>();
            let names =
                names.map_err(|_| wrong(unexpected(given, "a list of names of columns")))?;
            if let Some(taken) = names.iter().find(|name| NAMES.contains(&name.as_str())) {
                let expected = "names of columns; every batch has an array of this name";
                return Err(refused(name, format!("'{taken}'"), expected).into());
            }
            names.into()
        }
        OptionKind::Base => given::label_base(given).map_err(wrong)?,
        OptionKind::Shuffle => given::shuffle(given).map_err(wrong)?,
        _ => {
            let text = given.extract::<String>();
            Value::from(text.map_err(|_| wrong(unexpected(given, "a str")))?)
        }
    };
    let found = shown(&value);
    options
        .set(name, value)
        .map_err(|_| refused(name, found, &expected(option.kind)).into())
}

/// Reads `(mean, std)`, or an object with these attributes.
fn normalize(given: &Bound<'_, PyAny>) -> PyResult<NormalizeSpec> {
    let parts = match (given.getattr_opt("mean")?, given.getattr_opt("std")?) {
        (Some(mean), Some(std)) => mean.extract().and_then(|mean| Ok((mean, std.extract()?))),
        _ => given
            .extract::<[[f32; 3]; 2]>()
            .map(|[mean, std]| (mean, std)),
    };
    let parts = parts.map_err(|_| unexpected(given, "(mean, std), of three numbers each"));
    parts.map(|(mean, std)| NormalizeSpec { mean, std })
}

/// Reads weights: by class from a dictionary, otherwise a number for each record.
fn weights(given: &Bound<'_, PyAny>) -> PyResult<WeightsSpec> {
    let Ok(by_class) = given.cast::<PyDict>() else {
        let expected = "a dict of classes to numbers, or a number for each record";
        let numbers = numbers(given).map_err(|_| unexpected(given, expected))?;
        return Ok(WeightsSpec::BySample(numbers));
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
        (false, false) => {
            let expected = "classes by name, or by label";
            Err(refused("weights", "given for both names and labels", expected).into())
        }
        (false, true) => Ok(WeightsSpec::ByClass(names.into_iter().collect())),
        (true, _) => {
            labels.sort_by_key(|label: &(i64, f64)| label.0);
            Ok(WeightsSpec::ByLabel(labels))
        }
    }
}
