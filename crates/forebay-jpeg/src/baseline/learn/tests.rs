//! Learned points: pixels and errors in every state of knowledge, and the points themselves.

use super::super::tests::{Kind, Numbers, PLAIN, encode, kinds, random_region};
use super::*;
use crate::baseline::{SeekDensity, SeekPointBuilder};
use crate::learned::{LearnedPoints, SeekPoints};
use crate::{DecodeScale, ImagePart, JpegDecoder, Region, Result, RgbImage};
use libjpeg_turbo_rs::Subsampling;

const SCALES: [DecodeScale; 4] = [
    DecodeScale::Full,
    DecodeScale::Half,
    DecodeScale::Quarter,
    DecodeScale::Eighth,
];

/// Decodes a part, and returns what was learned and whether the known points were used.
fn learn(
    decoder: &mut JpegDecoder,
    jpeg: &[u8],
    part: &ImagePart<'_>,
    known: Option<&LearnedPoints>,
) -> (Result<RgbImage>, Option<LearnedPoints>, bool) {
    let learning = Learning::new(known, None);
    let seek_points = SeekPoints::Learning(&learning);
    let result = decoder.decode_part(
        jpeg,
        &ImagePart {
            seek_points,
            ..*part
        },
    );
    let used = learning.has_used();
    (result, learning.into_learned(), used)
}

fn part(region: Region, scale: DecodeScale) -> ImagePart<'static> {
    ImagePart {
        scale,
        region: Some(region),
        ..ImagePart::default()
    }
}

/// Returns a random part at a random scale, often a small one.
fn random_part(numbers: &mut Numbers, width: usize, height: usize) -> ImagePart<'static> {
    let scale = SCALES[numbers.below(4)];
    let side = |side: usize| side.div_ceil(scale.divisor() as usize);
    part(random_region(numbers, side(width), side(height)), scale)
}

/// Checks that learned points are the first ones of those that a builder makes.
fn check_points(jpeg: &[u8], learned: &LearnedPoints) {
    let step = learned.step();
    let mut builder = SeekPointBuilder::default();
    let stored = builder.build_grid(jpeg, step, 1).unwrap();
    let mut header = Header::default();
    header.read(jpeg).unwrap();
    let (mut all, mut first) = (Points::default(), Points::default());
    let all = all.read(&stored, jpeg, &header).unwrap();
    let known = Learning::new(Some(learned), None);
    let first = start(&known, &mut first, jpeg, &header).unwrap();
    assert!(known.has_used());
    assert_eq!(first.last_row(), usize::from(learned.last_row()));
    assert_eq!(first.points[..], all.points[..first.points.len()]);
    let stored_bytes = learned.encoded().len() + STORED_OVERHEAD;
    assert!(stored_bytes <= jpeg.len() / AUTO_PART);
}

#[test]
fn points_with_any_bytes_do_no_harm() {
    let mut decoder = JpegDecoder::default();
    let mut numbers = Numbers(5);
    assert_eq!(LearnedPoints::from_bytes(&[1; 10]), None);
    for (width, height) in [(97, 64), (203, 311), (33, 700)] {
        let jpeg = encode(PLAIN, width, height);
        let (_, learned, _) = learn(&mut decoder, &jpeg, &ImagePart::default(), None);
        let learned = learned.unwrap();
        assert_eq!(
            LearnedPoints::from_bytes(learned.as_bytes()),
            Some(learned.clone())
        );
        for _ in 0..2000 {
            let mut bytes = learned.as_bytes().to_vec();
            for _ in 0..=numbers.below(3) {
                // The first bytes tell which JPEG it is.
                let at = 8 + numbers.below(bytes.len() - 8);
                bytes[at] = numbers.below(256) as u8;
            }
            bytes.truncate(bytes.len() - numbers.below(2) * numbers.below(20));
            if let Some(wrong) = LearnedPoints::from_bytes(&bytes) {
                let part = random_part(&mut numbers, width, height);
                let (image, ..) = learn(&mut decoder, &jpeg, &part, Some(&wrong));
                let plain = decoder.decode_part(&jpeg, &part).unwrap();
                if let Ok(image) = image {
                    assert_eq!((image.width, image.height), (plain.width, plain.height));
                }
            }
        }
    }
}

#[test]
fn crops_of_several_epochs_equal_those_without_points() {
    let mut decoder = JpegDecoder::default();
    let mut numbers = Numbers(3);
    let (mut used, mut complete, mut steps) = (0, 0, [0; 9]);
    for kind in kinds().into_iter().filter(|kind| kind.restart < 3) {
        for (width, height) in [(8, 300), (97, 64), (203, 311), (33, 700), (340, 200)] {
            let jpeg = encode(kind, width, height);
            let mut known: Option<LearnedPoints> = None;
            for _ in 0..5 {
                let part = random_part(&mut numbers, width, height);
                let plain = decoder.decode_part(&jpeg, &part);
                let (result, learned, was_used) = learn(&mut decoder, &jpeg, &part, known.as_ref());
                assert!(result == plain, "{kind:?} {width}x{height} {part:?}");
                assert_eq!(was_used, known.is_some());
                used += usize::from(was_used);
                if let Some(learned) = learned {
                    assert_eq!(kind.restart, 0);
                    check_points(&jpeg, &learned);
                    assert!(known.is_none_or(|known| learned.replaces(&known)));
                    // The same part again needs no more points.
                    let (again, more, _) = learn(&mut decoder, &jpeg, &part, Some(&learned));
                    assert!(again == plain && more.is_none(), "{kind:?} {part:?}");
                    known = Some(learned);
                } else {
                    continue;
                }
            }
            let whole = ImagePart::default();
            let (_, last, _) = learn(&mut decoder, &jpeg, &whole, known.as_ref());
            // With all points known, the density is that of stored points.
            let auto = SeekPointBuilder::default().build(&jpeg, SeekDensity::Auto);
            let last = last.or(known);
            let mut header = Header::default();
            header.read(&jpeg).unwrap();
            if let (Some(last), Some(auto)) = (last, auto)
                && usize::from(last.last_row()) + usize::from(last.step()) >= header.frame.mcus.1
            {
                assert_eq!(*last.encoded(), auto[16..auto.len() - 4], "{kind:?}");
                steps[usize::from(last.step())] += 1;
                complete += 1;
            }
        }
    }
    assert!(used > 150 && complete > 50, "{used} {complete}");
    assert!(
        steps[1] > 5 && steps[2] > 5 && steps[4] > 5 && steps[8] > 5,
        "{steps:?}"
    );
}

