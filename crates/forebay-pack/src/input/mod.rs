//! The seam for source layouts: one file each, one line in [`LAYOUTS`].
//!
//! A layout looks at the top of the source and says which directories are classes of which split
//! ([`Arrangement`]). It reads names only; the census walks what the layout found, and image files are opened
//! when their shard is written.

mod academic;
mod archive;
mod boxes;
mod classes;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod kaggle;
mod labels;
mod mat;
mod objects;
mod source;
mod splits;
mod top;
mod tpu;

pub(crate) use academic::Academic;
pub(crate) use archive::Archive;
pub(crate) use archive::{Kind, Members, OpenVolume, Place, Volume, base, stem};
use archive::{MemberRef, VolumeKind};
pub(crate) use boxes::{BoundingBox, BoxIndex, read_dir as read_boxes};
pub(crate) use labels::{Columns, Labels, RowClass};
pub(crate) use source::{Source, Tree};
pub(crate) use top::{Top, join, read_list};

use crate::census::{ClassName, FileClasses};
use crate::error::Result;
use crate::report::Finding;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The layouts that a source can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LayoutKind {
    /// `<class>/<file>`, any depth below the class; files alone are images without a label.
    Classes,
    /// `<split>/<class>/<file>` with splits named train, val or test.
    Splits,
    /// `train/<synset>/<file>`, validation images, and `synset_labels.txt`, as TensorFlow's tool for TPUs wants them.
    Tpu,
    /// ILSVRC as Kaggle hands it out.
    Kaggle,
    /// The archives of ILSVRC2012, none of them extracted.
    Academic,
}

impl LayoutKind {
    /// All layouts in the order in which they are tried.
    pub const ALL: &'static [LayoutKind] = &[
        LayoutKind::Academic,
        LayoutKind::Kaggle,
        LayoutKind::Tpu,
        LayoutKind::Splits,
        LayoutKind::Classes,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classes => "classes",
            Self::Splits => "splits",
            Self::Tpu => "tpu",
            Self::Kaggle => "kaggle",
            Self::Academic => "academic",
        }
    }

    /// A small tree that shows the layout, for help texts.
    pub fn example(self) -> &'static str {
        match self {
            Self::Classes => CLASSES_TREE,
            Self::Splits => SPLITS_TREE,
            Self::Tpu => TPU_TREE,
            Self::Kaggle => KAGGLE_TREE,
            Self::Academic => ACADEMIC_TREE,
        }
    }
}

const CLASSES_TREE: &str = "\
SRC/                                or an archive of it
  n01440764/n01440764_10026.JPEG
  n01443537/any/depth/below.png
  classes.txt                       optional: one class a line, in label order";

const SPLITS_TREE: &str = "\
SRC/                                or an archive of it
  train/n01440764/n01440764_10026.JPEG
  val/n01440764/ILSVRC2012_val_00000293.JPEG
  test/ILSVRC2012_test_00000001.JPEG";

const TPU_TREE: &str = "\
SRC/
  train/n01440764/n01440764_10026.JPEG
  validation/ILSVRC2012_val_00000293.JPEG     or in class directories
  synset_labels.txt                           a line for each validation image, in order";

const KAGGLE_TREE: &str = "\
SRC/                                          or the archive, lists beside it
  LOC_synset_mapping.txt
  LOC_val_solution.csv
  ILSVRC/Data/CLS-LOC/train/n01440764/n01440764_10026.JPEG
  ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000293.JPEG
  ILSVRC/Data/CLS-LOC/test/ILSVRC2012_test_00000001.JPEG
  ILSVRC/Annotations/CLS-LOC/train/n01440764/n01440764_10026.xml";

const ACADEMIC_TREE: &str = "\
SRC/
  ILSVRC2012_img_train.tar                    a tar of tars, read as it is
  ILSVRC2012_img_val.tar
  ILSVRC2012_img_test_v10102019.tar           optional
  ILSVRC2012_devkit_t12.tar.gz                classes, and those of validation images
  ILSVRC2012_bbox_train_v2.tar.gz             optional";

