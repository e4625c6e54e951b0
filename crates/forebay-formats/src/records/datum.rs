//! Caffe's `Datum`: an image and a label as a protobuf message.

use forebay_image::{PngCompression, SampleFormat, encode_png_samples};
use forebay_shard::varint;

/// The fields of a `Datum` message.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Datum<'a> {
    channels: u64,
    height: u64,
    width: u64,
    data: &'a [u8],
    pub(super) label: Option<i64>,
    has_floats: bool,
    is_encoded: bool,
}

impl<'a> Datum<'a> {
    /// Parses a message; `None` if it is not a `Datum`.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let mut datum = Self::default();
        let mut rest = bytes;
        while !rest.is_empty() {
            let key = varint::read(&mut rest)?;
            let mut value = 0;
            let mut content: &[u8] = &[];
            match key & 7 {
                0 => value = varint::read(&mut rest)?,
                2 => {
                    let len = usize::try_from(varint::read(&mut rest)?).ok()?;
                    (content, rest) = rest.split_at_checked(len)?;
                }
                5 => rest = rest.get(4..)?,
                _ => return None,
            }
            match (key >> 3, key & 7) {
                (1, 0) => datum.channels = value,
                (2, 0) => datum.height = value,
                (3, 0) => datum.width = value,
                (4, 2) => datum.data = content,
                // The label is an int32; a negative value is encoded in ten bytes.
                (5, 0) => datum.label = Some(i64::from(value as i32)),
                (6, 2 | 5) => datum.has_floats = true,
                (7, 0) => datum.is_encoded = value != 0,
                _ => return None,
            }
        }
        Some(datum)
    }

    /// Returns whether the message has pixels or an image.
    pub(super) fn is_image(&self) -> bool {
        !self.data.is_empty() || self.has_floats
    }

    /// Returns the encoded image: as stored, or a PNG made of the pixels, which Caffe stores as planes in the order blue,
    /// green, red.
    pub(super) fn image(&self) -> Result<Vec<u8>, String> {
        if self.is_encoded {
            return Ok(self.data.to_vec());
        }
        if self.has_floats {
            return Err("its datum has floating-point numbers instead of pixels".to_owned());
        }
        let (channels, height, width) = (self.channels, self.height, self.width);
        let refused = || {
            format!(
                "its datum has {} bytes for {channels} channels of {width}x{height}",
                self.data.len()
            )
        };
        let side = |side: u64| u32::try_from(side).ok().filter(|side| *side > 0);
        let (Some(rows), Some(columns)) = (side(height), side(width)) else {
            return Err(refused());
        };
        let plane = height.checked_mul(width);
        let whole = plane.and_then(|plane| plane.checked_mul(channels));
        if whole != Some(self.data.len() as u64) {
            return Err(refused());
        }
        let png = |data: &[u8], format| {
            encode_png_samples(data, columns, rows, format, PngCompression::Fast)
        };
        let encoded = match channels {
            1 => png(self.data, SampleFormat::Gray8),
            3 => {
                let plane = self.data.len() / 3;
                let (blue, rest) = self.data.split_at(plane);
                let (green, red) = rest.split_at(plane);
                let rgb = red.iter().zip(green).zip(blue);
                let rgb: Vec<u8> = rgb.flat_map(|((r, g), b)| [*r, *g, *b]).collect();
                png(&rgb, SampleFormat::Rgb8)
            }
            _ => {
                return Err(format!(
                    "its datum has {channels} channels: 1 and 3 are read"
                ));
            }
        };
        encoded.map_err(|error| format!("it cannot be encoded: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_image::{Decoder, Limits};

    #[test]
    fn pixels_and_encoded_images_are_read() {
        // Two pixels with blue 1 and 2, green 3 and 4, red 5 and 6; the label is -1.
        let mut bytes = vec![8, 3, 16, 1, 24, 2, 34, 6, 1, 2, 3, 4, 5, 6, 40];
        bytes.extend([0xff; 9]);
        bytes.push(1);
        let datum = Datum::parse(&bytes).unwrap();
        assert_eq!(datum.label, Some(-1));
        let image = datum.image().unwrap();
        let pixels = Decoder::new(Limits::default()).decode(&image).unwrap();
        assert_eq!(pixels.data, [5, 3, 1, 6, 4, 2]);
        let encoded = [34, 3, b'p', b'n', b'g', 40, 7, 56, 1];
        let datum = Datum::parse(&encoded).unwrap();
        assert_eq!(
            (datum.label, datum.image().unwrap()),
            (Some(7), b"png".to_vec())
        );
    }

    #[test]
    fn other_messages_and_impossible_sizes_are_refused() {
        for bytes in [&[10, 1, 0][..], &[8], &[34, 9, 1], &[72, 1], &[0xff; 11]] {
            assert_eq!(Datum::parse(bytes), None, "{bytes:?}");
        }
        for bytes in [
            &[8, 3, 16, 1, 24, 1, 34, 2, 1, 2][..],
            &[8, 2, 16, 1, 24, 1, 34, 2, 1, 2],
            &[34, 1, 0],
            &[53, 0, 0, 0, 0],
        ] {
            let datum = Datum::parse(bytes).unwrap();
            assert!(datum.is_image() && datum.image().is_err(), "{bytes:?}");
        }
    }
}
