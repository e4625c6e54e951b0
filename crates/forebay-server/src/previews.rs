//! Image previews of sent batches, captured on demand for the dashboard.
//!
//! Nothing is captured without requests. After a request for the previews of a name, its streams copy the first samples of a
//! batch to this cache, at most once in two seconds; the following request encodes them as small JPEGs.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forebay_batch::{FLAG_FAILED, FLAG_PADDING};
use forebay_image::{Decoder, Limits, RgbImage, encode_jpeg, probe, resize};
use forebay_options::StreamInfo;
use forebay_wire::{Batch, Dtype, Layout};
use half::{bf16, f16};

/// Samples captured from a batch.
const SAMPLES: usize = 12;
/// Size limit of a capture, in bytes as stored in the batch.
const MOST_BYTES: usize = 16 << 20;
/// How long a request keeps capturing enabled.
const ATTENTION: Duration = Duration::from_secs(15);
/// Minimum time between two captures of a name.
const INTERVAL: Duration = Duration::from_secs(2);
/// The longer side of a preview, in pixels.
const SIDE: u32 = 128;
const QUALITY: u8 = 82;

/// The captured samples of one batch.
#[derive(Debug)]
pub struct Preview {
    /// Counts captures from 1.
    pub number: u64,
    /// When it was captured.
    pub at: SystemTime,
    /// The rank whose batch it is.
    pub rank: u64,
    /// The epoch of the batch.
    pub epoch: u64,
    /// The step of the batch.
    pub step: u64,
    /// The first samples of the batch.
    pub samples: Vec<PreviewSample>,
    form: Form,
}

/// A sample, with its bytes as stored in the batch.
#[derive(Debug)]
pub struct PreviewSample {
    /// The number of the sample.
    pub sample: u64,
    /// Its label.
    pub label: i64,
    /// The title of the class, if the dataset names its classes.
    pub class: Option<String>,
    /// Whether it was added to fill the batch.
    pub padding: bool,
    /// Whether it could not be read or decoded.
    pub failed: bool,
    bytes: Vec<u8>,
}

/// How to interpret the bytes of a sample.
#[derive(Debug, Clone)]
enum Form {
    Encoded,
    Pixels {
        width: usize,
        height: usize,
        layout: Layout,
        dtype: Dtype,
        /// Mean and standard deviation of each channel, if the batch is normalized.
        normalize: Option<([f32; 3], [f32; 3])>,
    },
}

/// The captures, by dataset or job name.
pub(crate) struct PreviewCache {
    began: Instant,
    /// Milliseconds since `began` until which any capture is wanted; checked without the lock.
    until_ms: AtomicU64,
    rooms: Mutex<HashMap<String, PreviewSlot>>,
}

#[derive(Default)]
struct PreviewSlot {
    until_ms: u64,
    next_ms: u64,
    captures: u64,
    last: Option<Arc<Preview>>,
}

impl Default for PreviewCache {
    fn default() -> Self {
        PreviewCache {
            began: Instant::now(),
            until_ms: AtomicU64::new(0),
            rooms: Mutex::default(),
        }
    }
}

impl PreviewCache {
    fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn rooms(&self) -> MutexGuard<'_, HashMap<String, PreviewSlot>> {
        self.rooms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last capture of `name`, and requests another one. The caller has checked that
    /// the name is served.
    pub(crate) fn ask(&self, name: &str) -> Option<Arc<Preview>> {
        let now = self.now_ms();
        let until = now + ATTENTION.as_millis() as u64;
        let mut rooms = self.rooms();
        // Names without recent requests are dropped.
        rooms.retain(|known, room| known == name || room.until_ms >= now);
        let room = rooms.entry(name.to_owned()).or_default();
        room.until_ms = until;
        let last = room.last.clone();
        drop(rooms);
        self.until_ms.fetch_max(until, Ordering::Relaxed);
        last
    }

    /// Whether the caller should capture the next batch of `name`. If true, the caller must do so.
    fn wants(&self, name: &str) -> bool {
        let until = self.until_ms.load(Ordering::Relaxed);
        if until == 0 {
            return false;
        }
        let now = self.now_ms();
        if now > until {
            return false;
        }
        let mut rooms = self.rooms();
        let Some(room) = rooms.get_mut(name) else {
            return false;
        };
        let wants = now <= room.until_ms && now >= room.next_ms;
        if wants {
            room.next_ms = now + INTERVAL.as_millis() as u64;
        }
        wants
    }

