//! LMDB: one file of keys and values. A value is an encoded image, a datum of Caffe, or a `tensorflow.Example`, which is what
//! is written.

mod datum;
mod pages;
#[cfg(test)]
mod tests;
mod write;

use super::conversion::Conversion;
use super::places::{by_split, file_at, files_at, split_of_array};
use super::sink::{RecordSink, SinkOptions};
use super::{
    ForeignSchema, Format, RecordFile, RecordInput, RecordReader, RecordSource, RecordSplit,
    SourceFacts, SourceRecord, order_by_sizes,
};
use crate::archive::{Archive, ArchiveFile};
use crate::error::{Error, Result};
use crate::records::arrays::places::dirs;
use datum::Datum;
use forebay_cache::read_storage;
use forebay_shard::example::{FeatureKind, RecordFeatures, feature_kinds};
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::manifest::FeatureEntry;
use forebay_shard::schema::{self, Column, ColumnType, ColumnValue, Schema};
use forebay_shard::{BlockCompression, ExampleBuilder, ExampleView};
use forebay_store::Location;
use pages::Tree;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(super) struct Lmdb;

const EXTENSION: &str = ".lmdb";
/// The file of a database that is a directory, and its locks.
const DATA: &str = "data.mdb";
const LOCKS: &str = "lock.mdb";
const DATA_EXTENSION: &str = ".mdb";

impl Format for Lmdb {
    fn name(&self) -> &'static str {
        "lmdb"
    }

    fn title(&self) -> &'static str {
        "an LMDB database"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &[EXTENSION, DATA_EXTENSION]
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        let has = |name: &&str| self.extensions().iter().any(|end| name.ends_with(end));
        let mut all = names.iter().copied().filter(|name| !name.ends_with(LOCKS));
        all.find(has)
    }

    fn advice(&self) -> &'static str {
        "`forebay convert SRC DST --to indexed` reads encoded images, datums of Caffe and tensorflow.Examples"
    }

    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let (root, storage) = read_storage(&input.location, &input.read)?;
        let is_file = !input.files.is_empty()
            || self.detect(&[&root.to_string_lossy()]).is_some() && root.is_file();
        let conversion = match is_file {
            true => None,
            false => Conversion::load(&root, &*storage)?,
        };
        let conversion = conversion.filter(|conversion| conversion.to == self.name());
        let mut opened: Vec<(String, Vec<Database>)> = Vec::new();
        let mut hasher = blake3::Hasher::new();
        for (split, files) in find(input, conversion.as_ref())? {
            let mut databases = Vec::new();
            for (_, archive) in files {
                let database = Database::open(archive)?;
                database.identify(&split, &mut hasher);
                databases.push(database);
            }
            opened.push((split, databases));
        }
        if opened.is_empty() {
            return Err(Error::source(&root, "there is no LMDB database here"));
        }
        let mut databases = opened.iter().flat_map(|(_, databases)| databases);
        let first = databases.find(|database| !database.tree.nodes.is_empty());
        let first = match first {
            Some(database) => Some((database, database.first()?)),
            None => None,
        };
        let values = match &first {
            Some((database, value)) => Values::decide(value, input, conversion.as_ref())
                .map_err(|what| Error::source(&database.path, what))?,
            None => Values::Image,
        };
        let facts = facts(
            &values,
            input,
            first.map(|(_, value)| value),
            conversion,
            &root,
            &hasher,
        );
        let values = Arc::new(values);
        let splits = opened.into_iter().map(|(name, databases)| RecordSplit {
            name,
            files: databases
                .into_iter()
                .map(|database| -> Box<dyn RecordFile> {
                    let values = Arc::clone(&values);
                    Box::new(Records { database, values })
                })
                .collect(),
        });
        let splits: Vec<RecordSplit> = splits.collect();
        let mut facts = facts;
        if facts.order.block_records.is_empty() {
            facts.order = order_by_sizes(&splits);
        }
        Ok(RecordSource { splits, facts })
    }

    fn is_written(&self) -> bool {
        true
    }

    fn create(
        &self,
        _facts: &SourceFacts,
        options: &SinkOptions,
    ) -> std::result::Result<Box<dyn RecordSink>, String> {
        match options.compression == BlockCompression::NONE {
            true => Ok(Box::new(write::Sink)),
            false => Err("LMDB has no compression: leave --codec out".to_owned()),
        }
    }
}

