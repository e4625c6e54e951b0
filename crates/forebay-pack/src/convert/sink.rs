//! Files in the formats of other tools as the destination of a conversion.

use super::options::{ConvertOptions, OutputFormat};
use super::record::{Changes, Converter};
use super::source::{Source, refused};
use crate::error::{Error, Result};
use crate::options::OnBad;
use crate::publish::destination::ShardLine;
use forebay_formats::records::{RecordSink, SinkOptions};
use forebay_shard::Manifest;
use std::collections::BTreeMap;

/// Prepares to write records, if the options request files in another tool's format.
pub(super) fn open(
    options: &ConvertOptions,
    source: &Source,
    changes: Changes<'_>,
) -> Result<Option<Box<dyn RecordSink>>> {
    let OutputFormat::Records(format, compression) = options.format else {
        return Ok(None);
    };
    let mut sink = SinkOptions::default();
    sink.compression = compression;
    sink.first_record = first_record(source, changes, &options.on_bad)?;
    let created = format.create(&source.facts, &sink);
    created.map(Some).map_err(Error::Options)
}

/// Returns the first readable record, converted.
fn first_record(source: &Source, changes: Changes<'_>, on_bad: &OnBad) -> Result<Option<Vec<u8>>> {
    let files = source.splits.iter().flat_map(|split| &split.files);
    let mut converter = Converter::new(changes, &source.facts.record_features);
    for file in files {
        // Records are read one by one, since the next one is needed only if this one is damaged.
        for number in 0..file.records() {
            let mut reader = file.read(number..number + 1)?;
            let record = match reader.next_record() {
                Ok(Some(record)) => record,
                Ok(None) | Err(forebay_formats::Error::Record { .. }) => continue,
                Err(error) => return Err(error.into()),
            };
            match converter.convert(record.bytes) {
                Ok(converted) => return Ok(Some(converted.bytes.to_vec())),
                Err(_) if *on_bad != OnBad::Fail => {}
                Err(what) => return Err(refused(&**file, record.number, what)),
            }
        }
    }
    Ok(None)
}

/// Returns the indexes that list the files of each split.
pub(super) fn indexes(
    sink: &dyn RecordSink,
    manifest: &Manifest,
    done: &BTreeMap<String, ShardLine>,
) -> Vec<(String, Vec<u8>)> {
    let splits = manifest.splits.iter().map(|split| {
        let lines = split
            .shards
            .iter()
            .filter_map(|shard| done.get(&shard.name));
        let entries = lines.filter_map(|line| line.entry.as_ref());
        (split.name.as_str(), entries.collect())
    });
    sink.index(&splits.collect::<Vec<_>>())
}
