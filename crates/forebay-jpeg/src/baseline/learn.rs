//! Starts a decode at points that earlier ones recorded, and encodes those that it recorded itself.

use super::header::Header;
use super::seek::{AUTO_PART, COARSE_STEPS, Points, RowStart, STORED_OVERHEAD};
use crate::learned::Learning;

/// Reads the known points if they belong to the JPEG, else only the start of its scan.
pub(super) fn start<'a>(
    learning: &Learning<'_>,
    points: &'a mut Points,
    jpeg: &[u8],
    header: &Header,
) -> Option<&'a Points> {
    let known = learning.known(jpeg).and_then(|known| {
        let count = usize::from(known.last_row()) / usize::from(known.step()) + 1;
        points.read_first(known.encoded(), known.step(), count, jpeg, header)
    });
    learning.set_used(known.is_some());
    let start = known.or_else(|| points.read_first(&[], 1, 1, jpeg, header));
    start.map(|()| &*points)
}

/// Keeps recorded points together with those that the decode started with, after it succeeded.
pub(super) fn finish(
    learning: &Learning<'_>,
    points: &mut Points,
    recorded: &[RowStart],
    jpeg: &[u8],
    header: &Header,
) {
    let known_row = points.last_row();
    if recorded.is_empty() || points.extend(recorded, jpeg).is_none() {
        return;
    }
    let allowed = jpeg.len() / AUTO_PART;
    // The density of `SeekDensity::Auto`: every second point is left out when the limit is reached.
    for step in COARSE_STEPS {
        if step < points.step() {
            continue;
        }
        let row = points.last_row() / usize::from(step) * usize::from(step);
        let mut bytes = learning.head(jpeg, row as u16, step);
        let head = bytes.len();
        if row <= known_row || points.encode(step, header, &mut bytes).is_none() {
            return;
        }
        if bytes.len() - head + STORED_OVERHEAD <= allowed {
            learning.set_learned(bytes);
            return;
        }
    }
}

#[cfg(test)]
mod tests;
