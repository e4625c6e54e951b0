//! PNG through the `png` crate, normalised to 8-bit RGB. PNG rows depend on the rows above them, so
//! everything down to the region's last row is inflated, and rows below it are not.

use super::{Canvas, Job, Outcome, Scratch};
use crate::error::{ImageError, Result};
use crate::probe::Format;
use png::{ColorType, DecodingError, Limits, Transformations};
use std::io::{Cursor, ErrorKind};

pub(super) fn decode(job: &Job<'_>, _: &mut Scratch, canvas: &mut Canvas) -> Result<Outcome> {
    let limit = usize::try_from(job.limits.max_decoded_bytes).unwrap_or(usize::MAX);
    let mut decoder =
        png::Decoder::new_with_limits(Cursor::new(job.bytes), Limits { bytes: limit });
    // Text and profiles are never inflated: a small zTXt can hold gigabytes.
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    let mut reader = decoder.read_info().map_err(refuse)?;
    // The palette's expansion panics on a part of an entry.
    if reader
        .info()
        .palette
        .as_ref()
        .is_some_and(|palette| !palette.len().is_multiple_of(3))
    {
        return Err(ImageError::corrupt(
            Format::Png,
            "a palette that is not in whole entries of 3 bytes",
        ));
    }
    let (color, _) = reader.output_color_type();
    let channels = color.samples();
    let region = job.region;
    let (width, height) = (reader.info().width, reader.info().height);
    if (width, height) != (job.probe.width, job.probe.height) {
        return Err(ImageError::corrupt(Format::Png, "two different sizes"));
    }
    canvas.stride = region.width as usize * 3;
    canvas.start = 0;
    canvas.data.clear();
    canvas.data.reserve(canvas.stride * region.height as usize);
    let columns = region.x as usize * channels..(region.x + region.width) as usize * channels;
    let mut push = |row: &[u8]| -> Result<()> {
        let Some(row) = row.get(columns.clone()) else {
            return Err(ImageError::corrupt(Format::Png, "a row is too short"));
        };
        match color {
            ColorType::Grayscale => canvas.data.extend(row.iter().flat_map(|&v| [v; 3])),
            ColorType::GrayscaleAlpha => canvas
                .data
                .extend(row.chunks_exact(2).flat_map(|p| [p[0]; 3])),
            ColorType::Rgb => canvas.data.extend_from_slice(row),
            ColorType::Rgba => canvas
                .data
                .extend(row.chunks_exact(4).flat_map(|p| [p[0], p[1], p[2]])),
            ColorType::Indexed => {
                return Err(ImageError::unsupported(Format::Png, "palette not expanded"));
            }
        }
        Ok(())
    };
    let rows = region.y..region.y + region.height;
    if reader.info().interlaced {
        // Interlaced rows are scattered over the file: the whole image is needed.
        let size = reader.output_buffer_size().ok_or(ImageError::OverLimit {
            what: "bytes when decoded",
            found: u64::MAX,
            limit: job.limits.max_decoded_bytes,
        })?;
        let mut whole = vec![0; size];
        reader.next_frame(&mut whole).map_err(refuse)?;
        let line = width as usize * channels;
        for row in whole
            .chunks_exact(line)
            .take(rows.end as usize)
            .skip(rows.start as usize)
        {
            push(row)?;
        }
        return Ok(Outcome::Done);
    }
    for y in 0..rows.end {
        let Some(row) = reader.next_row().map_err(refuse)? else {
            return Err(ImageError::truncated(
                Format::Png,
                format!("{y} rows of {height}"),
            ));
        };
        if y >= rows.start {
            push(row.data())?;
        }
    }
    Ok(Outcome::Done)
}

fn refuse(error: DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(e) if e.kind() == ErrorKind::UnexpectedEof => {
            ImageError::truncated(Format::Png, "the file ends inside the image data")
        }
        DecodingError::LimitsExceeded => {
            ImageError::unsupported(Format::Png, "it needs more memory than the limit")
        }
        other => ImageError::corrupt(Format::Png, other.to_string()),
    }
}
