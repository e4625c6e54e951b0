//! Writes records as Parquet files that Hugging Face's `datasets` reads with types and class names.
//!
//! A file has the columns `key`, `image` (a struct of `bytes` and `path`), `label` (counted from 0) and one column for each
//! other feature. Its metadata describes them twice: for `datasets`, and as a [`Schema`] that preserves types that Parquet does
//! not have, such as tensors.

use super::fields::{COLUMNS_KEY, HUGGING_FACE};
use crate::option_names::DROP_FEATURE;
use crate::records::sink::{Appended, RecordSink, RecordWriter, Scratch, SinkError, SinkOptions};
use crate::records::{SourceFacts, SourceRecord};
use forebay_shard::example::{FeatureKind, IMAGE_SEEK_POINTS};
use forebay_shard::manifest::FeatureEntry;
use forebay_shard::schema::{Column, ColumnType, NumberType};
use forebay_shard::{BlockCompression, Codec, ExampleView};
use parquet::basic::{Compression, LogicalType, Repetition, Type as PhysicalType, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::data_type::ByteArray;
use parquet::errors::Result as ParquetResult;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::{ColumnPath, Type, TypePtr};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;

/// Most rows of a row group: reading a single row decodes this many.
const GROUP_ROWS: usize = 1000;
/// Most bytes of a row group; a larger row is a group of its own.
const GROUP_BYTES: usize = 32 << 20;
/// Size of a page in bytes.
const PAGE_BYTES: usize = 1 << 20;

/// Writes Parquet files.
pub(super) struct ParquetSink {
    schema: TypePtr,
    leaves: Arc<[OutLeaf]>,
    properties: Arc<WriterProperties>,
}

/// A leaf of the files.
#[derive(Debug, Clone)]
struct OutLeaf {
    /// Its value in a record.
    value: LeafValue,
    is_list: bool,
    /// The definition level of a value that is not null.
    defined: i16,
}

/// The source of a leaf's value in a record.
#[derive(Debug, Clone)]
enum LeafValue {
    Key,
    /// The path of the image in this feature. It is always null, because records do not have the path.
    PathOf(String),
    /// The feature with the label, and the label of the first class.
    Label(String, i64),
    Bytes(String),
    Integers(String),
    Floats(String),
    /// A tensor of doubles.
    Doubles(String),
}

impl ParquetSink {
    /// Decides the columns of the files.
    pub(super) fn new(facts: &SourceFacts, options: &SinkOptions) -> Result<Self, String> {
        let schema = facts.columns();
        let mut out = Columns::default();
        out.leaf("key", LeafValue::Key, false, Leaf::TEXT);
        for column in schema.columns() {
            out.column(column, facts);
        }
        let held: BTreeSet<String> = schema.features().into_iter().map(|f| f.name).collect();
        for feature in &facts.features {
            // Other tools cannot use seek points, and `convert` recomputes them.
            if !held.contains(&feature.name) && feature.name != IMAGE_SEEK_POINTS {
                out.feature(feature, Leaf::BYTES);
            }
        }
        out.check()?;
        let schema = serde_json::to_string(&schema).map_err(|error| error.to_string())?;
        let described = json!({"info": {"features": out.described}}).to_string();
        let metadata = [(HUGGING_FACE, described), (COLUMNS_KEY, schema)];
        let metadata = metadata.map(|(key, value)| KeyValue::new(key.to_owned(), value));
        let root = Type::group_type_builder("schema").with_fields(out.types);
        Ok(Self {
            schema: Arc::new(root.build().map_err(|error| error.to_string())?),
            leaves: out.leaves.into(),
            properties: Arc::new(properties(options, metadata.to_vec())?),
        })
    }
}

impl fmt::Debug for ParquetSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ParquetSink")
            .field("leaves", &self.leaves)
            .finish()
    }
}

impl RecordSink for ParquetSink {
    fn file_name(&self, split: &str, number: u32, count: u32) -> String {
        format!("data/{split}-{number:05}-of-{count:05}.parquet")
    }

    fn begin(&self, _first: u64, _scratch: Scratch<'_>) -> crate::Result<Box<dyn RecordWriter>> {
        Ok(Box::new(FileWriter {
            leaves: self.leaves.clone(),
            file: None,
            schema: self.schema.clone(),
            properties: self.properties.clone(),
            group: vec![Values::default(); self.leaves.len()],
            rows: 0,
            bytes: 0,
        }))
    }
}

