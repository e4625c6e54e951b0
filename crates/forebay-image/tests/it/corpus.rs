//! Replays the fuzz corpus without a fuzzer: the assertions of each target hold for every stored
//! input.

use forebay_image::{
    DecodeError, Decoder, ImageError, Limits, Region, probe, progressive_to_baseline,
    restore_progressive, trailing_bytes,
};
use std::path::Path;

fn corpus(target: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target);
    let entries = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let read =
        |path: std::path::PathBuf| (path.display().to_string(), std::fs::read(&path).unwrap());
    let corpus: Vec<_> = entries.map(read).collect();
    assert!(corpus.len() >= 5, "{} inputs", corpus.len());
    corpus
}

#[test]
fn headers() {
    for (name, bytes) in corpus("probe") {
        for length in 0..=bytes.len() {
            if let Err(ImageError::Image(DecodeError::Incomplete { needed, found, .. })) =
                probe(&bytes[..length], &Limits::default())
            {
                assert!(needed > found, "{name} at {length}");
            }
        }
        let _ = trailing_bytes(&bytes);
    }
}

#[test]
fn pictures() {
    let mut decoder = Decoder::new(Limits::default());
    for (name, bytes) in corpus("decode") {
        let whole = decoder.decode(&bytes);
        let refused = ["bomb", "cut", "damaged", "odd"]
            .iter()
            .any(|what| name.contains(&format!("seed-{what}")));
        match &whole {
            Ok(image) => assert_eq!(
                image.data.len(),
                (3 * image.width * image.height) as usize,
                "{name}"
            ),
            Err(error) => assert!(
                refused && !matches!(error, ImageError::Decoder { .. }),
                "{name}: {error}"
            ),
        }
        let Ok(header) = probe(&bytes, &Limits::default()) else {
            continue;
        };
        let (x, y) = (header.width / 3, header.height / 4);
        let region = Region {
            x,
            y,
            width: header.width - x,
            height: (header.height - y).div_ceil(2),
        };
        if let (Ok(whole), Ok(part)) = (whole, decoder.decode_region(&bytes, &header, region)) {
            let row = region.width as usize * 3;
            for (i, line) in part.data.chunks_exact(row).enumerate() {
                let at = ((y as usize + i) * whole.width as usize + x as usize) * 3;
                assert!(
                    line == &whole.data[at..at + row],
                    "{name}: row {i} of {region:?}"
                );
            }
        }
    }
}

#[test]
fn transcoding() {
    let limits = Limits::default();
    let (mut changed, mut restored) = (0, 0);
    for (name, bytes) in corpus("transcode") {
        // The input is a length (two bytes), a recipe of this length, and a JPEG.
        let Some((length, rest)) = bytes.split_first_chunk::<2>() else {
            continue;
        };
        let length = usize::from(u16::from_be_bytes(*length));
        let Some((recipe, jpeg)) = rest.split_at_checked(length) else {
            continue;
        };
        if let Ok(original) = restore_progressive(jpeg, recipe, &limits) {
            restored += 1;
            let again = progressive_to_baseline(&original, &limits).unwrap();
            assert!(again.jpeg == jpeg && again.recipe == recipe, "{name}");
        }
        if let Some(new) = progressive_to_baseline(jpeg, &limits) {
            changed += 1;
            let original = restore_progressive(&new.jpeg, &new.recipe, &limits);
            assert!(original.as_deref() == Ok(jpeg), "{name}");
        }
    }
    assert!(changed >= 5 && restored >= 1, "{changed} {restored}");
}