/// The table of layouts, first match first. The last one takes everything.
const LAYOUTS: &[&dyn Layout] = &[
    &academic::AcademicLayout,
    &kaggle::Kaggle,
    &tpu::Tpu,
    &splits::Splits,
    &classes::Classes,
];

/// What the user asked for, and what is known already.
pub(crate) struct Ask<'a> {
    /// The split, if one was named.
    pub(crate) split: Option<&'a str>,
    /// Classes come from a file of labels, so directories are none.
    pub(crate) labelled: bool,
    /// The source is the archives of ILSVRC2012.
    pub(crate) academic: Option<&'a Academic>,
}

impl Ask<'_> {
    /// The units of a split: those of its layout, or everything where a file says what is what.
    fn units(&self, units: Vec<Unit>) -> Vec<Unit> {
        if self.labelled {
            vec![Unit::All]
        } else {
            units
        }
    }
}

/// What a newcomer implements.
trait Layout: Sync {
    fn kind(&self) -> LayoutKind;
    /// Whether the source looks like this layout.
    fn recognises(&self, top: &Top<'_>, ask: &Ask<'_>) -> Result<bool>;
    /// The splits and classes of the source.
    fn arrange(&self, top: &Top<'_>, ask: &Ask<'_>) -> Result<Arrangement>;
}

/// Where the images of a source are.
#[derive(Debug, Default)]
pub(crate) struct Arrangement {
    /// Splits to pack, in the order of their names.
    pub(crate) splits: Vec<SplitSource>,
    /// The class directories of **all** splits, those that are not packed included: so packing one split alone
    /// gives its classes the same numbers as packing all.
    pub(crate) class_dirs: Vec<Vec<u8>>,
    /// Files and directories at the top that are no part of any split.
    pub(crate) findings: Vec<Finding>,
    /// What a user should know.
    pub(crate) warnings: Vec<String>,
    /// The classes and where they are from, where the layout itself knows them.
    pub(crate) classes: Option<(Vec<ClassName>, PathBuf)>,
    /// The classes of single validation files, likewise.
    pub(crate) validation: Option<FileClasses>,
    /// Further directories in which class lists may be.
    pub(crate) list_dirs: Vec<PathBuf>,
    /// Whether records have the features of boxes, empty where an image has none.
    pub(crate) has_boxes: bool,
    /// Directories of annotations, relative to the source.
    pub(crate) annotation_dirs: Vec<Vec<u8>>,
}

/// One split of the source.
#[derive(Debug)]
pub(crate) struct SplitSource {
    /// The split's name in the data set.
    pub(crate) name: String,
    /// Its directory relative to the source, empty for the source itself.
    pub(crate) dir: Vec<u8>,
    /// What to walk, in the byte order of keys.
    pub(crate) units: Vec<Unit>,
}

/// A part of a split that is walked as a whole.
#[derive(Debug)]
pub(crate) enum Unit {
    /// A class directory with everything below it; the name is relative to the split's directory.
    Class(Vec<u8>),
    /// The files directly in the split's directory, which have no class.
    Flat,
    /// Everything below the split's directory; what has which class is told by a file of labels.
    All,
}

/// The layout of a source: as asked, or the first that recognises it.
pub(crate) fn arrange(
    top: &Top<'_>,
    forced: Option<LayoutKind>,
    ask: &Ask<'_>,
) -> Result<(LayoutKind, Arrangement)> {
    for layout in LAYOUTS {
        let chosen = match forced {
            Some(kind) => layout.kind() == kind,
            None => layout.recognises(top, ask)?,
        };
        if chosen {
            return Ok((layout.kind(), layout.arrange(top, ask)?));
        }
    }
    unreachable!("the last layout takes every source, and every kind has a layout")
}

/// The split name that a directory name stands for, if it is one of those in use.
fn split_name(dir: &[u8]) -> Option<&'static str> {
    match dir.to_ascii_lowercase().as_slice() {
        b"train" | b"training" => Some("train"),
        b"val" | b"valid" | b"validation" => Some("validation"),
        b"test" | b"testing" => Some("test"),
        _ => None,
    }
}
