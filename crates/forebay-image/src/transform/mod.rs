//! Transforms: from the bytes of an image to its slot in a batch.
//!
//! From header, options and [`SampleSeed`], a transform determines which part of the image becomes
//! which part of the output, decodes only that part, and resizes it directly into the batch.

mod eval;
#[cfg(test)]
mod tests;
mod train;

pub use eval::EvalTransform;
pub use train::TrainTransform;

use crate::decode::Decoder;
use crate::error::{ImageError, Result, invalid};
use crate::geometry::Tracking;
use crate::ops::{Compose, Op, Size, check_side};
use crate::output::{Dtype, Layout, Output};
use crate::random::SampleSeed;
use crate::resize::{CropPlan, ResizePlan, Resizer};
use forebay_jpeg::{Region, RgbImage, SeekPoints};
use std::time::Instant;

/// The conversion of an image to a sample of fixed size. The decoder's [`ResizeLike`](crate::ResizeLike)
/// selects the library whose pixels are reproduced.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Transform {
    /// Random crop and flip, for training.
    Train(TrainTransform),
    /// Fixed resize and center crop, for validation.
    Eval(EvalTransform),
    /// A list of transforms.
    List(Compose),
    /// No transform: images stay encoded, for decoding elsewhere. [`apply`](Self::apply) does not
    /// support it.
    KeepEncoded,
}

/// An image as it is stored: its encoded bytes and, if it has them, its seek points.
///
/// ```
/// use forebay_image::{Encoded, RgbImage, SeekPoints, build_seek_points, encode_jpeg};
///
/// let gray = RgbImage { width: 40, height: 30, data: vec![90; 40 * 30 * 3] };
/// let jpeg = encode_jpeg(&gray, 95, false)?;
/// let points = build_seek_points(&jpeg);
/// let encoded = Encoded { bytes: &jpeg, seek_points: points.as_deref().into() };
/// assert_eq!(Encoded::from(&jpeg[..]), Encoded { seek_points: SeekPoints::None, ..encoded });
/// # Ok::<(), forebay_image::ImageError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoded<'a> {
    /// The encoded image: the bytes of a JPEG or PNG file.
    pub bytes: &'a [u8],
    /// The result of [`build_seek_points`](crate::build_seek_points) for these bytes, or what earlier
    /// decodes of a JPEG recorded. Anything else is ignored and never changes pixels.
    pub seek_points: SeekPoints<'a>,
}

impl<'a> From<&'a [u8]> for Encoded<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            seek_points: SeekPoints::None,
        }
    }
}

impl<'a> From<&'a Vec<u8>> for Encoded<'a> {
    fn from(bytes: &'a Vec<u8>) -> Self {
        bytes.as_slice().into()
    }
}

/// Time spent on one sample, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// Header and decoding.
    pub decode_ns: u64,
    /// Resizing into the batch.
    pub transform_ns: u64,
}

