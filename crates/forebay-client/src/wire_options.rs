//! Options and descriptions of streams as messages.

use forebay_options::{EncodedOptions, LoaderOptions, StreamInfo};
use forebay_wire::wire;

/// The options that a server sent.
pub(crate) fn read(spec: Option<wire::StreamSpec>) -> Result<LoaderOptions, String> {
    let spec = spec.ok_or("no options")?;
    LoaderOptions::decode(EncodedOptions {
        json: spec.options,
        index_gaps: spec.index_gaps,
        sample_weights: spec.sample_weights,
    })
}

/// Options for a server.
pub(crate) fn write(options: &LoaderOptions) -> wire::StreamSpec {
    let encoded = options.encode();
    wire::StreamSpec {
        options: encoded.json,
        index_gaps: encoded.index_gaps,
        sample_weights: encoded.sample_weights,
    }
}

/// The stream that a server opened.
pub(crate) fn info(opened: wire::Opened) -> Result<StreamInfo, String> {
    Ok(StreamInfo {
        options: read(opened.spec)?,
        records: opened.records,
        samples: opened.samples,
        batches_per_epoch: opened.batches_per_epoch,
        batch_bytes: opened.batch_bytes,
        label_base: opened.label_base,
        classes: opened.classes,
    })
}
