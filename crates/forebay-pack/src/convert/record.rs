//! One record, changed as little as was asked for.

use super::{ProgressiveChange, SeekPointChange};
use crate::original::original_image;
use forebay_image::{Limits, SeekPointBuilder, probe, progressive_to_baseline};
use forebay_shard::ExampleView;
use forebay_shard::example::{IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS, RecordFeatures, set_bytes};
use std::collections::BTreeSet;

/// A worker's tools.
pub(super) struct Converter<'s> {
    features: &'s RecordFeatures,
    seek_points: SeekPointChange,
    progressive: ProgressiveChange,
    dropped: &'s BTreeSet<String>,
    builder: SeekPointBuilder,
    limits: Limits,
    record: Vec<u8>,
}

/// A record as it is to be written.
pub(super) struct Converted<'a> {
    pub(super) bytes: &'a [u8],
    /// Bytes of its seek points, if it has any.
    pub(super) seek_point_bytes: Option<u64>,
    /// Whether a progressive JPEG, which was to become a baseline one, is one now.
    pub(super) is_baseline_now: Option<bool>,
}

/// The new form of an image.
enum Image {
    Same,
    /// Another one, and how to make the original of it.
    Baseline(Vec<u8>, Vec<u8>),
    /// The one that it was before.
    Original(Vec<u8>),
}

impl<'s> Converter<'s> {
    pub(super) fn new(
        (seek_points, progressive): (SeekPointChange, ProgressiveChange),
        features: &'s RecordFeatures,
        dropped: &'s BTreeSet<String>,
    ) -> Self {
        Self {
            features,
            seek_points,
            progressive,
            dropped,
            builder: SeekPointBuilder::default(),
            limits: Limits::default(),
            record: Vec::new(),
        }
    }

    /// The record to write. Records that hold no image stay as they are, whatever they are.
    pub(super) fn convert<'a>(&'a mut self, record: &'a [u8]) -> Result<Converted<'a>, String> {
        let mut converted = Converted {
            bytes: record,
            seek_point_bytes: None,
            is_baseline_now: None,
        };
        let Ok(example) = ExampleView::parse(record) else {
            return Ok(converted);
        };
        let old_points = example.bytes(IMAGE_SEEK_POINTS).ok().flatten();
        converted.seek_point_bytes = old_points.map(|points| points.len() as u64);
        let name = self.features.image.as_str();
        let image = self.features.image(example).ok().flatten();
        let mut edits: Vec<(&str, Option<&[u8]>)> = Vec::new();
        let changed = match image {
            Some(image) => self.image(image, &example, &mut converted)?,
            None => Image::Same,
        };
        let new_image = match &changed {
            Image::Same => None,
            Image::Baseline(jpeg, recipe) => {
                edits.push((name, Some(jpeg)));
                edits.push((IMAGE_PROGRESSIVE, Some(recipe)));
                Some(&jpeg[..])
            }
            Image::Original(jpeg) => {
                edits.push((name, Some(jpeg)));
                edits.push((IMAGE_PROGRESSIVE, None));
                Some(&jpeg[..])
            }
        };
        let points = match (self.seek_points, new_image.or(image)) {
            (SeekPointChange::Make(density), Some(image)) => self.builder.build(image, density),
            _ => None,
        };
        // Points are of an image's bytes: with these they go, if new ones were not asked for.
        let keeps_points = self.seek_points == SeekPointChange::Keep && new_image.is_none();
        let has_points = example.get(IMAGE_SEEK_POINTS).is_some();
        let nothing_to_say = image.is_none() && self.seek_points != SeekPointChange::Remove;
        if !keeps_points && !nothing_to_say && (points.is_some() || has_points) {
            edits.push((IMAGE_SEEK_POINTS, points.as_deref()));
        }
        for name in self.dropped {
            let is_edited = edits.iter().any(|(edited, _)| edited == name);
            if !is_edited && example.get(name).is_some() {
                edits.push((name, None));
            }
        }
        if edits.is_empty() {
            return Ok(converted);
        }
        edits.sort_by_key(|(name, _)| *name);
        set_bytes(record, &edits, &mut self.record).map_err(|error| error.to_string())?;
        let points = edits.iter().find(|(name, _)| *name == IMAGE_SEEK_POINTS);
        if let Some((_, points)) = points {
            converted.seek_point_bytes = points.map(|points| points.len() as u64);
        }
        converted.bytes = &self.record;
        Ok(converted)
    }

    fn image(
        &self,
        image: &[u8],
        example: &ExampleView<'_>,
        converted: &mut Converted<'_>,
    ) -> Result<Image, String> {
        let has_recipe = example.get(IMAGE_PROGRESSIVE).is_some();
        match self.progressive {
            ProgressiveChange::Original if has_recipe => {
                let original = original_image(example, self.features)?.unwrap_or_default();
                Ok(Image::Original(original.into_owned()))
            }
            ProgressiveChange::Baseline if !has_recipe => {
                let header = probe(image, &self.limits);
                if !header.is_ok_and(|header| header.progressive) {
                    return Ok(Image::Same);
                }
                let new = progressive_to_baseline(image, &self.limits);
                converted.is_baseline_now = Some(new.is_some());
                Ok(new.map_or(Image::Same, |new| Image::Baseline(new.jpeg, new.recipe)))
            }
            _ => Ok(Image::Same),
        }
    }
}