/// The Parquet type of a leaf, and its name in `datasets`.
#[derive(Debug, Clone, Copy)]
struct Leaf {
    physical: PhysicalType,
    is_text: bool,
    name: &'static str,
}

impl Leaf {
    const fn new(physical: PhysicalType, name: &'static str) -> Self {
        Self {
            physical,
            is_text: false,
            name,
        }
    }

    const TEXT: Self = Self {
        is_text: true,
        ..Self::new(PhysicalType::BYTE_ARRAY, "string")
    };
    const BYTES: Self = Self::new(PhysicalType::BYTE_ARRAY, "binary");
    const INTEGER: Self = Self::new(PhysicalType::INT64, "int64");
    const FLOAT: Self = Self::new(PhysicalType::FLOAT, "float32");
    const DOUBLE: Self = Self::new(PhysicalType::DOUBLE, "float64");

    fn parquet_type(self, name: &str, repetition: Repetition) -> ParquetResult<TypePtr> {
        let logical = self.is_text.then_some(LogicalType::String);
        let builder = Type::primitive_type_builder(name, self.physical);
        let builder = builder
            .with_repetition(repetition)
            .with_logical_type(logical);
        builder.build().map(Arc::new)
    }
}

/// Collects the columns of the files.
#[derive(Default)]
struct Columns {
    types: Vec<TypePtr>,
    leaves: Vec<OutLeaf>,
    /// The columns as `datasets` describes them.
    described: Map<String, Value>,
    problem: Option<String>,
}

impl Columns {
    fn column(&mut self, column: &Column, facts: &SourceFacts) {
        let own = column.feature.clone();
        match &column.column_type {
            ColumnType::Image => self.image(&column.name, own),
            ColumnType::Label => {
                let name = &column.name;
                self.leaf(
                    name,
                    LeafValue::Label(own, facts.label_base),
                    false,
                    Leaf::INTEGER,
                );
                let classes = facts.classes.iter().map(|class| class.name.as_str());
                let classes: Vec<&str> = classes.collect();
                if !classes.is_empty() {
                    self.described[name] = json!({"names": classes, "_type": "ClassLabel"});
                }
            }
            ColumnType::Text | ColumnType::Json => {
                self.leaf(&own, LeafValue::Bytes(own.clone()), false, Leaf::TEXT);
            }
            ColumnType::Texts | ColumnType::Polygons => {
                self.leaf(&own, LeafValue::Bytes(own.clone()), true, Leaf::TEXT);
            }
            ColumnType::Tensor {
                shape,
                number: NumberType::Float64,
            } if shape.len() <= 1 => {
                self.leaf(
                    &own,
                    LeafValue::Doubles(own.clone()),
                    !shape.is_empty(),
                    Leaf::DOUBLE,
                );
            }
            _ => {
                for feature in column.features() {
                    self.feature(&feature, Leaf::BYTES);
                }
            }
        }
    }

    fn feature(&mut self, feature: &FeatureEntry, bytes: Leaf) {
        let (name, is_list) = (feature.name.clone(), !feature.shape.is_empty());
        match feature.kind {
            FeatureKind::Int64 => {
                self.leaf(
                    &feature.name,
                    LeafValue::Integers(name),
                    is_list,
                    Leaf::INTEGER,
                );
            }
            FeatureKind::Float => {
                self.leaf(&feature.name, LeafValue::Floats(name), is_list, Leaf::FLOAT);
            }
            _ => self.leaf(&feature.name, LeafValue::Bytes(name), is_list, bytes),
        }
    }

    /// Adds a column with a single leaf.
    fn leaf(&mut self, name: &str, value: LeafValue, is_list: bool, leaf: Leaf) {
        let dtype = json!({"dtype": leaf.name, "_type": "Value"});
        let (defined, made, described) = match is_list {
            false => (1, leaf.parquet_type(name, Repetition::OPTIONAL), dtype),
            true => {
                let element = leaf.parquet_type("element", Repetition::REQUIRED);
                let described = json!({"feature": dtype, "length": -1, "_type": "Sequence"});
                (
                    2,
                    element.and_then(|element| list_type(name, element)),
                    described,
                )
            }
        };
        let leaf = OutLeaf {
            value,
            is_list,
            defined,
        };
        self.add(name, made, described, [leaf]);
    }

