//! The plan assigns files to shards in a fixed order. It is a pure function of the census and the options.
//!
//! The plan is complete before the first byte is written, so any thread or machine can write shard *k* independently. Its
//! digest shows whether a run continues the same pack. `prepare` makes the plan, in the order of `shuffle`; a conversion cuts
//! its shards with [`cut`].

mod shuffle;

use crate::census::{Census, SplitCensus};
use crate::error::{Error, Result};
use crate::options::{
    IMAGES_KEY, ImageForm, MAX_SHARDS, PackOptions, Sharding, ShuffleWhen, seek_points_argument,
};
use forebay_formats::ClassOrder;
use forebay_formats::images::EntryRef;
use std::collections::BTreeMap;
use std::ops::Range;

/// Incremented when the same arguments lead to different output, so that a newer version does not continue a pack of an
/// older one.
const PLAN_VERSION: u32 = 2;

/// Estimated size of a record in addition to its image, in bytes: framing and other features. Only used to size shards.
const RECORD_OVERHEAD_BYTES: u64 = 300;

/// The assignment of files to shards.
#[derive(Debug)]
pub struct Plan {
    splits: Vec<PlannedSplit>,
    arguments: BTreeMap<String, String>,
    digest: String,
}

/// The shards of one split.
#[derive(Debug)]
pub struct PlannedSplit {
    name: String,
    /// Entry numbers in writing order; `None` for the order of the census.
    order: Option<Vec<u32>>,
    /// First position of each shard, followed by the number of records.
    starts: Vec<u64>,
    /// Estimated size of each shard in bytes.
    bytes: Vec<u64>,
    extension: &'static str,
}

/// One shard to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedShard {
    /// Index of the split in the plan and in the census.
    pub split: usize,
    /// Number of the shard in its split.
    pub number: u32,
    /// The file's name.
    pub name: String,
    /// The range of positions in the split that the shard contains.
    pub positions: Range<u64>,
    /// Estimated uncompressed size in bytes.
    pub bytes: u64,
}

impl Plan {
    /// Creates the plan for a census.
    pub fn make(census: &Census, options: &PackOptions) -> Result<Self> {
        let extension = options.format.shard_format().extension();
        let mut splits = Vec::new();
        for split in census.splits() {
            let records = u32::try_from(split.len()).map_err(|_| {
                Error::source(
                    census.src(),
                    format!("the split {} has too many files", split.name()),
                )
            })?;
            let shuffled = match options.shuffle {
                ShuffleWhen::Training => !matches!(split.name(), "validation" | "test"),
                ShuffleWhen::Always => true,
                ShuffleWhen::Never => false,
            };
            let order = shuffled.then(|| shuffle::order(records, options.seed, split.name()));
            let mut planned = PlannedSplit {
                name: split.name().to_owned(),
                order,
                starts: Vec::new(),
                bytes: Vec::new(),
                extension,
            };
            planned.cut(split, options.sharding)?;
            splits.push(planned);
        }
        let arguments = arguments(options);
        let digest = digest(census, &splits, &arguments);
        Ok(Self {
            splits,
            arguments,
            digest,
        })
    }

    /// Returns the splits, in the order of the census.
    pub fn splits(&self) -> &[PlannedSplit] {
        &self.splits
    }

    /// Returns all shards, split by split.
    pub fn shards(&self) -> impl Iterator<Item = PlannedShard> + '_ {
        self.splits.iter().enumerate().flat_map(|(index, split)| {
            (0..split.shard_count()).map(move |number| split.shard(index, number))
        })
    }

    /// Returns the number of all shards.
    pub fn shard_count(&self) -> u64 {
        self.splits.iter().map(|s| u64::from(s.shard_count())).sum()
    }

    /// Returns the estimated uncompressed size of all shards in bytes.
    pub fn bytes(&self) -> u64 {
        self.splits.iter().flat_map(|s| &s.bytes).sum()
    }

    /// Returns the arguments that affect the output, as recorded in the manifest.
    pub fn arguments(&self) -> &BTreeMap<String, String> {
        &self.arguments
    }

    /// Returns a digest of everything that affects the output: arguments, classes, names, sizes, and order.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

impl PlannedSplit {
    /// Returns the name of the split.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of shards.
    pub fn shard_count(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Returns the number of the file at a position in the census. Panics beyond the last position.
    pub fn entry_at(&self, position: u64) -> u64 {
        match &self.order {
            Some(order) => u64::from(order[position as usize]),
            None => position,
        }
    }

    /// Returns the files at a range of positions.
    pub(crate) fn entries<'a>(
        &'a self,
        census: &'a SplitCensus,
        positions: Range<u64>,
    ) -> impl Iterator<Item = EntryRef<'a>> + 'a {
        positions.map(|position| census.get(self.entry_at(position)))
    }

    fn shard(&self, split: usize, number: u32) -> PlannedShard {
        let at = number as usize;
        PlannedShard {
            split,
            number,
            name: format!(
                "{}-{number:05}-of-{:05}{}",
                self.name,
                self.shard_count(),
                self.extension
            ),
            positions: self.starts[at]..self.starts[at + 1],
            bytes: self.bytes[at],
        }
    }

    fn cut(&mut self, census: &SplitCensus, sharding: Sharding) -> Result<()> {
        let records = census.len();
        let total = census.bytes() + records * RECORD_OVERHEAD_BYTES;
        let (starts, bytes) = cut(&self.name, records, total, sharding, |position| {
            census.get(self.entry_at(position)).size + RECORD_OVERHEAD_BYTES
        })?;
        (self.starts, self.bytes) = (starts, bytes);
        Ok(())
    }
}

