//! ILSVRC as published by Kaggle: `ILSVRC/Data/CLS-LOC/{train,val,test}` with lists beside it, and the boxes of training and
//! validation images in `ILSVRC/Annotations/CLS-LOC`.

use super::splits::find_splits;
use super::{Arrangement, Layout, LayoutContext, LayoutUnit, SplitSource};
use crate::error::{Error, Result};
use crate::images::walk::Top;
use crate::key_path::join;

/// The directories of the task, relative to the top, or to `ILSVRC` if that is the top.
const DATA: [&[u8]; 2] = [b"ILSVRC/Data/CLS-LOC", b"Data/CLS-LOC"];
const ANNOTATIONS: [&[u8]; 2] = [b"ILSVRC/Annotations/CLS-LOC", b"Annotations/CLS-LOC"];
const TASK: &[u8] = b"CLS-LOC";
/// Other names of the layout at the top.
const KNOWN_DIRS: &[&[u8]] = &[b"ILSVRC", b"Data", b"Annotations", b"ImageSets"];
const KNOWN_FILES: &[&[u8]] = &[
    b"LOC_sample_submission.csv",
    b"LOC_synset_mapping.txt",
    b"LOC_train_solution.csv",
    b"LOC_val_solution.csv",
];

fn place(top: &Top<'_>) -> Option<usize> {
    DATA.iter().position(|dir| top.has_dir(dir))
}

pub(super) static LAYOUT: Layout = Layout {
    name: "kaggle",
    summary: "ILSVRC as Kaggle hands it out",
    example: "\
SRC/                                          or SRC/ILSVRC, or the archive, lists beside it
  LOC_synset_mapping.txt                      classes and their text
  LOC_val_solution.csv                        classes of the validation images
  ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_10026.JPEG
  ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000293.JPEG
  ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG
  ILSVRC/Annotations/CLS-LOC/train/n01440764/n01440764_10026.xml",
    names_splits: true,
    labels_by_directories: false,
    archive_set: None,
    recognizes: |top, _| Ok(place(top).is_some()),
    arrange,
};

fn arrange(top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
    let Some(place) = place(top) else {
        return Err(Error::source(
            &top.path,
            "there is no directory ILSVRC/Data/CLS-LOC or Data/CLS-LOC in it",
        ));
    };
    let mut arrangement = Arrangement {
        findings: top.aside().collect(),
        list_dirs: top.lists_beside(place == 1),
        ..Arrangement::default()
    };
    let outside = top.outside_files();
    arrangement
        .findings
        .extend(outside.filter(|finding| !KNOWN_FILES.contains(&finding.path.as_bytes())));
    arrangement
        .findings
        .extend(top.outside_dirs(|dir| KNOWN_DIRS.contains(&dir)));
    // Report other files and directories in each parent of the image directory.
    let mut way: Vec<&[u8]> = DATA[place].split(|byte| *byte == b'/').collect();
    way.pop();
    for depth in 1..=way.len() {
        let beside = top.below(&way[..depth].join(&b'/'))?;
        let on_the_way = |dir: &[u8]| KNOWN_DIRS.contains(&dir) || dir == TASK;
        arrangement.findings.extend(beside.outside_dirs(on_the_way));
        arrangement.findings.extend(beside.outside_files());
        arrangement.findings.extend(beside.aside());
    }
    let data = top.below(DATA[place])?;
    arrangement.findings.extend(data.aside());
    arrangement.findings.extend(data.outside_files());
    let annotations = top.has_dir(ANNOTATIONS[place]);
    arrangement.has_boxes = annotations;
    if !annotations {
        arrangement.warnings.push(format!(
            "there is no directory {}: the records have no boxes",
            String::from_utf8_lossy(ANNOTATIONS[place])
        ));
    }
    let (wanted, others) = find_splits(&data, context.split, &mut arrangement)?;
    for (name, dir) in wanted {
        let below = data.below(dir)?;
        // Test images, and Kaggle's validation images, are not in class directories.
        let units = if below.dirs.is_empty() {
            vec![LayoutUnit::Flat]
        } else {
            arrangement.findings.extend(below.outside_files());
            below.dirs.iter().cloned().map(LayoutUnit::Class).collect()
        };
        arrangement.findings.extend(below.aside());
        if annotations && top.has_dir(&join(ANNOTATIONS[place], dir)) {
            let dir = join(&top.relative, &join(ANNOTATIONS[place], dir));
            arrangement.annotation_dirs.push(dir);
        }
        arrangement.class_dirs.extend(below.dirs);
        arrangement.splits.push(SplitSource {
            name,
            dir: below.relative,
            units: context.units(units),
        });
    }
    for dir in others {
        arrangement.class_dirs.extend(data.below(dir)?.dirs);
    }
    Ok(arrangement)
}
