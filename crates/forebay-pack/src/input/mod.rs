//! The seam for source layouts: one file each, one line in [`LAYOUTS`].
//!
//! A layout looks at the top of the source and says which directories are classes of which split
//! ([`Arrangement`]). It reads names only; the census walks what the layout found, and image files are opened
//! when their shard is written.

mod classes;
mod splits;
mod top;

pub(crate) use top::{Top, join};

use crate::error::Result;
use crate::report::Finding;
use serde::{Deserialize, Serialize};

/// The layouts that a source can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum LayoutKind {
    /// `<class>/<file>`, any depth below the class; files alone are images without a label.
    Classes,
    /// `<split>/<class>/<file>` with splits named train, val or test.
    Splits,
}

impl LayoutKind {
    /// All layouts in the order in which they are tried.
    pub const ALL: &'static [LayoutKind] = &[LayoutKind::Splits, LayoutKind::Classes];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Classes => "classes",
            Self::Splits => "splits",
        }
    }

    /// A small tree that shows the layout, for help texts.
    pub fn example(self) -> &'static str {
        match self {
            Self::Classes => {
                "SRC/n01440764/n01440764_10026.JPEG\nSRC/n01443537/any/depth/below.png"
            }
            Self::Splits => {
                "SRC/train/n01440764/n01440764_10026.JPEG\nSRC/val/n01440764/ILSVRC2012_val_00000293.JPEG\nSRC/synset_labels.txt (optional)"
            }
        }
    }
}

/// The table of layouts, first match first. The last one takes everything.
const LAYOUTS: &[&dyn Layout] = &[&splits::Splits, &classes::Classes];

/// What a newcomer implements.
trait Layout: Sync {
    fn kind(&self) -> LayoutKind;
    /// Whether the source looks like this layout.
    fn recognises(&self, top: &Top) -> Result<bool>;
    /// The splits and classes of the source. `split` is what the user asked for, if anything.
    fn arrange(&self, top: &Top, split: Option<&str>) -> Result<Arrangement>;
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
}

/// The layout of a source: as asked, or the first that recognises it.
pub(crate) fn arrange(
    top: &Top,
    forced: Option<LayoutKind>,
    split: Option<&str>,
) -> Result<(LayoutKind, Arrangement)> {
    for layout in LAYOUTS {
        let chosen = match forced {
            Some(kind) => layout.kind() == kind,
            None => layout.recognises(top)?,
        };
        if chosen {
            return Ok((layout.kind(), layout.arrange(top, split)?));
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
