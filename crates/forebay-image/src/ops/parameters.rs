//! Parameters of ops: how they are described, and how they are written in JSON.

use super::Definition;
use crate::error::{Result, invalid};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Height and width, in pixels.
pub type Size = (u32, u32);

/// Bounds of a number, the lower one first.
pub type Bounds = (f64, f64);

/// A parameter of an op, as its file declares it.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Parameter {
    /// The name of the field.
    pub name: &'static str,
    /// Type of the value.
    pub kind: ParameterKind,
    /// A sentence for users.
    pub doc: &'static str,
    /// The default of an op that has required parameters beside this one.
    default: Option<fn() -> Bounds>,
}

impl Parameter {
    pub(super) const fn new(name: &'static str, kind: ParameterKind, doc: &'static str) -> Self {
        Self {
            name,
            kind,
            doc,
            default: None,
        }
    }

    /// With a default, in an op whose other parameters are required.
    pub(super) const fn with_default(self, default: fn() -> Bounds) -> Self {
        Self {
            default: Some(default),
            ..self
        }
    }
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ParameterKind {
    /// A whole number, 0 or more.
    Integer,
    /// A number.
    Number,
    /// Two numbers, the lower one first.
    Range,
    /// A number, or two, the lower one first.
    NumberOrRange,
    /// A whole number, or two.
    IntegerOrPair,
    /// A distance from the neutral value, two bounds, or nothing.
    Deviation,
    /// A height and a width in pixels; one number is both.
    Size,
    /// The short side in pixels, or a height and a width.
    SideOrSize,
    /// A number for each of red, green and blue.
    Channels,
    /// A byte, one for each of red, green and blue, or nothing for black.
    Color,
    /// A number, one for each of red, green and blue, or `"random"`.
    Fill,
    /// One of some names.
    Choice(&'static [&'static str]),
}

/// An op and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OpSchema {
    /// Its name.
    pub name: &'static str,
    /// One sentence for users.
    pub doc: &'static str,
    /// Its parameters, in order.
    pub parameters: Vec<ParameterSchema>,
}

/// A parameter, with its default.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ParameterSchema {
    /// Its name.
    pub name: &'static str,
    /// Type of the value.
    pub kind: ParameterKind,
    /// The value if it is left out; `None` if it is required.
    pub default: Option<Value>,
    /// A sentence for users.
    pub doc: &'static str,
}

impl OpSchema {
    pub(super) fn of<T: Definition>(name: &'static str) -> Self {
        let defaults = T::defaults().map(|op| to_json(&op));
        let parameters = T::PARAMETERS.iter().map(|parameter| ParameterSchema {
            name: parameter.name,
            kind: parameter.kind,
            default: match (parameter.default, &defaults) {
                (Some(default), _) => Some(serde_json::json!(default())),
                (None, defaults) => defaults.as_ref().map(|all| all[parameter.name].clone()),
            },
            doc: parameter.doc,
        });
        Self {
            name,
            doc: T::DOC,
            parameters: parameters.collect(),
        }
    }
}

pub(super) fn to_json<T: Definition>(op: &T) -> Value {
    serde_json::to_value(op).expect("parameters are numbers, names and lists of them")
}

pub(super) fn from_json<T: Definition>(name: &str, params: Value) -> Result<T> {
    // serde takes a list of values for a struct as well.
    if !params.is_object() {
        return Err(invalid(format!(
            "parameters of {name} are {params}, expected an object"
        )));
    }
    serde_path_to_error::deserialize(params).map_err(|error| {
        let path = error.path().to_string();
        let why = error.into_inner();
        invalid(match path.as_str() {
            "." => format!("{name}: {why}"),
            _ => format!("{path} of {name}: {why}"),
        })
    })
}

/// Reads a height and a width; one number is both.
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Size, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a side in pixels, or a height and a width"
    )]
    enum Sides {
        One(u32),
        Two(Size),
    }
    Ok(match Sides::deserialize(from)? {
        Sides::One(side) => (side, side),
        Sides::Two(size) => size,
    })
}

/// Reads a color; one byte is a gray, nothing is black.
pub(super) fn color<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<[u8; 3], D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a byte (0 to 255), or one for each of red, green and blue"
    )]
    enum Color {
        Gray(u8),
        Rgb([u8; 3]),
    }
    Ok(match Option::deserialize(from)? {
        None => [0; 3],
        Some(Color::Gray(gray)) => [gray; 3],
        Some(Color::Rgb(color)) => color,
    })
}

/// Reads two bounds; one number is both.
pub(super) fn number_or_range<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Bounds, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, or two bounds")]
    enum Range {
        Number(f64),
        Bounds(Bounds),
    }
    Ok(match Range::deserialize(from)? {
        Range::Number(number) => (number, number),
        Range::Bounds(bounds) => bounds,
    })
}

/// Reads bounds of a factor: two, or the distance from 1 where there is no change.
pub(super) fn around_one<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Bounds>, D::Error> {
    deviation(from, |by| ((1.0 - by).max(0.0), 1.0 + by))
}

/// Reads bounds of a turn: two, or the distance from 0 where there is no change.
pub(super) fn around_zero<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Bounds>, D::Error> {
    deviation(from, |by| (-by, by))
}

fn deviation<'de, D: Deserializer<'de>>(
    from: D,
    around: impl Fn(f64) -> Bounds,
) -> std::result::Result<Option<Bounds>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number, or two bounds")]
    enum Deviation {
        By(f64),
        Bounds(Bounds),
    }
    Ok(Option::deserialize(from)?.map(|given| match given {
        Deviation::By(by) => around(by),
        Deviation::Bounds(bounds) => bounds,
    }))
}
