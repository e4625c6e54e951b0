//! Values of columns: reads them from records, and adds them to records.

use super::{Column, ColumnType, FeatureEntry, MAX_JSON_BYTES, NumberType};
use crate::example::{ExampleBuilder, ExampleError, ExampleView, FeatureView};

/// The value of a column in one record.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ColumnValue<'a> {
    /// An image, a mask, text, JSON or bytes.
    Bytes(&'a [u8]),
    /// Texts, or the segmentation of each object.
    List(Vec<&'a [u8]>),
    /// A label or an integer.
    Int(i64),
    /// A float.
    Float(f32),
    /// Labels, or a vector of integers.
    Ints(Vec<i64>),
    /// A vector of floats.
    Floats(Vec<f32>),
    /// A tensor.
    Tensor {
        /// Its dimensions.
        shape: Vec<u64>,
        /// Its numbers, little-endian, in row-major order.
        bytes: &'a [u8],
    },
    /// Boxes.
    Boxes {
        /// Each as (xmin, ymin, xmax, ymax), from 0 to 1.
        boxes: Vec<[f32; 4]>,
        /// The label of each, as stored.
        labels: Vec<i64>,
    },
    /// Keypoints.
    Keypoints {
        /// Each as (x, y), from 0 to 1.
        points: Vec<[f32; 2]>,
        /// 0 for a point that is not labeled, 1 for one that is hidden, 2 for a visible one.
        visibility: Vec<i64>,
    },
}

impl Column {
    /// Reads the value of this column; `None` if the record has none. An empty list in a feature of a single value
    /// also counts as none.
    ///
    /// # Errors
    /// If the features of the record do not fit the type of the column.
    pub fn read<'a>(
        &self,
        example: ExampleView<'a>,
    ) -> Result<Option<ColumnValue<'a>>, ExampleError> {
        let mut absent = true;
        for feature in self.features() {
            absent &= !has_values(example.get(&feature.name))?;
        }
        if absent {
            return Ok(None);
        }
        let own = || required(example, &self.feature);
        let value = match &self.column_type {
            ColumnType::Image
            | ColumnType::Mask
            | ColumnType::Text
            | ColumnType::Json
            | ColumnType::Bytes => match own()?.one_bytes(false)? {
                Some(bytes) => ColumnValue::Bytes(bytes),
                None => return Ok(None),
            },
            ColumnType::Texts | ColumnType::Polygons => ColumnValue::List(own()?.bytes_list()?),
            ColumnType::Label | ColumnType::Int => match own()?.one_int64(false)? {
                Some(value) => ColumnValue::Int(value),
                None => return Ok(None),
            },
            ColumnType::Float => match own()?.floats()?.as_slice() {
                [value] => ColumnValue::Float(*value),
                [] => return Ok(None),
                several => {
                    return Err(ExampleError::Several {
                        name: self.feature.clone(),
                        values: several.len(),
                    });
                }
            },
            ColumnType::Labels => ColumnValue::Ints(own()?.int64s()?),
            ColumnType::Vector { number, .. } => match number {
                NumberType::Int64 => ColumnValue::Ints(own()?.int64s()?),
                _ => ColumnValue::Floats(own()?.floats()?),
            },
            ColumnType::Tensor { shape, .. } => {
                let known: Option<Vec<u64>> = shape.iter().copied().collect();
                let shape = match known {
                    Some(shape) => shape,
                    None => {
                        let stored = required(example, &self.shape_feature())?.int64s()?;
                        let shape = stored.iter().map(|&len| u64::try_from(len));
                        let shape: Result<_, _> = shape.collect();
                        shape.map_err(|_| self.invalid("a negative number in its shape"))?
                    }
                };
                ColumnValue::Tensor {
                    shape,
                    bytes: one_bytes(own()?)?,
                }
            }
            ColumnType::Boxes => {
                let side = |name: &str| floats(example, &(self.feature.clone() + name));
                let (xmin, ymin) = (side("/xmin")?, side("/ymin")?);
                let (xmax, ymax) = (side("/xmax")?, side("/ymax")?);
                let lengths = [ymin.len(), xmax.len(), ymax.len()];
                if lengths != [xmin.len(); 3] {
                    return Err(self.invalid("sides of different numbers of boxes"));
                }
                let boxes = (0..xmin.len()).map(|i| [xmin[i], ymin[i], xmax[i], ymax[i]]);
                let boxes: Vec<_> = boxes.collect();
                let labels = match example.get(&self.labels_feature()) {
                    Some(feature) => feature.int64s()?,
                    None => vec![-1; boxes.len()],
                };
                ColumnValue::Boxes { boxes, labels }
            }
            ColumnType::Keypoints => {
                let x = floats(example, &format!("{}/x", self.feature))?;
                let y = floats(example, &format!("{}/y", self.feature))?;
                if x.len() != y.len() {
                    return Err(self.invalid("different numbers of x and y"));
                }
                let visibility = match example.get(&format!("{}/visibility", self.feature)) {
                    Some(feature) => feature.int64s()?,
                    None => vec![2; x.len()],
                };
                let points = x.into_iter().zip(y).map(|(x, y)| [x, y]).collect();
                ColumnValue::Keypoints { points, visibility }
            }
        };
        self.check(&value)?;
        Ok(Some(value))
    }

    /// Adds a value to a record. `features` are the column's [`features`](Self::features), which the caller computes
    /// once for all records.
    ///
    /// # Errors
    /// If the value does not fit the type of the column.
    pub fn add<'a>(
        &self,
        features: &'a [FeatureEntry],
        value: &ColumnValue<'a>,
        builder: &mut ExampleBuilder<'a>,
    ) -> Result<(), ExampleError> {
        self.check(value)?;
        let name = |number: usize| features.get(number).map_or("", |f| f.name.as_str());
        match value {
            ColumnValue::Bytes(bytes) => {
                builder.add_bytes(name(0), bytes);
            }
            ColumnValue::List(values) => {
                builder.add_bytes_list(name(0), values);
            }
            ColumnValue::Int(value) => {
                builder.add_int64(name(0), *value);
            }
            ColumnValue::Float(value) => {
                builder.add_float(name(0), *value);
            }
            ColumnValue::Ints(values) => {
                builder.add_int64s(name(0), values);
            }
            ColumnValue::Floats(values) => {
                builder.add_floats(name(0), values);
            }
            ColumnValue::Tensor { shape, bytes } => {
                builder.add_bytes(name(0), bytes);
                if features.len() > 1 {
                    let shape: Vec<i64> = shape.iter().map(|&len| len as i64).collect();
                    builder.add_int64s(name(1), &shape);
                }
            }
            ColumnValue::Boxes { boxes, labels } => {
                for side in 0..4 {
                    let values: Vec<f32> = boxes.iter().map(|row| row[side]).collect();
                    builder.add_floats(name(side), &values);
                }
                builder.add_int64s(name(4), labels);
            }
            ColumnValue::Keypoints { points, visibility } => {
                for axis in 0..2 {
                    let values: Vec<f32> = points.iter().map(|point| point[axis]).collect();
                    builder.add_floats(name(axis), &values);
                }
                builder.add_int64s(name(2), visibility);
            }
        }
        Ok(())
    }

    /// Checks that a value fits the type of the column, as [`add`](Self::add) does.
    ///
    /// # Errors
    /// [`ExampleError::Column`] with the problem.
    pub fn check(&self, value: &ColumnValue<'_>) -> Result<(), ExampleError> {
        let checked = |found: Result<(), String>| found.map_err(|problem| self.invalid(problem));
        let problem = match (&self.column_type, value) {
            (ColumnType::Image | ColumnType::Mask | ColumnType::Bytes, ColumnValue::Bytes(_))
            | (ColumnType::Label | ColumnType::Int, ColumnValue::Int(_))
            | (ColumnType::Float, ColumnValue::Float(_))
            | (ColumnType::Labels, ColumnValue::Ints(_)) => return Ok(()),
            (ColumnType::Text, ColumnValue::Bytes(bytes)) => return checked(check_text(bytes)),
            (ColumnType::Json, ColumnValue::Bytes(bytes)) => return checked(check_json(bytes)),
            (ColumnType::Texts, ColumnValue::List(texts)) => {
                return checked(check_each("text", texts, check_text));
            }
            (ColumnType::Polygons, ColumnValue::List(objects)) => {
                let check = |json: &[u8]| polygons(json).map(drop);
                return checked(check_each("object", objects, check));
            }
            (ColumnType::Vector { len, number }, ColumnValue::Ints(values))
                if *number == NumberType::Int64 =>
            {
                return self.check_len(*len, values.len());
            }
            (ColumnType::Vector { len, number }, ColumnValue::Floats(values))
                if *number == NumberType::Float32 =>
            {
                return self.check_len(*len, values.len());
            }
            (
                ColumnType::Tensor {
                    shape: expected,
                    number,
                },
                ColumnValue::Tensor { shape, bytes },
            ) => {
                let fits = |(expected, found): (&Option<u64>, &u64)| {
                    expected.is_none_or(|expected| expected == *found)
                };
                if expected.len() != shape.len() || !expected.iter().zip(shape).all(fits) {
                    let expected = ColumnType::Tensor {
                        shape: expected.clone(),
                        number: *number,
                    }
                    .to_string();
                    let expected = expected.trim_start_matches("tensor");
                    let dims = expected.rsplit_once(',').map_or("[", |(dims, _)| dims);
                    return Err(self.invalid(format!("expected shape {dims}], found {shape:?}")));
                }
                let bytes_of = |shape: &[u64]| {
                    let item = number.bytes() as u64;
                    shape
                        .iter()
                        .try_fold(item, |all, &len| all.checked_mul(len))
                };
                match bytes_of(shape) {
                    Some(expected) if expected == bytes.len() as u64 => return Ok(()),
                    Some(expected) => {
                        format!("expected {expected} bytes, found {}", bytes.len())
                    }
                    None => format!("a shape of more than 2^64 bytes, and {} bytes", bytes.len()),
                }
            }
            (ColumnType::Boxes, ColumnValue::Boxes { boxes, labels }) => {
                if boxes.len() != labels.len() {
                    format!("{} boxes and {} labels", boxes.len(), labels.len())
                } else if boxes.iter().flatten().any(|side| !side.is_finite()) {
                    "a side of a box is not a finite number".to_owned()
                } else {
                    return Ok(());
                }
            }
            (ColumnType::Keypoints, ColumnValue::Keypoints { points, visibility }) => {
                if points.len() != visibility.len() {
                    let (points, flags) = (points.len(), visibility.len());
                    format!("{points} points and visibility of {flags}")
                } else if points.iter().flatten().any(|at| !at.is_finite()) {
                    "a coordinate is not a finite number".to_owned()
                } else {
                    return Ok(());
                }
            }
            (expected, _) => format!("expected {}", expected_value(expected)),
        };
        Err(self.invalid(problem))
    }

    fn check_len(&self, expected: Option<u64>, found: usize) -> Result<(), ExampleError> {
        match expected {
            Some(expected) if expected != found as u64 => {
                Err(self.invalid(format!("expected {expected} numbers, found {found}")))
            }
            _ => Ok(()),
        }
    }

    fn invalid(&self, problem: impl Into<String>) -> ExampleError {
        ExampleError::Column {
            name: self.name.clone(),
            problem: problem.into(),
        }
    }
}

