//! JPEG through `libjpeg-turbo-rs`, a Rust port of libjpeg-turbo with the same pixels as its default
//! decoder (accurate integer DCT, smooth chroma upsampling).

use super::{Canvas, Job, Outcome, Scratch};
use crate::error::{ImageError, Result};
use crate::probe::{Color, Format, jpeg};
use libjpeg_turbo_rs::{Decoder, JpegError, PixelFormat, ScalingFactor};

pub(super) fn decode(job: &Job<'_>, _: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    if job.probe.progressive {
        job.limits.check_scans(jpeg::scans(job.bytes))?;
    }
    let four = matches!(job.probe.color, Color::Cmyk | Color::Ycck);
    let mut decoder = Decoder::new(job.bytes).map_err(refuse)?;
    if four {
        check_ink_sampling(&decoder)?;
    }
    decoder.set_scan_limit(job.limits.max_scans);
    decoder.set_max_pixels(usize::try_from(job.limits.max_pixels).unwrap_or(usize::MAX));
    decoder.set_output_format(if four {
        PixelFormat::Cmyk
    } else {
        PixelFormat::Rgb
    });
    if job.scale != 1 {
        decoder.set_scale(ScalingFactor::try_new(1, job.scale).map_err(refuse)?);
    }
    let channels = if four { 4 } else { 3 };
    let (width, height) = (decoder.output_width(), decoder.output_height());
    let scaled = |side: u32| side.div_ceil(job.scale) as usize;
    if (width, height) != (scaled(job.probe.width), scaled(job.probe.height)) {
        return Err(ImageError::corrupt(Format::Jpeg, "two different sizes"));
    }
    let region = job.region;
    let row = width * channels;
    let start = region.y as usize * row + region.x as usize * channels;
    let size = decoder.output_buffer_size().map_err(refuse)?;
    if canvas.data.len() < size + Canvas::TAIL {
        canvas.data.resize(size + Canvas::TAIL, 0);
    }
    let info = decoder
        .decode_image_into(&mut canvas.data[..size])
        .map_err(refuse)?;
    if (info.width, info.height) != (width, height) {
        return Err(ImageError::corrupt(
            Format::Jpeg,
            "fewer pixels than its header says",
        ));
    }
    canvas.stride = row;
    canvas.start = start;
    if four {
        inks_to_rgb(canvas, width * height, jpeg::has_adobe(job.bytes));
        canvas.stride = width * 3;
        canvas.start = (region.y as usize * width + region.x as usize) * 3;
    }
    Ok(Outcome::Done)
}

/// Only the samplings of four components that encoders write: all alike, or the middle two at half. The
/// decoder panics on some others.
fn check_ink_sampling(decoder: &Decoder<'_>) -> Result<()> {
    let components = &decoder.header().components;
    let sampling = |i: usize| {
        components
            .get(i)
            .map(|c| (c.horizontal_sampling, c.vertical_sampling))
    };
    let (first, second) = (sampling(0), sampling(1));
    let usual = first == sampling(3)
        && second == sampling(2)
        && (first == second || (matches!(first, Some((1 | 2, 1 | 2))) && second == Some((1, 1))));
    if usual {
        return Ok(());
    }
    Err(ImageError::unsupported(
        Format::Jpeg,
        "four colour components with an unusual sampling",
    ))
}

/// Four inks to RGB, in place; Adobe stores them inverted (255 is no ink).
fn inks_to_rgb(canvas: &mut Canvas, pixels: usize, inverted: bool) {
    let flip = if inverted { 0 } else { 255 };
    for i in 0..pixels {
        let [c, m, y, k] = [0, 1, 2, 3].map(|j| u32::from(canvas.data[i * 4 + j] ^ flip));
        for (j, ink) in [c, m, y].into_iter().enumerate() {
            canvas.data[i * 3 + j] = (ink * k / 255) as u8;
        }
    }
}

fn refuse(error: JpegError) -> ImageError {
    match error {
        JpegError::UnexpectedEof => {
            ImageError::truncated(Format::Jpeg, "the file ends inside the image data")
        }
        other => ImageError::corrupt(Format::Jpeg, other.to_string()),
    }
}
