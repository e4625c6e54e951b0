//! Lists of transforms, and of batches: the values of `forebay/_transforms.py`, read into the engine's.

use forebay_image::{
    BatchTransform, Bounds, ColorJitter, Dtype, Fill, Interpolation, Mixing, Motion, Normalize,
    Output, RandAugment, RandomErasing, RandomGrayscale, RandomResizedCrop, ResizeTo, Step,
    TransformList, TrivialAugmentWide,
};
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;

use crate::failure::{Failure, Kind};

/// What a value of a list stands for.
enum Item {
    Step(Step),
    Normalize(Normalize),
}

fn invalid(what: impl std::fmt::Display) -> PyErr {
    Failure::new(Kind::Option, what).into()
}

/// An attribute; a number that no transform could take is an option that cannot be, not an overflow.
fn field<'py, T>(item: &Bound<'py, PyAny>, name: &str) -> PyResult<T>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr>,
{
    let value = item.getattr(name)?;
    value.extract::<T>().map_err(|error| {
        if error.is_instance_of::<PyOverflowError>(item.py()) {
            let class = item.get_type();
            let class = class.name().map(|n| n.to_string()).unwrap_or_default();
            return invalid(format!("{name} of {class} is {value}: out of range"));
        }
        error
    })
}

/// How an operation moves pictures.
fn motion(item: &Bound<'_, PyAny>) -> PyResult<Motion> {
    let name: String = field(item, "interpolation")?;
    let Some(interpolation) = Interpolation::from_name(&name) else {
        let class = item.get_type();
        let class = class.name()?;
        let names = Interpolation::ALL.map(|one| format!("'{}'", one.name()));
        return Err(invalid(format!(
            "interpolation of {class} is {name:?}: expected {}",
            names.join(", ")
        )));
    };
    let fill: Option<[u8; 3]> = field(item, "fill")?;
    Ok(Motion {
        interpolation,
        fill: fill.unwrap_or_default(),
    })
}

fn read(item: &Bound<'_, PyAny>) -> PyResult<Item> {
    let class = item.get_type();
    let step = match class.name()?.to_str()? {
        "RandomResizedCrop" => Step::RandomResizedCrop(RandomResizedCrop {
            size: field(item, "size")?,
            scale: field(item, "scale")?,
            ratio: field(item, "ratio")?,
        }),
        "Resize" => Step::Resize(match item.getattr("size")?.extract::<(i64, i64)>() {
            Ok(_) => ResizeTo::Exact(field(item, "size")?),
            Err(_) => ResizeTo::Short(field(item, "size")?),
        }),
        "CentreCrop" => Step::CentreCrop(field(item, "size")?),
        "RandomHorizontalFlip" => Step::RandomHorizontalFlip(field(item, "p")?),
        "RandomVerticalFlip" => Step::RandomVerticalFlip(field(item, "p")?),
        "ColorJitter" => {
            let bounds = |name| field::<Option<Bounds>>(item, name);
            Step::ColorJitter(ColorJitter {
                brightness: bounds("brightness")?,
                contrast: bounds("contrast")?,
                saturation: bounds("saturation")?,
                hue: bounds("hue")?,
            })
        }
        "Grayscale" => Step::RandomGrayscale(RandomGrayscale { p: 1.0 }),
        "RandomGrayscale" => Step::RandomGrayscale(RandomGrayscale {
            p: field(item, "p")?,
        }),
        "RandAugment" => Step::RandAugment(RandAugment {
            num_ops: field(item, "num_ops")?,
            magnitude: field(item, "magnitude")?,
            num_magnitude_bins: field(item, "num_magnitude_bins")?,
            motion: motion(item)?,
        }),
        "TrivialAugmentWide" => Step::TrivialAugmentWide(TrivialAugmentWide {
            num_magnitude_bins: field(item, "num_magnitude_bins")?,
            motion: motion(item)?,
        }),
        "RandomErasing" => {
            let value = item.getattr("value")?;
            Step::RandomErasing(RandomErasing {
                p: field(item, "p")?,
                scale: field(item, "scale")?,
                ratio: field(item, "ratio")?,
                value: match value.extract::<String>() {
                    Ok(word) if word == "random" => Fill::Random,
                    Ok(word) => {
                        let what = "expected a number, three numbers or 'random'";
                        return Err(invalid(format!(
                            "value of RandomErasing is {word:?}: {what}"
                        )));
                    }
                    Err(_) => Fill::Value(field(item, "value")?),
                },
            })
        }
        "Normalize" => {
            return Ok(Item::Normalize(Normalize {
                mean: field(item, "mean")?,
                std: field(item, "std")?,
            }));
        }
        "TrainTransform" | "EvalTransform" | "Raw" => {
            return Err(invalid(format!(
                "{item} in a list: give it alone, or write out what it does"
            )));
        }
        other => {
            return Err(PyTypeError::new_err(format!(
                "a {other} in a list of transforms: expected forebay.RandomResizedCrop, \
                 forebay.RandomHorizontalFlip and the like"
            )));
        }
    };
    Ok(Item::Step(step))
}