fn expected_value(column_type: &ColumnType) -> &'static str {
    match column_type {
        ColumnType::Image | ColumnType::Mask => "an encoded image",
        ColumnType::Label | ColumnType::Int => "an integer",
        ColumnType::Float => "a number",
        ColumnType::Labels => "integers",
        ColumnType::Vector { .. } => "numbers of the vector's type",
        ColumnType::Tensor { .. } => "a tensor",
        ColumnType::Text => "text",
        ColumnType::Texts => "a list of texts",
        ColumnType::Json => "JSON",
        ColumnType::Polygons => "polygons",
        ColumnType::Bytes => "bytes",
        ColumnType::Boxes => "boxes",
        ColumnType::Keypoints => "keypoints",
    }
}

/// Returns the polygons of an object from COCO's JSON: each as x, y, x, y in pixels. An empty string and a run-length mask,
/// which crowds have, give none.
///
/// # Errors
/// The problem.
pub fn polygons(json: &[u8]) -> Result<Vec<Vec<f64>>, String> {
    match json.trim_ascii_start().first() {
        None => return Ok(Vec::new()),
        Some(b'{') => return check_json(json).map(|()| Vec::new()),
        Some(_) => {}
    }
    let polygons: Vec<Vec<f64>> =
        crate::json::from_slice(json).map_err(|error| format!("no list of polygons: {error}"))?;
    let is_odd = |polygon: &&Vec<f64>| !polygon.len().is_multiple_of(2);
    match polygons.iter().find(is_odd) {
        None => Ok(polygons),
        Some(polygon) => Err(format!("{} numbers are no polygon", polygon.len())),
    }
}

