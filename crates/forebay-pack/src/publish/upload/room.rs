//! The space that a shard needs in the staging area.

use crate::options::{DatasetFormat, PackOptions};
use crate::plan::PlannedShard;
use forebay_image::SeekDensity;

/// Reserved bytes per record for sidecars, enough for usual datasets; larger sidecars are stored without a reservation.
const SIDECAR_RECORD_BYTES: u64 = 192;
/// Reserved bytes per shard for sidecars.
const SIDECAR_BYTES: u64 = 64 << 10;

/// Returns the space in bytes to reserve for a shard of this many bytes and records, with its sidecars.
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

/// As [`room_of`], for a planned shard of a pack.
pub(crate) fn room_of_planned(planned: &PlannedShard, options: &PackOptions) -> u64 {
    let has_fine_points = options.seek_points == Some(SeekDensity::Fine);
    let records = planned.positions.end - planned.positions.start;
    let bytes = options.images.most_bytes(planned.bytes);
    room_of(bytes, records, options.format, has_fine_points)
}
