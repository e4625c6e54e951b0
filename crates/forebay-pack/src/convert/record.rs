//! Converts one record, with no other changes than the requested ones.

use super::options::{ImageChange, ProgressiveChange, SeekPointChange};
use crate::export::original_image;
use crate::options::ImageForm;
use crate::report::FastCount;
use crate::write::examine;
use forebay_formats::Reason;
use forebay_image::{
    Decoder, FastCoding, FastEncoder, Format, Limits, SeekDensity, SeekPointBuilder, probe,
    progressive_to_baseline, standard_image,
};
use forebay_shard::ExampleView;
use forebay_shard::example::{
    IMAGE_FAST, IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS, RecordFeatures, set_bytes,
};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Changes of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Changes<'s> {
    pub(super) seek_points: SeekPointChange,
    pub(super) progressive: ProgressiveChange,
    /// The encoding of images, resolved for the output format.
    pub(super) images: ImageChange,
    /// Seek points for JPEGs that are restored from fast images, if the seek points of other images are kept.
    pub(super) restored_seek_points: Option<SeekDensity>,
    /// Whether to restore progressive JPEGs from recipes, because they became baseline only to be stored as fast images.
    pub(super) restores_progressive: bool,
    pub(super) dropped: &'s BTreeSet<String>,
    /// Whether to examine images as a pack does, since records of other tools may hold anything.
    pub(super) examines_images: bool,
}

impl Changes<'_> {
    /// Returns whether the changes take longer than reading and writing a record.
    pub(super) fn are_slow(&self) -> bool {
        matches!(self.seek_points, SeekPointChange::Make(_))
            || self.progressive != ProgressiveChange::Keep
            || self.images != ImageChange::Keep
    }
}

/// The state of a thread that converts records.
pub(super) struct Converter<'s> {
    features: &'s RecordFeatures,
    changes: Changes<'s>,
    builder: SeekPointBuilder,
    encoder: FastEncoder,
    limits: Limits,
    record: Vec<u8>,
}

/// A converted record.
pub(super) struct Converted<'a> {
    pub(super) bytes: &'a [u8],
    /// Size of its seek points in bytes, if it has any.
    pub(super) seek_point_bytes: Option<u64>,
    /// Whether its progressive JPEG was transcoded to baseline; `None` if this was not requested or it is not progressive.
    pub(super) is_baseline_now: Option<bool>,
    /// Counts its fast image, if it has one.
    pub(super) fast: FastCount,
}

/// The new form of an image.
enum Image<'a> {
    Same,
    /// Another image, in the image feature.
    Jpeg(Cow<'a, [u8]>, Recipe),
    Fast(Vec<u8>, Recipe),
}

/// The recipe for restoring a progressive JPEG.
enum Recipe {
    Keep,
    Drop,
    New(Vec<u8>),
}

/// The image of a record.
struct Stored<'a> {
    /// The stored bytes.
    bytes: &'a [u8],
    is_fast: bool,
    has_recipe: bool,
}

impl<'s> Converter<'s> {
    pub(super) fn new(changes: Changes<'s>, features: &'s RecordFeatures) -> Self {
        Self {
            features,
            changes,
            builder: SeekPointBuilder::default(),
            encoder: FastEncoder::default(),
            limits: Limits::default(),
            record: Vec::new(),
        }
    }