#[test]
fn damaged_files_have_the_same_results_in_every_state() {
    let mut decoder = JpegDecoder::default();
    let mut numbers = Numbers(5);
    let (mut failed, mut used) = (0, 0);
    let intact = ImagePart::default();
    for sampling in [Subsampling::S420, Subsampling::S444, Subsampling::S440] {
        let (width, height) = (100, 500);
        let jpeg = encode(Kind { sampling, ..PLAIN }, width, height);
        // The points of the intact file belong to other bytes.
        let foreign = learn(&mut decoder, &jpeg, &intact, None).1;
        assert!(foreign.is_some());
        for round in 0..40 {
            let mut damaged = jpeg.clone();
            let at = jpeg.len() / 8 + numbers.below(jpeg.len() * 7 / 8);
            match round % 5 {
                0 => damaged[at] ^= 1 << numbers.below(8),
                1 => damaged[at..].fill(0xff),
                2 => drop(damaged.drain(at..at + 9.min(jpeg.len() - at))),
                3 => damaged.truncate(at),
                _ => {
                    damaged.truncate(at);
                    damaged.extend([0xff, 0xd9]);
                }
            }
            let mut states = vec![None, foreign.clone()];
            for epoch in 0..8 {
                let part = match epoch {
                    7 => ImagePart::default(),
                    _ => random_part(&mut numbers, width, height),
                };
                let plain = decoder.decode_part(&damaged, &part);
                failed += usize::from(plain.is_err());
                let mut last = None;
                for (state, known) in states.iter().enumerate() {
                    let (result, learned, was_used) =
                        learn(&mut decoder, &damaged, &part, known.as_ref());
                    assert!(result == plain, "{sampling:?} {round} {state} {part:?}");
                    assert!(learned.is_none() || result.is_ok());
                    assert!(!was_used || state != 1);
                    used += usize::from(was_used);
                    last = learned.or(last);
                }
                states.extend(last.map(Some));
            }
        }
    }
    assert!(failed > 200 && used > 200, "{failed} {used}");
}

#[test]
fn points_of_other_images_are_refused() {
    let mut decoder = JpegDecoder::default();
    let own = encode(PLAIN, 200, 700);
    let other = encode(
        Kind {
            quality: 80,
            ..PLAIN
        },
        200,
        700,
    );
    let (_, foreign, _) = learn(&mut decoder, &other, &ImagePart::default(), None);
    let below = Region {
        x: 20,
        y: 500,
        width: 100,
        height: 150,
    };
    let part = part(below, DecodeScale::Full);
    let plain = decoder.decode_part(&own, &part);
    let (result, learned, used) = learn(&mut decoder, &own, &part, foreign.as_ref());
    assert!(result == plain && !used);
    let (foreign, learned) = (foreign.unwrap(), learned.unwrap());
    // They replace the foreign ones, although they are fewer.
    assert!(foreign.last_row() > learned.last_row());
    assert!(learned.replaces(&foreign) && foreign.replaces(&learned));
    assert!(!learned.replaces(&learned));
    // A checksum of the caller takes the place of the computed one.
    for (checksum, expected) in [
        (None, true),
        (Some(crc32c::crc32c(&own)), true),
        (Some(1), false),
    ] {
        let learning = Learning::new(Some(&learned), checksum);
        let seek_points = SeekPoints::Learning(&learning);
        assert!(
            decoder.decode_part(
                &own,
                &ImagePart {
                    seek_points,
                    ..part
                }
            ) == plain
        );
        assert_eq!(learning.has_used(), expected);
    }
}

/// If a caller passes the same checksum for different images, pixels may be wrong, but nothing else.
#[test]
fn wrong_checksums_of_the_caller_do_no_other_harm() {
    let mut decoder = JpegDecoder::default();
    let mut files: Vec<Vec<u8>> = [(200, 700), (64, 64), (700, 200), (8, 2000)]
        .map(|(width, height)| encode(PLAIN, width, height))
        .to_vec();
    let length = files.iter().map(Vec::len).max().unwrap();
    for file in &mut files {
        file.resize(length, 0);
    }
    for first in &files {
        let learning = Learning::new(None, Some(9));
        let seek_points = SeekPoints::Learning(&learning);
        let whole = ImagePart {
            seek_points,
            ..ImagePart::default()
        };
        decoder.decode_part(first, &whole).unwrap();
        let known = learning.into_learned().unwrap();
        for second in &files {
            let learning = Learning::new(Some(&known), Some(9));
            let seek_points = SeekPoints::Learning(&learning);
            let whole = ImagePart {
                seek_points,
                ..ImagePart::default()
            };
            let _ = decoder.decode_part(second, &whole);
        }
    }
}