/// The databases of each split: files, or directories with `data.mdb`.
fn find(
    input: &RecordInput,
    conversion: Option<&Conversion>,
) -> Result<BTreeMap<String, Vec<(String, Archive)>>> {
    if let Some(conversion) = conversion {
        let mut found = BTreeMap::new();
        for split in &conversion.splits {
            let shards = split.shards.iter();
            let files = shards.map(|shard| file_at(&input.location.join(&shard.name), &input.read));
            found.insert(split.name.clone(), files.collect::<Result<_>>()?);
        }
        return Ok(found);
    }
    let is_data =
        |name: &str| name != LOCKS && (name.ends_with(EXTENSION) || name.ends_with(DATA_EXTENSION));
    let mut found = Vec::new();
    for file in &input.files {
        found.push(file_at(file, &input.read)?);
    }
    if found.is_empty() {
        found = files_at(&input.location, &input.read, &is_data)?;
    }
    if found.is_empty() {
        for dir in dirs(input)? {
            let below = files_at(&input.location.join(&dir), &input.read, &|name| {
                name == DATA
            })?;
            found.extend(below.into_iter().map(|(_, archive)| (dir.clone(), archive)));
        }
    }
    for (name, _) in &mut found {
        *name = named(name, &input.location);
    }
    Ok(by_split(found, input.split.as_deref()))
}

/// The name of a database that tells its split: `train` of `ilsvrc12_train_lmdb`.
fn named(name: &str, location: &Location) -> String {
    let own = location.to_string();
    let own = own
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    let name = if name == DATA { own } else { name };
    let stem = name.split('.').next().unwrap_or_default();
    let stem = stem.strip_suffix("_lmdb").unwrap_or(stem);
    match split_of_array(stem) {
        Some((split, _)) => split,
        None => stem.to_owned(),
    }
}

/// A file of a database.
#[derive(Debug)]
struct Database {
    archive: Archive,
    path: PathBuf,
    bytes: u64,
    modified: i128,
    tree: Tree,
}

impl Database {
    fn open(archive: Archive) -> Result<Self> {
        let (file, modified) = archive.open()?;
        let path = archive.shown();
        let tree = Tree::read(&file);
        let tree = tree.map_err(|what| {
            Error::source(
                &path,
                format!("it is not an LMDB database, or damaged: {what}"),
            )
        })?;
        Ok(Self {
            archive,
            path,
            bytes: file.len(),
            modified,
            tree,
        })
    }

    fn identify(&self, split: &str, hasher: &mut blake3::Hasher) {
        for text in [self.path.as_os_str().as_encoded_bytes(), split.as_bytes()] {
            hasher
                .update(&(text.len() as u64).to_le_bytes())
                .update(text);
        }
        hasher.update(&self.bytes.to_le_bytes());
        hasher.update(&self.modified.to_le_bytes());
    }

    /// The file, if it is still the same.
    fn file(&self) -> Result<ArchiveFile> {
        let (file, modified) = self.archive.open()?;
        match (file.len(), modified) == (self.bytes, self.modified) {
            true => Ok(file),
            false => Err(Error::source(&self.path, "it changed while it was read")),
        }
    }

    /// The first value.
    fn first(&self) -> Result<Vec<u8>> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        let read = self
            .tree
            .value(&self.file()?, self.tree.nodes[0], &mut key, &mut value);
        read.map_err(|what| Error::source(&self.path, format!("record 0: {what}")))?;
        Ok(value)
    }
}

/// Kind of the values, as the first one shows.
#[derive(Debug)]
enum Values {
    /// Encoded images.
    Image,
    /// Caffe's.
    Datum { label_base: i64 },
    /// Records of another tool.
    Foreign(Box<ForeignSchema>),
    /// Records that were written here, with these features.
    Own(Box<RecordFeatures>),
}