    /// Returns the record to write. A record without an image may only lose features.
    pub(super) fn convert<'a>(&'a mut self, record: &'a [u8]) -> Result<Converted<'a>, String> {
        let mut converted = Converted {
            bytes: record,
            seek_point_bytes: None,
            is_baseline_now: None,
            fast: FastCount::default(),
        };
        let Ok(example) = ExampleView::parse(record) else {
            return Ok(converted);
        };
        let old_points = example.bytes(IMAGE_SEEK_POINTS).ok().flatten();
        converted.seek_point_bytes = old_points.map(|points| points.len() as u64);
        let name = self.features.image.as_str();
        let stored = self.features.image(example).ok().flatten();
        let stored = stored.map(|bytes| Stored {
            bytes,
            is_fast: example.get(name).is_none(),
            has_recipe: example.get(IMAGE_PROGRESSIVE).is_some(),
        });
        if let (Some(stored), true) = (&stored, self.changes.examines_images) {
            self.examine(stored.bytes)?;
        }
        let changed = match &stored {
            Some(stored) => self.image(stored, &example, &mut converted)?,
            None => Image::Same,
        };
        let was_fast = stored.as_ref().is_some_and(|stored| stored.is_fast);
        let mut edits: Vec<(&str, Option<&[u8]>)> = Vec::new();
        let (recipe, image, is_fast) = match &changed {
            Image::Same => (&Recipe::Keep, None, was_fast),
            Image::Jpeg(jpeg, recipe) => {
                edits.push((name, Some(jpeg)));
                if was_fast {
                    edits.push((IMAGE_FAST, None));
                }
                (recipe, Some(&jpeg[..]), false)
            }
            Image::Fast(fast, recipe) => {
                edits.push((IMAGE_FAST, Some(fast)));
                if !was_fast {
                    edits.push((name, None));
                }
                (recipe, Some(&fast[..]), true)
            }
        };
        match recipe {
            Recipe::Keep => {}
            Recipe::Drop => edits.push((IMAGE_PROGRESSIVE, None)),
            Recipe::New(recipe) => edits.push((IMAGE_PROGRESSIVE, Some(recipe))),
        }
        let changes = &self.changes;
        let density = match changes.seek_points {
            _ if is_fast => None,
            SeekPointChange::Make(density) => Some(density),
            SeekPointChange::Keep if was_fast => changes.restored_seek_points,
            SeekPointChange::Keep | SeekPointChange::Remove => None,
        };
        let points = match (
            density,
            image.or(stored.as_ref().map(|stored| stored.bytes)),
        ) {
            (Some(density), Some(image)) => self.builder.build(image, density),
            _ => None,
        };
        // Seek points refer to the bytes of an image, so they are removed if it changes, unless new ones are requested.
        let keeps_points = changes.seek_points == SeekPointChange::Keep && image.is_none();
        let has_points = example.get(IMAGE_SEEK_POINTS).is_some();
        let nothing_to_say = stored.is_none() && changes.seek_points != SeekPointChange::Remove;
        if !keeps_points && !nothing_to_say && (points.is_some() || has_points) {
            edits.push((IMAGE_SEEK_POINTS, points.as_deref()));
        }
        for name in changes.dropped {
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

    /// Checks that loaders can read an image: its header, its structure and its end. Pixels are decoded only if these checks
    /// leave doubts.
    fn examine(&self, image: &[u8]) -> Result<(), String> {
        let refused = |reason: Reason, detail: String| match detail.as_str() {
            "" => format!("its image: {}", reason.text()),
            detail => format!("its image: {} ({detail})", reason.text()),
        };
        let examined = examine(image, b"", &self.limits);
        let examined = examined.map_err(|(reason, detail)| refused(reason, detail))?;
        if examined.is_doubtful {
            let decoded = Decoder::new(self.limits).decode(image);
            decoded.map_err(|error| refused(Reason::BadData, error.to_string()))?;
        }
        Ok(())
    }

    /// Determines the new form of an image, and counts it.
    fn image<'a>(
        &mut self,
        stored: &Stored<'a>,
        example: &ExampleView<'_>,
        converted: &mut Converted<'_>,
    ) -> Result<Image<'a>, String> {
        let restores_original = stored.has_recipe
            && (self.changes.progressive == ProgressiveChange::Original
                || self.changes.restores_progressive
                    && self.changes.images == ImageChange::To(ImageForm::Jpeg));
        if self.changes.images == ImageChange::Keep && !restores_original && stored.is_fast {
            converted.fast = FastCount::of_image(
                Some(true),
                stored.has_recipe && self.changes.restores_progressive,
            );
            return Ok(Image::Same);
        }
        if restores_original {
            let original = original_image(example, self.features)?.unwrap_or_default();
            let original = original.into_owned();
            return Ok(Image::Jpeg(original.into(), Recipe::Drop));
        }
        let jpeg = standard_image(stored.bytes, &self.limits)
            .map_err(|error| format!("{IMAGE_FAST}: {error}"))?;
        let header = probe(&jpeg, &self.limits).ok();
        let is_progressive = header.is_some_and(|header| header.progressive);
        let asks_for_baseline = self.changes.progressive == ProgressiveChange::Baseline
            && !stored.has_recipe
            && is_progressive;
        let coding = match self.changes.images {
            ImageChange::To(ImageForm::Fast(coding)) => Some(coding),
            _ => None,
        };
        let baseline = (asks_for_baseline || coding.is_some() && is_progressive)
            .then(|| progressive_to_baseline(&jpeg, &self.limits))
            .flatten();
        if asks_for_baseline {
            converted.is_baseline_now = Some(baseline.is_some());
        }
        if let Some(coding) = coding
            && header.is_some_and(|header| header.format == Format::Jpeg)
        {
            let (image, recipe) = match &baseline {
                Some(new) => (&new.jpeg[..], Recipe::New(new.recipe.clone())),
                None => (&jpeg[..], Recipe::Keep),
            };
            let fast = self.fast(image, coding);
            let is_of_progressive = match &recipe {
                Recipe::New(_) => !asks_for_baseline,
                _ => stored.is_fast && stored.has_recipe && self.changes.restores_progressive,
            };
            converted.fast =
                FastCount::of_image(Some(fast.is_some()), fast.is_some() && is_of_progressive);
            if let Some(fast) = fast {
                return Ok(Image::Fast(fast, recipe));
            }
        }
        Ok(match baseline.filter(|_| asks_for_baseline) {
            Some(new) => Image::Jpeg(new.jpeg.into(), Recipe::New(new.recipe)),
            None if stored.is_fast => Image::Jpeg(jpeg, Recipe::Keep),
            None => Image::Same,
        })
    }

    fn fast(&mut self, jpeg: &[u8], coding: FastCoding) -> Option<Vec<u8>> {
        self.encoder.encode(jpeg, coding, &self.limits)
    }
}