    /// Adds a column that is a struct of bytes and path.
    fn image(&mut self, name: &str, feature: String) {
        let members = [("bytes", Leaf::BYTES), ("path", Leaf::TEXT)]
            .map(|(member, leaf)| leaf.parquet_type(member, Repetition::OPTIONAL));
        let members: ParquetResult<Vec<TypePtr>> = members.into_iter().collect();
        let made = members.and_then(|members| {
            let group = Type::group_type_builder(name).with_fields(members);
            group
                .with_repetition(Repetition::OPTIONAL)
                .build()
                .map(Arc::new)
        });
        let leaves = [
            LeafValue::Bytes(feature.clone()),
            LeafValue::PathOf(feature),
        ]
        .map(|value| OutLeaf {
            value,
            is_list: false,
            defined: 2,
        });
        self.add(name, made, json!({"_type": "Image"}), leaves);
    }

    fn add(
        &mut self,
        name: &str,
        made: ParquetResult<TypePtr>,
        described: Value,
        leaves: impl IntoIterator<Item = OutLeaf>,
    ) {
        match made {
            Ok(made) => self.types.push(made),
            Err(error) => self.problem = Some(format!("the column {name:?}: {error}")),
        }
        if self.described.insert(name.to_owned(), described).is_some() {
            self.problem = Some(format!(
                "two columns would be called {name:?}: {DROP_FEATURE} {name} leaves the feature out"
            ));
        }
        self.leaves.extend(leaves);
    }

    fn check(&self) -> Result<(), String> {
        self.problem.clone().map_or(Ok(()), Err)
    }
}

fn list_type(name: &str, element: TypePtr) -> ParquetResult<TypePtr> {
    let list = Type::group_type_builder("list")
        .with_repetition(Repetition::REPEATED)
        .with_fields(vec![element])
        .build()?;
    let outer = Type::group_type_builder(name)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type(Some(LogicalType::List))
        .with_fields(vec![Arc::new(list)]);
    outer.build().map(Arc::new)
}

/// Returns the properties of the writer. Images are already compressed, so statistics and dictionaries do not help for them.
fn properties(options: &SinkOptions, metadata: Vec<KeyValue>) -> Result<WriterProperties, String> {
    let refused = |error: parquet::errors::ParquetError| error.to_string();
    let compression = match options.compression {
        none if none == BlockCompression::NONE => Compression::UNCOMPRESSED,
        zstd if zstd.codec() == Codec::ZSTD => {
            Compression::ZSTD(ZstdLevel::try_new(zstd.level()).map_err(refused)?)
        }
        lz4 if lz4.codec() == Codec::LZ4 => Compression::LZ4_RAW,
        snappy if snappy.codec() == Codec::SNAPPY => Compression::SNAPPY,
        other => return Err(format!("Parquet files have no compression {other}")),
    };
    let image = ColumnPath::new(vec!["image".to_owned(), "bytes".to_owned()]);
    let properties = WriterProperties::builder()
        .set_created_by("forebay".to_owned())
        .set_key_value_metadata(Some(metadata))
        .set_compression(compression)
        .set_data_page_size_limit(PAGE_BYTES)
        .set_statistics_enabled(EnabledStatistics::None)
        .set_column_compression(image.clone(), Compression::UNCOMPRESSED)
        .set_column_dictionary_enabled(image, false);
    Ok(properties.build())
}

/// The values of a leaf in a row group.
#[derive(Debug, Clone, Default)]
struct Values {
    definitions: Vec<i16>,
    repetitions: Vec<i16>,
    bytes: Vec<ByteArray>,
    integers: Vec<i64>,
    floats: Vec<f32>,
    doubles: Vec<f64>,
}

/// Writes one file.
struct FileWriter {
    schema: TypePtr,
    leaves: Arc<[OutLeaf]>,
    properties: Arc<WriterProperties>,
    /// Holds the bytes of the last row group until they are moved to the file.
    file: Option<SerializedFileWriter<Vec<u8>>>,
    group: Vec<Values>,
    rows: usize,
    bytes: usize,
}

