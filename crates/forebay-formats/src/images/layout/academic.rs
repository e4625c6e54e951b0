//! The archives of ILSVRC2012 as published, all in one directory; they need not be extracted.
//!
//! Training images are in a tar that contains a tar for each class, validation and test images in plain tars. The development
//! kit has the classes, and the class of each validation image by the kit's own ids. `meta.mat` maps these ids to WordNet ids,
//! which are numbered in alphabetical order as usual.

use super::archive_set::{ArchiveFacts, ArchiveSet, FoundArchives, TopFiles, outside};
use super::{Arrangement, Layout, LayoutContext, LayoutUnit, SplitSource, mat};
use crate::class_list::{ClassName, FileClasses, is_list_path};
use crate::error::{Error, Result};
use crate::images::Archive;
use crate::images::walk::{Collector, Mount, Top, read_files};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

const TRAIN: &str = "ILSVRC2012_img_train.tar";
const VALIDATION: &str = "ILSVRC2012_img_val.tar";
const TEST: &str = "ILSVRC2012_img_test";
const KIT: &str = "ILSVRC2012_devkit_t12.tar.gz";
const BOXES: [&str; 2] = ["ILSVRC2012_bbox_train_v2", "ILSVRC2012_bbox_val_v3"];

const META: &[u8] = b"data/meta.mat";
const TRUTH: &[u8] = b"data/ILSVRC2012_validation_ground_truth.txt";
/// Largest file that is read from the kit; both are far smaller.
const KIT_FILE_MAX_BYTES: u64 = 16 << 20;

/// Ids above this are synsets of the kit that are not classes of the task and have no images.
const CLASSES_MAX_ID: i64 = 1000;

struct Academic;

/// The archives that were found.
#[derive(Debug)]
struct Found {
    /// Split, directory in the tree, and archive.
    images: Vec<(&'static str, &'static [u8], Archive)>,
    kit: Option<Archive>,
    boxes: Vec<Archive>,
    /// Files that are not part of the layout.
    others: Vec<Vec<u8>>,
    wanted: Option<String>,
}

impl ArchiveSet for Academic {
    fn expected(&self) -> String {
        format!("{TRAIN}, {VALIDATION} or {TEST}.tar")
    }

    fn find(
        &self,
        top: &TopFiles<'_>,
        _forced: bool,
        split: Option<&str>,
    ) -> Option<Box<dyn FoundArchives>> {
        Some(Box::new(Found::among(top, split)?))
    }
}

impl Found {
    fn among(top: &TopFiles<'_>, split: Option<&str>) -> Option<Self> {
        let names = &top.files;
        let path = |name: &[u8]| top.archive(name);
        let exact = |wanted: &str| {
            names
                .iter()
                .find(|name| *name == wanted.as_bytes())
                .map(|name| path(name))
        };
        let mut images: Vec<(&'static str, &'static [u8], Archive)> = Vec::new();
        // The test images were published twice; the later edition, which sorts last, is used.
        let is_test = |name: &Vec<u8>| name.starts_with(TEST.as_bytes()) && name.ends_with(b".tar");
        let test = names.iter().rfind(|name| is_test(name));
        images.extend(test.map(|name| ("test", b"test".as_slice(), path(name))));
        images.extend(exact(TRAIN).map(|path| ("train", b"train".as_slice(), path)));
        images.extend(exact(VALIDATION).map(|path| ("validation", b"val".as_slice(), path)));
        if images.is_empty() {
            return None;
        }
        let has_boxes = |name: &[u8]| BOXES.iter().any(|boxes| name.starts_with(boxes.as_bytes()));
        let boxes = names.iter().filter(|name| has_boxes(name));
        let boxes = boxes.map(|name| path(name));
        let is_known = |name: &[u8]| {
            let known = [TRAIN, VALIDATION, KIT].map(str::as_bytes);
            known.contains(&name) || has_boxes(name) || is_list_path(name)
        };
        let others = names.iter();
        let others = others.filter(|name| !is_known(name) && Some(*name) != test);
        Some(Self {
            images,
            kit: exact(KIT),
            boxes: boxes.collect(),
            others: others.cloned().collect(),
            wanted: split.map(str::to_owned),
        })
    }

    fn wants(&self, split: &str, dir: &[u8]) -> bool {
        // Classes come from the kit. Without it they come from the training images, which are then read for any split.
        let needed = split == "train" && self.kit.is_none();
        let wanted = self.wanted.as_ref();
        needed || wanted.is_none_or(|wanted| wanted == split || wanted.as_bytes() == dir)
    }
}

