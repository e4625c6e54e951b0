//! Writes a small dataset with the shard writers, without `forebay-pack`.

#![allow(unreachable_pub)]

use std::fs::File;
use std::path::Path;

use forebay_shard::manifest::{Manifest, ShardEntry, SplitEntry};
use forebay_shard::{RecordMeta, ShardFormat, ShardWriter, indexed, tfrecord};

/// The shape of a dataset.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub records: u64,
    pub shards: u64,
    pub format: ShardFormat,
    /// Whether TFRecord shards get sidecar indexes.
    pub sidecars: bool,
    /// The upper bound of the length of a record.
    pub most_bytes: u64,
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            records: 600,
            shards: 12,
            format: ShardFormat::Indexed,
            sidecars: true,
            most_bytes: 40_000,
        }
    }
}

impl Recipe {
    /// Name of a shard.
    pub fn name(&self, shard: u64) -> String {
        let extension = self.format.extension();
        format!("train-{shard:05}-of-{:05}{extension}", self.shards)
    }
}

/// The bytes of record `i`: pseudo-random content and length.
pub fn record(i: u64, most_bytes: u64) -> Vec<u8> {
    let mut state = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let len = 10 + state.rotate_left(17) % most_bytes;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        })
        .collect()
}

/// Writes a dataset with one split, `train`.
pub fn write(root: &Path, recipe: &Recipe) {
    let mut shards = Vec::new();
    for k in 0..recipe.shards {
        let name = recipe.name(k);
        let path = root.join(&name);
        let file = File::create(&path).unwrap();
        let mut writer: ShardWriter<_> = match recipe.format {
            ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(file, &path),
            ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
            ShardFormat::Indexed => indexed::WriterBuilder::new()
                .from_writer(file, &path)
                .unwrap(),
        };
        let (first, end) = (
            recipe.records * k / recipe.shards,
            recipe.records * (k + 1) / recipe.shards,
        );
        for i in first..end {
            let key = format!("class{}/{i}.jpg", i % 10);
            let meta = RecordMeta::new(i as i64 % 10, key.as_bytes());
            writer.append(&record(i, recipe.most_bytes), &meta).unwrap();
        }
        let (_, summary) = writer.finish().unwrap();
        if recipe.format == ShardFormat::TfRecord && recipe.sidecars {
            std::fs::create_dir_all(root.join("index")).unwrap();
            let sidecar = root.join("index").join(format!("{name}.fbi"));
            std::fs::write(sidecar, summary.to_fbi().unwrap()).unwrap();
        }
        shards.push(ShardEntry {
            name,
            records: summary.records,
            bytes: summary.bytes,
            crc32c: summary.crc32c,
            blake3: None,
        });
    }
    let manifest = Manifest::new(recipe.format, 0, vec![SplitEntry::new("train", shards)]);
    std::fs::write(root.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
}
