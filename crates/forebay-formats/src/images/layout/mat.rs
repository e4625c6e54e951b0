//! Parses MATLAB files of level 5 as far as `meta.mat` of the ILSVRC development kit needs it: an array of structs whose fields
//! are numbers and texts, compressed or not. Written after "MAT-File Format", MathWorks, chapter 1.

use std::io::Read;

/// Largest decompressed size. The published file has 1,860 synsets in less than 3 MB.
const INFLATED_MAX_BYTES: u64 = 16 << 20;
const HEADER_BYTES: usize = 128;
/// Most fields of a struct. Those of the published file have 8.
const FIELDS_MAX: usize = 256;
/// Deepest nesting of structs, which bounds the recursion.
const DEPTH_MAX: usize = 8;

/// A synset of the development kit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Synset {
    /// `ILSVRC2012_ID`, by which the ground truth of the validation images names the synset.
    pub(crate) id: i64,
    pub(crate) wnid: String,
    pub(crate) words: String,
}

/// Returns the synsets of `meta.mat` in the order of the file.
pub(crate) fn synsets(file: &[u8]) -> Result<Vec<Synset>, String> {
    let arrays = read(file)?;
    let (fields, values) = arrays
        .into_iter()
        .find_map(|(name, value)| match value {
            Value::Struct { fields, values } if name == "synsets" => Some((fields, values)),
            _ => None,
        })
        .ok_or("there is no array of structs named synsets in it")?;
    let column = |name: &str| {
        fields
            .iter()
            .position(|field| field == name)
            .ok_or_else(|| format!("the synsets have no field {name}"))
    };
    let (id, wnid, words) = (column("ILSVRC2012_ID")?, column("WNID")?, column("words")?);
    values
        .chunks_exact(fields.len())
        .enumerate()
        .map(|(number, row)| {
            let text = |at: usize| match &row[at] {
                Value::Text(text) => Ok(text.clone()),
                _ => Err(format!("synset {number}: {} is no text", fields[at])),
            };
            let id = match &row[id] {
                Value::Number(number) if number.fract() == 0.0 && number.abs() < 1e9 => {
                    *number as i64
                }
                _ => return Err(format!("synset {number}: ILSVRC2012_ID is no number")),
            };
            Ok(Synset {
                id,
                wnid: text(wnid)?,
                words: text(words)?,
            })
        })
        .collect()
}

/// Content of an array, as far as it is needed.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    /// A single number.
    Number(f64),
    Text(String),
    /// The values of all fields of the first struct, then those of the second, and so on.
    Struct {
        fields: Vec<String>,
        values: Vec<Value>,
    },
    Other,
}

#[derive(Clone, Copy)]
struct Order {
    little: bool,
}

/// Type and content of a data element.
type Element<'a> = (u32, &'a [u8]);

