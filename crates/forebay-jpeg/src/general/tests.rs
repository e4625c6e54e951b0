//! Compares with Pillow's pixels of testdata/jpeg-kinds, on every instruction set, for whole images
//! and regions, and with the baseline decoder.

use super::*;
use crate::header::JpegHeader;
use crate::region::{Region, RgbImage};
use std::path::PathBuf;

fn folder() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../testdata/jpeg-kinds"]
        .iter()
        .collect()
}

/// The CRC-32 of zip and PNG.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg())
        })
    })
}

fn render(general: &mut General, bytes: &[u8], scale: u32, region: Region) -> RgbImage {
    let limits = Limits::default();
    let picture =
        ParsedJpeg::read(bytes, &limits, Depth::Coefficients(&mut general.stream)).unwrap();
    let mut data = vec![0; region.width as usize * region.height as usize * 3];
    general.render(&picture, scale as usize, &region, &mut data);
    RgbImage {
        width: region.width,
        height: region.height,
        data,
    }
}

fn cut(image: &RgbImage, region: Region) -> Vec<u8> {
    let (x, width) = (region.x as usize * 3, region.width as usize * 3);
    let rows = image.data.chunks_exact(image.width as usize * 3);
    rows.skip(region.y as usize)
        .take(region.height as usize)
        .flat_map(|row| row[x..x + width].iter().copied())
        .collect()
}

fn some_regions(width: u32, height: u32) -> Vec<Region> {
    let mut state = width * 31 + height;
    let mut below = |limit: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % limit
    };
    (0..10)
        .map(|_| {
            let (x, y) = (below(width), below(height));
            Region {
                x,
                y,
                width: 1 + below(width - x),
                height: 1 + below(height - y),
            }
        })
        .collect()
}

#[test]
fn unusual_kinds_equal_pillow_at_every_scale_and_level() {
    let table = std::fs::read_to_string(folder().join("pixels.txt")).unwrap();
    let mut rows = 0;
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split(' ').collect();
        let [name, scale, width, height, crc] = fields[..] else {
            panic!("{line}");
        };
        let [scale, width, height] = [scale, width, height].map(|n| n.parse::<u32>().unwrap());
        let bytes = std::fs::read(folder().join(name)).unwrap();
        let header = JpegHeader::of_jpeg(&bytes).unwrap();
        let size = (header.width.div_ceil(scale), header.height.div_ceil(scale));
        assert_eq!(size, (width, height), "{line}");
        for level in Level::all() {
            let mut general = General {
                level,
                ..General::default()
            };
            let whole = render(&mut general, &bytes, scale, Region::whole(width, height));
            assert_eq!(
                format!("{:08x}", crc32(&whole.data)),
                crc,
                "{line} {level:?}"
            );
            for region in some_regions(width, height) {
                let part = render(&mut general, &bytes, scale, region);
                assert!(part.data == cut(&whole, region), "{line} {region:?}");
            }
        }
        rows += 1;
    }
    assert!(rows >= 340, "{rows} rows");
}

#[test]
fn ordinary_kinds_equal_libjpeg_turbo_rs() {
    use libjpeg_turbo_rs::{Encoder, PixelFormat, Subsampling, decompress_to};
    let samplings = [
        Subsampling::S444,
        Subsampling::S422,
        Subsampling::S420,
        Subsampling::S440,
        Subsampling::S411,
    ];
    let mut general = General::default();
    let mut compared = 0;
    for (i, width) in [1, 2, 5, 8, 16, 17, 33, 70].into_iter().enumerate() {
        for (j, height) in [1, 3, 8, 15, 34, 65].into_iter().enumerate() {
            let pixels: Vec<u8> = (0..width * height * 3)
                .map(|n| (n * (7 + i) / 3 + n / width * 5) as u8)
                .collect();
            let bytes = Encoder::new(&pixels, width, height, PixelFormat::Rgb)
                .quality([30, 75, 95][(i + j) % 3])
                .subsampling(samplings[(i * 3 + j) % samplings.len()])
                .progressive((i + j) % 2 == 0)
                .restart_blocks([0, 0, 3][(i * 2 + j) % 3])
                .encode()
                .unwrap();
            let region = Region::whole(width as u32, height as u32);
            let own = render(&mut general, &bytes, 1, region);
            let reference = decompress_to(&bytes, PixelFormat::Rgb).unwrap();
            assert!(own.data == reference.data, "{width}x{height} {i} {j}");
            compared += 1;
        }
    }
    assert_eq!(compared, 48);
}
