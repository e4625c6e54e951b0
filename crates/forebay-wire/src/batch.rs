//! Conversion between a batch and the header of its frame.

use forebay_batch::{
    Batch, BatchColumn, Buffer, ColumnArray, ColumnKind, Dtype, Element, EncodedImages, Layout,
    Mixed,
};
use prost::bytes::Bytes;

use crate::error::{Error, Result};
use crate::kind::Kind;
use crate::wire;

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

/// Returns the header of a frame whose payload is [`Batch::payload`].
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
        columns: batch.columns.iter().map(column_to_wire).collect(),
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
/// [`Error::Invalid`] for an invalid shape or type, [`Error::InconsistentBatch`] if the fields disagree about
/// the number of samples.
pub fn from_header(header: wire::Batch, layout: Layout, payload: Buffer) -> Result<Batch> {
    let shape = shape(&header)?;
    let columns = header.columns.into_iter().map(column_from_wire);
    let columns = columns.collect::<Result<_>>()?;
    let batch = Batch {
        epoch: header.epoch,
        step: header.step,
        position: header.position,
        payload,
        columns,
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

/// The kinds of columns with their numbers on the wire.
const KINDS: [(ColumnKind, wire::column::Kind); 7] = [
    (ColumnKind::Numbers, wire::column::Kind::Numbers),
    (ColumnKind::Tensors, wire::column::Kind::Tensors),
    (ColumnKind::Text, wire::column::Kind::Text),
    (ColumnKind::Bytes, wire::column::Kind::Bytes),
    (ColumnKind::Json, wire::column::Kind::Json),
    (ColumnKind::Boxes, wire::column::Kind::Boxes),
    (ColumnKind::Keypoints, wire::column::Kind::Keypoints),
];

fn column_to_wire(column: &BatchColumn) -> wire::Column {
    let kind = KINDS.iter().find(|(kind, _)| *kind == column.kind);
    let ends = column.offsets.as_deref().unwrap_or_default();
    wire::Column {
        name: column.name.clone(),
        kind: kind.map_or(0, |(_, kind)| (*kind).into()),
        ragged: column.offsets.is_some(),
        lengths: ends
            .windows(2)
            .map(|ends| (ends[1] - ends[0]) as u64)
            .collect(),
        arrays: column
            .arrays
            .iter()
            .map(|array| wire::ColumnArray {
                dtype: array.element.name().to_owned(),
                shape: array.shape.iter().map(|&len| len as u64).collect(),
                start: array.start as u64,
            })
            .collect(),
    }
}

/// Reads the description of a column; [`Batch::check`] compares it with the payload.
fn column_from_wire(column: wire::Column) -> Result<BatchColumn> {
    let invalid = |what: String| {
        let name: String = column.name.chars().take(50).collect();
        Error::Invalid {
            kind: Kind::Batch,
            what: format!("column {name:?}: {what}"),
        }
    };
    let kind = KINDS
        .iter()
        .find(|(_, kind)| i32::from(*kind) == column.kind);
    let (kind, _) = kind.ok_or_else(|| invalid(format!("unknown kind {}", column.kind)))?;
    let mut end = 0i64;
    let offsets = column.lengths.iter().map(|&length| {
        end = i64::try_from(length).ok()?.checked_add(end)?;
        Some(end)
    });
    let offsets: Option<Vec<i64>> = std::iter::once(Some(0)).chain(offsets).collect();
    let offsets = offsets.ok_or_else(|| invalid("lengths beyond 2^63".to_owned()))?;
    if !column.ragged && !column.lengths.is_empty() {
        return Err(invalid("lengths of a column that is not ragged".to_owned()));
    }
    let size = |size: u64| usize::try_from(size).unwrap_or(usize::MAX);
    let array = |array: &wire::ColumnArray| {
        let element = Element::from_name(&array.dtype).ok_or_else(|| {
            let name: String = array.dtype.chars().take(50).collect();
            invalid(format!("numbers of the unknown type {name:?}"))
        })?;
        Ok(ColumnArray {
            element,
            shape: array.shape.iter().copied().map(size).collect(),
            start: size(array.start),
        })
    };
    let arrays = column.arrays.iter().map(array).collect::<Result<_>>()?;
    Ok(BatchColumn {
        kind: *kind,
        offsets: column.ragged.then_some(offsets),
        arrays,
        name: column.name,
    })
}
