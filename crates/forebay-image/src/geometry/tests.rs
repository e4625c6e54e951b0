//! Compares steps with torchvision's v2 (testdata/golden-geometry, made by
//! tools/golden/make_golden_geometry.py).

use super::*;
use crate::ops::{inverse_matrix, middle};
use crate::pixels::rotation;
use crate::resize::{CropPlan, ResizePlan};
use forebay_jpeg::Region;

fn table(name: &str) -> Vec<Vec<String>> {
    let path = format!(
        "{}/../../testdata/golden-geometry/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect()
}

/// The CRC-32 of zip and PNG.
fn crc32(bytes: &[u8]) -> String {
    let crc = !bytes.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |c, _| {
            (c >> 1) ^ (0xedb8_8320 & (c & 1).wrapping_neg())
        })
    });
    format!("{crc:08x}")
}

fn numbers(text: &str) -> Vec<f64> {
    text.split(',').map(|n| n.parse().unwrap()).collect()
}

fn rows<const N: usize>(text: &str) -> Vec<[f64; N]> {
    text.split(';')
        .map(|row| numbers(row).try_into().unwrap())
        .collect()
}

fn stored<const N: usize>(text: &str) -> Vec<[f32; N]> {
    rows(text).iter().map(|row| row.map(|n| n as f32)).collect()
}

fn indices(text: &str) -> Vec<usize> {
    let listed = text.split(',').filter(|index| *index != "-");
    listed.map(|index| index.parse().unwrap()).collect()
}

/// Adds a step from its text in the file of the golden script.
fn push(map: &mut SpatialMap, text: &str) {
    let (width, height) = map.output();
    let (kind, parameters) = text.split_once(':').unwrap_or((text, "0"));
    let size = (f64::from(width), f64::from(height));
    match (kind, numbers(parameters).as_slice()) {
        ("hflip", _) => map.push(SpatialStep::FlipHorizontal),
        ("vflip", _) => map.push(SpatialStep::FlipVertical),
        ("crop", &[x, y, width, height]) => map.push(SpatialStep::Crop {
            x: x as i64,
            y: y as i64,
            width: width as u32,
            height: height as u32,
            centers: false,
        }),
        ("resize", &[width, height]) => map.push(SpatialStep::Resize {
            width: width as u32,
            height: height as u32,
        }),
        ("center", &[to_width, to_height]) => {
            let to = (to_width as u32, to_height as u32);
            let plan = CropPlan {
                origin: (0, 0),
                centers: false,
                resize: ResizePlan {
                    input: (width, height),
                    output: (width, height),
                    window: middle((width, height), (to.0.min(width), to.1.min(height))),
                    flip: false,
                },
            };
            plan.track(map, to);
        }
        ("rotate", &[degrees]) => {
            let step = rotation(size, degrees).map(|inverse| SpatialStep::Warp { inverse });
            step.into_iter().for_each(|step| map.push(step));
        }
        ("affine", &[degrees, x, y, scale, shear_x, shear_y]) => {
            let inverse = inverse_matrix(size, degrees, (x, y), scale, (shear_x, shear_y));
            map.push(SpatialStep::Warp { inverse });
        }
        other => panic!("{other:?}"),
    }
}

fn ids<T>(width: u32, height: u32, id: impl Fn(u32, u32) -> T) -> Vec<T> {
    let rows = (0..height).flat_map(|y| (0..width).map(move |x| (x, y)));
    rows.map(|(x, y)| id(x, y)).collect()
}

fn small_ids(width: u32, height: u32) -> Mask {
    let id = |x: u32, y: u32| ((x * 7 + y * 13 + x * y / 5) % 251) as u8;
    Mask {
        width,
        height,
        ids: MaskIds::Uint8(ids(width, height, id)),
    }
}

fn checksum(mask: &Mask) -> String {
    match &mask.ids {
        MaskIds::Uint8(ids) => crc32(ids),
        MaskIds::Int32(ids) => {
            let bytes: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
            crc32(&bytes)
        }
    }
}

#[track_caller]
fn assert_close<const N: usize>(found: &[[f32; N]], expected: &[[f64; N]], row: &[String]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        let error = (f64::from(*found) - expected).abs();
        // Points far outside have coordinates above a thousand pixels, which binary32 rounds.
        let least = 1e-4 * (expected.abs() / 1000.0).max(1.0);
        assert!(error <= least, "{found} is not {expected}: {row:?}");
    }
}