impl RecordWriter for FileWriter {
    fn append(
        &mut self,
        record: &SourceRecord<'_>,
        out: &mut dyn Write,
    ) -> Result<Appended, SinkError> {
        let example = ExampleView::parse(record.bytes)
            .map_err(|error| SinkError::Record(format!("it is no tensorflow.Example: {error}")))?;
        if self.rows > 0 && self.bytes + record.bytes.len() > GROUP_BYTES {
            self.write_group(out)?;
        }
        let before: Vec<_> = self.group.iter().map(Values::lens).collect();
        let mut all = self.leaves.iter().zip(&mut self.group);
        let added = all.try_for_each(|(leaf, values)| values.add(leaf, record.key, example));
        if let Err(what) = added {
            for (values, lens) in self.group.iter_mut().zip(before) {
                values.truncate(lens);
            }
            return Err(SinkError::Record(what));
        }
        self.rows += 1;
        self.bytes += record.bytes.len();
        if self.rows == GROUP_ROWS {
            self.write_group(out)?;
        }
        Ok(Appended::default())
    }

    fn finish(&mut self, _name: &str, out: &mut dyn Write) -> Result<Value, SinkError> {
        if self.rows > 0 || self.file.is_none() {
            self.write_group(out)?;
        }
        if let Some(file) = self.file.take() {
            out.write_all(&file.into_inner().map_err(io::Error::other)?)?;
        }
        Ok(Value::Null)
    }
}

impl FileWriter {
    fn write_group(&mut self, out: &mut dyn Write) -> Result<(), SinkError> {
        let rows = std::mem::take(&mut self.rows);
        self.bytes = 0;
        let group = self.group.iter_mut().map(std::mem::take).collect();
        let bytes = self.encode_group(group, rows).map_err(io::Error::other)?;
        out.write_all(&bytes)?;
        Ok(())
    }

    fn encode_group(&mut self, group: Vec<Values>, rows: usize) -> ParquetResult<Vec<u8>> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(SerializedFileWriter::new(
                Vec::new(),
                self.schema.clone(),
                self.properties.clone(),
            )?),
        };
        if rows == 0 {
            return Ok(Vec::new());
        }
        let mut writer = file.next_row_group()?;
        for (values, leaf) in group.into_iter().zip(&*self.leaves) {
            let Some(mut column) = writer.next_column()? else {
                break;
            };
            values.write(column.untyped(), leaf.defined)?;
            column.close()?;
        }
        writer.close()?;
        file.flush()?;
        Ok(std::mem::take(file.inner_mut()))
    }
}

impl Values {
    fn lens(&self) -> [usize; 6] {
        [
            self.bytes.len(),
            self.integers.len(),
            self.floats.len(),
            self.doubles.len(),
            self.definitions.len(),
            self.repetitions.len(),
        ]
    }

    /// Removes the values that a refused record has added.
    fn truncate(
        &mut self,
        [bytes, integers, floats, doubles, definitions, repetitions]: [usize; 6],
    ) {
        self.bytes.truncate(bytes);
        self.integers.truncate(integers);
        self.floats.truncate(floats);
        self.doubles.truncate(doubles);
        self.definitions.truncate(definitions);
        self.repetitions.truncate(repetitions);
    }

