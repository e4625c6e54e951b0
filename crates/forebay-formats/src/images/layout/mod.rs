//! Source layouts: one file each, one line in [`LAYOUTS`].
//!
//! A layout reads the names at the top of the source and decides which directories are classes of which split
//! ([`Arrangement`]). `source` calls [`arrange`] with the names that `walk` listed, and lists the directories of the arrangement.
//! A layout of several archives also says which files at the top they are ([`ArchiveSet`]), and reads them with the
//! [`Collector`](super::walk::Collector) of its caller.
//!
//! The command line takes names, help texts and examples from the table as well.

pub(crate) mod academic;
mod archive_set;
mod classes;
pub(crate) mod foreign;
mod kaggle;
pub(crate) mod mat;
mod splits;
mod synset_tars;
mod tpu;

pub(crate) use archive_set::{ArchiveFacts, ArchiveSet, FoundArchives, TopFiles};
pub(crate) use foreign::ForeignTree;

use super::walk::Top;
use crate::class_list::{ClassName, FileClasses};
use crate::error::Result;
use crate::finding::Finding;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::path::PathBuf;

/// The table of layouts. The first match is used; the last layout accepts every source.
static LAYOUTS: [&Layout; 6] = [
    &academic::LAYOUT,
    &synset_tars::LAYOUT,
    &kaggle::LAYOUT,
    &tpu::LAYOUT,
    &splits::LAYOUT,
    &classes::LAYOUT,
];

/// One of the layouts that a source can have.
#[derive(Clone, Copy)]
pub struct SourceLayout(&'static Layout);

impl SourceLayout {
    /// Returns all layouts in the order in which they are tried.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        LAYOUTS.iter().map(|layout| Self(layout))
    }

    /// Returns the layout with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|layout| layout.name() == name)
    }

    /// Returns the name on the command line.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns a summary in a few words.
    pub fn summary(self) -> &'static str {
        self.0.summary
    }

    /// Returns a small tree as an example, for help texts.
    pub fn example(self) -> &'static str {
        self.0.example
    }

    /// Returns whether its directories name splits.
    pub fn names_splits(self) -> bool {
        self.0.names_splits
    }

    /// Returns the set of archives that sources of this layout consist of, if they do.
    pub(crate) fn archive_set(self) -> Option<&'static dyn ArchiveSet> {
        self.0.archive_set
    }
}

impl PartialEq for SourceLayout {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for SourceLayout {}

impl Serialize for SourceLayout {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for SourceLayout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| D::Error::custom(format!("unknown layout {name:?}")))
    }
}

impl fmt::Debug for SourceLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Options and earlier results that a layout needs.
pub(crate) struct LayoutContext<'a> {
    /// The split that the user named, if any.
    pub(crate) split: Option<&'a str>,
    /// Whether a file of labels has the classes, so that directories are not classes.
    pub(crate) labelled: bool,
    /// Whether the archives of the source have boxes.
    pub(crate) has_boxes: bool,
}

impl LayoutContext<'_> {
    /// Returns the units of a split: those of its layout, or the whole split if a file of labels has the classes.
    fn units(&self, units: Vec<LayoutUnit>) -> Vec<LayoutUnit> {
        if self.labelled {
            vec![LayoutUnit::All]
        } else {
            units
        }
    }
}

/// A source layout.
struct Layout {
    /// The name on the command line and in manifests.
    name: &'static str,
    /// A summary in a few words.
    summary: &'static str,
    /// A small tree as an example.
    example: &'static str,
    /// Whether its directories name splits.
    names_splits: bool,
    /// Whether any directory name is taken for a label, so that trees of other tools must be refused.
    labels_by_directories: bool,
    /// The set of archives that sources of this layout consist of. Such a layout is recognized by its archives.
    archive_set: Option<&'static dyn ArchiveSet>,
    /// Returns whether the source has this layout.
    recognizes: fn(&Top<'_>, &LayoutContext<'_>) -> Result<bool>,
    /// Returns the splits and classes of the source.
    arrange: fn(&Top<'_>, &LayoutContext<'_>) -> Result<Arrangement>,
}

/// The splits and classes of a source.
#[derive(Debug, Default)]
pub(crate) struct Arrangement {
    /// Splits to pack, sorted by name.
    pub(crate) splits: Vec<SplitSource>,
    /// The class directories of **all** splits, including those that are not packed: packing one split alone gives its classes
    /// the same numbers as packing all splits.
    pub(crate) class_dirs: Vec<Vec<u8>>,
    /// Findings about files and directories at the top that are not part of any split.
    pub(crate) findings: Vec<Finding>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// The classes and the file they are from, if the layout knows them.
    pub(crate) classes: Option<(Vec<ClassName>, PathBuf)>,
    /// The class of each validation file, if the layout knows it.
    pub(crate) validation: Option<FileClasses>,
    /// Further directories that may contain class lists.
    pub(crate) list_dirs: Vec<PathBuf>,
    /// Whether records have features for boxes; these are empty if an image has no boxes.
    pub(crate) has_boxes: bool,
    /// Directories of annotations, relative to the source.
    pub(crate) annotation_dirs: Vec<Vec<u8>>,
}

/// One split of the source.
#[derive(Debug)]
pub struct SplitSource {
    /// The split's name in the dataset.
    pub name: String,
    /// Its directory relative to the source; empty for the source itself.
    pub dir: Vec<u8>,
    /// Units to walk, in the byte order of keys.
    pub units: Vec<LayoutUnit>,
}

/// A part of a split that is listed as a whole.
#[derive(Debug)]
pub enum LayoutUnit {
    /// A class directory and everything below it; the name is relative to the split's directory.
    Class(Vec<u8>),
    /// The files directly in the split's directory; they have no class.
    Flat,
    /// Everything below the split's directory; the classes come from a file of labels.
    All,
}

impl LayoutUnit {
    /// Returns the directory to list, relative to the split's, and whether the files of its subdirectories belong to the unit.
    pub(crate) fn range(&self) -> (&[u8], bool) {
        match self {
            Self::Class(name) => (name, true),
            Self::Flat => (b"", false),
            Self::All => (b"", true),
        }
    }
}

/// Arranges a source by the requested layout, or by the first one that recognizes it.
pub(crate) fn arrange(
    top: &Top<'_>,
    forced: Option<SourceLayout>,
    context: &LayoutContext<'_>,
) -> Result<(SourceLayout, Arrangement)> {
    if let Some(layout) = forced {
        return Ok((layout, (layout.0.arrange)(top, context)?));
    }
    for layout in SourceLayout::all() {
        if (layout.0.recognizes)(top, context)? {
            if layout.0.labels_by_directories && !context.labelled {
                foreign::refuse(top)?;
            }
            return Ok((layout, (layout.0.arrange)(top, context)?));
        }
    }
    unreachable!("the last layout takes every source")
}
