//! Conversion between a batch and the header of its frame.

use forebay_batch::{Batch, Buffer, Dtype, EncodedImages, Layout, Mixed};
use forebay_proto::prost::bytes::Bytes;
use forebay_proto::wire;

use crate::error::{Error, Result};
use crate::message::Kind;

/// Converts a type to its number on the wire.
#[must_use]
pub fn dtype_to_wire(dtype: Dtype) -> wire::Dtype {
    match dtype {
        Dtype::Uint8 => wire::Dtype::Uint8,
        Dtype::Float32 => wire::Dtype::Float32,
        Dtype::Float16 => wire::Dtype::Float16,
        Dtype::Bfloat16 => wire::Dtype::Bfloat16,
    }
}

/// Converts a number on the wire to a type; unspecified is [`Dtype::Uint8`].
#[must_use]
pub fn dtype_from_wire(number: i32) -> Option<Dtype> {
    Some(match wire::Dtype::try_from(number).ok()? {
        wire::Dtype::Unspecified | wire::Dtype::Uint8 => Dtype::Uint8,
        wire::Dtype::Float32 => Dtype::Float32,
        wire::Dtype::Float16 => Dtype::Float16,
        wire::Dtype::Bfloat16 => Dtype::Bfloat16,
    })
}

/// Returns the header of a frame whose payload is [`Batch::images`].
#[must_use]
pub fn to_header(batch: &Batch, payload_crc32c: Option<u32>) -> wire::Batch {
    let encoded = batch.encoded.as_deref().cloned().unwrap_or_default();
    wire::Batch {
        epoch: batch.epoch,
        step: batch.step,
        position: batch.position,
        shape: match &batch.encoded {
            None => batch.shape.iter().map(|&side| side as u64).collect(),
            Some(_) => vec![batch.shape[0] as u64],
        },
        labels: batch.labels.clone(),
        samples: batch.samples.clone(),
        flags: Bytes::copy_from_slice(&batch.flags),
        payload_crc32c,
        digest: batch.digest,
        labels_b: batch
            .mixed
            .as_ref()
            .map_or_else(Vec::new, |m| m.labels.clone()),
        lam: batch
            .mixed
            .as_ref()
            .map_or_else(Vec::new, |m| m.lam.clone()),
        dtype: match batch.dtype {
            Dtype::Uint8 => 0,
            other => dtype_to_wire(other).into(),
        },
        offsets: encoded.offsets,
        widths: encoded.widths,
        heights: encoded.heights,
        // The sender sets the location of the payload.
        shared: None,
        parts: Vec::new(),
    }
}

/// Creates a batch from a header and its payload. The reader verifies the checksum of the payload,
/// the client the digest.
///
/// # Errors
///
/// [`Error::Invalid`] for an invalid shape or type, [`Error::Uneven`] if the fields disagree about
/// the number of samples.
pub fn from_header(header: wire::Batch, layout: Layout, images: Buffer) -> Result<Batch> {
    let shape = shape(&header)?;
    let batch = Batch {
        epoch: header.epoch,
        step: header.step,
        position: header.position,
        images,
        encoded: (!header.offsets.is_empty()).then(|| {
            Box::new(EncodedImages {
                offsets: header.offsets,
                widths: header.widths,
                heights: header.heights,
            })
        }),
        dtype: dtype_from_wire(header.dtype).ok_or_else(|| Error::Invalid {
            kind: Kind::Batch,
            what: format!("numbers of the unknown type {}", header.dtype),
        })?,
        shape,
        layout,
        labels: header.labels,
        mixed: match (header.labels_b, header.lam) {
            (labels, lam) if labels.is_empty() && lam.is_empty() => None,
            (labels, lam) => Some(Box::new(Mixed { labels, lam })),
        },
        samples: header.samples,
        flags: header.flags.to_vec(),
        digest: header.digest,
    };
    batch.check()?;
    Ok(batch)
}

fn shape(header: &wire::Batch) -> Result<[usize; 4]> {
    let invalid = |what| Error::Invalid {
        kind: Kind::Batch,
        what,
    };
    if !header.offsets.is_empty() {
        // Encoded images are bytes, and are never mixed.
        let plain = header.dtype <= i32::from(wire::Dtype::Uint8) && header.lam.is_empty();
        return match header.shape[..] {
            [samples] if plain => Ok([usize::try_from(samples).unwrap_or(usize::MAX), 0, 0, 0]),
            _ => Err(invalid(
                "encoded images have one side, are bytes and not mixed".to_owned(),
            )),
        };
    }
    let sides: Option<Vec<usize>> = header
        .shape
        .iter()
        .map(|&side| usize::try_from(side).ok())
        .collect();
    sides
        .and_then(|sides| <[usize; 4]>::try_from(sides).ok())
        .ok_or_else(|| {
            invalid(format!(
                "a shape of four sides was expected, found {:?}",
                header.shape.get(..header.shape.len().min(8))
            ))
        })
}
