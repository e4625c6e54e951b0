//! Which columns are stored in which arrays, and how the value of a record becomes a row.

use super::table::{IMAGES, LABELS};
use crate::option_names::DROP_FEATURE;
use crate::records::SourceRecord;
use crate::records::flat::{self, FlatValue, put_key};
use crate::records::label_value::from_zero;
use forebay_image::{Color, Decoder, RgbImage, probe};
use forebay_shard::ExampleView;
use forebay_shard::example::RecordFeatures;
use forebay_shard::schema::{Column, ColumnType, NumberType};
use std::collections::{BTreeMap, BTreeSet};

/// How a format stores text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::records) enum TextAs {
    /// Four bytes per character, padded to the length of the longest text.
    Utf32,
    /// UTF-8 with offsets.
    Ragged,
    /// UTF-8 of variable length.
    Utf8,
}

/// How the values of a column are stored.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Stored {
    /// Decoded pixels of images.
    Pixels,
    Label,
    Key,
    Fixed(NumberType, Vec<u64>),
    Ragged(NumberType, Vec<u64>),
    Text,
}

/// A column, and how it is stored as an array.
#[derive(Debug)]
pub(super) struct Source {
    column: Option<Column>,
    pub(super) stored: Stored,
}

/// The arrays of a file and the columns that are stored in them.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) sources: BTreeMap<String, Source>,
    /// Features that are written or silently dropped. Any other feature of a record is an error.
    pub(super) known: BTreeSet<String>,
    pub(super) label_base: i64,
    /// Height, width and channels of all images; `None` if there are no records.
    pub(super) image: Option<[u64; 3]>,
    pub(super) title: &'static str,
    pub(super) text: TextAs,
}

impl Layout {
    pub(super) fn add(
        &mut self,
        column: &Column,
        names: &RecordFeatures,
    ) -> std::result::Result<(), String> {
        let feature = &column.feature;
        if *feature == names.image {
            return self.insert(IMAGES, Some(column), Stored::Pixels);
        }
        if *feature == names.label {
            return self.insert(LABELS, Some(column), Stored::Label);
        }
        let stored = match &column.column_type {
            ColumnType::Text | ColumnType::Json => Stored::Text,
            ColumnType::Image | ColumnType::Mask | ColumnType::Bytes => {
                Stored::Ragged(NumberType::Uint8, Vec::new())
            }
            ColumnType::Label | ColumnType::Int => Stored::Fixed(NumberType::Int64, Vec::new()),
            ColumnType::Float => Stored::Fixed(NumberType::Float32, Vec::new()),
            ColumnType::Labels => Stored::Ragged(NumberType::Int64, Vec::new()),
            ColumnType::Vector { len, number } => match len {
                Some(len) => Stored::Fixed(*number, vec![*len]),
                None => Stored::Ragged(*number, Vec::new()),
            },
            ColumnType::Tensor { shape, number } => {
                let inner: Option<Vec<u64>> = shape.iter().skip(1).copied().collect();
                match (shape.first(), inner) {
                    (None, _) => Stored::Fixed(*number, Vec::new()),
                    (Some(Some(rows)), Some(mut dims)) => {
                        dims.insert(0, *rows);
                        Stored::Fixed(*number, dims)
                    }
                    (Some(None), Some(dims)) => Stored::Ragged(*number, dims),
                    (Some(_), None) => {
                        return Err(format!(
                            "feature {feature:?} has tensors of {} whose inner dimensions vary, which {} cannot hold: {DROP_FEATURE} {feature} leaves it out",
                            column.column_type, self.title
                        ));
                    }
                }
            }
            other => {
                return Err(format!(
                    "feature {feature:?} of type {other} cannot be an array: {DROP_FEATURE} {feature} leaves it out"
                ));
            }
        };
        self.insert(feature, Some(column), stored)
    }

    pub(super) fn insert(
        &mut self,
        name: &str,
        column: Option<&Column>,
        stored: Stored,
    ) -> std::result::Result<(), String> {
        let source = Source {
            column: column.cloned(),
            stored,
        };
        match self.sources.insert(name.to_owned(), source) {
            None => Ok(()),
            Some(_) => Err(format!(
                "several features would be the array {name:?}: {DROP_FEATURE} {name} leaves out the one of that name"
            )),
        }
    }

    /// Appends the pixels of an image, which must have the size of the first image.
    fn pixels(
        &self,
        decoder: &mut Decoder,
        image: &[u8],
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let (pixels, _) = decode(decoder, image)?;
        let size = [u64::from(pixels.height), u64::from(pixels.width)];
        let [height, width, channels] = self.image.unwrap_or([size[0], size[1], 3]);
        if size != [height, width] {
            return Err(format!(
                "its image has {}x{} pixels and the first one {width}x{height}: {} holds images of one size; pack with one size, or choose another format",
                size[1], size[0], self.title
            ));
        }
        if channels == 3 {
            out.extend_from_slice(&pixels.data);
            return Ok(());
        }
        if pixels
            .data
            .chunks_exact(3)
            .any(|rgb| rgb[0] != rgb[1] || rgb[0] != rgb[2])
        {
            return Err(format!(
                "its image has colors and the first one is gray: {} holds images of one kind",
                self.title
            ));
        }
        out.extend(pixels.data.iter().step_by(3));
        Ok(())
    }
}

impl Source {
    /// Appends the row of a record.
    pub(super) fn put(
        &self,
        record: &SourceRecord<'_>,
        example: ExampleView<'_>,
        layout: &Layout,
        decoder: &mut Decoder,
        out: &mut Vec<u8>,
    ) -> std::result::Result<(), String> {
        let Some(column) = &self.column else {
            put_key(record.key, out);
            return Ok(());
        };
        if self.stored == Stored::Label {
            let label = from_zero(record.label.unwrap_or(-1), layout.label_base)?;
            out.extend_from_slice(&label.to_le_bytes());
            return Ok(());
        }
        let name = &column.feature;
        let refused =
            |what: String| format!("feature {name:?}: {what}; {DROP_FEATURE} {name} leaves it out");
        match flat::value(column, example).map_err(refused)? {
            Some(FlatValue::Bytes(image)) if self.stored == Stored::Pixels => {
                return layout.pixels(decoder, image, out);
            }
            Some(FlatValue::Bytes(bytes)) => out.extend_from_slice(bytes),
            Some(FlatValue::Numbers(_, bytes)) => out.extend_from_slice(&bytes),
            // A missing list of numbers is stored as an empty row. A missing byte string is refused, because it differs from an
            // empty one.
            None if matches!(self.stored, Stored::Ragged(..))
                && !matches!(
                    column.column_type,
                    ColumnType::Bytes | ColumnType::Image | ColumnType::Mask
                ) => {}
            None => {
                let what = "this record has no value of it, and arrays have one for each record";
                return Err(refused(what.to_owned()));
            }
        }
        Ok(())
    }
}

/// Decodes an image. Returns its pixels, and whether it is stored in gray.
pub(super) fn decode(
    decoder: &mut Decoder,
    image: &[u8],
) -> std::result::Result<(RgbImage, bool), String> {
    let refused =
        |error: forebay_image::ImageError| format!("its image cannot be decoded: {error}");
    let header = probe(image, decoder.limits()).map_err(refused)?;
    let pixels = decoder.decode(image).map_err(refused)?;
    Ok((pixels, header.color == Color::Gray))
}
