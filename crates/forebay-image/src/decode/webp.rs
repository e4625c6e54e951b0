//! WebP, lossy and lossless, through the `image-webp` crate. Pictures are decoded whole: both codings depend on
//! everything above and left of a pixel.

use super::{Canvas, Job, Outcome, Scratch};
use crate::error::{ImageError, Result};
use crate::probe::{Format, webp};
use image_webp::{DecodingError, WebPDecoder};
use std::io::{Cursor, ErrorKind};

pub(super) fn decode(job: &Job<'_>, _: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    let Some(end) = webp::end(job.bytes) else {
        return Err(ended());
    };
    let bytes = &job.bytes[..end];
    let (width, height) = (job.probe.width, job.probe.height);
    webp::check_pictures(bytes, width, height)?;
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(refuse)?;
    decoder.set_memory_limit(usize::try_from(job.limits.max_decoded_bytes).unwrap_or(usize::MAX));
    if decoder.dimensions() != (width, height) {
        return Err(ImageError::corrupt(Format::WebP, "two different sizes"));
    }
    let pixels = width as usize * height as usize;
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let size = pixels * channels;
    if canvas.data.len() < size + Canvas::TAIL {
        canvas.data.resize(size + Canvas::TAIL, 0);
    }
    decoder
        .read_image(&mut canvas.data[..size])
        .map_err(refuse)?;
    if channels == 4 {
        // Alpha is dropped, in place.
        for i in 1..pixels {
            canvas.data.copy_within(4 * i..4 * i + 3, 3 * i);
        }
    }
    let region = job.region;
    canvas.stride = width as usize * 3;
    canvas.start = (region.y as usize * width as usize + region.x as usize) * 3;
    Ok(Outcome::Done)
}

fn ended() -> ImageError {
    ImageError::truncated(Format::WebP, "the file ends inside the image data")
}

fn refuse(error: DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => ended(),
        DecodingError::UnsupportedFeature(what) => ImageError::unsupported(Format::WebP, what),
        other => ImageError::corrupt(Format::WebP, other.to_string()),
    }
}