impl Transform {
    /// Validates the options.
    ///
    /// # Errors
    /// [`ImageError::Transform`] with the invalid option and the allowed values.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::Train(train) => train.validate(),
            Self::Eval(eval) => eval.validate(),
            // Validated when it was created.
            Self::List(_) | Self::KeepEncoded => Ok(()),
        }
    }

    /// Returns whether the sample of an image differs from epoch to epoch, as for training.
    #[must_use]
    pub fn is_random(&self) -> bool {
        match self {
            Self::Train(_) => true,
            Self::Eval(_) | Self::KeepEncoded => false,
            Self::List(list) => list.ops().iter().any(Op::is_random),
        }
    }

    /// Returns height and width of the output, in pixels; 0 and 0 if images stay encoded.
    pub fn output_size(&self) -> Size {
        match self {
            Self::Train(train) => (train.size, train.size),
            Self::Eval(eval) => (eval.crop, eval.crop),
            Self::List(list) => list.output_size(),
            Self::KeepEncoded => (0, 0),
        }
    }

    /// Returns the number of values in one output sample: `3 * height * width`.
    pub fn output_values(&self) -> usize {
        let (height, width) = self.output_size();
        3 * height as usize * width as usize
    }

    /// Decodes and transforms an image into `out`, whose length is [`Transform::output_values`]
    /// times the bytes of `output`'s type. On success every byte is written; on an error the
    /// content is undefined. `encoded` is an [`Encoded`], or the bytes alone.
    ///
    /// # Errors
    /// Every [`ImageError`]; [`ImageError::Transform`] for [`Transform::KeepEncoded`].
    ///
    /// ```
    /// use forebay_image::{Decoder, Layout, Limits, Output, SampleSeed, TrainTransform, Transform, encode_png};
    ///
    /// let png = encode_png(&[90; 40 * 30 * 3], 40, 30);
    /// let transform = Transform::Train(TrainTransform::new(32));
    /// let mut decoder = Decoder::new(Limits::default());
    /// let mut out = vec![0; transform.output_values()];
    /// let seed = SampleSeed { seed: 1, epoch: 0, sample: 7, occurrence: 0 };
    /// transform.apply(&mut decoder, &png, seed, &Output::from(Layout::Nchw), &mut out)?;
    /// assert_eq!(out, vec![90; 3 * 32 * 32]);
    /// # Ok::<(), forebay_image::ImageError>(())
    /// ```
    pub fn apply<'a>(
        &self,
        decoder: &mut Decoder,
        encoded: impl Into<Encoded<'a>>,
        seed: SampleSeed,
        output: &Output,
        out: &mut [u8],
    ) -> Result<Timing> {
        if let Some(name) = self.needs_boxes() {
            return Err(needs_boxes(name));
        }
        self.run(decoder, encoded.into(), seed, (output, out), None)
    }

    /// As [`Transform::apply`]; also writes the steps from the stored image to the output to
    /// `tracking.map`, which then moves boxes, masks and keypoints.
    ///
    /// # Errors
    /// As [`Transform::apply`] and [`Transform::check_objects`]; [`ImageError::Transform`] if the
    /// transform needs boxes and `tracking` has none.
    ///
    /// ```
    /// use forebay_image::geometry::Tracking;
    /// use forebay_image::{Decoder, EvalTransform, Output, SampleSeed, Transform, encode_png};
    ///
    /// let png = encode_png(&[90; 40 * 30 * 3], 40, 30);
    /// let transform = Transform::Eval(EvalTransform::new(30, 20));
    /// let mut out = vec![0; transform.output_values()];
    /// let (mut decoder, mut tracking) = (Decoder::default(), Tracking::default());
    /// let (seed, output) = (SampleSeed::default(), Output::default());
    /// transform.apply_tracked(&mut decoder, &png, seed, &output, &mut out, &mut tracking)?;
    /// let boxes = tracking.map.boxes(&[[0.5, 0.5, 1.0, 1.0]], false);
    /// assert_eq!(boxes, [(0, [10.0, 10.0, 20.0, 20.0])]);
    /// # Ok::<(), forebay_image::ImageError>(())
    /// ```
    pub fn apply_tracked<'a>(
        &self,
        decoder: &mut Decoder,
        encoded: impl Into<Encoded<'a>>,
        seed: SampleSeed,
        output: &Output,
        out: &mut [u8],
        tracking: &mut Tracking<'_>,
    ) -> Result<Timing> {
        self.check_objects()?;
        if let Some(name) = self.needs_boxes().filter(|_| tracking.boxes.is_none()) {
            return Err(needs_boxes(name));
        }
        self.run(decoder, encoded.into(), seed, (output, out), Some(tracking))
    }

    /// Checks that boxes, masks and keypoints can be moved like the pixels.
    ///
    /// # Errors
    /// [`ImageError::Transform`] with the name of an op for which this is impossible.
    pub fn check_objects(&self) -> Result<()> {
        match self {
            Self::List(list) => match list.breaks_objects() {
                Some(name) => Err(invalid(format!(
                    "{name} cannot move boxes, masks and keypoints, as in torchvision; remove it or these columns"
                ))),
                None => Ok(()),
            },
            Self::Train(_) | Self::Eval(_) | Self::KeepEncoded => Ok(()),
        }
    }

    /// Returns the name of an op that selects pixels by the boxes of a sample, if there is one;
    /// only [`Transform::apply_tracked`] can run it.
    pub fn needs_boxes(&self) -> Option<&'static str> {
        match self {
            Self::List(list) => list.needs_boxes(),
            Self::Train(_) | Self::Eval(_) | Self::KeepEncoded => None,
        }
    }

    fn run(
        &self,
        decoder: &mut Decoder,
        Encoded { bytes, seek_points }: Encoded<'_>,
        seed: SampleSeed,
        (output, out): (&Output, &mut [u8]),
        mut tracking: Option<&mut Tracking<'_>>,
    ) -> Result<Timing> {
        self.validate()?;
        output.validate()?;
        let expected = self.output_values() * output.dtype.bytes();
        if out.len() != expected {
            return Err(ImageError::OutputLength {
                expected,
                found: out.len(),
            });
        }
        let started = Instant::now();
        let mut picture = decoder.open(bytes)?;
        let (width, height) = picture.size();
        if let Some(tracking) = tracking.as_deref_mut() {
            picture.track(&mut tracking.map);
        }
        // Nothing outside of the region that the resize requests influences the output.
        let plan: CropPlan = match self {
            Self::Train(train) => train.plan(width, height, seed),
            Self::Eval(eval) => eval.plan(width, height),
            Self::List(list) => list.plan(width, height, seed, tracking.as_deref()),
            Self::KeepEncoded => {
                return Err(invalid("KeepEncoded leaves images as they are".to_owned()));
            }
        };
        let resize = &plan.resize;
        let window = (resize.window.width as usize, resize.window.height as usize);
        let region = decoder.plan(&mut picture, plan.origin, resize);
        if let Some(tracking) = tracking.as_deref_mut() {
            let (height, width) = self.output_size();
            plan.track(&mut tracking.map, (width, height));
        }
        let (height, width) = self.output_size();
        let list = match self {
            Self::List(list) => Some(list),
            _ => None,
        };
        let size = (width as usize, height as usize);
        let is_padded = window != size;
        let changes = list.filter(|list| list.has_changes());
        let layout = match changes {
            None if !is_padded => output.layout,
            _ => Layout::Nhwc,
        };
        let straight = changes.is_none() && !is_padded && output.dtype == Dtype::Uint8;
        // Taken out of the decoder, so that it can be written to while the decoder is in use.
        let mut work = std::mem::take(&mut decoder.picture);
        let to = match straight {
            true => &mut *out,
            false => work.reset(window.0, window.1),
        };
        let resized = decoder.resize(bytes, &picture, region, seek_points, layout, to);
        let decoded = Instant::now();
        if resized.is_ok() && !straight {
            if is_padded {
                work.pad(size.0, size.1);
            }
            if let Some(list) = changes {
                let map = tracking.map(|tracking| &mut tracking.map);
                list.change(&mut work, seed, map);
            }
            decoder.converter.run(output, (work.data(), layout), out);
        }
        decoder.picture = work;
        let resized = resized?;
        if let Some(list) = list {
            list.finish(output, seed, out);
        }
        Ok(Timing {
            decode_ns: (decoded - started).saturating_sub(resized).as_nanos() as u64,
            transform_ns: (resized + decoded.elapsed()).as_nanos() as u64,
        })
    }
}

fn needs_boxes(name: &str) -> ImageError {
    invalid(format!(
        "{name} selects its crop by the boxes of a sample; ask for a column of boxes"
    ))
}

/// Resizes an image with the default filter: Pillow's `resize((width, height),
/// BILINEAR)`.
///
/// # Errors
/// [`ImageError::Transform`] for a side of 0 or over 8,192 pixels.
///
/// # Panics
/// If the image is empty or the length of its data does not match its size.
pub fn resize(image: &RgbImage, width: u32, height: u32) -> Result<RgbImage> {
    check_side("width", width)?;
    check_side("height", height)?;
    let stride = image.width as usize * 3;
    assert!(stride > 0 && image.data.len() == stride * image.height as usize && image.height > 0);
    let mut resizer = Resizer::default();
    let needed = resizer.plan(&ResizePlan {
        input: (image.width, image.height),
        output: (width, height),
        window: Region::whole(width, height),
        flip: false,
    });
    let mut data = vec![0; 3 * width as usize * height as usize];
    let start = needed.y as usize * stride + needed.x as usize * 3;
    resizer.run(&image.data[start..], stride, Layout::Nhwc, &mut data);
    Ok(RgbImage {
        width,
        height,
        data,
    })
}
