//! Converts options and descriptions of streams to and from messages.

use forebay_options::{EncodedOptions, LoaderOptions, StreamInfo};
use forebay_wire::wire::{self, error::Kind};

use crate::source::Failure;

/// Decodes the options that a client sent.
pub(crate) fn read(spec: wire::StreamSpec) -> Result<LoaderOptions, Failure> {
    let encoded = EncodedOptions {
        json: spec.options,
        index_gaps: spec.index_gaps,
        sample_weights: spec.sample_weights,
    };
    LoaderOptions::decode(encoded).map_err(|error| Failure::new(Kind::Invalid, error))
}

/// Encodes options for a client.
pub(crate) fn write(options: &LoaderOptions) -> wire::StreamSpec {
    let encoded = options.encode();
    wire::StreamSpec {
        options: encoded.json,
        index_gaps: encoded.index_gaps,
        sample_weights: encoded.sample_weights,
    }
}

/// Encodes the answer to `Open`.
pub(crate) fn opened(info: &StreamInfo) -> wire::Opened {
    wire::Opened {
        spec: Some(write(&info.options)),
        records: info.records,
        samples: info.samples,
        batches_per_epoch: info.batches_per_epoch,
        batch_bytes: info.batch_bytes,
        label_base: info.label_base,
        classes: info.classes.clone(),
        dataset_starts: info.dataset_starts.clone(),
        ..wire::Opened::default()
    }
}
