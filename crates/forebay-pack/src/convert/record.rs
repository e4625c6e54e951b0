//! One record, changed as little as was asked for.

use super::SeekPointChange;
use forebay_image::SeekPointBuilder;
use forebay_shard::example::{IMAGE_SEEK_POINTS, set_bytes};
use forebay_shard::{ExampleView, image_record};

/// A worker's tools.
pub(super) struct Converter {
    change: SeekPointChange,
    builder: SeekPointBuilder,
    record: Vec<u8>,
}

/// A record as it is to be written.
pub(super) struct Converted<'a> {
    pub(super) bytes: &'a [u8],
    /// Bytes of the seek points that were made for it, if any were.
    pub(super) seek_point_bytes: Option<u64>,
}

impl Converter {
    pub(super) fn new(change: SeekPointChange) -> Self {
        Self {
            change,
            builder: SeekPointBuilder::default(),
            record: Vec::new(),
        }
    }

    /// The record to write. Records that hold no image stay as they are, whatever they are.
    pub(super) fn convert<'a>(&'a mut self, record: &'a [u8]) -> Result<Converted<'a>, String> {
        let unchanged = Converted {
            bytes: record,
            seek_point_bytes: None,
        };
        let points = match self.change {
            SeekPointChange::Keep => return Ok(unchanged),
            SeekPointChange::Remove => None,
            SeekPointChange::Make(density) => match image_record(record) {
                Ok(found) => self.builder.build(found.image, density),
                Err(_) => return Ok(unchanged),
            },
        };
        let Ok(example) = ExampleView::parse(record) else {
            return Ok(unchanged);
        };
        if points.is_none() && example.get(IMAGE_SEEK_POINTS).is_none() {
            return Ok(unchanged);
        }
        let edits = [(IMAGE_SEEK_POINTS, points.as_deref())];
        set_bytes(record, &edits, &mut self.record).map_err(|error| error.to_string())?;
        Ok(Converted {
            bytes: &self.record,
            seek_point_bytes: points.map(|points| points.len() as u64),
        })
    }
}
