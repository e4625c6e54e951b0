//! Untrusted bytes: clear errors, never a panic, never a large allocation.

use forebay_image::{
    Color, DecodeError, Decoder, EvalTransform, Format, ImageError, Layout, Limits, Region,
    SampleSeed, TrainTransform, Transform, encode_png, probe, sniff, trailing_bytes,
};
use proptest::prelude::*;
use std::path::PathBuf;
use std::time::{Duration, Instant};

fn shipped(path: &str) -> Vec<u8> {
    let path: PathBuf = [env!("CARGO_MANIFEST_DIR"), "../../testdata/images", path]
        .iter()
        .collect();
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

const PLAIN: &str = "train/n02782093/n02782093_11.JPEG";
const PROGRESSIVE: &str = "train/n09332890/n09332890_122.JPEG";
const GRAY: &str = "train/n09193705/n09193705_196.JPEG";
const RESTARTS: &str = "train/n09428293/n09428293_159.JPEG";
const A_PNG: &str = "train/n07747607/n07747607_48.JPEG";
const TRAILING: &str = "train/n11939491/n11939491_233.JPEG";

fn decoder() -> Decoder {
    Decoder::new(Limits::default())
}

/// Returns a JPEG header with this size, almost without data.
fn header_only(width: u16, height: u16) -> Vec<u8> {
    let [w1, w0] = width.to_be_bytes();
    let [h1, h0] = height.to_be_bytes();
    let mut bytes = vec![0xff, 0xd8];
    bytes.extend([
        0xff, 0xc0, 0, 17, 8, h1, h0, w1, w0, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0,
    ]);
    bytes.extend([0xff, 0xda, 0, 12, 3, 1, 0, 2, 0, 3, 0, 0, 63, 0]);
    bytes
}

#[test]
fn headers_are_probed() {
    let of = |path| probe(&shipped(path), &Limits::default()).unwrap();
    assert_eq!(
        (of(PLAIN).format, of(PLAIN).color, of(PLAIN).channels),
        (Format::Jpeg, Color::YCbCr, 3)
    );
    assert_eq!((of(GRAY).color, of(GRAY).channels), (Color::Gray, 1));
    assert!(of(PROGRESSIVE).progressive && !of(RESTARTS).progressive);
    let png = of(A_PNG);
    assert_eq!(
        (png.format, png.width, png.height, png.color),
        (Format::Png, 181, 137, Color::Rgb)
    );
    assert_eq!(trailing_bytes(&shipped(TRAILING)), Some(65));
    assert_eq!(trailing_bytes(&shipped(PLAIN)), Some(0));
    assert_eq!(trailing_bytes(&shipped(A_PNG)), Some(0));
}

#[test]
fn a_prefix_is_probed_or_reports_the_bytes_needed() {
    for path in [PLAIN, PROGRESSIVE, GRAY, A_PNG] {
        let bytes = shipped(path);
        let whole = probe(&bytes, &Limits::default()).unwrap();
        let header = whole.header_bytes as usize;
        for length in 0..header {
            match probe(&bytes[..length], &Limits::default()) {
                Err(ImageError::Image(DecodeError::Incomplete { needed, found, .. })) => {
                    assert_eq!(found, length as u64);
                    assert!(
                        needed > found && needed <= header as u64,
                        "{length}: {needed} of {header}"
                    );
                }
                other => panic!("{path} at {length}: {other:?}"),
            }
        }
        assert_eq!(probe(&bytes[..header], &Limits::default()).unwrap(), whole);
    }
}

#[test]
fn bombs_are_refused_from_their_headers() {
    let started = Instant::now();
    for (bytes, what) in [
        (
            header_only(65_500, 65_500),
            "image has 65500 pixels of width, the limit is 16384",
        ),
        (
            header_only(16_384, 16_384),
            "image has 268435456 pixels, the limit is 67108864",
        ),
    ] {
        assert_eq!(decoder().decode(&bytes).unwrap_err().to_string(), what);
    }
    let mut png = encode_png(&[0; 3], 1, 1);
    png[16..20].copy_from_slice(&100_000u32.to_be_bytes());
    png[20..24].copy_from_slice(&100_000u32.to_be_bytes());
    let error = decoder().decode(&png).unwrap_err();
    assert_eq!(
        error.to_string(),
        "image has 100000 pixels of width, the limit is 16384"
    );
    assert!(
        started.elapsed() < Duration::from_secs(5),
        "{:?}",
        started.elapsed()
    );

    // 16,384 x 4,096 progressive pixels: above the limit because of the coefficients.
    let mut wide = header_only(16_384, 4096);
    wide[3] = 0xc2;
    assert!(matches!(
        decoder().decode(&wide),
        Err(ImageError::Image(DecodeError::OverLimit {
            what: "bytes when decoded",
            ..
        }))
    ));
}

#[test]
fn a_progressive_image_with_too_many_scans_is_refused() {
    let bytes = shipped(PROGRESSIVE);
    let scan = bytes.windows(2).rposition(|w| w == [0xff, 0xda]).unwrap();
    let mut many = bytes[..bytes.len() - 2].to_vec();
    for _ in 0..1000 {
        many.extend_from_slice(&bytes[scan..bytes.len() - 2]);
    }
    many.extend([0xff, 0xd9]);
    let started = Instant::now();
    let error = decoder().decode(&many).unwrap_err();
    assert!(
        matches!(
            error,
            ImageError::Image(DecodeError::OverLimit { what: "scans", .. })
        ),
        "{error}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(1),
        "{:?}",
        started.elapsed()
    );
}

#[test]
fn truncated_files_are_errors() {
    let transform = Transform::Train(TrainTransform::new(32));
    let mut out = vec![0; transform.output_values()];
    for path in [PLAIN, PROGRESSIVE, GRAY, RESTARTS, A_PNG] {
        let bytes = shipped(path);
        // Cuts within the last two bytes keep every pixel; earlier cuts lose some.
        let cuts = (0..bytes.len() - 16)
            .step_by(1 + bytes.len() / 97)
            .chain([bytes.len() / 2]);
        for cut in cuts {
            let error = decoder().decode(&bytes[..cut]).expect_err(path);
            assert!(!error.to_string().is_empty());
            let seed = SampleSeed {
                seed: 0,
                epoch: 0,
                sample: cut as u64,
                occurrence: 0,
            };
            let _ = transform.apply(
                &mut decoder(),
                &bytes[..cut],
                seed,
                &Layout::Nhwc.into(),
                &mut out,
            );
        }
    }
    let error = decoder().decode(&shipped(PLAIN)[..9000]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "JPEG data end early: the file ends inside the image data"
    );
}

#[test]
fn files_that_are_not_images_are_refused() {
    let of = |bytes: &[u8]| decoder().decode(bytes).unwrap_err().to_string();
    assert_eq!(
        of(b"GIF89a and more"),
        "not a JPEG, PNG, WebP or TIFF image: it begins with 47 49 46 38 39 61 20 61"
    );
    assert_eq!(
        of(b""),
        "JPEG header is incomplete: at least 24 bytes are needed, 0 are there"
    );
    assert_eq!(sniff(b"\xff\xd8"), None);
    assert_eq!(
        of(b"\xff\xd8\xff\xd9"),
        "corrupt JPEG: the image ends before its first scan"
    );
}

#[test]
fn options_and_buffers_are_checked() {
    let png = encode_png(&[9; 12], 2, 2);
    let apply = |transform: Transform, length| {
        let mut out = vec![0; length];
        transform.apply(
            &mut decoder(),
            &png,
            SampleSeed::default(),
            &Layout::Nhwc.into(),
            &mut out,
        )
    };
    let expected = ImageError::OutputLength {
        expected: 12,
        found: 11,
    };
    assert_eq!(
        apply(Transform::Train(TrainTransform::new(2)), 11),
        Err(expected)
    );
    for bad in [
        Transform::Train(TrainTransform::new(0)),
        Transform::Train(TrainTransform {
            scale: (0.5, 0.1),
            ..TrainTransform::new(8)
        }),
        Transform::Train(TrainTransform {
            ratio: (0.0, 1.0),
            ..TrainTransform::new(8)
        }),
        Transform::Train(TrainTransform {
            flip: f64::NAN,
            ..TrainTransform::new(8)
        }),
        Transform::Eval(EvalTransform::new(8, 9)),
    ] {
        assert!(
            matches!(apply(bad.clone(), 192), Err(ImageError::Transform { .. })),
            "{bad:?}"
        );
    }
    let header = probe(&png, &Limits::default()).unwrap();
    for region in [(0, 0, 0, 1), (1, 1, 2, 1), (u32::MAX, 0, 2, 1)] {
        let (x, y, width, height) = region;
        let region = Region {
            x,
            y,
            width,
            height,
        };
        let error = decoder().decode_region(&png, &header, region).unwrap_err();
        assert!(
            matches!(error, ImageError::Image(DecodeError::Region { .. })),
            "{error}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn damage_never_panics(
        which in 0usize..5,
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = shipped([PLAIN, PROGRESSIVE, GRAY, RESTARTS, A_PNG][which]);
        for (at, value) in damage {
            // Half of the damage is in the first 700 bytes, where the tables are.
            let range = if value % 2 == 0 { bytes.len() } else { 700 };
            bytes[at.index(range)] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let mut decoder = decoder();
        for transform in [Transform::Train(TrainTransform::new(24)), Transform::Eval(EvalTransform::new(30, 24))] {
            let mut out = vec![0; transform.output_values()];
            let outcome = transform.apply(&mut decoder, &bytes, SampleSeed::default(), &Layout::Nchw.into(), &mut out);
            prop_assert!(!matches!(outcome, Err(ImageError::Decoder { .. })), "{:?}", outcome);
        }
        let _ = trailing_bytes(&bytes);
    }

    #[test]
    fn anything_can_be_probed(bytes in proptest::collection::vec(any::<u8>(), 0..200), magic in 0usize..3) {
        let magic: &[u8] = [b"".as_slice(), b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"][magic];
        let bytes = [magic, &bytes].concat();
        let _ = probe(&bytes, &Limits::default());
        let _ = decoder().decode(&bytes);
        let _ = trailing_bytes(&bytes);
    }
}
