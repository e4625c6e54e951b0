//! Measures decoding times of a dataset's own images: as stored, and in other encodings.

use std::time::Duration;

use forebay_image::{
    Decoder, Encoded, FastCoding, FastEncoder, Format, Limits, Output, SampleSeed, SeekDensity,
    SeekPointBuilder, Shrink, TrainTransform, Transform, encode_jpeg, probe, standard_image,
};
use forebay_shard::Split;
use rustix::time::{ClockId, clock_gettime};

use crate::{Error, Result};

/// Width and height of the decoded images.
pub(super) const SIDE: u32 = 224;
/// Short side of the smaller images.
pub(super) const SHORT: u32 = 256;
/// JPEG quality of the smaller images.
const QUALITY: u8 = 90;
/// Number of images of a sample: enough for a mean, and few enough to take seconds.
const IMAGES: u64 = 128;
/// Maximum number of bytes of a sample.
const MAX_BYTES: usize = 64 << 20;
/// Fraction of the images that a remedy must change to be measured.
const WORTH: f64 = 0.5;

/// A way to store the images.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storing {
    /// As they are stored.
    AsStored,
    /// With seek points.
    SeekPoints,
    /// As fast images.
    Fast,
    /// As fast images without entropy coding.
    FastRaw,
    /// As JPEGs with short sides of 256 pixels and quality 90.
    Smaller,
}

/// The costs of a way to store the images.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct StoringCost {
    /// The way to store the images.
    pub storing: Storing,
    /// CPU seconds of RandomResizedCrop(224) and flip per image, by round.
    pub seconds: Vec<f64>,
    /// The part of `seconds` that decodes, by round.
    pub decode_seconds: Vec<f64>,
    /// Mean bytes of an image, including its seek points.
    pub bytes: f64,
    /// Mean bytes of a record, excluding image and seek points.
    pub rest: f64,
}

impl StoringCost {
    /// Returns the median of the CPU seconds per image.
    #[must_use]
    pub fn median(&self) -> f64 {
        crate::measure::median(&self.seconds)
    }
}

/// Images in memory, taken from all over a split.
#[derive(Debug)]
pub struct ImageSample {
    ways: Vec<(Storing, Vec<Stored>)>,
    /// Mean bytes of a record, excluding image and seek points.
    rest: f64,
}

#[derive(Debug, Clone)]
struct Stored {
    bytes: Vec<u8>,
    seek_points: Option<Vec<u8>>,
}

impl ImageSample {
    /// Reads images from all over a split, and stores them in the other ways too.
    ///
    /// # Errors
    /// A record cannot be read, or no image of the split can be decoded.
    pub fn take(split: &Split) -> Result<ImageSample> {
        let count = split.len().min(IMAGES);
        let (mut images, mut record, mut bytes, mut records) = (Vec::new(), Vec::new(), 0, 0);
        for at in 0..count {
            split.read(at * split.len() / count, &mut record)?;
            let Ok(found) = split.record_features().image_record(&record) else {
                continue;
            };
            let image = Stored {
                bytes: found.image.to_vec(),
                seek_points: found.seek_points.map(<[u8]>::to_vec),
            };
            bytes += stored_bytes(&image);
            records += record.len();
            images.push(image);
            if bytes > MAX_BYTES {
                break;
            }
        }
        let rest = records.saturating_sub(bytes) as f64 / images.len().max(1) as f64;
        Self::new(images, rest)
            .map_err(|error| Error::from(format!("split \"{}\": {error}", split.name())))
    }

    /// Takes encoded images, and stores them in the other ways too.
    ///
    /// # Errors
    /// None of the images can be decoded.
    pub fn of(images: Vec<Vec<u8>>) -> Result<ImageSample> {
        let plain = |bytes| Stored {
            bytes,
            seek_points: None,
        };
        Self::new(images.into_iter().map(plain).collect(), 0.0)
    }

