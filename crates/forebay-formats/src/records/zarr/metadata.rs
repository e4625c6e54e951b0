//! Parses the metadata of an array in both versions of Zarr: shape, chunks, type and codecs.

use super::codec::{ByteCodec, Codecs};
use crate::records::arrays::Element;
use crate::records::npy::number_of;
use forebay_shard::schema::NumberType;
use serde::Deserialize;
use serde_json::Value;

/// Most dimensions of an array, and most bytes of a chunk.
const MAX_DIMENSIONS: usize = 32;
const MAX_CHUNK_BYTES: u64 = 1 << 30;

/// The metadata of an array.
#[derive(Debug)]
pub(super) struct Metadata {
    pub(super) element: Element,
    /// Bytes of an element; 0 for elements of variable length.
    pub(super) width: u64,
    pub(super) is_big_endian: bool,
    pub(super) shape: Vec<u64>,
    /// The shape of the chunks, which are compressed separately.
    pub(super) chunk: Vec<u64>,
    pub(super) codecs: Codecs,
    pub(super) shard: Option<Shard>,
    /// The bytes of an element of a missing chunk; `None` if the metadata has no supported fill value.
    pub(super) fill: Option<Vec<u8>>,
    pub(super) keys: Keys,
}

/// A shard: several chunks in one object with an index.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) shape: Vec<u64>,
    pub(super) is_index_first: bool,
    pub(super) has_checksum: bool,
}

/// How the key of a chunk is formed from its position in the grid.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) has_prefix: bool,
    pub(super) separator: char,
}

impl Keys {
    /// Returns the key of a chunk relative to its array.
    pub(super) fn key(&self, place: &[u64]) -> String {
        let mut key = String::new();
        if self.has_prefix {
            key.push('c');
        }
        for (number, at) in place.iter().enumerate() {
            if number > 0 || self.has_prefix {
                key.push(self.separator);
            }
            key += &at.to_string();
        }
        match key.is_empty() {
            true => "0".to_owned(),
            false => key,
        }
    }
}

/// Metadata of version 2.
#[derive(Debug, Deserialize)]
struct Version2 {
    shape: Vec<u64>,
    chunks: Vec<u64>,
    dtype: Value,
    compressor: Option<Value>,
    #[serde(default)]
    fill_value: Value,
    order: char,
    filters: Option<Vec<Value>>,
    #[serde(default = "dot")]
    dimension_separator: char,
}

fn dot() -> char {
    '.'
}

/// Metadata of version 3.
#[derive(Debug, Deserialize)]
struct Version3 {
    shape: Vec<u64>,
    data_type: Value,
    chunk_grid: Value,
    chunk_key_encoding: Value,
    fill_value: Value,
    codecs: Vec<Value>,
    #[serde(default)]
    storage_transformers: Vec<Value>,
}

/// Returns the shape in the metadata, even if the array cannot be read.
pub(super) fn shape_of(json: &Value) -> Vec<u64> {
    let shape = json.get("shape").and_then(Value::as_array);
    shape.map_or_else(Vec::new, |dims| {
        dims.iter().filter_map(Value::as_u64).collect()
    })
}