fn check_each(
    name: &str,
    values: &[&[u8]],
    check: impl Fn(&[u8]) -> Result<(), String>,
) -> Result<(), String> {
    let failed = |number, problem| format!("{name} {number}: {problem}");
    let mut values = values.iter().enumerate();
    values.try_for_each(|(number, value)| check(value).map_err(|e| failed(number, e)))
}

fn check_text(text: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(text);
    text.map(drop)
        .map_err(|error| format!("byte {} is not UTF-8", error.valid_up_to()))
}

/// Checks the size, the nesting and the numbers of a JSON document.
fn check_json(json: &[u8]) -> Result<(), String> {
    if json.len() > MAX_JSON_BYTES {
        let found = json.len();
        return Err(format!(
            "JSON has at most {MAX_JSON_BYTES} bytes, found {found}"
        ));
    }
    let read = crate::json::from_slice::<serde_json::Value>(json);
    read.map(|_| ())
        .map_err(|error| format!("no valid JSON: {error}"))
}

/// Returns whether a record has this feature, with values or as an empty list with a kind.
fn has_values(feature: Option<FeatureView<'_>>) -> Result<bool, ExampleError> {
    use crate::example::FeatureKind;
    match feature {
        Some(feature) => Ok(feature.kind()? != FeatureKind::Unset),
        None => Ok(false),
    }
}

fn required<'a>(example: ExampleView<'a>, name: &str) -> Result<FeatureView<'a>, ExampleError> {
    example.get(name).ok_or_else(|| ExampleError::Missing {
        name: name.to_owned(),
    })
}

fn floats(example: ExampleView<'_>, name: &str) -> Result<Vec<f32>, ExampleError> {
    required(example, name)?.floats()
}

fn one_bytes(feature: FeatureView<'_>) -> Result<&[u8], ExampleError> {
    let name = feature.name();
    feature
        .one_bytes(false)?
        .ok_or_else(|| ExampleError::Missing {
            name: name.to_owned(),
        })
}