/// Refuses a transform of a list whose numbers cannot be.
#[pyfunction]
#[pyo3(signature = (transform, /))]
pub(crate) fn _check_transform(transform: &Bound<'_, PyAny>) -> PyResult<()> {
    match read(transform)? {
        Item::Step(step) => step.validate(),
        Item::Normalize(normalize) => Output {
            dtype: Dtype::Float32,
            normalize: Some(normalize),
            ..Output::default()
        }
        .validate(),
    }
    .map_err(invalid)
}

/// A way to mix a batch, or a choice of several.
pub(crate) fn batch_transform(item: &Bound<'_, PyAny>) -> PyResult<BatchTransform> {
    let one = |item: &Bound<'_, PyAny>| -> PyResult<Mixing> {
        if item.is_none() {
            return Ok(Mixing::Nothing);
        }
        match item.get_type().name()?.to_str()? {
            "Mixup" => Ok(Mixing::Mixup {
                alpha: field(item, "alpha")?,
            }),
            "CutMix" => Ok(Mixing::CutMix {
                alpha: field(item, "alpha")?,
            }),
            other => Err(PyTypeError::new_err(format!(
                "a {other} for a batch: expected forebay.Mixup, forebay.CutMix or forebay.RandomChoice"
            ))),
        }
    };
    let choices = if item.get_type().name()? == "RandomChoice" {
        let items: Vec<Bound<'_, PyAny>> = field(item, "transforms")?;
        let weights: Vec<f64> = field(item, "p")?;
        if items.len() != weights.len() {
            let (items, weights) = (items.len(), weights.len());
            return Err(invalid(format!(
                "RandomChoice of {items} with {weights} probabilities"
            )));
        }
        let mixings: PyResult<Vec<Mixing>> = items.iter().map(one).collect();
        mixings?.into_iter().zip(weights).collect()
    } else {
        vec![(one(item)?, 1.0)]
    };
    BatchTransform::new(choices).map_err(invalid)
}

/// Refuses a way to mix a batch whose numbers cannot be.
#[pyfunction]
#[pyo3(signature = (transform, /))]
pub(crate) fn _check_batch_transform(transform: &Bound<'_, PyAny>) -> PyResult<()> {
    batch_transform(transform).map(|_| ())
}

/// A list, compiled, and the normalisation that is in it.
pub(crate) fn compile(items: &[Bound<'_, PyAny>]) -> PyResult<(TransformList, Option<Normalize>)> {
    let (mut steps, mut normalize) = (Vec::new(), None);
    for item in items {
        match read(item)? {
            Item::Normalize(_) if normalize.is_some() => {
                return Err(invalid("Normalize twice: a list has it once"));
            }
            Item::Normalize(found) => normalize = Some(found),
            Item::Step(step) => {
                if normalize.is_some() && !matches!(step, Step::RandomErasing(_)) {
                    return Err(invalid(format!(
                        "{} after Normalize: it works on bytes and comes before; only RandomErasing comes after",
                        step.name()
                    )));
                }
                if normalize.is_none()
                    && let Step::RandomErasing(_) = step
                    && items
                        .iter()
                        .any(|item| matches!(read(item), Ok(Item::Normalize(_))))
                {
                    return Err(invalid(
                        "RandomErasing before Normalize: put it last, its value is what the output has",
                    ));
                }
                steps.push(step);
            }
        }
    }
    let list = TransformList::new(steps).map_err(invalid)?;
    Ok((list, normalize))
}
