//! Shards as files of records: TFRecord, with or without an index, and indexed shards.

use super::{ForeignSchema, RecordFile, RecordReader, RecordSplit, SourceRecord};
use crate::error::{Error, Result};
use forebay_shard::example::RecordFeatures;
use forebay_shard::index::MAX_KEY_BYTES;
use forebay_shard::manifest::{EpochOrder, block_records};
use forebay_shard::mapped::{Extent, ExtentStart};
use forebay_shard::{ExampleView, Scan, Shard};
use std::ops::Range;
use std::path::Path;

/// Bytes of a TFRecord frame before the payload.
const HEAD_BYTES: u64 = 12;
/// Stands for no label in an index.
const NO_LABEL: i64 = i64::MIN;

/// The source of labels and keys.
#[derive(Debug, Clone)]
pub(super) enum LabelKeySource {
    /// Both come from the index; without an index, labels come from these features.
    Known(RecordFeatures),
    /// Both come from the records.
    Foreign(ForeignSchema),
}

/// Returns a split of shards, which are local files or objects of a store.
pub(super) fn split(
    (name, shards): (String, Vec<Shard>),
    source: &LabelKeySource,
    is_remote: bool,
) -> RecordSplit {
    let file = |shard| ShardFile {
        shard,
        source: source.clone(),
        is_remote,
    };
    RecordSplit::new(name, shards.into_iter().map(file))
}

/// Returns the default order of samples for splits of shards without a manifest.
pub(super) fn order_of(splits: &[(String, Vec<Shard>)]) -> Result<EpochOrder> {
    let mut order = EpochOrder::default();
    for (name, shards) in splits {
        let (mut bytes, mut records) = (0, 0);
        for shard in shards {
            let range = shard.byte_range(0..shard.len())?;
            bytes += range.end - range.start;
            records += shard.len();
        }
        let block = block_records(records, bytes);
        order.block_records.insert(name.clone(), block);
    }
    Ok(order)
}

#[derive(Debug)]
struct ShardFile {
    shard: Shard,
    source: LabelKeySource,
    /// Whether the shard is an object of a store. A local file may be the decompressed copy of another file.
    is_remote: bool,
}

impl RecordFile for ShardFile {
    fn path(&self) -> &Path {
        self.shard.path()
    }

    fn bytes(&self) -> u64 {
        self.shard.file_len()
    }

    fn records(&self) -> u64 {
        self.shard.len()
    }

    fn record_bytes(&self, record: u64) -> u64 {
        self.shard.record_len(record).unwrap_or(0)
    }

    fn in_place_refusal(&self) -> Option<String> {
        match &self.source {
            LabelKeySource::Known(_) => {
                Some("it is a dataset already, which loaders read as it is".to_owned())
            }
            LabelKeySource::Foreign(_) => {
                let length = std::fs::metadata(self.shard.path()).map(|file| file.len());
                let is_whole = length.is_ok_and(|length| length == self.shard.index().data_len());
                let is_plain = self.is_remote || is_whole;
                let what = "it is compressed as a whole: decompress it, or convert it";
                (!is_plain).then(|| what.to_owned())
            }
        }
    }

    fn read(&self, records: Range<u64>) -> Result<Box<dyn RecordReader + '_>> {
        let (mut keys, mut ends) = (Vec::new(), Vec::new());
        // Read all keys in one pass: finding a single key in a page costs as much as reading the page.
        self.shard.for_each_key(|number, key| {
            if records.contains(&number) {
                keys.extend_from_slice(key);
                ends.push(keys.len());
            }
        })?;
        Ok(Box::new(Reader {
            file: self,
            scan: self.shard.scan(records),
            keys,
            ends: ends.into_iter(),
            end: 0,
        }))
    }
}

/// Reads the records of a shard in order.
struct Reader<'a> {
    file: &'a ShardFile,
    scan: Scan,
    keys: Vec<u8>,
    ends: std::vec::IntoIter<usize>,
    end: usize,
}

impl RecordReader for Reader<'_> {
    fn next_mapped(&mut self, extents: &mut Vec<Extent>) -> Result<Option<SourceRecord<'_>>> {
        extents.clear();
        let shard = self.file.shard.clone();
        let record = self.next_record()?;
        if let Some(record) = &record {
            let frame = shard.byte_range(record.number..record.number + 1)?;
            extents.push(Extent {
                record: 0..record.bytes.len(),
                start: ExtentStart::File(frame.start + HEAD_BYTES),
            });
        }
        Ok(record)
    }

    fn next_record(&mut self) -> Result<Option<SourceRecord<'_>>> {
        let ShardFile { shard, source, .. } = self.file;
        let Some(record) = self.scan.next_record()? else {
            return Ok(None);
        };
        let start = self.end;
        self.end = self.ends.next().unwrap_or(start);
        let (mut key, number) = (&self.keys[start..self.end], record.info.index);
        let mut label = shard.label(number);
        match source {
            LabelKeySource::Known(features) if label.is_none() => {
                let example = ExampleView::parse(record.bytes).ok();
                label = example.and_then(|example| features.label(example).ok().flatten());
            }
            LabelKeySource::Known(_) => {}
            LabelKeySource::Foreign(schema) => {
                let refuse = |what| Error::record(shard.path(), number, what);
                schema.check(record.bytes).map_err(refuse)?;
                let example = ExampleView::parse(record.bytes).ok();
                label = example.and_then(|example| schema.features.label(example).ok().flatten());
                if let (Some(example), true) = (example, key.is_empty()) {
                    let found = example.bytes(&schema.key).ok().flatten();
                    let short = found.filter(|key| key.len() <= MAX_KEY_BYTES);
                    key = short.unwrap_or(b"");
                }
            }
        }
        label = label.filter(|label| *label != NO_LABEL);
        Ok(Some(SourceRecord {
            number,
            bytes: record.bytes,
            label,
            key,
        }))
    }
}