#[test]
fn chains_of_steps_match_torchvision() {
    let table = table("chains.txt");
    assert_eq!(table.len(), 170);
    for row in &table {
        let [width, height] = [0, 1].map(|i| row[i].parse::<u32>().unwrap());
        let mut map = SpatialMap::new(width, height);
        row[2].split('/').for_each(|step| push(&mut map, step));
        let boxes = stored(&row[3]);
        let all = map.boxes(&boxes, true);
        let corners: Vec<_> = all.iter().map(|(_, corners)| *corners).collect();
        assert_close(&corners, &rows::<4>(&row[5]), row);
        let kept = map.boxes(&boxes, false);
        let kept: Vec<_> = kept.iter().map(|(index, _)| *index).collect();
        assert_eq!(kept, indices(&row[6]), "{row:?}");
        let points = map.keypoints(&stored(&row[4]), &mut [2; 3]);
        assert_close(&points, &rows::<2>(&row[7]), row);
        assert_eq!(
            checksum(&map.mask(&small_ids(width, height)).unwrap()),
            row[8],
            "{row:?}"
        );
        let every = ids(width, height, |x, y| (x + y * width + 1) as i32);
        let mask = Mask {
            width,
            height,
            ids: MaskIds::Int32(every),
        };
        assert_eq!(checksum(&map.mask(&mask).unwrap()), row[9], "{row:?}");
    }
}

#[test]
fn resized_masks_match_torchs_nearest() {
    let table = table("nearest.txt");
    assert_eq!(table.len(), 60);
    for row in &table {
        let [width, new] = [0, 1].map(|i| row[i].parse::<u32>().unwrap());
        let mut map = SpatialMap::new(width, 1);
        map.push(SpatialStep::Resize {
            width: new,
            height: 1,
        });
        let ids = (0..width as i32).collect();
        let mask = Mask {
            width,
            height: 1,
            ids: MaskIds::Int32(ids),
        };
        let expected = indices(&row[2]).iter().map(|&index| index as i32).collect();
        assert_eq!(
            map.mask(&mask).unwrap().ids,
            MaskIds::Int32(expected),
            "{row:?}"
        );
    }
}

#[test]
fn the_map_is_the_composition_of_its_steps() {
    for row in &table("chains.txt") {
        let [width, height] = [0, 1].map(|i| row[i].parse::<u32>().unwrap());
        let mut map = SpatialMap::new(width, height);
        map.push(SpatialStep::Transpose);
        row[2].split('/').for_each(|step| push(&mut map, step));
        let (whole, back) = (map.affine(), map.affine().inverse());
        for point in [[0.0, 0.0], [3.0, 7.5], [-4.0, 100.0]] {
            let moved = map
                .sized_steps()
                .fold(point, |point, (step, size)| step.affine(size).apply(point));
            let close = |a: [f64; 2], b: [f64; 2]| (0..2).all(|i| (a[i] - b[i]).abs() < 1e-8);
            assert!(close(whole.apply(point), moved), "{row:?}");
            assert!(close(back.apply(moved), point), "{row:?}");
        }
    }
}

#[test]
fn points_outside_of_the_output_are_not_visible() {
    let mut map = SpatialMap::new(10, 20);
    push(&mut map, "crop:5,5,4,10");
    let mut visibility = [2, 1, 2, 2];
    let stored = [[0.5, 0.25], [0.8, 0.7], [0.95, 0.5], [0.5, 0.2]];
    let points = map.keypoints(&stored, &mut visibility);
    assert_eq!(points[..2], [[0.0, 0.0], [3.0, 9.0]]);
    assert_eq!(visibility, [2, 1, 0, 0]);
}

#[test]
fn a_mask_of_another_size_is_refused() {
    let error = SpatialMap::new(10, 20)
        .mask(&small_ids(20, 10))
        .unwrap_err();
    assert_eq!(error.to_string(), "mask is 20x10, its image is 10x20");
}

#[test]
fn extreme_boxes_stay_inside() {
    let mut map = SpatialMap::new(10, 20);
    push(&mut map, "rotate:33.0");
    push(&mut map, "resize:7,9");
    let most = f32::MAX;
    let stored = [[-most, -most, most, most], [most, most, -most, -most]];
    let placed = map.boxes(&stored, true);
    let inside = |corners: &[f32; 4]| {
        let [x0, y0, x1, y1] = *corners;
        [x0, x1].iter().all(|x| (0.0..=7.0).contains(x))
            && [y0, y1].iter().all(|y| (0.0..=9.0).contains(y))
    };
    assert!(
        placed.iter().all(|(_, corners)| inside(corners)),
        "{placed:?}"
    );
    let points = map.keypoints(&[[most, -most]], &mut [2]);
    assert!(points[0].iter().all(|at| at.is_finite()));
}

#[test]
fn the_window_is_mirrored_before_its_border_is_added() {
    let plan = CropPlan {
        origin: (1, 0),
        centers: true,
        resize: ResizePlan {
            input: (4, 6),
            output: (4, 6),
            window: Region {
                x: 0,
                y: 1,
                width: 4,
                height: 4,
            },
            flip: true,
        },
    };
    let mut map = SpatialMap::new(6, 6);
    plan.track(&mut map, (7, 4));
    assert_eq!(map.output_size(), (4, 7));
    let MaskIds::Uint8(ids) = map.mask(&small_ids(6, 6)).unwrap().ids else {
        panic!("numbers of one byte")
    };
    // Row 1, columns 4 to 1 (mirrored), with one column of border before and two after.
    let id = |x: u8| x * 7 + 13 + x / 5;
    assert_eq!(ids[..7], [0, id(4), id(3), id(2), id(1), 0, 0]);
}
