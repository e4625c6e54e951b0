//! Encodes a validated sample to a record.

use super::draft::{DraftPixels, DraftValue};
use super::options::{ImageEncoding, WriterOptions};
use crate::error::{Error, Result, SampleError};
use forebay_image::{
    PngCompression, RgbImage, SampleFormat, SeekPointBuilder, encode_jpeg, encode_png_samples,
};
use forebay_shard::example::IMAGE_SEEK_POINTS;
use forebay_shard::manifest::FeatureEntry;
use forebay_shard::schema::IMAGE;
use forebay_shard::{Column, ColumnType, ColumnValue, ExampleBuilder, MAX_RECORD_BYTES};
use std::sync::Arc;

/// A sample that matches the schema.
#[derive(Debug)]
pub(super) struct Checked {
    pub(super) split: Arc<str>,
    /// The sample's number in the split.
    pub(super) number: u64,
    /// The number of the shard to write again; `None` for the current new shard.
    pub(super) shard: Option<u32>,
    pub(super) key: Vec<u8>,
    /// The label as stored.
    pub(super) label: Option<i64>,
    /// The values in the order of the columns.
    pub(super) values: Vec<Option<DraftValue>>,
}

impl Checked {
    fn refused(&self, column: Option<&Column>, problem: String) -> Error {
        Error::Sample(Box::new(SampleError {
            split: self.split.to_string(),
            number: self.number,
            key: forebay_formats::escape(&self.key),
            column: column.map(|column| column.name.clone()),
            problem,
        }))
    }
}

/// An encoded record.
#[derive(Debug)]
pub(super) struct Encoded {
    pub(super) bytes: Vec<u8>,
    pub(super) image_bytes: u64,
    /// Size of its seek points in bytes, if it has any.
    pub(super) seek_point_bytes: Option<u64>,
}

/// The state of a thread that encodes records.
pub(super) struct RecordEncoder<'a> {
    options: &'a WriterOptions,
    features: &'a [Vec<FeatureEntry>],
    seek_points: SeekPointBuilder,
}

impl<'a> RecordEncoder<'a> {
    /// Creates the encoder; `features` are the features of each column.
    pub(super) fn new(options: &'a WriterOptions, features: &'a [Vec<FeatureEntry>]) -> Self {
        Self {
            options,
            features,
            seek_points: SeekPointBuilder::default(),
        }
    }

    pub(super) fn encode(&mut self, sample: &Checked) -> Result<Encoded> {
        let columns = self.options.schema.columns();
        let mut images: Vec<Option<Vec<u8>>> = Vec::with_capacity(columns.len());
        for (column, value) in columns.iter().zip(&sample.values) {
            images.push(match value {
                Some(DraftValue::Pixels(pixels)) => {
                    let image = self.image(column, pixels);
                    Some(image.map_err(|what| sample.refused(Some(column), what))?)
                }
                _ => None,
            });
        }
        let mut builder = ExampleBuilder::new();
        let mut points = None;
        let mut image_bytes = 0;
        let all = columns
            .iter()
            .zip(self.features)
            .zip(&sample.values)
            .zip(&images);
        for (((column, features), value), image) in all {
            let value = match (value, image) {
                (None, _) => continue,
                (_, Some(image)) => ColumnValue::Bytes(image),
                (Some(value), None) => match value.as_column() {
                    Some(value) => value,
                    None => unreachable!("pixels were encoded"),
                },
            };
            if let (IMAGE, ColumnType::Image, ColumnValue::Bytes(image)) =
                (column.name.as_str(), &column.column_type, &value)
            {
                image_bytes = image.len() as u64;
                let density = self.options.seek_points;
                points = density.and_then(|density| self.seek_points.build(image, density));
            }
            let added = column.add(features, &value, &mut builder);
            added.map_err(|error| sample.refused(Some(column), error.to_string()))?;
        }
        if let Some(points) = &points {
            builder.add_bytes(IMAGE_SEEK_POINTS, points);
        }
        let len = builder.encoded_len() as u64;
        if len > MAX_RECORD_BYTES {
            let what = format!("its record has {len} bytes, the longest is {MAX_RECORD_BYTES}");
            return Err(sample.refused(None, what));
        }
        let bytes = builder.to_vec();
        drop(builder);
        Ok(Encoded {
            bytes,
            image_bytes,
            seek_point_bytes: points.map(|points| points.len() as u64),
        })
    }

    fn image(&self, column: &Column, pixels: &DraftPixels) -> Result<Vec<u8>, String> {
        let (width, height) = (pixels.width, pixels.height);
        let encoded = match (&column.column_type, self.options.image_encoding) {
            (ColumnType::Image, ImageEncoding::Jpeg { quality }) => {
                let is_gray = pixels.format == SampleFormat::Gray8;
                let data = match is_gray {
                    true => pixels.data.iter().flat_map(|value| [*value; 3]).collect(),
                    false => pixels.data.clone(),
                };
                let image = RgbImage {
                    width,
                    height,
                    data,
                };
                encode_jpeg(&image, quality, is_gray)
            }
            (column_type, _) => {
                let compression = match column_type {
                    ColumnType::Mask => PngCompression::Small,
                    _ => PngCompression::Fast,
                };
                encode_png_samples(&pixels.data, width, height, pixels.format, compression)
            }
        };
        encoded.map_err(|error| format!("it cannot be encoded: {error}"))
    }
}