impl Values {
    fn decide(
        value: &[u8],
        input: &RecordInput,
        conversion: Option<&Conversion>,
    ) -> std::result::Result<Self, String> {
        if let Some(conversion) = conversion {
            return Ok(Self::Own(Box::new(conversion.record_features.clone())));
        }
        if forebay_image::sniff(value).is_some() {
            return Ok(Self::Image);
        }
        if is_example(value) {
            return Ok(Self::Foreign(Box::new(input.features.decide(Some(value))?)));
        }
        if Datum::parse(value).is_some_and(|datum| datum.is_image()) {
            let label_base = input.features.label_base.unwrap_or(0);
            return Ok(Self::Datum { label_base });
        }
        // Protocol 2 and later, and the end of any.
        if value.starts_with(b"\x80") && value.ends_with(b".") {
            return Err("its values are pickled, and reading them would execute what they say: write the encoded images, or Examples, into a database".to_owned());
        }
        Err("its first value is neither an encoded image, nor a datum of Caffe, nor a tensorflow.Example".to_owned())
    }

    fn label_base(&self) -> i64 {
        match self {
            Self::Datum { label_base } => *label_base,
            Self::Foreign(schema) => schema.label_base,
            Self::Image | Self::Own(_) => 0,
        }
    }
}

fn is_example(value: &[u8]) -> bool {
    ExampleView::parse(value).is_ok_and(|example| example.iter().next().is_some())
}

fn facts(
    values: &Values,
    input: &RecordInput,
    first: Option<Vec<u8>>,
    conversion: Option<Conversion>,
    root: &Path,
    files: &blake3::Hasher,
) -> SourceFacts {
    let mut columns = vec![Column::new(schema::IMAGE, ColumnType::Image)];
    if matches!(values, Values::Datum { .. }) {
        columns.push(Column::new(schema::LABEL, ColumnType::Label));
    }
    let schema = Schema::new(columns).unwrap_or_default();
    let mut identity = vec![
        ("source_files", files.finalize().to_hex()[..32].to_owned()),
        ("label_base", values.label_base().to_string()),
    ];
    let mut facts = SourceFacts {
        label_base: values.label_base(),
        classes: Vec::new(),
        features: schema.features(),
        record_features: RecordFeatures::default(),
        schema,
        foreign: None,
        pack: BTreeMap::from([("tool".to_owned(), "convert".into())]),
        identity: BTreeMap::new(),
        order: forebay_shard::manifest::EpochOrder::default(),
        findings: Vec::new(),
    };
    if let Values::Foreign(schema) = values {
        let RecordFeatures { image, label, .. } = &schema.features;
        identity.push(("image_feature", image.clone()));
        identity.push(("label_feature", label.clone()));
        facts.record_features = schema.features.clone();
        facts.schema = Schema::default();
        facts.foreign = Some(((**schema).clone(), root.to_path_buf()));
        let kinds: BTreeMap<String, (FeatureKind, bool)> =
            first.map(|first| feature_kinds(&first)).unwrap_or_default();
        let entry = |(name, (kind, is_one)): (String, (FeatureKind, bool))| FeatureEntry {
            name,
            kind,
            shape: if is_one { Vec::new() } else { vec![None] },
        };
        facts.features = kinds.into_iter().map(entry).collect();
    }
    if let Some(known) = conversion {
        facts.label_base = known.label_base;
        facts.classes = known.classes;
        facts.features = known.features;
        facts.record_features = known.record_features;
        facts.schema = known.columns;
        facts.order = known.order.unwrap_or_default();
    }
    facts.schema = without(facts.schema, input);
    facts.identity = identity
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    facts
}

/// The columns whose features are not left out.
fn without(schema: Schema, input: &RecordInput) -> Schema {
    let is_kept = |column: &&Column| {
        let mut features = column.features().into_iter();
        features.all(|feature| !input.drop_features.contains(&feature.name))
    };
    Schema::new(schema.columns().iter().filter(is_kept).cloned().collect()).unwrap_or_default()
}

/// The records of a database.
#[derive(Debug)]
struct Records {
    database: Database,
    values: Arc<Values>,
}

