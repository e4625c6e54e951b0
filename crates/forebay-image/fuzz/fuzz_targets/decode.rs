//! Any bytes through the decoders: an image or an error, never a panic, and a region never differs from the whole.
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run decode` in crates/forebay-image.
#![no_main]

use forebay_image::{Decoder, ImageError, Limits, Region, probe};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits {
        max_pixels: 1 << 20,
        max_decoded_bytes: 16 << 20,
        ..Limits::default()
    };
    let mut decoder = Decoder::new(limits);
    let whole = decoder.decode(bytes);
    assert!(
        !matches!(whole, Err(ImageError::Decoder { .. })),
        "{whole:?}"
    );
    let Ok(header) = probe(bytes, &limits) else {
        return;
    };
    let (x, y) = (header.width / 3, header.height / 4);
    let region = Region {
        x,
        y,
        width: header.width - x,
        height: (header.height - y).div_ceil(2),
    };
    let part = decoder.decode_region(bytes, &header, region);
    if let (Ok(whole), Ok(part)) = (whole, part) {
        let row = region.width as usize * 3;
        for (i, line) in part.data.chunks_exact(row).enumerate() {
            let at = ((y as usize + i) * whole.width as usize + x as usize) * 3;
            assert!(line == &whole.data[at..at + row], "row {i} of {region:?}");
        }
    }
});