    fn store(&self, name: &str, mut preview: Preview) {
        if let Some(room) = self.rooms().get_mut(name) {
            room.captures += 1;
            preview.number = room.captures;
            room.last = Some(Arc::new(preview));
        }
    }
}

/// A stream's access to the previews, with the parameters that interpret its batches.
pub(crate) struct PreviewSampler<'a> {
    previews: &'a PreviewCache,
    name: String,
    rank: u64,
    normalize: Option<([f32; 3], [f32; 3])>,
    /// The label of the first class in batches.
    first_label: i64,
    class_titles: Arc<[String]>,
}

impl<'a> PreviewSampler<'a> {
    pub(crate) fn new(
        previews: &'a PreviewCache,
        name: &str,
        info: &StreamInfo,
        class_titles: Arc<[String]>,
    ) -> PreviewSampler<'a> {
        PreviewSampler {
            previews,
            name: name.to_owned(),
            rank: info.rank(),
            normalize: info.options.normalize.map(|n| (n.mean, n.std)),
            first_label: info.label_base,
            class_titles,
        }
    }

    fn class(&self, label: i64) -> Option<String> {
        let at = label.checked_sub(self.first_label)?;
        self.class_titles.get(usize::try_from(at).ok()?).cloned()
    }

    /// Captures copies of the first samples, if a preview is wanted.
    pub(crate) fn capture(&self, batch: &Batch) {
        if !self.previews.wants(&self.name) {
            return;
        }
        let form = match (&batch.encoded, batch.layout, batch.shape) {
            (Some(_), _, _) => Form::Encoded,
            (None, layout, [_, a, b, c]) => {
                let (height, width, channels) = match layout {
                    Layout::Nhwc => (a, b, c),
                    Layout::Nchw => (b, c, a),
                };
                if channels != 3 {
                    return;
                }
                Form::Pixels {
                    width,
                    height,
                    layout,
                    dtype: batch.dtype,
                    normalize: self.normalize,
                }
            }
        };
        let mut samples = Vec::new();
        let mut bytes = 0;
        for i in 0..batch.len().min(SAMPLES) {
            let Some(image) = batch.image(i) else { break };
            bytes += image.len();
            if bytes > MOST_BYTES {
                break;
            }
            let flags = batch.flags.get(i).copied().unwrap_or(0);
            let label = batch.labels.get(i).copied().unwrap_or(-1);
            samples.push(PreviewSample {
                sample: batch.samples.get(i).copied().unwrap_or(0),
                label,
                class: self.class(label),
                padding: flags & FLAG_PADDING != 0,
                failed: flags & FLAG_FAILED != 0,
                bytes: image.to_vec(),
            });
        }
        let preview = Preview {
            number: 0,
            at: SystemTime::now(),
            rank: self.rank,
            epoch: batch.epoch,
            step: batch.step,
            samples,
            form,
        };
        self.previews.store(&self.name, preview);
    }
}

/// A small image of a sample.
#[derive(Debug)]
pub struct Thumbnail {
    /// A JPEG.
    pub jpeg: Vec<u8>,
    /// Its width in pixels.
    pub width: u32,
    /// Its height in pixels.
    pub height: u32,
}

impl Preview {
    /// Renders the preview of a sample; `None` if its bytes are not a valid image within the
    /// limits.
    pub fn thumbnail(&self, sample: &PreviewSample, limits: Limits) -> Option<Thumbnail> {
        let small = match &self.form {
            Form::Encoded => {
                let mut decoder = Decoder::new(limits);
                let found = probe(&sample.bytes, &limits).ok()?;
                let (width, height) = fitting(found.width, found.height)?;
                decoder
                    .decode_shrunk(&sample.bytes, &found, width, height)
                    .ok()?
            }
            Form::Pixels { .. } => {
                let image = self.form.picture(&sample.bytes)?;
                let (width, height) = fitting(image.width, image.height)?;
                match (width, height) == (image.width, image.height) {
                    true => image,
                    false => resize(&image, width, height).ok()?,
                }
            }
        };
        Some(Thumbnail {
            jpeg: encode_jpeg(&small, QUALITY, false).ok()?,
            width: small.width,
            height: small.height,
        })
    }
}