/// Divides the records of a split, which have `total` bytes, into shards. `bytes_of` is called once for each position, in
/// order. Returns the first position of each shard, followed by the number of records, and the size of each shard in bytes.
pub(crate) fn cut(
    split: &str,
    records: u64,
    total: u64,
    sharding: Sharding,
    mut bytes_of: impl FnMut(u64) -> u64,
) -> Result<(Vec<u64>, Vec<u64>)> {
    let count = match sharding {
        Sharding::Count(count) => u64::from(count).min(records),
        Sharding::Bytes(bytes) => total.div_ceil(bytes.max(1)).min(records),
    };
    if count > u64::from(MAX_SHARDS) {
        return Err(Error::Options(format!(
            "the split {split} would be cut into {count} shards, more than the {MAX_SHARDS} that their names can number: choose larger shards"
        )));
    }
    if count == 0 {
        return Ok((vec![0], Vec::new()));
    }
    let (mut starts, mut sizes) = (vec![0], Vec::new());
    let (mut shard_bytes, mut done) = (0u64, 0u64);
    for position in 0..records {
        let next = starts.len() as u64;
        // The next shard begins at its proportional number of records or bytes. No shard is empty.
        let due = match sharding {
            Sharding::Count(_) => position * count >= next * records,
            Sharding::Bytes(_) => {
                u128::from(done) * u128::from(count) >= u128::from(next) * u128::from(total)
            }
        };
        let last_chance = records - position == count - next.min(count);
        if position > starts[starts.len() - 1] && next < count && (due || last_chance) {
            starts.push(position);
            sizes.push(shard_bytes);
            shard_bytes = 0;
        }
        let bytes = bytes_of(position);
        shard_bytes += bytes;
        done += bytes;
    }
    starts.push(records);
    sizes.push(shard_bytes);
    Ok((starts, sizes))
}

/// Names of arguments that are not set in every pack.
pub(crate) const OPTIONAL_ARGUMENTS: [&str; 10] = [
    "shards",
    "shard_size",
    "split",
    "blake3",
    "progressive",
    IMAGES_KEY,
    "convert_odd",
    "resize_short",
    "max_side",
    "quality",
];

/// Returns the arguments that affect the output, by name. The number of jobs and the policy for bad images are not
/// included: a pack that stopped at a bad image may be continued with another policy.
fn arguments(options: &PackOptions) -> BTreeMap<String, String> {
    let mut arguments = BTreeMap::new();
    let mut set = |name: &str, value: String| arguments.insert(name.to_owned(), value);
    for (name, value) in options.format.arguments(options.index_text) {
        set(name, value);
    }
    match options.sharding {
        Sharding::Count(count) => set("shards", count.to_string()),
        Sharding::Bytes(bytes) => set("shard_size", bytes.to_string()),
    };
    if let Some(split) = &options.split {
        set("split", split.clone());
    }
    if options.blake3 {
        set("blake3", "true".into());
    }
    let shuffle = match options.shuffle {
        ShuffleWhen::Training => "training",
        ShuffleWhen::Always => "always",
        ShuffleWhen::Never => "never",
    };
    set("shuffle", shuffle.into());
    set(
        "seek_points",
        seek_points_argument(options.seek_points).into(),
    );
    if options.progressive_to_baseline {
        set("progressive", "baseline".into());
    }
    if options.images != ImageForm::Jpeg {
        set(IMAGES_KEY, options.images.name().into());
    }
    set("seed", options.seed.to_string());
    if let Some(order @ ClassOrder::Natural) = options.class_order {
        set("class_order", order.name().into());
    }
    set("label_base", options.label_base.to_string());
    if options.transcode_nonstandard {
        set("convert_odd", "true".into());
    }
    if let Some(pixels) = options.resize_short {
        set("resize_short", pixels.to_string());
    }
    if let Some(pixels) = options.max_side {
        set("max_side", pixels.to_string());
    }
    if let Some(quality) = options.quality {
        set("quality", quality.to_string());
    }
    arguments
}

/// Computes the digest. The length of every item is hashed before it, so that different plans never hash the same bytes.
fn digest(
    census: &Census,
    splits: &[PlannedSplit],
    arguments: &BTreeMap<String, String>,
) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut item = |bytes: &[u8]| {
        hasher
            .update(&(bytes.len() as u64).to_le_bytes())
            .update(bytes);
    };
    item(b"forebay pack plan");
    item(&PLAN_VERSION.to_le_bytes());
    for (name, value) in arguments {
        item(name.as_bytes());
        item(value.as_bytes());
    }
    for class in census.classes().iter() {
        item(&class.name);
        item(class.text.as_deref().unwrap_or_default().as_bytes());
    }
    for (split, planned) in census.splits().iter().zip(splits) {
        item(planned.name.as_bytes());
        item(split.dir());
        for chunk in split.chunks() {
            item(chunk.name());
            item(&chunk.class.map_or(u64::MAX, u64::from).to_le_bytes());
            item(&chunk.content_digest().to_le_bytes());
        }
        for class in split.listed_classes() {
            item(&class.to_le_bytes());
        }
        let mut extras = blake3::Hasher::new();
        split.hash_extras(&mut extras);
        if extras.count() > 0 {
            item(extras.finalize().as_bytes());
        }
        for start in &planned.starts {
            item(&start.to_le_bytes());
        }
    }
    hasher.finalize().to_hex()[..32].to_owned()
}

#[cfg(test)]
mod tests;
