//! Packed seek points are correct, and the images with them are unchanged.

use crate::support;

use forebay_image::{SeekDensity, SeekPointBuilder};
use forebay_pack::DatasetFormat;
use forebay_shard::{Codec, Dataset, Manifest, image_record};
use std::collections::BTreeMap;
use std::path::Path;
use support::*;

/// Image and seek points of a record.
type Found = (Vec<u8>, Option<Vec<u8>>);

/// Packs the repository's images, and returns image and seek points by key.
fn packed(
    dst: &Path,
    density: Option<SeekDensity>,
    format: DatasetFormat,
) -> BTreeMap<Vec<u8>, Found> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
    let mut options = options(&src, dst);
    (options.seek_points, options.format) = (density, format);
    let summary = run(&options).unwrap();
    let mut found = BTreeMap::new();
    let mut count = forebay_pack::SeekPointCount::default();
    let dataset = Dataset::open(dst).unwrap();
    let names: Vec<String> = dataset.splits().map(str::to_owned).collect();
    for name in names {
        let split = dataset.split(&name).unwrap();
        let mut bytes = Vec::new();
        for i in 0..split.len() {
            split.read(i, &mut bytes).unwrap();
            let record = image_record(&bytes).unwrap();
            let points = record.seek_points.map(<[u8]>::to_vec);
            count.images += u64::from(points.is_some());
            count.bytes += points.as_ref().map_or(0, |points| points.len() as u64);
            found.insert(split.key(i).unwrap(), (record.image.to_vec(), points));
        }
    }
    assert_eq!(summary.seek_points, count);
    // The same command finds the dataset complete, and reports the same counts.
    assert_eq!(run(&options).unwrap().seek_points, count);
    let manifest = Manifest::load(dst).unwrap();
    let listed = manifest
        .features
        .iter()
        .any(|feature| feature.name == "image/seek_points");
    assert_eq!(listed, count.images > 0);
    found
}

#[test]
fn images_get_the_requested_seek_points() {
    let dir = tempfile::tempdir().unwrap();
    let mut builder = SeekPointBuilder::default();
    let plain = packed(&dir.path().join("off"), None, DatasetFormat::TfRecord);
    assert!(plain.values().all(|(_, points)| points.is_none()));
    for (name, density, format) in [
        ("auto", SeekDensity::Auto, DatasetFormat::TfRecord),
        ("on", SeekDensity::Rows, DatasetFormat::INDEXED),
        (
            "fine",
            SeekDensity::Fine,
            DatasetFormat::Indexed(Codec::ZSTD.into()),
        ),
    ] {
        let found = packed(&dir.path().join(name), Some(density), format);
        assert_eq!(found.len(), plain.len());
        let mut with = 0;
        for (key, (image, points)) in &found {
            assert_eq!(image, &plain[key].0);
            assert_eq!(points, &builder.build(image, density));
            with += usize::from(points.is_some());
            if density == SeekDensity::Auto {
                assert!(
                    points
                        .as_ref()
                        .is_none_or(|points| points.len() * 100 <= image.len())
                );
            }
        }
        assert!(with > 0, "{name}");
    }
}

#[test]
fn other_seek_points_make_another_pack() {
    let dir = tempfile::tempdir().unwrap();
    let (src, dst) = (dir.path().join("src"), dir.path().join("dst"));
    tree(&src, 2, 3);
    let mut options = options(&src, &dst);
    run(&options).unwrap();
    assert_eq!(Manifest::load(&dst).unwrap().pack["seek_points"], "auto");
    options.seek_points = None;
    run(&options).unwrap_err();
    options.overwrite = true;
    run(&options).unwrap();
    assert_eq!(Manifest::load(&dst).unwrap().pack["seek_points"], "off");
}