/// Parses the top-level arrays with their names.
fn read(file: &[u8]) -> Result<Vec<(String, Value)>, String> {
    let header = file
        .get(..HEADER_BYTES)
        .ok_or("it is no MATLAB file: too short")?;
    let order = match &header[126..128] {
        b"IM" => Order { little: true },
        b"MI" => Order { little: false },
        _ => {
            return Err(
                "it is no MATLAB file of level 5 (files of version 7.3 are HDF5 and not read)"
                    .into(),
            );
        }
    };
    let version = order.u16(&header[124..126]);
    if version != 0x0100 {
        return Err(format!(
            "MATLAB file version {version:#06x} is not read, only 0x0100"
        ));
    }
    let mut rest = &file[HEADER_BYTES..];
    let mut arrays = Vec::new();
    let mut budget = INFLATED_MAX_BYTES;
    while !rest.is_empty() {
        let (kind, content) = order.element(&mut rest)?;
        match kind {
            14 => arrays.push(order.matrix(content, 0)?),
            15 => {
                let mut inflated = Vec::new();
                flate2::read::ZlibDecoder::new(content)
                    .take(budget + 1)
                    .read_to_end(&mut inflated)
                    .map_err(|error| format!("a compressed array is damaged: {error}"))?;
                budget = budget
                    .checked_sub(inflated.len() as u64)
                    .ok_or_else(|| format!("it has more than {INFLATED_MAX_BYTES} bytes"))?;
                let mut inner = inflated.as_slice();
                match order.element(&mut inner)? {
                    (14, content) => arrays.push(order.matrix(content, 0)?),
                    (kind, _) => {
                        return Err(format!("a compressed element of type {kind} is no array"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(arrays)
}

impl Order {
    fn u16(self, bytes: &[u8]) -> u16 {
        let bytes = [bytes[0], bytes[1]];
        if self.little {
            u16::from_le_bytes(bytes)
        } else {
            u16::from_be_bytes(bytes)
        }
    }

    fn u32(self, bytes: &[u8]) -> u32 {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if self.little {
            u32::from_le_bytes(bytes)
        } else {
            u32::from_be_bytes(bytes)
        }
    }

    /// Removes the next element from `rest` and returns it.
    fn element<'a>(self, rest: &mut &'a [u8]) -> Result<Element<'a>, String> {
        let cut = || "it is cut short".to_owned();
        let tag = rest.get(..8).ok_or_else(cut)?;
        let first = self.u32(tag);
        // A small element has its length in the upper half of the type, and up to four bytes of data in the tag.
        let (kind, len, start, size) = if first >> 16 != 0 {
            let len = (first >> 16) as usize;
            if len > 4 {
                return Err(format!("a small element of {len} bytes is impossible"));
            }
            (first & 0xffff, len, 4, 8)
        } else {
            let len = self.u32(&tag[4..]) as usize;
            // Compressed elements are not padded.
            let padded = if first == 15 {
                Some(len)
            } else {
                len.checked_next_multiple_of(8)
            };
            let size = padded.and_then(|len| len.checked_add(8)).ok_or_else(cut)?;
            (first, len, 8, size)
        };
        let content = rest.get(start..start + len).ok_or_else(cut)?;
        // The padding of the last element may be missing.
        *rest = rest.get(size..).unwrap_or_default();
        Ok((kind, content))
    }

    /// Parses an array and its name.
    fn matrix(self, mut rest: &[u8], depth: usize) -> Result<(String, Value), String> {
        if rest.is_empty() {
            return Ok((String::new(), Value::Other));
        }
        if depth > DEPTH_MAX {
            return Err("its arrays nest too deep".into());
        }
        let (_, flags) = self.element(&mut rest)?;
        if flags.len() < 8 {
            return Err("an array has no flags".into());
        }
        let class = self.u32(flags) & 0xff;
        let (_, dimensions) = self.element(&mut rest)?;
        let count = dimensions
            .chunks_exact(4)
            .try_fold(1usize, |count, size| {
                count.checked_mul(self.u32(size) as usize)
            })
            .ok_or("an array of that size is impossible")?;
        let (_, name) = self.element(&mut rest)?;
        let name = String::from_utf8_lossy(name).into_owned();
        let value = match class {
            2 => self.structs(rest, count, depth)?,
            4 => {
                let (kind, content) = self.element(&mut rest)?;
                self.text(kind, content)?
            }
            6..=15 if count == 1 => {
                let (kind, content) = self.element(&mut rest)?;
                self.number(kind, content)
                    .map_or(Value::Other, Value::Number)
            }
            _ => Value::Other,
        };
        Ok((name, value))
    }

    fn structs(self, mut rest: &[u8], count: usize, depth: usize) -> Result<Value, String> {
        let (_, width) = self.element(&mut rest)?;
        let width = width.get(..4).map_or(0, |width| self.u32(width)) as usize;
        let (_, names) = self.element(&mut rest)?;
        if width == 0 || names.is_empty() {
            return Err("a struct has no field names".into());
        }
        let count_of_fields = names.len().div_ceil(width);
        if count_of_fields > FIELDS_MAX {
            return Err(format!(
                "a struct of {count_of_fields} fields, at most {FIELDS_MAX} are read"
            ));
        }
        let fields: Vec<String> = names
            .chunks(width)
            .map(|name| {
                let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
                String::from_utf8_lossy(name).into_owned()
            })
            .collect();
        let total = fields
            .len()
            .checked_mul(count)
            .ok_or("an array of that size is impossible")?;
        // Every value takes at least a tag of 8 bytes, so the declared count is checked before memory is allocated.
        if total > rest.len() / 8 {
            return Err("it is cut short inside an array of structs".into());
        }
        let mut values = Vec::with_capacity(total);
        for _ in 0..total {
            let (kind, content) = self.element(&mut rest)?;
            if kind != 14 {
                return Err(format!("a field of element type {kind} is no array"));
            }
            values.push(self.matrix(content, depth + 1)?.1);
        }
        Ok(Value::Struct { fields, values })
    }

    fn text(self, kind: u32, content: &[u8]) -> Result<Value, String> {
        let text = match kind {
            1 | 2 | 16 => String::from_utf8_lossy(content).into_owned(),
            4 | 17 => {
                let units: Vec<u16> = content.chunks_exact(2).map(|unit| self.u16(unit)).collect();
                String::from_utf16_lossy(&units)
            }
            18 => content
                .chunks_exact(4)
                .map(|unit| char::from_u32(self.u32(unit)).unwrap_or(char::REPLACEMENT_CHARACTER))
                .collect(),
            kind => return Err(format!("a text of element type {kind} is not known")),
        };
        Ok(Value::Text(text))
    }

    /// Returns the first number of an element, which may have any numeric type of MATLAB.
    fn number(self, kind: u32, content: &[u8]) -> Option<f64> {
        let wide = || {
            let (a, b) = (self.u32(content.get(..4)?), self.u32(content.get(4..8)?));
            let (low, high) = if self.little { (a, b) } else { (b, a) };
            Some(u64::from(high) << 32 | u64::from(low))
        };
        let first = content.first().copied();
        let two = || content.get(..2).map(|bytes| self.u16(bytes));
        let four = || content.get(..4).map(|bytes| self.u32(bytes));
        match kind {
            1 => first.map(|value| f64::from(value as i8)),
            2 => first.map(f64::from),
            3 => two().map(|value| f64::from(value as i16)),
            4 => two().map(f64::from),
            5 => four().map(|value| f64::from(value as i32)),
            6 => four().map(f64::from),
            7 => four().map(|value| f64::from(f32::from_bits(value))),
            9 => wide().map(f64::from_bits),
            12 => wide().map(|value| value as i64 as f64),
            13 => wide().map(|value| value as f64),
            _ => None,
        }
    }
}

#[cfg(test)]
#[path = "mat_tests.rs"]
mod tests;
