//! Converts options and descriptions of streams to and from messages.

use forebay_options::{EncodedOptions, LoaderOptions, StreamInfo};
use forebay_wire::wire;

/// Decodes the options that a server sent.
pub(crate) fn read(spec: Option<wire::StreamSpec>) -> Result<LoaderOptions, String> {
    let spec = spec.ok_or("no options")?;
    LoaderOptions::decode(EncodedOptions {
        json: spec.options,
        index_gaps: spec.index_gaps,
        sample_weights: spec.sample_weights,
    })
}

/// Encodes options for a server.
pub(crate) fn write(options: &LoaderOptions) -> wire::StreamSpec {
    let encoded = options.encode();
    wire::StreamSpec {
        options: encoded.json,
        index_gaps: encoded.index_gaps,
        sample_weights: encoded.sample_weights,
    }
}

/// Decodes a server's description of the stream that it opened.
pub(crate) fn info(opened: wire::Opened) -> Result<StreamInfo, String> {
    Ok(StreamInfo {
        options: read(opened.spec)?,
        records: opened.records,
        samples: opened.samples,
        batches_per_epoch: opened.batches_per_epoch,
        batch_bytes: opened.batch_bytes,
        label_base: opened.label_base,
        classes: opened.classes,
        dataset_starts: opened.dataset_starts,
    })
}