    fn new(images: Vec<Stored>, rest: f64) -> Result<ImageSample> {
        let limits = Limits::default();
        let (mut stored, mut standard) = (Vec::new(), Vec::new());
        for image in images.into_iter().filter(decodes) {
            standard.push(standard_image(&image.bytes, &limits)?.into_owned());
            stored.push(image);
        }
        if stored.is_empty() {
            return Err("no image can be decoded: nothing can be measured".into());
        }
        let mut sample = ImageSample {
            ways: vec![(Storing::AsStored, stored)],
            rest,
        };
        sample.add_ways(&standard);
        Ok(sample)
    }

    /// Adds the ways that change at least half of the images.
    fn add_ways(&mut self, standard: &[Vec<u8>]) {
        let stored = self.ways[0].1.clone();
        let mut add = |storing, make: &mut dyn FnMut(usize) -> Option<Stored>| {
            let mut changed = 0;
            let images: Vec<Stored> = (0..stored.len())
                .map(|at| match make(at).filter(decodes) {
                    Some(image) => {
                        changed += 1;
                        image
                    }
                    None => stored[at].clone(),
                })
                .collect();
            if changed as f64 >= WORTH * stored.len() as f64 {
                self.ways.push((storing, images));
            }
        };
        let mut points = SeekPointBuilder::default();
        let plain = |at: usize| stored[at].seek_points.is_none() && !is_fast(&stored[at]);
        add(Storing::SeekPoints, &mut |at| {
            let seek_points = points.build(&stored[at].bytes, SeekDensity::Auto);
            seek_points.filter(|_| plain(at)).map(|seek_points| Stored {
                bytes: stored[at].bytes.clone(),
                seek_points: Some(seek_points),
            })
        });
        let mut encoder = FastEncoder::default();
        let limits = Limits::default();
        for (storing, coding) in [
            (Storing::Fast, FastCoding::Coded),
            (Storing::FastRaw, FastCoding::Raw),
        ] {
            add(storing, &mut |at| {
                if is_fast(&stored[at]) {
                    return None;
                }
                let bytes = encoder.encode(&stored[at].bytes, coding, &limits)?;
                Some(Stored {
                    bytes,
                    seek_points: None,
                })
            });
        }
        let mut decoder = Decoder::new(limits);
        add(Storing::Smaller, &mut |at| {
            smaller(&standard[at], &mut decoder, &limits, &mut points)
        });
    }

    /// Measures each way in `rounds` rounds, in turn, after one discarded round.
    ///
    /// # Errors
    /// An image can no longer be decoded.
    pub fn measure(&self, rounds: usize) -> Result<Vec<StoringCost>> {
        let mut costs: Vec<StoringCost> = self
            .ways
            .iter()
            .map(|(storing, images)| {
                let bytes: usize = images.iter().map(stored_bytes).sum();
                StoringCost {
                    storing: *storing,
                    seconds: Vec::new(),
                    decode_seconds: Vec::new(),
                    bytes: bytes as f64 / images.len() as f64,
                    rest: self.rest,
                }
            })
            .collect();
        let mut decoder = Decoder::new(Limits::default());
        for round in 0..=rounds.max(1) {
            for ((_, images), cost) in self.ways.iter().zip(&mut costs) {
                let (seconds, decode) = time(images, &mut decoder)?;
                if round > 0 {
                    cost.seconds.push(seconds);
                    cost.decode_seconds.push(decode);
                }
            }
        }
        Ok(costs)
    }
}

fn stored_bytes(image: &Stored) -> usize {
    image.bytes.len() + image.seek_points.as_ref().map_or(0, Vec::len)
}

fn is_fast(image: &Stored) -> bool {
    forebay_image::sniff(&image.bytes) == Some(Format::Fast)
}

fn decodes(image: &Stored) -> bool {
    let mut decoder = Decoder::new(Limits::default());
    time(std::slice::from_ref(image), &mut decoder).is_ok()
}

