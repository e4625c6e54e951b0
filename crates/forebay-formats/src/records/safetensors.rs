//! safetensors files: a JSON header followed by the numbers of all tensors.

use super::CreateSink;
use super::arrays::{
    self, ArrayFile, ArrayFormat, ArrayInfo, ArraySink, Contiguous, Element, RowReader,
    SpooledArray, TextAs,
};
use super::{Format, FormatInfo, RecordInput, RecordSource};
use crate::archive::{Archive, FileVersion, ReadAt};
use crate::error::{Error, Result};
use forebay_shard::BlockCompression;
use forebay_shard::schema::NumberType;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::json;
use std::fmt;
use std::io::{self, Write};

pub(super) struct Safetensors;

const EXTENSION: &str = ".safetensors";
/// The entry of the header that is not a tensor.
const METADATA: &str = "__metadata__";
/// Largest header, as in the library.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Types by their names in the header.
const NUMBERS: &[(&str, NumberType)] = &[
    ("BOOL", NumberType::Bool),
    ("U8", NumberType::Uint8),
    ("I8", NumberType::Int8),
    ("U16", NumberType::Uint16),
    ("I16", NumberType::Int16),
    ("U32", NumberType::Uint32),
    ("I32", NumberType::Int32),
    ("U64", NumberType::Uint64),
    ("I64", NumberType::Int64),
    ("F16", NumberType::Float16),
    ("BF16", NumberType::Bfloat16),
    ("F32", NumberType::Float32),
    ("F64", NumberType::Float64),
];

impl Format for Safetensors {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "safetensors",
            title: "tensors of safetensors",
            extensions: &[EXTENSION],
            names_in_split_dirs: &[EXTENSION],
            advice: "`forebay convert SRC DST --format indexed` makes records of the rows of tensors",
            ..FormatInfo::NONE
        }
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        arrays::places::open_each(self.info(), input, ".safetensors files", TensorFile::open)
    }

    fn writer(&self) -> Option<CreateSink> {
        Some(|facts, options| Ok(Box::new(ArraySink::new(facts, options, &FORMAT)?)))
    }
}

/// An entry of the header.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The tensors of a header; names are unique.
#[derive(Debug, Default)]
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Header, A::Error> {
                let mut header = Header::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        map.next_value::<serde::de::IgnoredAny>()?;
                        continue;
                    }
                    header.0.push((name, map.next_value()?));
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// A file of tensors.
#[derive(Debug)]
struct TensorFile {
    archive: Archive,
    version: FileVersion,
    arrays: Vec<ArrayInfo>,
    /// Offset of each tensor in the file.
    starts: Vec<u64>,
}

impl TensorFile {
    fn open(archive: Archive) -> Result<Self> {
        let (version, file) = FileVersion::open(&archive)?;
        let path = &version.path;
        let fail = |error: io::Error| Error::io(path, "read", error);
        let refused = |what: String| Error::source(path, what);
        let mut word = [0; 8];
        if file.len() < word.len() as u64 {
            return Err(refused("it is cut short".to_owned()));
        }
        file.read_exact_at(&mut word, 0).map_err(fail)?;
        let len = u64::from_le_bytes(word);
        if len > MAX_HEADER_BYTES || len > file.len() - word.len() as u64 {
            let what = format!(
                "offset 0: a header of {len} bytes: it is damaged, or no file of safetensors"
            );
            return Err(refused(what));
        }
        let mut header = vec![0; len as usize];
        file.read_exact_at(&mut header, word.len() as u64)
            .map_err(fail)?;
        let header: Header = forebay_shard::json::from_slice(&header)
            .map_err(|error| refused(format!("offset 8: the header is damaged: {error}")))?;
        let data = word.len() as u64 + len;
        let mut entries = header.0;
        entries.sort_by(|a, b| {
            a.1.data_offsets
                .cmp(&b.1.data_offsets)
                .then_with(|| a.0.cmp(&b.0))
        });
        let (mut arrays, mut starts) = (Vec::new(), Vec::new());
        let mut end = 0;
        let mut names = std::collections::BTreeSet::new();
        for (name, entry) in entries {
            let [from, to] = entry.data_offsets;
            let shown = name.clone();
            let damaged = |what: String| refused(format!("tensor {shown:?}: {what}"));
            if !names.insert(name.clone()) {
                return Err(damaged("there are two of this name".to_owned()));
            }
            if from != end || to < from || to > file.len() - data {
                let what = format!(
                    "its bytes {from} to {to} do not follow those before, {end}, or lie outside of the file"
                );
                return Err(damaged(what));
            }
            end = to;
            let info = describe(name, entry);
            let is_number = !matches!(info.element, Element::Other(_));
            if is_number && info.all_bytes() != Some(to - from) {
                return Err(damaged(format!("{info} has not {} bytes", to - from)));
            }
            arrays.push(info);
            starts.push(data + from);
        }
        if end != file.len() - data {
            return Err(refused(format!(
                "its tensors end at byte {end} of {}: it is damaged",
                file.len() - data
            )));
        }
        Ok(Self {
            archive,
            version,
            arrays,
            starts,
        })
    }
}

fn describe(name: String, entry: Entry) -> ArrayInfo {
    let number = NUMBERS.iter().find(|(known, _)| *known == entry.dtype);
    let (element, width) = match number {
        Some((_, number)) => (Element::Number(*number), number.bytes() as u64),
        None => {
            let what = format!(
                "has numbers of type {:?}, which no column holds",
                entry.dtype
            );
            (Element::Other(what), 0)
        }
    };
    ArrayInfo {
        name,
        element,
        width,
        is_big_endian: false,
        shape: entry.shape,
    }
}

impl ArrayFile for TensorFile {
    fn version(&self) -> &FileVersion {
        &self.version
    }

    fn arrays(&self) -> &[ArrayInfo] {
        &self.arrays
    }

    fn rows(&self, array: usize, first: u64) -> Result<Box<dyn RowReader + '_>> {
        let file = self.version.reopen(&self.archive)?;
        let (info, start) = (&self.arrays[array], self.starts[array]);
        Ok(Box::new(Contiguous::new(file, start, info, first)))
    }
}

static FORMAT: ArrayFormat = ArrayFormat {
    title: "a .safetensors file",
    extension: EXTENSION,
    text: TextAs::Ragged,
    is_compressed: false,
    refuses: |_| false,
    encode,
};

fn encode(
    arrays: &mut [SpooledArray],
    _compression: BlockCompression,
    out: &mut dyn Write,
) -> io::Result<()> {
    // Arrays with the widest numbers come first, so that all are aligned.
    arrays.sort_by(|a, b| b.width.cmp(&a.width).then_with(|| a.name.cmp(&b.name)));
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for array in &*arrays {
        let Element::Number(number) = array.element else {
            return Err(io::Error::other("safetensors has numbers only"));
        };
        let dtype = NUMBERS.iter().find(|(_, known)| *known == number);
        let dtype = dtype
            .ok_or_else(|| io::Error::other("safetensors has no such type"))?
            .0;
        let start = end;
        end += array.bytes();
        let entry = json!({"dtype": dtype, "shape": array.shape, "data_offsets": [start, end]});
        header.insert(array.name.clone(), entry);
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    for array in arrays {
        io::copy(&mut array.reader()?, out)?;
    }
    Ok(())
}