impl RecordFile for Records {
    fn path(&self) -> &Path {
        &self.database.path
    }

    fn bytes(&self) -> u64 {
        self.database.bytes
    }

    fn records(&self) -> u64 {
        self.database.tree.nodes.len() as u64
    }

    fn record_bytes(&self, record: u64) -> u64 {
        let node = self.database.tree.nodes.get(record as usize);
        node.map_or(0, |node| u64::from(node.len))
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        Ok(Box::new(Reader {
            records: self,
            file: self.database.file()?,
            next: records.start,
            end: records.end.min(self.records()),
            key: Vec::new(),
            value: Vec::new(),
            record: Vec::new(),
        }))
    }
}

struct Reader<'a> {
    records: &'a Records,
    file: ArchiveFile,
    next: u64,
    end: u64,
    key: Vec<u8>,
    value: Vec<u8>,
    record: Vec<u8>,
}

impl RecordReader for Reader<'_> {
    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let number = self.next;
        if number >= self.end {
            return Ok(None);
        }
        self.next += 1;
        let Records { database, values } = self.records;
        let refused = |what: String| Error::Record {
            path: database.path.clone(),
            record: number,
            what,
        };
        let node = database.tree.nodes[number as usize];
        let read = database
            .tree
            .value(&self.file, node, &mut self.key, &mut self.value);
        read.map_err(refused)?;
        if self.key.len() > MAX_KEY_BYTES {
            return Err(refused(format!(
                "a key of {} bytes is too long",
                self.key.len()
            )));
        }
        self.record.clear();
        let label = values
            .encode(&self.value, &mut self.record)
            .map_err(refused)?;
        let key = match &**values {
            Values::Own(_) => self.key.get(write::PREFIX_BYTES..).unwrap_or_default(),
            _ => &self.key,
        };
        let bytes = match &**values {
            Values::Image | Values::Datum { .. } => &self.record,
            Values::Foreign(_) | Values::Own(_) => &self.value,
        };
        Ok(Some(SourceRecord {
            number,
            bytes,
            label,
            key,
        }))
    }
}

impl Values {
    /// Appends the record of a value that is none, and returns its label.
    fn encode(
        &self,
        value: &[u8],
        record: &mut Vec<u8>,
    ) -> std::result::Result<Option<i64>, String> {
        let own: Vec<u8>;
        let (image, label) = match self {
            Self::Image => match forebay_image::sniff(value) {
                Some(_) => (value, None),
                None => return Err("its value is no image, as the first one is".to_owned()),
            },
            Self::Datum { label_base } => {
                let datum = Datum::parse(value).filter(Datum::is_image);
                let datum = datum.ok_or("its value is no datum of Caffe, as the first one is")?;
                own = datum.image()?;
                let label = datum.label.unwrap_or(-1);
                if label != -1 && label < *label_base {
                    return Err(format!(
                        "its label is {label}, and the first class has label {label_base}"
                    ));
                }
                (own.as_slice(), Some(label))
            }
            Self::Foreign(schema) => {
                schema.check(value)?;
                return label(value, &schema.features);
            }
            Self::Own(features) => return label(value, features),
        };
        let mut builder = ExampleBuilder::new();
        let columns = [
            (
                Column::new(schema::IMAGE, ColumnType::Image),
                Some(ColumnValue::Bytes(image)),
            ),
            (
                Column::new(schema::LABEL, ColumnType::Label),
                label.map(ColumnValue::Int),
            ),
        ];
        let features = columns.each_ref().map(|(column, _)| column.features());
        for ((column, value), features) in columns.iter().zip(&features) {
            if let Some(value) = value {
                let added = column.add(features, value, &mut builder);
                added.map_err(|error| error.to_string())?;
            }
        }
        builder.encode_into(record);
        Ok(label)
    }
}

fn label(record: &[u8], features: &RecordFeatures) -> std::result::Result<Option<i64>, String> {
    let example = ExampleView::parse(record).map_err(|error| error.to_string())?;
    Ok(features.label(example).ok().flatten())
}
