//! JPEG and PNG encoding, for images whose stored bytes cannot or should not be kept, and for images
//! that are given as pixels.
//!
//! The encoder of JPEGs is `libjpeg-turbo-rs` with the defaults of libjpeg (accurate integer DCT, standard
//! Huffman tables, chroma halved in both directions), so the result equals that of TensorFlow's
//! `encode_jpeg` and of Pillow. It contains only the pixels of the original: no EXIF, no ICC
//! profile, no comment.

use crate::decode::{Decoder, Opened};
use crate::error::{ImageError, Result};
use crate::format::{Color, Format, Probe};
use crate::guard::catch_panic;
use crate::output::Layout;
use crate::resize::ResizePlan;
use forebay_jpeg::{Region, RgbImage, SeekPoints};
use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling};

/// Density in the JFIF header, in pixels per inch; the default of TensorFlow's `encode_jpeg`.
const DENSITY: (u8, u16, u16) = (1, 300, 300);

/// The level of zlib for small PNGs, its default.
const SMALL_PNG_LEVEL: u8 = 6;

/// Encodes an image as baseline JPEG, 4:2:0, with a quality of 1 to 100. With `gray` only the first
/// channel is stored, for images whose three channels are equal.
///
/// The same pixels give the same bytes on every machine.
///
/// # Errors
/// [`ImageError::Transform`] for a quality outside of 1 to 100 or if the length of the data does
/// not match the size, [`ImageError::Decoder`] if the encoder fails.
///
/// ```
/// use forebay_image::{Decoder, Limits, RgbImage, encode_jpeg};
///
/// let gray = RgbImage { width: 40, height: 30, data: vec![90; 40 * 30 * 3] };
/// let jpeg = encode_jpeg(&gray, 95, false)?;
/// assert_eq!(Decoder::new(Limits::default()).decode(&jpeg)?, gray);
/// # Ok::<(), forebay_image::ImageError>(())
/// ```
pub fn encode_jpeg(image: &RgbImage, quality: u8, gray: bool) -> Result<Vec<u8>> {
    let invalid = |what: String| ImageError::Transform { what };
    if !(1..=100).contains(&quality) {
        return Err(invalid(format!(
            "a JPEG quality of {quality}, 1 to 100 are possible"
        )));
    }
    let (width, height) = (image.width as usize, image.height as usize);
    let expected = width.checked_mul(height).and_then(|n| n.checked_mul(3));
    if expected != Some(image.data.len()) || width == 0 || height == 0 {
        return Err(invalid(format!(
            "{} bytes of a {width}x{height} picture",
            image.data.len()
        )));
    }
    let one_channel: Vec<u8>;
    let (pixels, format) = if gray {
        one_channel = image.data.iter().step_by(3).copied().collect();
        (one_channel.as_slice(), PixelFormat::Grayscale)
    } else {
        (image.data.as_slice(), PixelFormat::Rgb)
    };
    let encode = || {
        Encoder::new(pixels, width, height, format)
            .quality(quality)
            .subsampling(Subsampling::S420)
            .force_baseline(true)
            .density(DENSITY.0, DENSITY.1, DENSITY.2)
            .encode()
            .map_err(|error| error.to_string())
    };
    let failed = |what: String| ImageError::Decoder {
        format: Format::Jpeg,
        what,
    };
    match catch_panic(encode) {
        Ok(encoded) => encoded.map_err(failed),
        Err(_) => Err(failed("the encoder panicked".into())),
    }
}

/// The pixel format of data for [`encode_png_samples`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SampleFormat {
    /// One byte.
    Gray8,
    /// One number of two bytes, the lower one first.
    Gray16,
    /// Three bytes: red, green, blue.
    Rgb8,
}

impl SampleFormat {
    /// Returns the size of a pixel in bytes.
    pub const fn pixel_bytes(self) -> usize {
        match self {
            Self::Gray8 => 1,
            Self::Gray16 => 2,
            Self::Rgb8 => 3,
        }
    }
}

