//! Transcodes images: shrinks them, or converts nonstandard ones to plain JPEG.
//!
//! Workers transcode images while they build records, so a single shard keeps all cores busy. The memory for
//! concurrent decoding is bounded: a few huge images wait for each other, usual ones never wait.

use super::examine::{Examined, bad_data};
use super::header::{Header, check_size};
use crate::options::PackOptions;
use forebay_formats::images::Refusal;
use forebay_formats::{Action, Reason};
use forebay_image::{
    Decoder, Limits, Probe, Region, RgbImage, Shrink, encode_jpeg, orientation, set_orientation,
};
use std::sync::{Condvar, Mutex, PoisonError};

/// JPEG quality for nonstandard images, as in TensorFlow's ImageNet tool.
const CONVERT_QUALITY: u8 = 100;
/// JPEG quality for shrunk images: with a higher quality, files become much larger for little gain.
const SHRINK_QUALITY: u8 = 95;
/// Maximum number of bytes per pixel for decoding and resizing: planes of four components, the RGB image, and a copy.
const BYTES_PER_PIXEL: u64 = 10;
/// Memory in bytes for concurrent decoding per worker: an image of 13 million pixels.
const ROOM_PER_JOB: u64 = 128 << 20;
/// Memory in bytes in addition to that of the workers: more than the largest allowed image needs.
const ROOM: u64 = 704 << 20;
/// The memory of images with more pixels than this is not reused.
const KEEP_PIXELS: u64 = 4 << 20;

/// Limits the memory for decoded images of all workers.
#[derive(Debug)]
pub(super) struct DecodeMemory {
    bytes: u64,
    taken: Mutex<u64>,
    freed: Condvar,
}

/// A part of the memory, which is returned when dropped.
struct RoomPart<'a>(&'a DecodeMemory, u64);

impl DecodeMemory {
    pub(super) fn new(jobs: usize) -> Self {
        Self {
            bytes: ROOM + ROOM_PER_JOB.saturating_mul(jobs as u64),
            taken: Mutex::new(0),
            freed: Condvar::new(),
        }
    }

    /// Waits until the memory is available.
    fn take(&self, bytes: u64) -> RoomPart<'_> {
        let bytes = bytes.min(self.bytes);
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let mut taken = self
            .freed
            .wait_while(taken, |taken| *taken + bytes > self.bytes)
            .unwrap_or_else(PoisonError::into_inner);
        *taken += bytes;
        RoomPart(self, bytes)
    }
}

impl Drop for RoomPart<'_> {
    fn drop(&mut self) {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_sub(self.1);
        drop(taken);
        self.0.freed.notify_all();
    }
}

/// A transcoded image for a record.
#[derive(Debug)]
pub(super) struct TranscodedImage {
    pub(super) image: Vec<u8>,
    pub(super) header: Header,
    /// The changes to the image, and its remaining oddities.
    pub(super) findings: Vec<(Action, Refusal)>,
}

/// The decoder of a worker, and the requested changes.
#[derive(Debug)]
pub(super) struct Transcoder<'a> {
    transcode_nonstandard: bool,
    shrink: Shrink,
    quality: Option<u8>,
    decoder: Decoder,
    room: &'a DecodeMemory,
}

impl<'a> Transcoder<'a> {
    pub(super) fn new(options: &PackOptions, room: &'a DecodeMemory) -> Self {
        Self {
            transcode_nonstandard: options.transcode_nonstandard,
            shrink: Shrink {
                short: options.resize_short,
                long: options.max_side,
            },
            quality: options.quality,
            decoder: Decoder::new(Limits::default()),
            room,
        }
    }

    /// Returns the limits for decoding.
    pub(super) fn limits(&self) -> &Limits {
        self.decoder.limits()
    }