/// Returns a JPEG with a short side of [`SHORT`] pixels and with seek points; `None` for an image that is not larger.
fn smaller(
    image: &[u8],
    decoder: &mut Decoder,
    limits: &Limits,
    points: &mut SeekPointBuilder,
) -> Option<Stored> {
    let header = probe(image, limits).ok()?;
    if header.width.min(header.height) <= SHORT {
        return None;
    }
    let shrink = Shrink {
        short: Some(SHORT),
        long: None,
    };
    let (width, height) = shrink.size(header.width, header.height)?;
    let pixels = decoder.decode_shrunk(image, &header, width, height).ok()?;
    let bytes = encode_jpeg(&pixels, QUALITY, header.color.is_gray()).ok()?;
    Some(Stored {
        seek_points: points.build(&bytes, SeekDensity::Auto),
        bytes,
    })
}

/// Returns the CPU seconds per image, and those of its decoding. CPU time, so that other processes do not affect it.
fn time(images: &[Stored], decoder: &mut Decoder) -> Result<(f64, f64)> {
    let transform = Transform::Train(TrainTransform::new(SIDE));
    let mut pixels = vec![0; transform.output_values()];
    let (before, mut decode, mut resize) = (thread_cpu(), 0u64, 0u64);
    for (number, image) in images.iter().enumerate() {
        let encoded = Encoded {
            bytes: &image.bytes,
            seek_points: image.seek_points.as_deref().into(),
        };
        // The same random crops in all ways, as far as sizes allow.
        let seed = SampleSeed {
            sample: number as u64,
            ..SampleSeed::default()
        };
        let timing = transform.apply(decoder, encoded, seed, &Output::default(), &mut pixels)?;
        decode += timing.decode_ns;
        resize += timing.transform_ns;
    }
    let seconds = (thread_cpu() - before).as_secs_f64() / images.len().max(1) as f64;
    let decode = decode as f64 / (decode + resize).max(1) as f64 * seconds;
    Ok((seconds, decode))
}

fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use forebay_synthetic::Recipe;

    use super::*;

    fn sample(url: &str) -> ImageSample {
        let dataset = Recipe::parse(url).unwrap().open().unwrap();
        let split = dataset.split("train").unwrap();
        ImageSample::take(&split).unwrap()
    }

    #[test]
    fn ways_that_change_nothing_are_not_measured() {
        let with = sample("synthetic://imagenet?records=8&pictures=4");
        let stored = &with.ways[0].1;
        let is_jpeg = |image: &Stored| forebay_image::sniff(&image.bytes) == Some(Format::Jpeg);
        assert!(stored.iter().all(is_jpeg) && stored.len() == 8);
        assert!(stored.iter().all(|image| image.seek_points.is_some()));
        let has =
            |sample: &ImageSample, way| sample.ways.iter().any(|(storing, _)| *storing == way);
        assert!(!has(&with, Storing::SeekPoints) && has(&with, Storing::Fast));
        let without = sample("synthetic://imagenet?records=8&pictures=4&seek_points=off");
        assert!(has(&without, Storing::SeekPoints));
        let mut stored = without.ways[0].1.iter();
        assert!(stored.all(|image| image.seek_points.is_none()));
    }

    #[test]
    fn fast_images_cost_less_time_and_more_bytes() {
        let costs = sample("synthetic://imagenet?records=8&pictures=4")
            .measure(3)
            .unwrap();
        let of = |way| costs.iter().find(|cost| cost.storing == way).unwrap();
        let (stored, fast) = (of(Storing::AsStored), of(Storing::FastRaw));
        assert_eq!(stored.seconds.len(), 3);
        assert!(stored.median() > 0.0 && fast.bytes > stored.bytes);
        for (all, decode) in stored.seconds.iter().zip(&stored.decode_seconds) {
            assert!(decode < all && *decode > 0.0);
        }
    }
}
