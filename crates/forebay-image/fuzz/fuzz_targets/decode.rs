//! Decodes arbitrary bytes: the result is an image or an error, never a panic, and a region always
//! equals the same part of the whole image. Run `tools/fuzz forebay-image decode`, or
//! `RUSTC_BOOTSTRAP=1 cargo fuzz run decode` in crates/forebay-image.
#![no_main]

use forebay_image::{
    DecodeOptions, Decoder, EvalTransform, ImageError, Layout, Limits, Region, SampleSeed,
    Transform, probe,
};
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
    // Oriented and scaled: arbitrary EXIF data, and the scaled transforms.
    let mut options = DecodeOptions::new(limits);
    (options.exif, options.scaled) = (true, true);
    let mut turned = Decoder::with_options(options);
    let transform = Transform::Eval(EvalTransform::new(12, 8));
    let mut out = vec![0; transform.output_values()];
    let output = Layout::Nchw.into();
    let done = transform.apply(&mut turned, bytes, SampleSeed::default(), &output, &mut out);
    assert!(!matches!(done, Err(ImageError::Decoder { .. })), "{done:?}");
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