/// Effort of PNG compression. Both levels are lossless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PngCompression {
    /// For many photographs: a ninth of the time of `Small`, files a tenth larger.
    Fast,
    /// For masks and drawings, whose areas of one color repeat: about half the size of `Fast`.
    Small,
}

/// Encodes pixels as PNG, without loss; `data` holds them row by row, without gaps.
///
/// The same pixels give the same bytes on every machine.
///
/// # Errors
/// [`ImageError::Transform`] if the length of the data does not match the size, or a side is 0.
///
/// ```
/// use forebay_image::{Decoder, Limits, PngCompression, SampleFormat, encode_png_samples};
///
/// let png = encode_png_samples(&[7, 8, 9, 10], 2, 2, SampleFormat::Gray8, PngCompression::Fast)?;
/// let decoded = Decoder::new(Limits::default()).decode(&png)?;
/// assert_eq!(decoded.data, [7, 7, 7, 8, 8, 8, 9, 9, 9, 10, 10, 10]);
/// # Ok::<(), forebay_image::ImageError>(())
/// ```
pub fn encode_png_samples(
    data: &[u8],
    width: u32,
    height: u32,
    format: SampleFormat,
    compression: PngCompression,
) -> Result<Vec<u8>> {
    let pixels = u64::from(width) * u64::from(height);
    if pixels.checked_mul(format.pixel_bytes() as u64) != Some(data.len() as u64) || pixels == 0 {
        return Err(ImageError::Transform {
            what: format!("{} bytes of a {width}x{height} picture", data.len()),
        });
    }
    let swapped: Vec<u8>;
    let (color, depth, data) = match format {
        SampleFormat::Gray8 => (png::ColorType::Grayscale, png::BitDepth::Eight, data),
        SampleFormat::Rgb8 => (png::ColorType::Rgb, png::BitDepth::Eight, data),
        SampleFormat::Gray16 => {
            // PNG stores the higher byte first.
            swapped = data
                .chunks_exact(2)
                .flat_map(|two| [two[1], two[0]])
                .collect();
            (
                png::ColorType::Grayscale,
                png::BitDepth::Sixteen,
                &swapped[..],
            )
        }
    };
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, width, height);
    encoder.set_color(color);
    encoder.set_depth(depth);
    encoder.set_deflate_compression(match compression {
        PngCompression::Fast => png::DeflateCompression::FdeflateUltraFast,
        PngCompression::Small => png::DeflateCompression::Level(SMALL_PNG_LEVEL),
    });
    encoder.set_filter(png::Filter::Adaptive);
    let written = encoder
        .write_header()
        .and_then(|mut writer| writer.write_image_data(data));
    written.map_err(|error| ImageError::Decoder {
        format: Format::Png,
        what: error.to_string(),
    })?;
    Ok(out)
}

/// The size to which larger images are reduced. Smaller images are not enlarged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Shrink {
    /// Length of the short side in pixels, for images in which it is longer.
    pub short: Option<u32>,
    /// Maximum length of the long side, in pixels.
    pub long: Option<u32>,
}

impl Shrink {
    /// Returns the new size of an image, or `None` if it is small enough. The aspect ratio is kept:
    /// the other side is rounded down, as in torchvision, and at least 1.
    ///
    /// ```
    /// use forebay_image::Shrink;
    ///
    /// let short = Shrink { short: Some(256), long: None };
    /// assert_eq!(short.size(500, 375), Some((341, 256)));
    /// assert_eq!(short.size(500, 256), None);
    /// let both = Shrink { short: Some(256), long: Some(300) };
    /// assert_eq!(both.size(500, 375), Some((300, 225)));
    /// ```
    pub fn size(&self, width: u32, height: u32) -> Option<(u32, u32)> {
        let scaled = |side: u32, to: u32, of: u32| {
            let side = u64::from(side) * u64::from(to) / u64::from(of.max(1));
            u32::try_from(side).unwrap_or(u32::MAX).max(1)
        };
        let (short, long) = (width.min(height), width.max(height));
        // Both are fractions of the original size, so the smaller fraction decides.
        let by_short = self.short.filter(|n| *n < short).map(|n| (n, short));
        let by_long = self.long.filter(|n| *n < long).map(|n| (n, long));
        let (to, of) = match (by_short, by_long) {
            (Some(a), Some(b)) => {
                let less = u64::from(a.0) * u64::from(b.1) < u64::from(b.0) * u64::from(a.1);
                if less { a } else { b }
            }
            (a, b) => a.or(b)?,
        };
        Some((scaled(width, to, of), scaled(height, to, of)))
    }
}

