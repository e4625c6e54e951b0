//! Every decoder against the reference of its format, region by region.

use super::*;
use std::path::{Path, PathBuf};

/// The images the project ships, and those in `$FOREBAY_BENCH_IMAGES`.
fn images() -> Vec<PathBuf> {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let mut folders = vec![shipped];
    folders.extend(std::env::var_os("FOREBAY_BENCH_IMAGES").map(PathBuf::from));
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()))
        {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.extension().is_some_and(|e| e == "JPEG") => found.push(path),
                false => {}
            }
        }
    }
    found.sort();
    assert!(found.len() >= 60, "{} images", found.len());
    found
}

fn cut(image: &RgbImage, region: &Region) -> Vec<u8> {
    let (x, width) = (region.x as usize * 3, region.width as usize * 3);
    let rows = image.data.chunks_exact(image.width as usize * 3);
    rows.skip(region.y as usize)
        .take(region.height as usize)
        .flat_map(|row| row[x..x + width].iter().copied())
        .collect()
}

/// Decodes with one decoder, or says that it declined.
fn with(
    decode: fn(&Job<'_>, &mut Scratch, &mut Canvas) -> Result<Outcome>,
    scratch: &mut Scratch,
    bytes: &[u8],
    region: Option<Region>,
) -> Option<RgbImage> {
    let limits = Limits::default();
    let probe = probe(bytes, &limits).unwrap();
    let region = region.unwrap_or(Region::whole(probe.width, probe.height));
    let mut canvas = Canvas::default();
    let job = Job {
        bytes,
        probe: &probe,
        region,
        limits: &limits,
    };
    if decode(&job, scratch, &mut canvas).unwrap() == Outcome::Declined {
        return None;
    }
    assert!(canvas.holds(&region));
    Some(canvas.cut(&region))
}

/// Regions at every alignment, at the edges, tiny and large.
fn regions(width: u32, height: u32, count: u32) -> Vec<Region> {
    let mut state = width * 31 + height;
    let mut next = |n: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % n
    };
    let mut regions = vec![
        Region::whole(width, height),
        Region {
            x: width - 1,
            y: height - 1,
            width: 1,
            height: 1,
        },
        Region {
            x: 0,
            y: 0,
            width: 1,
            height: 1,
        },
    ];
    for _ in 0..count {
        let (x, y) = (next(width), next(height));
        let (w, h) = (1 + next(width - x), 1 + next(height - y));
        regions.push(Region {
            x,
            y,
            width: w,
            height: h,
        });
    }
    regions
}

#[test]
fn regions_are_cut_from_the_full_picture() {
    let mut decoder = Decoder::new(Limits::default());
    let mut scratch = Scratch::default();
    let mut own = 0;
    for path in images() {
        let bytes = std::fs::read(&path).unwrap();
        let probe = probe(&bytes, &Limits::default()).unwrap();
        let reference = match probe.format {
            Format::Jpeg => with(jpeg_turbo::decode, &mut scratch, &bytes, None).unwrap(),
            Format::Png => with(png::decode, &mut scratch, &bytes, None).unwrap(),
        };
        for region in regions(probe.width, probe.height, 12) {
            let expected = cut(&reference, &region);
            let got = decoder.decode_region(&bytes, &probe, region).unwrap();
            assert!(got.data == expected, "{} {region:?}", path.display());
            if probe.format == Format::Jpeg {
                let got = with(jpeg_baseline::decode, &mut scratch, &bytes, Some(region));
                own += usize::from(got.is_some());
                assert!(
                    got.is_none_or(|got| got.data == expected),
                    "{} {region:?}",
                    path.display()
                );
            }
        }
    }
    assert!(
        own >= 58 * 15,
        "{own} regions went through the faster decoder"
    );
}