    /// Adds the value of a record.
    fn add(&mut self, leaf: &OutLeaf, key: &[u8], example: ExampleView<'_>) -> Result<(), String> {
        let feature = |name: &str| {
            let feature = example.get(name);
            feature.filter(|feature| feature.kind() != Ok(FeatureKind::Unset))
        };
        let said = |error: forebay_shard::ExampleError| error.to_string();
        let count = match (&leaf.value, feature(leaf.value.name())) {
            (LeafValue::Key, _) if key.is_empty() => None,
            (LeafValue::Key, _) => {
                if std::str::from_utf8(key).is_err() {
                    return Err(format!(
                        "its key {:?} is not UTF-8",
                        key.escape_ascii().to_string()
                    ));
                }
                self.bytes.push(key.to_vec().into());
                Some(1)
            }
            (LeafValue::PathOf(_), image) => {
                // Defined but null beside an image; not defined if the image is null.
                self.definitions.push(i16::from(image.is_some()));
                return Ok(());
            }
            (_, None) => None,
            (LeafValue::Label(_, base), Some(label)) => {
                let label = label.int64s().map_err(said)?;
                let rebased = label.iter().map(|&label| match label {
                    label if label >= *base => label - base,
                    label => label,
                });
                self.integers.extend(rebased);
                Some(label.len())
            }
            (LeafValue::Integers(_), Some(feature)) => {
                let integers = feature.int64s().map_err(said)?;
                self.integers.extend(&integers);
                Some(integers.len())
            }
            (LeafValue::Floats(_), Some(feature)) => {
                let floats = feature.floats().map_err(said)?;
                self.floats.extend(&floats);
                Some(floats.len())
            }
            (LeafValue::Doubles(name), Some(feature)) => {
                let bytes = feature.bytes_list().map_err(said)?.concat();
                let (doubles, rest) = bytes.as_chunks::<8>();
                if !rest.is_empty() {
                    let len = bytes.len();
                    return Err(format!("feature {name} has {len} bytes, not doubles"));
                }
                let doubles = doubles.iter().map(|bytes| f64::from_le_bytes(*bytes));
                let count = doubles.len();
                self.doubles.extend(doubles);
                Some(count)
            }
            (LeafValue::Bytes(_), Some(feature)) => {
                let all = feature.bytes_list().map_err(said)?;
                let copies = all.iter().map(|bytes| ByteArray::from(bytes.to_vec()));
                self.bytes.extend(copies);
                Some(all.len())
            }
        };
        let is_missing = matches!(count, None | Some(0));
        match (leaf.is_list, count) {
            (true, Some(count)) if count > 0 => {
                self.definitions.extend((0..count).map(|_| leaf.defined));
                self.repetitions
                    .extend((0..count).map(|number| i16::from(number > 0)));
            }
            (true, count) => {
                self.definitions.push(i16::from(count.is_some()));
                self.repetitions.push(0);
            }
            (false, _) if is_missing => self.definitions.push(0),
            (false, Some(1)) => self.definitions.push(leaf.defined),
            (false, count) => {
                let count = count.unwrap_or(0);
                return Err(format!(
                    "its column {:?} holds {count} values, expected one",
                    leaf.value.name()
                ));
            }
        }
        Ok(())
    }

    fn write(self, column: &mut ColumnWriter<'_>, defined: i16) -> ParquetResult<()> {
        let definitions = Some(self.definitions.as_slice());
        let repetitions = (!self.repetitions.is_empty()).then_some(self.repetitions.as_slice());
        match column {
            ColumnWriter::Int64ColumnWriter(column) => {
                column.write_batch(&self.integers, definitions, repetitions)?;
            }
            ColumnWriter::FloatColumnWriter(column) => {
                column.write_batch(&self.floats, definitions, repetitions)?;
            }
            ColumnWriter::DoubleColumnWriter(column) => {
                column.write_batch(&self.doubles, definitions, repetitions)?;
            }
            ColumnWriter::ByteArrayColumnWriter(column) => {
                // The writer ends pages only between calls, so each row is written by its own call: a row may contain a large
                // image.
                let mut value = 0;
                let mut level = 0;
                while level < self.definitions.len() {
                    let next = (level + 1..self.definitions.len())
                        .find(|at| repetitions.is_none_or(|levels| levels[*at] == 0));
                    let levels = level..next.unwrap_or(self.definitions.len());
                    let definitions = &self.definitions[levels.clone()];
                    let values = definitions.iter().filter(|d| **d == defined).count();
                    let values = values.min(self.bytes.len() - value);
                    column.write_batch(
                        &self.bytes[value..value + values],
                        Some(definitions),
                        repetitions.map(|repetitions| &repetitions[levels.clone()]),
                    )?;
                    value += values;
                    level = levels.end;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl LeafValue {
    fn name(&self) -> &str {
        match self {
            LeafValue::Key => "key",
            LeafValue::PathOf(name)
            | LeafValue::Label(name, _)
            | LeafValue::Bytes(name)
            | LeafValue::Integers(name)
            | LeafValue::Floats(name)
            | LeafValue::Doubles(name) => name,
        }
    }
}
