//! Replays the fuzz corpus without a fuzzer: seek points change no pixel of any stored input.

use forebay_jpeg::{ImagePart, JpegDecoder, Region, SeekPoints, build_seek_points, read_header};
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
fn seek_points() {
    let mut decoder = JpegDecoder::default();
    let (mut plain, mut other) = (Vec::new(), Vec::new());
    let mut used = 0;
    for (name, bytes) in corpus("jpeg") {
        // The first byte is the length of the seek points; the stored inputs have none.
        let (&0, jpeg) = bytes.split_first().unwrap() else {
            panic!("{name}: seek points in the input");
        };
        let Ok(header) = read_header(jpeg) else {
            continue;
        };
        let (x, y) = (header.width / 3, header.height / 4);
        let region = Region {
            x,
            y,
            width: header.width - x,
            height: (header.height - y).div_ceil(2),
        };
        let part = ImagePart {
            region: Some(region),
            ..ImagePart::default()
        };
        let decoded = decoder.decode_part_into(jpeg, &part, &mut plain);
        if let Some(points) = build_seek_points(jpeg) {
            used += 1;
            let part = ImagePart {
                seek_points: SeekPoints::Stored(&points),
                ..part
            };
            let again = decoder.decode_part_into(jpeg, &part, &mut other);
            assert_eq!(again, decoded, "{name}");
            assert!(other == plain, "{name}");
        }
    }
    assert!(used > 0);
}