/// Parses a `.zarray`. Returns an error if the array cannot be read.
pub(super) fn version_2(json: Value) -> Result<Metadata, String> {
    let read: Version2 = serde_json::from_value(json).map_err(damaged)?;
    let mut codecs = Codecs::default();
    for filter in read.filters.iter().flatten() {
        match name_of(filter, "id") {
            "vlen-utf8" | "vlen-bytes" if read.filters.iter().flatten().count() == 1 => {
                codecs.is_vlen = true;
            }
            "shuffle" => codecs.bytes.push(ByteCodec::version_2(filter)?),
            name => return Err(format!("has the filter {name:?}, which is not read")),
        }
    }
    let has_filter = codecs.is_vlen || !codecs.bytes.is_empty();
    if let Some(compressor) = &read.compressor {
        codecs.bytes.push(ByteCodec::version_2(compressor)?);
    }
    let is_text =
        codecs.is_vlen && name_of(&read.filters.unwrap_or_default()[0], "id") == "vlen-utf8";
    let descr = read.dtype.as_str();
    let descr = descr.ok_or("has a structured type, which no column holds")?;
    let kind = descr.get(1..2).unwrap_or_default();
    let count = descr.get(2..).and_then(|text| text.parse::<u32>().ok());
    let (element, width) = match (number_of(descr), kind, count) {
        (Some(number), ..) => (Element::Number(number), number.bytes() as u64),
        (None, "U", Some(characters)) => (Element::Utf32, u64::from(characters) * 4),
        (None, "S", Some(bytes)) => (Element::Padded, u64::from(bytes)),
        (None, "O", _) if is_text => (Element::Text, 0),
        (None, "O", _) if codecs.is_vlen => (Element::Bytes, 0),
        (None, "O", _) => {
            return Err("has Python objects, which no column holds".to_owned());
        }
        _ => {
            return Err(format!(
                "has elements of type {descr:?}, which no column holds"
            ));
        }
    };
    if codecs.is_vlen != (width == 0 && kind == "O")
        || (has_filter && kind == "O" && !codecs.is_vlen)
    {
        return Err("has a filter for texts and no texts, or the other way around".to_owned());
    }
    codecs.order = match read.order {
        'C' => None,
        'F' => Some((0..read.shape.len()).rev().collect()),
        order => return Err(format!("has the order {order:?}, which Zarr does not know")),
    };
    let is_big_endian = descr.starts_with('>');
    let fill = fill_value(&read.fill_value, &element, width, is_big_endian);
    let keys = Keys {
        has_prefix: false,
        separator: read.dimension_separator,
    };
    Metadata {
        element,
        width,
        is_big_endian,
        shape: read.shape,
        chunk: read.chunks,
        codecs,
        shard: None,
        fill,
        keys,
    }
    .checked()
}

/// Parses the `zarr.json` of an array. Returns an error if the array cannot be read.
pub(super) fn version_3(json: Value) -> Result<Metadata, String> {
    let read: Version3 = serde_json::from_value(json).map_err(damaged)?;
    let (element, width) = data_type(&read.data_type)?;
    if !read.storage_transformers.is_empty() {
        return Err("has storage transformers, which are not read".to_owned());
    }
    if name_of(&read.chunk_grid, "name") != "regular" {
        let name = name_of(&read.chunk_grid, "name");
        return Err(format!(
            "has the chunk grid {name:?}, only \"regular\" is read"
        ));
    }
    let mut chunk = dims(&read.chunk_grid, "chunk_shape")?;
    let separator = |default: char| {
        let set = read.chunk_key_encoding.pointer("/configuration/separator");
        let set = set
            .and_then(Value::as_str)
            .and_then(|text| text.chars().next());
        set.unwrap_or(default)
    };
    let keys = match name_of(&read.chunk_key_encoding, "name") {
        "default" => Keys {
            has_prefix: true,
            separator: separator('/'),
        },
        "v2" => Keys {
            has_prefix: false,
            separator: separator('.'),
        },
        name => return Err(format!("has the key encoding {name:?}, which is not read")),
    };
    let mut shard = None;
    let mut list = read.codecs.as_slice();
    if let [only] = list
        && name_of(only, "name") == "sharding_indexed"
    {
        let inner = dims(only, "chunk_shape")?;
        let outer = std::mem::replace(&mut chunk, inner);
        let codecs = |name: &str| {
            let found = only.pointer("/configuration").and_then(|c| c.get(name));
            found.and_then(Value::as_array).map(Vec::as_slice)
        };
        let index = codecs("index_codecs").unwrap_or_default();
        let names: Vec<&str> = index.iter().map(|codec| name_of(codec, "name")).collect();
        let location = only.pointer("/configuration/index_location");
        let has_checksum = match names[..] {
            ["bytes"] => false,
            ["bytes", "crc32c"] => true,
            _ => {
                return Err(format!(
                    "has an index of shards with the codecs {names:?}, which is not read"
                ));
            }
        };
        if index.first().is_some_and(is_big) {
            return Err(
                "has an index of shards with the highest byte first, which is not read".to_owned(),
            );
        }
        let fits = outer.len() == chunk.len()
            && outer
                .iter()
                .zip(&chunk)
                .all(|(outer, inner)| *inner > 0 && outer.is_multiple_of(*inner));
        if !fits {
            return Err(format!(
                "has shards of {outer:?} that are no whole chunks of {chunk:?}"
            ));
        }
        shard = Some(Shard {
            shape: outer,
            is_index_first: location.and_then(Value::as_str) == Some("start"),
            has_checksum,
        });
        list = codecs("codecs").ok_or("has shards without codecs")?;
    }
    let (codecs, is_big_endian) = codecs_3(list, &element)?;
    let fill = fill_value(&read.fill_value, &element, width, is_big_endian);
    Metadata {
        element,
        width,
        is_big_endian,
        shape: read.shape,
        chunk,
        codecs,
        shard,
        fill,
        keys,
    }
    .checked()
}

