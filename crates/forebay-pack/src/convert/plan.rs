//! Assigns records to shards in the order of the source, with new or unchanged shard boundaries.

use super::source::{Source, SourceSplit};
use crate::error::{Error, Result};
use crate::options::{MAX_SHARDS, Sharding};
use crate::plan::{PlannedShard, cut};
use forebay_formats::key_path::is_split_name;
use std::collections::BTreeMap;

/// Incremented when the same arguments lead to different output.
const PLAN_VERSION: u32 = 2;

/// Size of the framing of a record, in bytes.
const FRAME_BYTES: u64 = 16;

/// All shards to write.
pub(super) struct Plan {
    pub(super) shards: Vec<PlannedShard>,
    /// Digest of the source and of everything that affects the output.
    pub(super) digest: String,
}

impl Plan {
    pub(super) fn make(
        source: &Source,
        file_name: &dyn Fn(&str, u32, u32) -> String,
        sharding: Option<Sharding>,
        arguments: &BTreeMap<String, String>,
    ) -> Result<Self> {
        let mut shards = Vec::new();
        for (index, split) in source.splits.iter().enumerate() {
            let name = &split.name;
            if !is_split_name(name) {
                return Err(Error::Options(format!(
                    "the split {name:?} cannot be written: names of splits have letters, digits, '_', '.' and '-', and start with a letter"
                )));
            }
            let (starts, bytes) = cut_split(split, sharding)?;
            let count = bytes.len() as u32;
            shards.extend(
                bytes
                    .iter()
                    .enumerate()
                    .map(|(number, bytes)| PlannedShard {
                        split: index,
                        number: number as u32,
                        name: file_name(name, number as u32, count),
                        positions: starts[number]..starts[number + 1],
                        bytes: *bytes,
                    }),
            );
        }
        let mut hasher = blake3::Hasher::new();
        let mut item = |text: &str| {
            hasher
                .update(&(text.len() as u64).to_le_bytes())
                .update(text.as_bytes());
        };
        item("forebay convert plan");
        item(&PLAN_VERSION.to_string());
        for (name, value) in arguments.iter().chain(&source.facts.identity) {
            item(name);
            item(value);
        }
        for shard in &shards {
            item(&shard.name);
            item(&format!("{:?}", shard.positions));
        }
        let digest = hasher.finalize().to_hex()[..32].to_owned();
        Ok(Self { shards, digest })
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.shards.iter().map(|shard| shard.name.clone()).collect()
    }
}

/// Returns the first position of each shard, followed by the number of records, and the size of each shard in bytes.
fn cut_split(split: &SourceSplit, sharding: Option<Sharding>) -> Result<(Vec<u64>, Vec<u64>)> {
    let Some(sharding) = sharding else {
        let bytes = split.file_bytes();
        if bytes.len() > MAX_SHARDS as usize {
            return Err(Error::Options(format!(
                "the split {} has {} shards, more than the {MAX_SHARDS} that their names can number: choose larger shards",
                split.name,
                bytes.len()
            )));
        }
        return Ok((split.starts.clone(), bytes));
    };
    let records = split.len();
    let total = split.record_bytes().sum::<u64>() + records * FRAME_BYTES;
    let mut sizes = split.record_bytes();
    cut(&split.name, records, total, sharding, |_| {
        sizes.next().unwrap_or(0) + FRAME_BYTES
    })
}
