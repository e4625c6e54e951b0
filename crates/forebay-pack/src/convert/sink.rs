//! Files of other tools' formats as the destination of a conversion.

use super::record::{Changes, Converter};
use super::source::{Source, refused};
use super::{ConvertOptions, OutputFormat};
use crate::destination::ShardLine;
use crate::error::{Error, Result};
use forebay_formats::records::{RecordSink, SinkOptions};
use forebay_shard::Manifest;
use std::collections::BTreeMap;

/// Prepares to write records, where the options ask for files of another tool's format.
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
    sink.first_record = first_record(source, changes)?;
    let created = format.create(&source.facts, &sink);
    created.map(Some).map_err(Error::Options)
}

/// The first record that can be read, as it is to be written.
fn first_record(source: &Source, changes: Changes<'_>) -> Result<Option<Vec<u8>>> {
    let files = source.splits.iter().flat_map(|split| &split.files);
    for file in files.filter(|file| file.records() > 0) {
        let mut reader = file.read(0..1)?;
        match reader.next_record() {
            Ok(Some(record)) => {
                let mut converter = Converter::new(changes, &source.facts.record_features);
                let converted = converter.convert(record.bytes);
                let converted = converted.map_err(|what| refused(&**file, record.number, what))?;
                return Ok(Some(converted.bytes.to_vec()));
            }
            Ok(None) | Err(forebay_formats::Error::Record { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// The lists of the files of each split.
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