/// Parses the codecs of chunks in the order in which the writer applied them. Also returns whether numbers are big-endian.
fn codecs_3(list: &[Value], element: &Element) -> Result<(Codecs, bool), String> {
    let mut codecs = Codecs::default();
    let mut is_big_endian = false;
    let mut is_bytes = false;
    for codec in list {
        match (name_of(codec, "name"), is_bytes) {
            ("transpose", false) if codecs.order.is_none() => {
                let order = dims(codec, "order")?;
                codecs.order = Some(order.into_iter().map(|dim| dim as usize).collect());
            }
            ("bytes", false) => {
                is_bytes = true;
                is_big_endian = is_big(codec);
            }
            ("vlen-utf8" | "vlen-bytes", false) => (is_bytes, codecs.is_vlen) = (true, true),
            (_, true) => codecs.bytes.push(ByteCodec::version_3(codec)?),
            (name, false) => return Err(format!("has the codec {name:?}, which is not read")),
        }
    }
    let is_any = matches!(element, Element::Text | Element::Bytes);
    match is_bytes && is_any == codecs.is_vlen {
        true => Ok((codecs, is_big_endian)),
        false => Err("has codecs that do not make bytes of its elements".to_owned()),
    }
}

impl Metadata {
    /// Returns the metadata if its sizes are valid and within the limits.
    fn checked(self) -> Result<Self, String> {
        let rank = self.shape.len();
        if self.chunk.len() != rank || rank > MAX_DIMENSIONS || self.chunk.contains(&0) {
            return Err(format!(
                "has the shape {:?} and chunks of {:?}, which do not fit",
                self.shape, self.chunk
            ));
        }
        if let Some(order) = &self.codecs.order {
            let mut sorted = order.clone();
            sorted.sort_unstable();
            if !sorted.into_iter().eq(0..rank) {
                return Err(format!(
                    "has the order {order:?}, which is none of its dimensions"
                ));
            }
        }
        let is_small = |dims: &[u64], width: u64| {
            let bytes = dims
                .iter()
                .try_fold(width.max(1), |all, dim| all.checked_mul(*dim));
            bytes.is_some_and(|bytes| bytes <= MAX_CHUNK_BYTES)
        };
        if !is_small(&self.chunk, self.width) {
            return Err(format!(
                "has chunks of {:?}, which are larger than 1 GiB",
                self.chunk
            ));
        }
        // The index of a shard has 16 bytes for each chunk.
        let inside = |shard: &Shard| {
            let counts = shard
                .shape
                .iter()
                .zip(&self.chunk)
                .map(|(all, one)| all / one);
            counts.collect::<Vec<u64>>()
        };
        if self
            .shard
            .as_ref()
            .is_some_and(|shard| !is_small(&inside(shard), 16))
        {
            return Err("has shards of more chunks than an index holds".to_owned());
        }
        Ok(self)
    }
}

fn damaged(error: serde_json::Error) -> String {
    format!("has damaged metadata: {error}")
}

/// Returns the name of a codec, a grid or an encoding, which is a text or an object with a name.
fn name_of<'a>(json: &'a Value, member: &str) -> &'a str {
    let named = json.as_str().or_else(|| json.get(member)?.as_str());
    named.unwrap_or_default()
}

fn dims(json: &Value, member: &str) -> Result<Vec<u64>, String> {
    let found = json.pointer("/configuration").and_then(|c| c.get(member));
    let list = found.and_then(Value::as_array);
    let dims = list.and_then(|dims| dims.iter().map(Value::as_u64).collect());
    dims.ok_or_else(|| format!("has damaged metadata: {member} is no list of numbers"))
}

