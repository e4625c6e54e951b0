//! How much of the staging area a shard takes.

use crate::destination::Destination;
use crate::error::Result;
use crate::options::{Format, PackOptions};
use crate::plan::PlannedShard;
use forebay_image::SeekDensity;
use forebay_store::stage::Reservation;

/// What a shard's sidecars take for each record, at most in any usual data set; more is held without being reserved.
const SIDECAR_RECORD_BYTES: u64 = 192;
/// And for each shard.
const SIDECAR_BYTES: u64 = 64 << 10;

/// Room for a shard and what belongs to it; nothing where files stay where they are written.
#[derive(Debug, Default)]
pub(crate) struct Room(pub(super) Option<Reservation>);

/// Bytes that a shard of so many bytes and records may take with all that belongs to it.
fn room_of(bytes: u64, records: u64, format: Format, has_fine_points: bool) -> u64 {
    let points = if has_fine_points {
        bytes / 12
    } else {
        bytes / 50
    };
    let sidecars = match format {
        Format::TfRecord => {
            SIDECAR_BYTES.saturating_add(records.saturating_mul(SIDECAR_RECORD_BYTES))
        }
        Format::Indexed | Format::IndexedZstd(_) => SIDECAR_BYTES,
    };
    bytes.saturating_add(points).saturating_add(sidecars)
}

/// The same for a planned shard of a pack.
pub(crate) fn room_of_planned(planned: &PlannedShard, options: &PackOptions) -> u64 {
    let has_fine_points = options.seek_points == Some(SeekDensity::Fine);
    let records = planned.positions.end - planned.positions.start;
    room_of(planned.bytes, records, options.format, has_fine_points)
}

impl Destination {
    /// Waits for room to write a shard of about so many bytes; none if `stopped` says so.
    pub(crate) fn reserve(&self, bytes: u64, stopped: &dyn Fn() -> bool) -> Result<Option<Room>> {
        self.upload().map_or_else(
            || Ok(Some(Room::default())),
            |upload| upload.reserve(bytes, stopped),
        )
    }
}