impl Decoder {
    /// Decodes a whole image and resizes it to `width` by `height`, with the pixels of Pillow's
    /// `resize((width, height), BILINEAR)`. `probe` is the result of [`probe`](crate::probe()) for
    /// these bytes.
    ///
    /// # Errors
    /// As [`Decoder::decode`], and [`ImageError::Transform`] for an empty or larger size.
    pub fn decode_shrunk(
        &mut self,
        bytes: &[u8],
        probe: &Probe,
        width: u32,
        height: u32,
    ) -> Result<RgbImage> {
        // The result is never larger than the image, which is within the limits.
        if !(1..=probe.width).contains(&width) || !(1..=probe.height).contains(&height) {
            return Err(ImageError::Transform {
                what: format!(
                    "{width}x{height} pixels from {}x{}",
                    probe.width, probe.height
                ),
            });
        }
        let region = self.resizer.plan(&ResizePlan {
            input: (probe.width, probe.height),
            output: (width, height),
            window: Region::whole(width, height),
            flip: false,
        });
        let mut data = vec![0; 3 * width as usize * height as usize];
        let picture = Opened::stored(*probe);
        self.resize(
            bytes,
            &picture,
            region,
            SeekPoints::None,
            Layout::Nhwc,
            &mut data,
        )?;
        Ok(RgbImage {
            width,
            height,
            data,
        })
    }
}

impl Color {
    /// Returns whether decoding gives three equal channels.
    pub const fn is_gray(self) -> bool {
        matches!(self, Self::Gray | Self::GrayAlpha)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, encode_png, probe, resize};

    fn picture(width: u32, height: u32) -> RgbImage {
        let data = (0..height)
            .flat_map(|y| (0..width).flat_map(move |x| [x as u8, y as u8, (x + y) as u8]))
            .collect();
        RgbImage {
            width,
            height,
            data,
        }
    }

    #[test]
    fn encoded_jpegs_hold_the_same_image() {
        let image = picture(67, 45);
        let bytes = encode_jpeg(&image, 100, false).unwrap();
        let probe = probe(&bytes, &Limits::default()).unwrap();
        assert_eq!((probe.width, probe.height, probe.channels), (67, 45, 3));
        assert_eq!((probe.color, probe.progressive), (Color::YCbCr, false));
        // JFIF 1.01, 300 pixels per inch; chroma halved in both directions.
        assert_eq!(&bytes[6..18], b"JFIF\0\x01\x01\x01\x01\x2c\x01\x2c");
        let decoded = Decoder::default().decode(&bytes).unwrap();
        let far = decoded.data.iter().zip(&image.data);
        let far = far.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
        assert!(far < 12, "{far}");
    }

    #[test]
    fn gray_pictures_stay_gray() {
        let data = (0..30 * 20).flat_map(|i| [(i % 251) as u8; 3]).collect();
        let image = RgbImage {
            width: 30,
            height: 20,
            data,
        };
        let bytes = encode_jpeg(&image, 90, true).unwrap();
        let probe = probe(&bytes, &Limits::default()).unwrap();
        assert_eq!((probe.channels, probe.color), (1, Color::Gray));
    }

    #[test]
    fn invalid_arguments_are_refused() {
        let image = picture(4, 4);
        for quality in [0, 101, 255] {
            assert!(encode_jpeg(&image, quality, false).is_err());
        }
        for (width, height) in [(0, 0), (4, 5), (u32::MAX, u32::MAX)] {
            let bad = RgbImage {
                width,
                height,
                ..image.clone()
            };
            assert!(encode_jpeg(&bad, 90, false).is_err());
        }
    }

