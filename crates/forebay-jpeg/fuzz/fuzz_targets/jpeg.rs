//! Decodes arbitrary bytes as a JPEG with arbitrary seek points: the region decoder gives the
//! pixels of the general decoder or an error, and points never change pixels (except forged ones,
//! which a fuzzer can create: they must only be harmless). Run `tools/fuzz forebay-jpeg jpeg`, or
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run jpeg` in crates/forebay-jpeg.
//!
//! The input is a length (one byte), that many bytes of seek points, and the JPEG.
#![no_main]

#[path = "../quiet.rs"]
mod quiet;

use forebay_jpeg::{
    Encoding, ImagePart, JpegDecoder, Limits, Region, SeekDensity, SeekPointBuilder, read_header,
};
use libfuzzer_sys::fuzz_target;
use libjpeg_turbo_rs::PixelFormat;

fuzz_target!(|input: &[u8]| {
    quiet::init();
    let Some((points, jpeg)) = input
        .split_first()
        .and_then(|(&length, rest)| rest.split_at_checked(usize::from(length)))
    else {
        return;
    };
    let limits = Limits {
        max_pixels: 1 << 20,
        max_decoded_bytes: 16 << 20,
        ..Limits::default()
    };
    let Ok(header) = read_header(jpeg) else {
        return;
    };
    if header.encoding != Encoding::Jpeg || header.color.channels() == 4 {
        return;
    }
    let (x, y) = (header.width / 3, header.height / 4);
    let region = Region {
        x,
        y,
        width: header.width - x,
        height: (header.height - y).div_ceil(2),
    };
    let mut decoder = JpegDecoder::new(limits);
    let (mut plain, mut other) = (Vec::new(), Vec::new());
    let mut decode = |seek_points: Option<&[u8]>, out: &mut Vec<u8>| {
        let part = ImagePart {
            region: Some(region),
            seek_points: seek_points.into(),
            ..ImagePart::default()
        };
        decoder.decode_part_into(jpeg, &part, out)
    };
    let decoded = decode(None, &mut plain);
    let damage = usize::from(points.first().copied().unwrap_or(0));
    let density = match damage % 3 {
        0 => SeekDensity::Auto,
        1 => SeekDensity::Rows,
        _ => SeekDensity::Fine,
    };
    let mut builder = SeekPointBuilder::default();
    let own = builder.build(jpeg, density);
    let _ = decode(Some(points), &mut other);
    if let Some(mut own) = own {
        assert!(builder.is_right(jpeg, &own));
        for change in [0, 1] {
            if let Some(byte) = own.get_mut(damage) {
                *byte ^= change;
            }
            let again = decode(Some(&own), &mut other);
            assert_eq!(again, decoded);
            assert!(again.is_err() || other == plain);
        }
    }
    // libjpeg-turbo-rs supports fewer of the other kinds, and does not estimate missing scans.
    if !builder.has_read_all() {
        return;
    }
    let general =
        std::panic::catch_unwind(|| libjpeg_turbo_rs::decompress_to(jpeg, PixelFormat::Rgb));
    if let (Ok(_), Ok(Ok(general))) = (decoded, general) {
        let row = region.width as usize * 3;
        for (i, line) in plain.chunks_exact(row).enumerate() {
            let at = ((y as usize + i) * general.width + x as usize) * 3;
            assert!(line == &general.data[at..at + row], "row {i} of {region:?}");
        }
    }
});
