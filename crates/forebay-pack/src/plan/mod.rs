//! The plan: which file goes to which shard, in which order. A pure function of the census and the options.
//!
//! It stands before the first byte is written, so any thread or machine can write shard *k* on its own, and its
//! digest tells a continued run whether it continues the same pack.

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

/// Raised when the same arguments come to give other bytes, so that a pack started by an older version is not
/// continued by a newer one.
const PLAN_VERSION: u32 = 2;

/// Bytes of a record beyond the image: framing and the other features. Only for sizing shards.
const RECORD_OVERHEAD_BYTES: u64 = 300;

/// Which file goes where.
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
    /// Entry numbers in writing order; none: as they are.
    order: Option<Vec<u32>>,
    /// First position of each shard, and the number of records at the end.
    starts: Vec<u64>,
    /// About how many bytes each shard will have.
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
    /// The positions in the split that it holds.
    pub positions: Range<u64>,
    /// About how many bytes it will have, uncompressed.
    pub bytes: u64,
}

impl Plan {
    /// Decides everything.
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

    /// The splits, in the order of the census.
    pub fn splits(&self) -> &[PlannedSplit] {
        &self.splits
    }

    /// All shards, split by split.
    pub fn shards(&self) -> impl Iterator<Item = PlannedShard> + '_ {
        self.splits.iter().enumerate().flat_map(|(index, split)| {
            (0..split.shard_count()).map(move |number| split.shard(index, number))
        })
    }

    /// The number of all shards.
    pub fn shard_count(&self) -> u64 {
        self.splits.iter().map(|s| u64::from(s.shard_count())).sum()
    }

    /// About how many bytes all shards will have, uncompressed.
    pub fn bytes(&self) -> u64 {
        self.splits.iter().flat_map(|s| &s.bytes).sum()
    }

    /// The arguments that decide the output, as the manifest records them.
    pub fn arguments(&self) -> &BTreeMap<String, String> {
        &self.arguments
    }

    /// A digest of all that decides the output: arguments, classes, names, sizes, order.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

impl PlannedSplit {
    /// The split's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How many shards it has.
    pub fn shard_count(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// The number in the census of the file at a position. Panics beyond the end.
    pub fn entry_at(&self, position: u64) -> u64 {
        match &self.order {
            Some(order) => u64::from(order[position as usize]),
            None => position,
        }
    }

    /// The files of a range of positions.
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

/// Cuts the records of a split, which have `total` bytes together, into shards. `bytes_of` is called for each position in
/// turn. Gives the first position of each shard and the number of records at the end; and the bytes of each shard.
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
        // The next shard begins where its share of records or bytes begins, and no shard stays empty.
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

/// Names of arguments that a pack may do without.
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

/// The arguments that decide the output, by name. Neither the number of jobs nor the policy for bad images is among
/// it: a pack that stopped at a bad image may be continued by one that skips it.
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

/// Every item with its length first, so that no two plans hash the same bytes.
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