/// Size of the preview of an image; small images are not enlarged.
fn fitting(width: u32, height: u32) -> Option<(u32, u32)> {
    let long = width.max(height);
    if width == 0 || height == 0 {
        return None;
    }
    let scaled = |side: u32| match long > SIDE {
        true => (u64::from(side) * u64::from(SIDE) / u64::from(long)).max(1) as u32,
        false => side,
    };
    Some((scaled(width), scaled(height)))
}

impl Form {
    /// Converts the bytes of a sample into an image.
    fn picture(&self, bytes: &[u8]) -> Option<RgbImage> {
        let Form::Pixels {
            width,
            height,
            layout,
            dtype,
            normalize,
        } = *self
        else {
            return None;
        };
        let pixels = width.checked_mul(height)?;
        if bytes.len() != pixels.checked_mul(3 * dtype.bytes())? {
            return None;
        }
        let level = |value: f32, channel: usize| -> u8 {
            let value = match normalize {
                Some((mean, std)) => value * std[channel] + mean[channel],
                None => value,
            };
            // Saturates; NaN becomes black.
            (value * 255.0).round() as u8
        };
        let at = |i: usize, channel: usize| -> u8 {
            let place = |size: usize| &bytes[i * size..(i + 1) * size];
            match dtype {
                Dtype::Uint8 => bytes[i],
                Dtype::Float32 => {
                    let raw = place(4).try_into().unwrap_or_default();
                    level(f32::from_le_bytes(raw), channel)
                }
                Dtype::Float16 => {
                    let raw = place(2).try_into().unwrap_or_default();
                    level(f16::from_le_bytes(raw).to_f32(), channel)
                }
                Dtype::Bfloat16 => {
                    let raw = place(2).try_into().unwrap_or_default();
                    level(bf16::from_le_bytes(raw).to_f32(), channel)
                }
            }
        };
        let mut data = Vec::with_capacity(3 * pixels);
        for pixel in 0..pixels {
            for channel in 0..3 {
                let i = match layout {
                    Layout::Nhwc => 3 * pixel + channel,
                    Layout::Nchw => channel * pixels + pixel,
                };
                data.push(at(i, channel));
            }
        }
        Some(RgbImage {
            width: u32::try_from(width).ok()?,
            height: u32::try_from(height).ok()?,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of 4x2 pixels with a different level in each channel.
    const LEVELS: [u8; 3] = [10, 128, 250];

    fn form(layout: Layout, dtype: Dtype, normalize: bool) -> Form {
        Form::Pixels {
            width: 4,
            height: 2,
            layout,
            dtype,
            normalize: normalize.then_some(([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])),
        }
    }

    fn bytes(layout: Layout, encode: impl Fn(u8, usize) -> Vec<u8>) -> Vec<u8> {
        let channel = |i: usize| match layout {
            Layout::Nhwc => i % 3,
            Layout::Nchw => i / 8,
        };
        (0..24)
            .flat_map(|i| encode(LEVELS[channel(i)], channel(i)))
            .collect()
    }

    #[test]
    fn all_dtypes_and_layouts_give_the_same_picture() {
        let normalized = |level: u8, channel: usize| {
            let (mean, std) = ([0.485f32, 0.456, 0.406], [0.229f32, 0.224, 0.225]);
            (f32::from(level) / 255.0 - mean[channel]) / std[channel]
        };
        let expected: Vec<u8> = LEVELS.iter().copied().cycle().take(24).collect();
        for layout in [Layout::Nhwc, Layout::Nchw] {
            let plain = bytes(layout, |level, _| vec![level]);
            let picture = form(layout, Dtype::Uint8, false).picture(&plain).unwrap();
            assert_eq!((picture.width, picture.height), (4, 2));
            assert_eq!(picture.data, expected);
            let floats = bytes(layout, |level, c| {
                normalized(level, c).to_le_bytes().to_vec()
            });
            let picture = form(layout, Dtype::Float32, true).picture(&floats);
            assert_eq!(picture.unwrap().data, expected);
            for (dtype, coarse) in [(Dtype::Float16, 1), (Dtype::Bfloat16, 2)] {
                let halves = bytes(layout, |level, _| {
                    let value = f32::from(level) / 255.0;
                    match dtype {
                        Dtype::Float16 => f16::from_f32(value).to_le_bytes().to_vec(),
                        _ => bf16::from_f32(value).to_le_bytes().to_vec(),
                    }
                });
                let picture = form(layout, dtype, false).picture(&halves).unwrap();
                let far = picture.data.iter().zip(&expected);
                assert!(far.map(|(a, b)| a.abs_diff(*b)).max().unwrap() <= coarse);
            }
        }
        let nan = f32::NAN.to_le_bytes().repeat(24);
        let picture = form(Layout::Nhwc, Dtype::Float32, true).picture(&nan);
        assert_eq!(picture.unwrap().data, [0; 24]);
        assert!(
            form(Layout::Nhwc, Dtype::Uint8, false)
                .picture(&[0; 23])
                .is_none()
        );
    }

    #[test]
    fn pictures_are_small_and_never_larger_than_the_image() {
        assert_eq!(fitting(224, 224), Some((128, 128)));
        assert_eq!(fitting(4000, 3000), Some((128, 96)));
        assert_eq!(fitting(10_000, 3), Some((128, 1)));
        assert_eq!(fitting(16, 8), Some((16, 8)));
        assert_eq!(fitting(0, 8), None);
    }

    fn buffer(bytes: &[u8]) -> forebay_wire::Buffer {
        let mut buffer = forebay_wire::BufferPool::new(0).take(bytes.len());
        buffer.copy_from_slice(bytes);
        buffer
    }

    fn batch(step: u64, samples: usize) -> Batch {
        Batch {
            epoch: 0,
            step,
            position: 0,
            payload: buffer(&vec![77; samples * 8 * 8 * 3]),
            encoded: None,
            dtype: Dtype::Uint8,
            shape: [samples, 8, 8, 3],
            layout: Layout::Nhwc,
            labels: (0..samples as i64).collect(),
            mixed: None,
            columns: Vec::new(),
            samples: (0..samples as u64).collect(),
            flags: vec![0; samples],
            digest: 0,
        }
    }

    #[test]
    fn nothing_is_captured_without_requests() {
        let previews = PreviewCache::default();
        let sampler = PreviewSampler::new(&previews, "a", &StreamInfo::default(), Arc::default());
        sampler.capture(&batch(0, 20));
        assert!(previews.ask("a").is_none());
        // From here on previews are wanted for `a` only.
        PreviewSampler::new(&previews, "b", &StreamInfo::default(), Arc::default())
            .capture(&batch(1, 20));
        sampler.capture(&batch(2, 20));
        sampler.capture(&batch(3, 20));
        let preview = previews.ask("a").unwrap();
        assert_eq!(
            (preview.number, preview.step),
            (1, 2),
            "one preview in two seconds"
        );
        assert_eq!(preview.samples.len(), SAMPLES);
        assert!(previews.ask("b").is_none());
        let picture = preview
            .thumbnail(&preview.samples[3], Limits::default())
            .unwrap();
        assert_eq!((picture.width, picture.height), (8, 8));
        assert_eq!(picture.jpeg[..2], [0xff, 0xd8]);
    }

    #[test]
    fn encoded_images_are_decoded_within_limits() {
        let png = forebay_image::encode_png(&[9; 3 * 300 * 200], 300, 200);
        let previews = PreviewCache::default();
        previews.ask("a");
        let sampler = PreviewSampler::new(&previews, "a", &StreamInfo::default(), Arc::default());
        let garbage = b"no image".to_vec();
        sampler.capture(&Batch {
            shape: [2, 0, 0, 0],
            encoded: Some(Box::new(forebay_wire::EncodedImages {
                offsets: vec![0, png.len() as u64, (png.len() + garbage.len()) as u64],
                widths: vec![300, 0],
                heights: vec![200, 0],
            })),
            payload: buffer(&[png, garbage].concat()),
            ..batch(0, 2)
        });
        let preview = previews.ask("a").unwrap();
        let picture = preview
            .thumbnail(&preview.samples[0], Limits::default())
            .unwrap();
        assert_eq!((picture.width, picture.height), (128, 85));
        assert!(
            preview
                .thumbnail(&preview.samples[1], Limits::default())
                .is_none()
        );
        let strict = Limits {
            max_pixels: 1000,
            ..Limits::default()
        };
        assert!(preview.thumbnail(&preview.samples[0], strict).is_none());
    }
}