    #[test]
    fn png_keeps_every_sample() {
        let gray16: Vec<u8> = (0..12u16).flat_map(|n| (n * 5461).to_le_bytes()).collect();
        for compression in [PngCompression::Fast, PngCompression::Small] {
            let png = encode_png_samples(&gray16, 4, 3, SampleFormat::Gray16, compression).unwrap();
            let mut reader = png::Decoder::new(std::io::Cursor::new(&png))
                .read_info()
                .unwrap();
            let mut found = vec![0; gray16.len()];
            let info = reader.next_frame(&mut found).unwrap();
            assert_eq!((info.width, info.height), (4, 3));
            assert_eq!(info.bit_depth, png::BitDepth::Sixteen);
            let expected: Vec<u8> = (0..12u16).flat_map(|n| (n * 5461).to_be_bytes()).collect();
            assert_eq!(found, expected);
        }
        for (width, height, bytes) in [(4, 3, 23), (0, 0, 0), (u32::MAX, u32::MAX, 24)] {
            let data = &gray16[..bytes];
            let fast = PngCompression::Fast;
            let refused = encode_png_samples(data, width, height, SampleFormat::Gray16, fast);
            assert!(refused.is_err(), "{width}x{height}");
        }
    }

    #[test]
    fn fast_png_keeps_pixels_of_any_kind() {
        // One value everywhere; noise, which codes for photographs enlarge; rows of one pixel; a single row.
        let noise = |n: u32| n.wrapping_mul(2_654_435_761).rotate_left(13) as u8;
        let images: [(u32, u32, Vec<u8>); 4] = [
            (64, 50, vec![0; 64 * 50 * 3]),
            (64, 50, (0..64 * 50 * 3).map(noise).collect()),
            (1, 999, (0..2997).map(|n| n as u8 / 7).collect()),
            (999, 1, (0..2997).map(noise).collect()),
        ];
        for (width, height, data) in images {
            for compression in [PngCompression::Fast, PngCompression::Small] {
                let rgb = SampleFormat::Rgb8;
                let png = encode_png_samples(&data, width, height, rgb, compression).unwrap();
                let decoded = Decoder::default().decode(&png).unwrap();
                assert_eq!(decoded.data, data, "{width}x{height} {compression:?}");
                assert!(
                    png.len() < data.len() + data.len() / 50 + 120,
                    "{}",
                    png.len()
                );
            }
        }
    }

    #[test]
    fn sizes_keep_the_aspect_and_never_grow() {
        let short = |n| Shrink {
            short: Some(n),
            long: None,
        };
        let long = |n| Shrink {
            short: None,
            long: Some(n),
        };
        assert_eq!(Shrink::default().size(9000, 9000), None);
        assert_eq!(short(256).size(375, 500), Some((256, 341)));
        assert_eq!(short(256).size(256, 10_000), None);
        assert_eq!(long(256).size(500, 375), Some((256, 192)));
        assert_eq!(long(500).size(500, 375), None);
        assert_eq!(long(10).size(5000, 3), Some((10, 1)));
        let both = Shrink {
            short: Some(100),
            long: Some(400),
        };
        assert_eq!(both.size(800, 400), Some((200, 100)));
        assert_eq!(both.size(8000, 400), Some((400, 20)));
    }

    #[test]
    fn shrinking_equals_decoding_and_resizing() {
        let image = picture(90, 61);
        let png = encode_png(&image.data, 90, 61);
        let mut decoder = Decoder::default();
        let probe = probe(&png, &Limits::default()).unwrap();
        let shrunk = decoder.decode_shrunk(&png, &probe, 40, 27).unwrap();
        assert_eq!(shrunk, resize(&image, 40, 27).unwrap());
        assert!(decoder.decode_shrunk(&png, &probe, 91, 61).is_err());
        assert!(decoder.decode_shrunk(&png, &probe, 0, 1).is_err());
    }
}
