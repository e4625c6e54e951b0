//! The images of a medium in formats of other tools, which the loader reads where they are.

use std::collections::BTreeMap;
use std::path::Path;

use flate2::Crc;
use forebay_image::Transform;
use forebay_loader::{Loader, Options};
use forebay_pack::{
    Cancel, ConvertOptions, ConvertSource, DatasetFormat, OutputFormat, RecordFormat, RecordInput,
    Sharding, convert,
};
use forebay_shard::{BlockCompression, Split};
use forebay_store::Location;

use crate::Result;

/// Formats whose files loaders read where they are.
const IN_PLACE: [RecordFormat; 4] = [
    RecordFormat::WEBDATASET,
    RecordFormat::MDS,
    RecordFormat::PARQUET,
    RecordFormat::ARRAY_RECORD,
];
/// Samples of a batch while samples are compared.
const BATCH: u64 = 64;
/// Files of a format, so that several workers have some each.
pub(super) const SHARDS: u32 = 8;

/// The images in a format.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) name: &'static str,
    pub(super) split: Split,
}

/// Converts a dataset into those formats that are wanted, below a directory.
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
        let split = super::data::first_split(&index)?;
        Ok(Stored {
            name: format.name(),
            split,
        })
    });
    stored.collect()
}

/// Converts a dataset into so many files of a format, or of shards.
pub(super) fn convert_to(
    dataset: &Path,
    format: RecordFormat,
    shards: u32,
    to: &Path,
) -> Result<()> {
    let source = ConvertSource::Dataset(Location::from(dataset));
    let written = match format == RecordFormat::TFRECORD {
        true => DatasetFormat::TfRecord.into(),
        false => OutputFormat::Records(format, BlockCompression::NONE),
    };
    let mut options = ConvertOptions::new(source, to, written);
    options.sharding = Some(Sharding::Count(shards));
    convert(&options, &(), &Cancel::new())?;
    Ok(())
}

/// Label and content of a sample as `package_readers.py` hashes them: the length, and CRC32 of both.
pub(super) fn content_hash(label: i64, content: &[u8]) -> u64 {
    let mut crc = Crc::new();
    crc.update(&label.to_le_bytes());
    crc.update(content);
    (content.len() as u64) << 32 | u64::from(crc.sum())
}

/// How samples differ from those that are right, where their numbers are not known.
pub(super) fn differences(found: &[u64], right: &[u64]) -> Differences {
    let mut left: BTreeMap<u64, i64> = BTreeMap::new();
    right
        .iter()
        .for_each(|hash| *left.entry(*hash).or_default() += 1);
    let mut wrong = 0;
    for hash in found {
        match left.get_mut(hash) {
            Some(left) => *left -= 1,
            None => wrong += 1,
        }
    }
    let sum = |count: fn(i64) -> i64| left.values().map(|&left| count(left)).sum::<i64>() as u64;
    Differences {
        wrong,
        missing: sum(|left| left.max(0)),
        repeated: sum(|left| (-left).max(0)),
    }
}

/// The content of each sample of an epoch: label and encoded image, or pixels.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Samples {
    hashes: BTreeMap<u64, u64>,
    /// Samples that came more than once.
    repeated: u64,
    pub(super) bytes: u64,
}

/// How samples differ from those that are right.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Differences {
    pub(super) wrong: u64,
    pub(super) missing: u64,
    pub(super) repeated: u64,
}

impl Samples {
    /// Reads an epoch of encoded images.
    pub(super) fn of(split: &Split, threads: usize) -> Result<Self> {
        Self::of_images(split, threads, Transform::KeepEncoded)
    }

    /// Reads an epoch.
    pub(super) fn of_images(split: &Split, threads: usize, transform: Transform) -> Result<Self> {
        let mut options = Options::new(BATCH, transform);
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

    /// The hashes of all samples.
    pub(super) fn hashes(&self) -> Vec<u64> {
        self.hashes.values().copied().collect()
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
    fn differences_are_told_apart() {
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
        let expected = Differences {
            wrong: 1,
            missing: 2,
            repeated: 1,
        };
        assert_eq!(differences(&[1, 2, 2, 9], &[1, 2, 3, 4]), expected);
    }
}
