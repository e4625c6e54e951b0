//! Descriptions of the parameters of ops, and their JSON forms.

use super::Definition;
use crate::error::{Result, invalid};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

/// Height and width, in pixels.
pub type Size = (u32, u32);

/// Lower and upper bound of a number.
pub type Bounds = (f64, f64);

/// Bounds of a horizontal and of a vertical angle, in degrees.
pub type ShearBounds = (f64, f64, f64, f64);

/// A parameter of an op, as declared in the op's file.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Parameter {
    /// Name of the field.
    pub name: &'static str,
    /// Type of the value.
    pub kind: ParameterKind,
    /// A sentence for users.
    pub doc: &'static str,
    required: bool,
}

impl Parameter {
    pub(super) const fn new(name: &'static str, kind: ParameterKind, doc: &'static str) -> Self {
        Self {
            name,
            kind,
            doc,
            required: false,
        }
    }

    /// Returns the parameter without a default.
    pub(super) const fn required(self) -> Self {
        Self {
            required: true,
            ..self
        }
    }
}

/// The type of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ParameterKind {
    /// An integer, 0 or more.
    Integer,
    /// A number.
    Number,
    /// Two numbers, the lower one first.
    Range,
    /// Several numbers.
    Numbers,
    /// A number, or two, the lower one first.
    NumberOrRange,
    /// An integer, or two.
    IntegerOrPair,
    /// A distance from the neutral value, two bounds, or null.
    Deviation,
    /// Two numbers, or null.
    OptionalPair,
    /// An angle, two bounds of the horizontal angle, four bounds of both angles, or null.
    Shear,
    /// A height and a width in pixels, or one number for both.
    Size,
    /// The short side in pixels, or a height and a width.
    SideOrSize,
    /// A number for each of red, green and blue.
    Channels,
    /// A byte, one each for red, green and blue, or null for black.
    Color,
    /// A number, one each for red, green and blue, or `"random"`.
    Fill,
    /// One of several names.
    Choice(&'static [&'static str]),
}

/// An op and its parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OpSchema {
    /// Its name.
    pub name: &'static str,
    /// A description for users.
    pub doc: &'static str,
    /// Further sentences; may be empty.
    pub details: &'static str,
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
    /// Whether it must be given.
    pub required: bool,
    /// The default; `None` if it is required.
    pub default: Option<Value>,
    /// A sentence for users.
    pub doc: &'static str,
}

impl OpSchema {
    pub(super) fn of<T: Definition>(name: &'static str) -> Self {
        // serde knows the defaults; 1 is a valid value of each required parameter.
        let required = T::PARAMETERS.iter().filter(|parameter| parameter.required);
        let given = required.map(|parameter| (parameter.name.to_owned(), Value::from(1)));
        let op: T = from_json(name, given.collect()).expect("only optional parameters are omitted");
        let values = to_json(&op);
        let parameters = T::PARAMETERS.iter().map(|parameter| ParameterSchema {
            name: parameter.name,
            kind: parameter.kind,
            required: parameter.required,
            default: (!parameter.required).then(|| values[parameter.name].clone()),
            doc: parameter.doc,
        });
        Self {
            name,
            doc: T::DOC,
            details: T::DETAILS,
            parameters: parameters.collect(),
        }
    }
}

pub(super) fn to_json<T: Definition>(op: &T) -> Value {
    serde_json::to_value(op).expect("parameters are numbers, names and lists of them")
}

pub(super) fn from_json<T: Definition>(name: &str, params: Value) -> Result<T> {
    // serde also accepts an array for a struct.
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

/// A side in pixels, or a height and a width.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a side in pixels, or a height and a width"
)]
pub(super) enum Sides {
    One(u32),
    ListOfOne([u32; 1]),
    Two(Size),
}

/// Reads a height and a width, or one number for both.
pub(super) fn size<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Size, D::Error> {
    Ok(match Sides::deserialize(from)? {
        Sides::One(side) | Sides::ListOfOne([side]) => (side, side),
        Sides::Two(size) => size,
    })
}

/// Reads a color; one number is a gray, null is black. Fractions are truncated, as in torchvision.
pub(super) fn color<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<[u8; 3], D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a byte (0 to 255), or one for each of red, green and blue"
    )]
    enum Color {
        Gray(f64),
        ListOfOne([f64; 1]),
        Rgb([f64; 3]),
    }
    let color = match Option::deserialize(from)? {
        None => [0.0; 3],
        Some(Color::Gray(gray) | Color::ListOfOne([gray])) => [gray; 3],
        Some(Color::Rgb(color)) => color,
    };
    if let Some(outside) = color.iter().find(|level| !(0.0..256.0).contains(*level)) {
        return Err(serde::de::Error::custom(format!(
            "{outside}: expected a byte (0 to 255), or one for each of red, green and blue"
        )));
    }
    Ok(color.map(|level| level as u8))
}

/// A number, or two bounds.
#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a number, or two bounds")]
enum NumberOrBounds {
    Number(f64),
    Bounds(Bounds),
}

impl NumberOrBounds {
    /// Returns the bounds; those of a single number come from `around`.
    fn bounds(self, around: impl Fn(f64) -> Bounds) -> Bounds {
        match self {
            Self::Number(number) => around(number),
            Self::Bounds(bounds) => bounds,
        }
    }
}

/// Reads two bounds, or one number for both.
pub(super) fn number_or_range<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Bounds, D::Error> {
    Ok(NumberOrBounds::deserialize(from)?.bounds(|number| (number, number)))
}

/// Reads two bounds; a number `x` stands for `-x` to `x`.
pub(super) fn symmetric<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Bounds, D::Error> {
    Ok(NumberOrBounds::deserialize(from)?.bounds(|by| (-by, by)))
}

/// Reads two bounds of the horizontal angle, or four of both; a number `x` stands for `-x` to `x`.
pub(super) fn shear<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<ShearBounds>, D::Error> {
    #[derive(Deserialize)]
    #[serde(
        untagged,
        expecting = "expected a number, two bounds, or two bounds of each of two angles"
    )]
    enum Shear {
        By(f64),
        Horizontal(Bounds),
        Both(ShearBounds),
    }
    Ok(Option::deserialize(from)?.map(|given| match given {
        Shear::By(by) => (-by, by, 0.0, 0.0),
        Shear::Horizontal((low, high)) => (low, high, 0.0, 0.0),
        Shear::Both(bounds) => bounds,
    }))
}

/// Reads two bounds of a factor, or their distance from the neutral value 1.
pub(super) fn around_one<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Bounds>, D::Error> {
    deviation(from, |by| ((1.0 - by).max(0.0), 1.0 + by))
}

/// Reads two bounds of a hue shift, or their distance from the neutral value 0.
pub(super) fn around_zero<'de, D: Deserializer<'de>>(
    from: D,
) -> std::result::Result<Option<Bounds>, D::Error> {
    deviation(from, |by| (-by, by))
}

fn deviation<'de, D: Deserializer<'de>>(
    from: D,
    around: impl Fn(f64) -> Bounds,
) -> std::result::Result<Option<Bounds>, D::Error> {
    let given = Option::<NumberOrBounds>::deserialize(from)?.map(|given| given.bounds(&around));
    Ok(given.filter(|bounds| *bounds != around(0.0)))
}
