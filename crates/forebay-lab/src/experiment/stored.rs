//! The images of a medium in formats of other tools, which the loader reads in place.

use std::collections::BTreeMap;
use std::path::Path;

use flate2::Crc;
use forebay_image::Transform;
use forebay_loader::{Loader, Options};
use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, OutputFormat, RecordFormat, RecordInput, convert,
};
use forebay_shard::{BlockCompression, Dataset, Split};
use forebay_store::Location;

use crate::Result;

/// Formats whose files the loader reads in place.
const IN_PLACE: [RecordFormat; 4] = [
    RecordFormat::WEBDATASET,
    RecordFormat::MDS,
    RecordFormat::PARQUET,
    RecordFormat::ARRAY_RECORD,
];
/// Samples per batch of the comparison.
const BATCH: u64 = 64;

/// A split in one format.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) name: &'static str,
    pub(super) split: Split,
}

/// Converts a dataset into the wanted formats, each below its own directory in `to`.
pub(super) fn convert_all(
    dataset: &Path,
    to: &Path,
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Vec<Stored>> {
    let wanted = IN_PLACE.iter().filter(|format| is_wanted(format.name()));
    let stored = wanted.map(|&format| {
        let files = to.join(format.name());
        let index = to.join(format!("{}-index", format.name()));
        let source = ConvertSource::Dataset(Location::from(dataset));
        let written = OutputFormat::Records(format, BlockCompression::NONE);
        let options = ConvertOptions::new(source, files.as_path(), written);
        convert(&options, &(), &Cancel::new())?;
        let source = ConvertSource::Records(format, Box::new(RecordInput::new(files.as_path())));
        let options = ConvertOptions::new(source, index.as_path(), OutputFormat::Mapped);
        convert(&options, &(), &Cancel::new())?;
        let split = first_split(&index)?;
        Ok(Stored {
            name: format.name(),
            split,
        })
    });
    stored.collect()
}

/// Opens the first split of a dataset.
pub(super) fn first_split(root: &Path) -> Result<Split> {
    let dataset = Dataset::open(root)?;
    let split = dataset.splits().next().map(str::to_owned);
    Ok(dataset.split(&split.ok_or("the pack has no split")?)?)
}

/// Returns a hash of a sample's label and content: the length, and a CRC of both.
fn content_hash(label: i64, content: &[u8]) -> u64 {
    let mut crc = Crc::new();
    crc.update(&label.to_le_bytes());
    crc.update(content);
    (content.len() as u64) << 32 | u64::from(crc.sum())
}

/// A hash of label and encoded image for each sample of an epoch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Samples {
    hashes: BTreeMap<u64, u64>,
    /// Number of samples that the loader returned more than once.
    repeated: u64,
    pub(super) bytes: u64,
}

/// How samples differ from the right ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differences {
    pub(super) wrong: u64,
    pub(super) missing: u64,
    pub(super) repeated: u64,
}

impl Samples {
    /// Reads an epoch of encoded images.
    pub(super) fn of(split: &Split, threads: usize) -> Result<Self> {
        let mut options = Options::new(BATCH, Transform::KeepEncoded);
        (options.threads, options.drop_last) = (threads, false);
        let mut loader = Loader::new(split.clone(), options)?;
        let mut found = Self {
            hashes: BTreeMap::new(),
            repeated: 0,
            bytes: 0,
        };
        while let Some(batch) = loader.next_batch()? {
            for (place, &sample) in batch.samples.iter().enumerate() {
                if batch.flags[place] & forebay_loader::batch::FLAG_PADDING != 0 {
                    continue;
                }
                let image = batch.image(place).ok_or("a sample has no image")?;
                let hash = content_hash(batch.labels[place], image);
                found.bytes += image.len() as u64;
                found.repeated += u64::from(found.hashes.insert(sample, hash).is_some());
            }
        }
        Ok(found)
    }

    pub(super) fn differences(&self, right: &Samples) -> Differences {
        let of_right = |number: &u64| right.hashes.get(number);
        let wrong = self
            .hashes
            .iter()
            .filter(|(number, hash)| of_right(number) != Some(hash));
        let missing = right
            .hashes
            .keys()
            .filter(|number| !self.hashes.contains_key(number));
        Differences {
            wrong: wrong.count() as u64,
            missing: missing.count() as u64,
            repeated: self.repeated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_missing_and_repeated_samples_are_counted() {
        let samples = |hashes: &[(u64, u64)], repeated| Samples {
            hashes: hashes.iter().copied().collect(),
            repeated,
            bytes: 0,
        };
        let right = samples(&[(0, 1), (1, 2), (2, 3)], 0);
        let found = samples(&[(0, 1), (1, 9), (7, 3)], 4);
        let expected = Differences {
            wrong: 2,
            missing: 1,
            repeated: 4,
        };
        assert_eq!(found.differences(&right), expected);
    }
}
