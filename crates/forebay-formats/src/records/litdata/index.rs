//! `index.json`: the chunks of a split, and the names and types of the leaves of an item.

use crate::error::Result;
use crate::records::samples::{difference, is_file_name, read_index};
use forebay_shard::Storage;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

/// Most leaves of an item; real ones have a handful.
const LEAVES_MAX: usize = 1024;
/// The name of the leaf of an item that is a single value.
const ONLY_LEAF: &str = "value";
/// The loader of items that are rows of Parquet files.
const PARQUET_LOADER: &str = "ParquetLoader";

/// How items are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CompressionUnit {
    None,
    /// Each file is compressed as a whole.
    File,
    /// Several items are compressed together; the file has a table of these frames.
    Frames,
    /// Each item is compressed separately.
    Items,
}

/// The index of a split.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) chunks: Vec<ChunkInfo>,
    /// Name and type of each leaf.
    pub(super) leaves: Vec<(String, String)>,
    pub(super) wrap: CompressionUnit,
    /// Whether the chunks are Parquet files, which define the types of their columns themselves.
    pub(super) is_parquet: bool,
}

#[derive(Deserialize)]
struct IndexFile {
    chunks: Vec<ChunkInfo>,
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    compression: Option<String>,
    #[serde(default)]
    compression_level: Option<String>,
    #[serde(default)]
    data_format: Option<Vec<String>>,
    #[serde(default)]
    data_spec: Option<String>,
    #[serde(default)]
    encryption: Option<Value>,
    #[serde(default)]
    item_loader: Option<String>,
}

/// An entry of a chunk in the index.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct ChunkInfo {
    pub(super) filename: String,
    /// Size of the file in bytes, before it was compressed as a whole.
    #[serde(rename = "chunk_bytes")]
    pub(super) bytes: u64,
    #[serde(rename = "chunk_size")]
    pub(super) items: u64,
}

impl Index {
    /// Reads the index in a directory.
    pub(super) fn load(dir: &Path, storage: &dyn Storage) -> Result<Self> {
        read_index(dir, storage, Self::parse)
    }

    /// Parses the index.
    fn parse(bytes: &[u8]) -> std::result::Result<Self, String> {
        let file: IndexFile = forebay_shard::json::from_slice(bytes)
            .map_err(|error| format!("it is no index of LitData: {error}"))?;
        let config = file.config;
        if config.encryption.is_some() {
            return Err(
                "its chunks are encrypted, which are not read: write them without encryption"
                    .to_owned(),
            );
        }
        let is_parquet = match config.item_loader.as_deref() {
            None | Some("PyTreeLoader") => false,
            Some(PARQUET_LOADER) => true,
            Some(loader) => {
                return Err(format!(
                    "items of the loader {loader:?} are not read, only those of PyTreeLoader, which is LitData's default, and of {PARQUET_LOADER}"
                ));
            }
        };
        let wrap = wrap(
            config.compression.as_deref(),
            config.compression_level.as_deref(),
        )?;
        if let Some(info) = file
            .chunks
            .iter()
            .find(|info| !is_file_name(&info.filename))
        {
            let name = &info.filename;
            return Err(format!("{name:?} is no name of a file beside the index"));
        }
        let mut names = BTreeSet::new();
        let mut all = file.chunks.iter();
        if let Some(twice) = all.find(|info| !names.insert(&info.filename)) {
            return Err(format!("{} is listed twice", twice.filename));
        }
        if is_parquet {
            return Ok(Self {
                chunks: file.chunks,
                leaves: Vec::new(),
                wrap,
                is_parquet,
            });
        }
        let formats = config
            .data_format
            .ok_or("it has no data_format, which says what the leaves of items are")?;
        let mut names = Vec::new();
        match &config.data_spec {
            Some(spec) => {
                let spec: Value = forebay_shard::json::from_str(spec)
                    .map_err(|error| format!("its data_spec is no JSON: {error}"))?;
                leaf_names(spec.get(1).unwrap_or(&Value::Null), "", &mut names)?;
            }
            None => names.push(ONLY_LEAF.to_owned()),
        }
        if names.len() != formats.len() || names.is_empty() {
            return Err(format!(
                "its data_spec has {} leaves, and its data_format {}",
                names.len(),
                formats.len()
            ));
        }
        Ok(Self {
            chunks: file.chunks,
            leaves: names.into_iter().zip(formats).collect(),
            wrap,
            is_parquet,
        })
    }

    /// Returns the position of each leaf among those of another index, or the first difference.
    pub(super) fn places_in(&self, other: &Self) -> std::result::Result<Vec<usize>, String> {
        if self.is_parquet != other.is_parquet {
            return Err("its chunks are of another kind than those of the first split".to_owned());
        }
        difference(self.formats(), other.formats())
    }

    fn formats(&self) -> impl Iterator<Item = (&str, &str)> + Clone {
        let leaves = self.leaves.iter();
        leaves.map(|(name, format)| (name.as_str(), format.as_str()))
    }
}

fn wrap(
    compression: Option<&str>,
    level: Option<&str>,
) -> std::result::Result<CompressionUnit, String> {
    let Some(compression) = compression else {
        return Ok(CompressionUnit::None);
    };
    if compression.split(':').next() != Some("zstd") {
        return Err(format!(
            "compression {compression:?} is not read, only zstd"
        ));
    }
    match level {
        None | Some("chunk") => Ok(CompressionUnit::File),
        Some("batch") => Ok(CompressionUnit::Frames),
        Some("sample") => Ok(CompressionUnit::Items),
        Some(other) => Err(format!(
            "compression_level {other:?} is not read, only \"chunk\", \"batch\" and \"sample\""
        )),
    }
}

/// Appends the names of the leaves of a tree: keys and positions on the path to the leaf, separated by slashes.
fn leaf_names(
    spec: &Value,
    prefix: &str,
    names: &mut Vec<String>,
) -> std::result::Result<(), String> {
    let kind = spec.get("type").ok_or("its data_spec is no tree")?;
    if kind.is_null() {
        if names.len() == LEAVES_MAX {
            return Err(format!("items have more than {LEAVES_MAX} leaves"));
        }
        let name = prefix.strip_suffix('/').unwrap_or(ONLY_LEAF);
        if names.iter().any(|known| known == name) {
            return Err(format!("two leaves of an item are called {name:?}"));
        }
        names.push(name.to_owned());
        return Ok(());
    }
    let children = spec.get("children_spec").and_then(Value::as_array);
    let children = children.ok_or("its data_spec has a node without children_spec")?;
    // The keys of a dict are a JSON text inside the JSON.
    let context = spec.get("context").and_then(Value::as_str);
    let keys: Option<Vec<Value>> =
        context.and_then(|text| forebay_shard::json::from_str(text).ok());
    let keys = keys.filter(|keys| keys.len() == children.len());
    for (number, child) in children.iter().enumerate() {
        let name = match keys.as_ref().and_then(|keys| keys.get(number)) {
            Some(Value::String(key)) => key.clone(),
            Some(Value::Number(key)) => key.to_string(),
            _ => number.to_string(),
        };
        leaf_names(child, &format!("{prefix}{name}/"), names)?;
    }
    Ok(())
}