    /// Transcodes an image if the options request it. `None` if it is unchanged.
    pub(super) fn transcode(
        &mut self,
        file: &[u8],
        examined: &Examined,
    ) -> Result<Option<TranscodedImage>, Refusal> {
        let probe = &examined.probe;
        let size = self.shrink.size(probe.width, probe.height);
        let converts =
            self.transcode_nonstandard && examined.oddities.iter().any(|odd| odd.is_convertible);
        if size.is_none() && !converts {
            return Ok(None);
        }
        let picture = self.decode(file, examined, size)?;
        let default = if size.is_some() {
            SHRINK_QUALITY
        } else {
            CONVERT_QUALITY
        };
        let quality = self.quality.unwrap_or(default);
        // TensorFlow's tool converts to RGB; a gray JPEG that is only shrunk stays gray.
        let grey = probe.color.is_gray() && !converts;
        let not_encoded = |error| (Reason::BadData, format!("it cannot be encoded: {error}"));
        let mut image = encode_jpeg(&picture, quality, grey).map_err(not_encoded)?;
        if let Some(tag) = orientation(file, probe) {
            set_orientation(&mut image, tag);
        }
        check_size(image.len() as u64)?;
        let transcoded = forebay_image::probe(&image, self.limits()).map_err(not_encoded)?;
        Ok(Some(TranscodedImage {
            header: Header::of(&transcoded),
            findings: findings_of(examined, size, quality),
            image,
        }))
    }

    /// Returns the findings about an unchanged image. In case of doubt, it is decoded to check that this is possible. With
    /// `reads_codes`, the Huffman codes of all its blocks are read.
    pub(super) fn keep(
        &mut self,
        file: &[u8],
        examined: Examined,
        reads_codes: bool,
    ) -> Result<Vec<(Action, Refusal)>, Refusal> {
        if examined.is_doubtful {
            self.decode(file, &examined, None)?;
        } else if reads_codes {
            let _room = self.room.take(pixels(&examined.probe) * BYTES_PER_PIXEL);
            let checked = self.decoder.check_codes(file);
            checked.map_err(|error| bad_data(&examined, &error))?;
        }
        let oddities = examined.oddities.into_iter();
        Ok(oddities
            .map(|odd| (Action::Kept, (odd.reason, odd.detail)))
            .collect())
    }

    fn decode(
        &mut self,
        file: &[u8],
        examined: &Examined,
        size: Option<(u32, u32)>,
    ) -> Result<RgbImage, Refusal> {
        let probe = &examined.probe;
        let pixels = pixels(probe);
        let _room = self.room.take(pixels * BYTES_PER_PIXEL);
        let whole = Region::whole(probe.width, probe.height);
        let picture = match size {
            Some((width, height)) => self.decoder.decode_shrunk(file, probe, width, height),
            None => self.decoder.decode_region(file, probe, whole),
        };
        if pixels > KEEP_PIXELS {
            self.decoder = Decoder::new(*self.decoder.limits());
        }
        picture.map_err(|error| bad_data(examined, &error))
    }
}

fn pixels(probe: &Probe) -> u64 {
    u64::from(probe.width) * u64::from(probe.height)
}

/// Returns findings about a transcoded image.
fn findings_of(
    examined: &Examined,
    size: Option<(u32, u32)>,
    quality: u8,
) -> Vec<(Action, Refusal)> {
    let probe = &examined.probe;
    let mut findings = Vec::new();
    for odd in &examined.oddities {
        let mut detail = odd.detail.clone();
        let action = if odd.ends_with_conversion {
            let comma = if detail.is_empty() { "" } else { ", " };
            detail = format!("{detail}{comma}now a JPEG of quality {quality}");
            Action::Converted
        } else {
            Action::Kept
        };
        findings.push((action, (odd.reason, detail)));
    }
    if let Some((width, height)) = size {
        let detail = format!(
            "{} {}x{}, now a JPEG of {width}x{height}, quality {quality}",
            probe.format, probe.width, probe.height
        );
        findings.push((Action::Resized, (Reason::LargerThanAsked, detail)));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_returned_and_suffices_for_the_largest_image() {
        let most = Limits::default().max_pixels * BYTES_PER_PIXEL;
        let room = DecodeMemory::new(1);
        assert!(most < room.bytes);
        let all = room.take(u64::MAX);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| drop(room.take(1)));
            drop(all);
            waits.join().unwrap();
        });
        assert_eq!(*room.taken.lock().unwrap(), 0);
    }
}
