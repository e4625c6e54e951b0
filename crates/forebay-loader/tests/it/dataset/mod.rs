//! Small datasets of generated images, written with the shard writers alone.

#![allow(dead_code, unreachable_pub)] // Several test binaries include this file; each uses a part of it.

use std::path::Path;

use forebay_image::{Format, RgbImage, encode_jpeg, encode_png, sniff};
use forebay_shard::manifest::{Manifest, ShardEntry, SplitEntry};
use forebay_shard::{
    Codec, Dataset, ExampleBuilder, RecordMeta, ShardFormat, ShardWriter, Split, indexed, tfrecord,
};

/// Returns all shard formats, with all block codecs.
pub fn formats() -> impl Iterator<Item = (ShardFormat, Codec)> {
    let indexed = Codec::all().map(|codec| (ShardFormat::Indexed, codec));
    std::iter::once((ShardFormat::TfRecord, Codec::NONE)).chain(indexed)
}

/// Returns a JPEG of that size, different for each seed.
pub fn jpeg(width: u32, height: u32, seed: u32) -> Vec<u8> {
    let data = (0..width * height * 3)
        .map(|at| (at.wrapping_mul(at ^ (seed + 5)) >> 5) as u8)
        .collect();
    let picture = RgbImage {
        width,
        height,
        data,
    };
    encode_jpeg(&picture, 90, false).unwrap()
}

/// Parameters of a dataset.
#[derive(Clone, Copy)]
pub struct Recipe {
    pub records: u64,
    pub shards: u64,
    pub format: ShardFormat,
    pub codec: Codec,
    /// Block size of an indexed shard.
    pub block_bytes: usize,
    /// `image/encoded` of a record; `None` for a record that is not an Example.
    pub image: fn(u64) -> Option<Vec<u8>>,
    /// `image/class/label` of a record.
    pub label: fn(u64) -> i64,
    /// `image/seek_points` of a record, computed from its image.
    pub seek_points: fn(u64, &[u8]) -> Option<Vec<u8>>,
}

impl Default for Recipe {
    fn default() -> Self {
        Recipe {
            records: 100,
            shards: 3,
            format: ShardFormat::Indexed,
            codec: Codec::NONE,
            block_bytes: 8000,
            image: |i| Some(picture(i)),
            label: |i| i as i64 % 10 + 1,
            seek_points: |_, _| None,
        }
    }
}

/// Returns a PNG that is different for each record, 8 to 22 pixels wide and high.
pub fn picture(i: u64) -> Vec<u8> {
    let (width, height) = (8 + (i % 5) as u32 * 3, 8 + (i % 3) as u32 * 7);
    let pixels: Vec<u8> = (0..width * height)
        .flat_map(|at| {
            let (x, y) = (at % width, at / width);
            [(x * 11) as u8, (y * 7) as u8 ^ i as u8, (i >> 3) as u8]
        })
        .collect();
    encode_png(&pixels, width, height)
}

/// Returns the key of record `i`.
pub fn key(i: u64) -> String {
    format!("class{}/{i}.png", i % 10)
}

/// Writes a dataset with one split, `train`.
pub fn write(root: &Path, recipe: &Recipe) {
    let mut shards = Vec::new();
    for k in 0..recipe.shards {
        let name = match recipe.format {
            ShardFormat::TfRecord => format!("train-{k:05}-of-{:05}", recipe.shards),
            ShardFormat::Indexed => format!("train-{k:05}-of-{:05}.fbs", recipe.shards),
            ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
        };
        let path = root.join(&name);
        let file = std::fs::File::create(&path).unwrap();
        let mut writer: ShardWriter<_> = match recipe.format {
            ShardFormat::TfRecord => tfrecord::WriterBuilder::new().from_writer(file, &path),
            ShardFormat::Mapped => panic!("mapped shards have a writer of their own"),
            ShardFormat::Indexed => {
                let mut builder = indexed::WriterBuilder::new();
                builder
                    .compression(recipe.codec)
                    .block_bytes(recipe.block_bytes);
                builder.from_writer(file, &path).unwrap()
            }
        };
        let (first, end) = (
            recipe.records * k / recipe.shards,
            recipe.records * (k + 1) / recipe.shards,
        );
        for i in first..end {
            let label = (recipe.label)(i);
            let key = key(i);
            let meta = RecordMeta::new(label, key.as_bytes());
            let Some(image) = (recipe.image)(i) else {
                writer.append(b"\xffnot an Example", &meta).unwrap();
                continue;
            };
            let mut example = ExampleBuilder::new();
            let feature = match sniff(&image) {
                Some(Format::Fast) => "image/fast",
                _ => "image/encoded",
            };
            example.add_bytes(feature, &image);
            example.add_int64("image/class/label", label);
            let points = (recipe.seek_points)(i, &image);
            if let Some(points) = &points {
                example.add_bytes("image/seek_points", points);
            }
            writer.append(&example.to_vec(), &meta).unwrap();
        }
        let (_, summary) = writer.finish().unwrap();
        if recipe.format == ShardFormat::TfRecord {
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
    let manifest = Manifest::new(recipe.format, 1, vec![SplitEntry::new("train", shards)]);
    std::fs::write(root.join("forebay.json"), manifest.to_json().unwrap()).unwrap();
}

/// Writes a dataset and opens its split.
pub fn split(recipe: &Recipe) -> (tempfile::TempDir, Split) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), recipe);
    let split = open(directory.path());
    (directory, split)
}

/// Opens the split of a dataset that was written before.
pub fn open(root: &Path) -> Split {
    Dataset::open(root).unwrap().split("train").unwrap()
}