fn is_big(codec: &Value) -> bool {
    let endian = codec.pointer("/configuration/endian");
    endian.and_then(Value::as_str) == Some("big")
}

fn data_type(json: &Value) -> Result<(Element, u64), String> {
    let name = name_of(json, "name");
    let bytes = json
        .pointer("/configuration/length_bytes")
        .and_then(Value::as_u64);
    let bytes = bytes.filter(|bytes| *bytes <= MAX_CHUNK_BYTES);
    if let Some(number) = NumberType::from_name(name) {
        return Ok((Element::Number(number), number.bytes() as u64));
    }
    match (name, bytes) {
        ("string", _) => Ok((Element::Text, 0)),
        ("bytes" | "variable_length_bytes", _) => Ok((Element::Bytes, 0)),
        ("fixed_length_utf32", Some(bytes)) => Ok((Element::Utf32, bytes)),
        ("null_terminated_bytes", Some(bytes)) => Ok((Element::Padded, bytes)),
        _ => Err(format!(
            "has elements of type {name:?}, which no column holds"
        )),
    }
}

/// Returns the bytes of an element from the number or text in the metadata.
fn fill_value(json: &Value, element: &Element, width: u64, is_big_endian: bool) -> Option<Vec<u8>> {
    let zeros = || Some(vec![0; usize::try_from(width).ok()?]);
    let mut bytes = match (element, json) {
        // In version 2 the fill value may be null, which readers treat as zero.
        (_, Value::Null) => return zeros(),
        (Element::Text | Element::Bytes, Value::String(text)) => {
            return Some(text.clone().into_bytes());
        }
        (Element::Text | Element::Bytes, Value::Array(list)) => {
            return list.is_empty().then(Vec::new);
        }
        (Element::Utf32 | Element::Padded, Value::String(text)) => {
            return text.is_empty().then(zeros).flatten();
        }
        (_, Value::Number(number))
            if number.as_f64() == Some(0.0) && !number.to_string().starts_with('-') =>
        {
            return zeros();
        }
        (Element::Number(NumberType::Bool), Value::Bool(value)) => vec![u8::from(*value)],
        (Element::Number(number), Value::String(text)) => special(*number, text)?,
        (Element::Number(number), Value::Number(value)) => match number {
            NumberType::Float32 => (value.as_f64()? as f32).to_le_bytes().to_vec(),
            NumberType::Float64 => value.as_f64()?.to_le_bytes().to_vec(),
            NumberType::Float16 | NumberType::Bfloat16 | NumberType::Bool => return None,
            _ => {
                let whole = value
                    .as_i64()
                    .map(i64::cast_unsigned)
                    .or_else(|| value.as_u64())?;
                whole.to_le_bytes().get(..number.bytes())?.to_vec()
            }
        },
        _ => return None,
    };
    if is_big_endian {
        bytes.reverse();
    }
    Some(bytes)
}

/// Parses floating-point numbers that JSON cannot represent, including the hexadecimal form of their bits.
fn special(number: NumberType, text: &str) -> Option<Vec<u8>> {
    if let Some(digits) = text.strip_prefix("0x") {
        let bits = u64::from_str_radix(digits, 16).ok()?;
        return Some(bits.to_le_bytes().get(..number.bytes())?.to_vec());
    }
    let value = match text {
        "NaN" => f64::NAN,
        "Infinity" => f64::INFINITY,
        "-Infinity" => f64::NEG_INFINITY,
        _ => return None,
    };
    Some(match number {
        NumberType::Float64 => value.to_le_bytes().to_vec(),
        NumberType::Float32 => (value as f32).to_le_bytes().to_vec(),
        // The upper half of a float32.
        NumberType::Bfloat16 => (value as f32).to_le_bytes()[2..].to_vec(),
        NumberType::Float16 => {
            let bits: u16 = if value.is_nan() { 0x7e00 } else { 0x7c00 };
            let sign = u16::from(value < 0.0) << 15;
            (bits | sign).to_le_bytes().to_vec()
        }
        _ => return None,
    })
}
