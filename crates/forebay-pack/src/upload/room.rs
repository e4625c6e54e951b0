//! How much of the staging area a shard takes.

use crate::options::{DatasetFormat, PackOptions};
use crate::plan::PlannedShard;
use forebay_image::SeekDensity;

/// Bytes of a shard's sidecars for each record, at most in any usual dataset; more is held without being reserved.
const SIDECAR_RECORD_BYTES: u64 = 192;
/// And for each shard.
const SIDECAR_BYTES: u64 = 64 << 10;

/// Bytes that a shard of this many bytes and records may take with all that belongs to it.
pub(crate) fn room_of(
    bytes: u64,
    records: u64,
    format: DatasetFormat,
    has_fine_points: bool,
) -> u64 {
    let points = if has_fine_points {
        bytes / 12
    } else {
        bytes / 50
    };
    let sidecars = match format {
        DatasetFormat::TfRecord => {
            SIDECAR_BYTES.saturating_add(records.saturating_mul(SIDECAR_RECORD_BYTES))
        }
        DatasetFormat::Indexed(_) => SIDECAR_BYTES,
    };
    bytes.saturating_add(points).saturating_add(sidecars)
}

/// The same for a planned shard of a pack.
pub(crate) fn room_of_planned(planned: &PlannedShard, options: &PackOptions) -> u64 {
    let has_fine_points = options.seek_points == Some(SeekDensity::Fine);
    let records = planned.positions.end - planned.positions.start;
    let bytes = options.images.most_bytes(planned.bytes);
    room_of(bytes, records, options.format, has_fine_points)
}