impl FoundArchives for Found {
    fn read(&self, collector: &mut Collector<'_>, _jobs: usize) -> Result<ArchiveFacts> {
        let mut facts = ArchiveFacts {
            has_boxes: !self.boxes.is_empty(),
            ..ArchiveFacts::default()
        };
        // Read the small files first, so that errors in them show before hours of reading.
        if let Some(kit) = &self.kit {
            read_kit(kit, &mut facts)?;
        }
        for (split, dir, path) in &self.images {
            if self.wants(split, dir) {
                let mount = Mount {
                    dir,
                    flat: *split != "train",
                    annotations: false,
                };
                collector.read(path, &mount)?;
            }
        }
        for path in &self.boxes {
            let mount = Mount {
                dir: b"annotations",
                flat: false,
                annotations: true,
            };
            collector.read(path, &mount)?;
        }
        for name in &self.others {
            collector.collected.findings.push(outside(name));
        }
        if self.kit.is_none() {
            collector.collected.warnings.push(format!(
                "there is no {KIT}: unless a class list lies beside the archives, classes have no text and are numbered by what is in {TRAIN}"
            ));
        }
        Ok(facts)
    }
}

pub(crate) fn read_kit(kit: &Archive, facts: &mut ArchiveFacts) -> Result<()> {
    let [meta, truth] = read_files(kit, [META, TRUTH], KIT_FILE_MAX_BYTES)?;
    let path = kit.shown();
    let lacks = |what: &[u8]| {
        Error::source(
            &path,
            format!("there is no {} in it", String::from_utf8_lossy(what)),
        )
    };
    let meta = meta.ok_or_else(|| lacks(META))?;
    let truth = truth.ok_or_else(|| lacks(TRUTH))?;
    let of_meta = |what: String| Error::source(path.join(OsStr::from_bytes(META)), what);
    let mut synsets: Vec<mat::Synset> = mat::synsets(&meta)
        .map_err(of_meta)?
        .into_iter()
        .filter(|synset| (1..=CLASSES_MAX_ID).contains(&synset.id))
        .collect();
    synsets.sort_by(|a, b| a.wnid.cmp(&b.wnid));
    let mut by_id: Vec<Option<u16>> = vec![None; CLASSES_MAX_ID as usize + 1];
    for (number, synset) in (0u16..).zip(&synsets) {
        if by_id[synset.id as usize].replace(number).is_some() {
            return Err(of_meta(format!("the id {} is there twice", synset.id)));
        }
    }
    let of_truth = |line: usize, what: String| {
        let path = path.join(OsStr::from_bytes(TRUTH));
        Error::source(path, format!("line {}: {what}", line + 1))
    };
    let mut lines = Vec::new();
    for (number, line) in truth.trim_ascii().split(|byte| *byte == b'\n').enumerate() {
        let text = String::from_utf8_lossy(line);
        let id: usize = text
            .trim()
            .parse()
            .map_err(|_| of_truth(number, format!("{:?} is no id", text.trim())))?;
        let class = by_id.get(id).copied().flatten();
        lines.push(
            class.ok_or_else(|| of_truth(number, format!("the id {id} is not in meta.mat")))?,
        );
    }
    let names = synsets
        .iter()
        .map(|synset| synset.wnid.clone().into_bytes())
        .collect();
    facts.validation = Some(FileClasses::by_number(path.clone(), names, lines));
    let classes = synsets.into_iter().map(|synset| ClassName {
        name: synset.wnid.into_bytes(),
        text: Some(synset.words),
    });
    facts.classes = Some((classes.collect(), path));
    Ok(())
}

pub(super) static LAYOUT: Layout = Layout {
    name: "academic",
    summary: "the archives of ILSVRC2012",
    example: "\
SRC/
  ILSVRC2012_img_train.tar                    a tar of one tar for each class
  ILSVRC2012_img_val.tar
  ILSVRC2012_img_test_v10102019.tar           optional
  ILSVRC2012_devkit_t12.tar.gz                classes, and those of the validation images
  ILSVRC2012_bbox_train_v2.tar.gz             optional; ILSVRC2012_bbox_val_v3.tgz too",
    names_splits: true,
    labels_by_directories: false,
    archive_set: Some(&Academic),
    recognizes: |_, _| Ok(false),
    arrange,
};

fn arrange(top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
    let mut arrangement = Arrangement {
        findings: top.aside().collect(),
        has_boxes: context.has_boxes,
        // Without the kit, classes come from lists beside the archives.
        list_dirs: vec![top.path.clone()],
        ..Arrangement::default()
    };
    let splits = [
        ("test", b"test".as_slice()),
        ("train", b"train"),
        ("validation", b"val"),
    ];
    for (name, dir) in splits {
        if !top.has_dir(dir) {
            continue;
        }
        let below = top.below(dir)?;
        let aside: Vec<_> = below.aside().collect();
        let units = if name == "train" {
            arrangement.class_dirs.extend(below.dirs.iter().cloned());
            arrangement.findings.extend(below.outside_files());
            below.dirs.into_iter().map(LayoutUnit::Class).collect()
        } else {
            vec![LayoutUnit::Flat]
        };
        if context
            .split
            .is_none_or(|split| split == name || split.as_bytes() == dir)
        {
            arrangement.findings.extend(aside);
            arrangement.splits.push(SplitSource {
                name: name.to_owned(),
                dir: dir.to_vec(),
                units: context.units(units),
            });
        }
    }
    if arrangement.splits.is_empty() {
        let what = match context.split {
            Some(split) => format!("there is no archive of a split {split}"),
            None => "there are no images in the archives".to_owned(),
        };
        return Err(Error::source(&top.path, what));
    }
    Ok(arrangement)
}
