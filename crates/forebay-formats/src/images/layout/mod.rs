//! The seam for source layouts: one file each, one line in [`LAYOUTS`].
//!
//! A layout looks at the top of the source and says which directories are classes of which split
//! ([`Arrangement`]). It reads names only; the census walks what the layout found, and image files are opened
//! when their shard is written. Names, help texts and examples of the command line come from the table as well.

pub(crate) mod academic;
mod archive_set;
mod classes;
mod kaggle;
mod splits;
mod synset_tars;
mod tpu;

pub(crate) use archive_set::{ArchiveFacts, ArchiveSet, FoundArchives, TopFiles};

use super::{Top, foreign};
use crate::class_list::{ClassName, FileClasses};
use crate::error::Result;
use crate::finding::Finding;
use std::fmt;
use std::path::PathBuf;

/// The table of layouts, first match first. The last one takes everything.
const LAYOUTS: &[&dyn Layout] = &[
    &academic::Academic,
    &synset_tars::SynsetTars,
    &kaggle::Kaggle,
    &tpu::Tpu,
    &splits::Splits,
    &classes::Classes,
];

/// One of the layouts that a source can have.
#[derive(Clone, Copy)]
pub struct SourceLayout(&'static dyn Layout);

impl SourceLayout {
    /// Returns all layouts in the order in which they are tried.
    pub fn all() -> impl ExactSizeIterator<Item = Self> {
        LAYOUTS.iter().map(|layout| Self(*layout))
    }

    /// Returns the layout of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|layout| layout.name() == name)
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        self.0.name()
    }

    /// A summary in a few words.
    pub fn summary(self) -> &'static str {
        self.0.summary()
    }

    /// A small tree that shows the layout, for help texts.
    pub fn example(self) -> &'static str {
        self.0.example()
    }

    /// Whether its directories name splits.
    pub fn names_splits(self) -> bool {
        self.0.names_splits()
    }

    /// The archives that a source of this layout consists of, if it does.
    pub(crate) fn archive_set(self) -> Option<&'static dyn ArchiveSet> {
        self.0.archive_set()
    }
}

impl PartialEq for SourceLayout {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for SourceLayout {}

impl fmt::Debug for SourceLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The user's options and earlier findings that a layout needs.
pub(crate) struct LayoutContext<'a> {
    /// The split, if one was named.
    pub(crate) split: Option<&'a str>,
    /// Classes come from a file of labels, so directories are none.
    pub(crate) labelled: bool,
    /// The archives of the source have boxes.
    pub(crate) has_boxes: bool,
}

impl LayoutContext<'_> {
    /// The units of a split: those of its layout, or everything where a file of labels decides.
    fn units(&self, units: Vec<LayoutUnit>) -> Vec<LayoutUnit> {
        if self.labelled {
            vec![LayoutUnit::All]
        } else {
            units
        }
    }
}

/// A source layout.
trait Layout: Send + Sync {
    /// The name on the command line and in manifests.
    fn name(&self) -> &'static str;

    /// A summary in a few words.
    fn summary(&self) -> &'static str;

    /// A small tree that shows it.
    fn example(&self) -> &'static str;

    /// Whether its directories name splits.
    fn names_splits(&self) -> bool {
        true
    }

    /// Whether it takes the names of any directories for labels, so that trees of other tools must be refused.
    fn labels_by_directories(&self) -> bool {
        false
    }

    /// The archives that a source of this layout consists of. Such a layout is recognized by them.
    fn archive_set(&self) -> Option<&'static dyn ArchiveSet> {
        None
    }

    /// Whether the source looks like this layout.
    fn recognizes(&self, top: &Top<'_>, context: &LayoutContext<'_>) -> Result<bool>;

    /// The splits and classes of the source.
    fn arrange(&self, top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement>;
}

/// The splits and classes of a source.
#[derive(Debug, Default)]
pub(crate) struct Arrangement {
    /// Splits to pack, in the order of their names.
    pub(crate) splits: Vec<SplitSource>,
    /// The class directories of **all** splits, those that are not packed included: so packing one split alone
    /// gives its classes the same numbers as packing all.
    pub(crate) class_dirs: Vec<Vec<u8>>,
    /// Files and directories at the top that are no part of any split.
    pub(crate) findings: Vec<Finding>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// The classes and where they are from, where the layout itself knows them.
    pub(crate) classes: Option<(Vec<ClassName>, PathBuf)>,
    /// The classes of single validation files, where the layout itself knows them.
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
pub struct SplitSource {
    /// The split's name in the dataset.
    pub name: String,
    /// Its directory relative to the source, empty for the source itself.
    pub dir: Vec<u8>,
    /// Units to walk, in the byte order of keys.
    pub units: Vec<LayoutUnit>,
}

/// A part of a split that is walked as a whole.
#[derive(Debug)]
pub enum LayoutUnit {
    /// A class directory with everything below it; the name is relative to the split's directory.
    Class(Vec<u8>),
    /// The files directly in the split's directory, which have no class.
    Flat,
    /// Everything below the split's directory; a file of labels has the classes.
    All,
}

/// The layout of a source: as asked, or the first that recognizes it.
pub(crate) fn arrange(
    top: &Top<'_>,
    forced: Option<SourceLayout>,
    context: &LayoutContext<'_>,
) -> Result<(SourceLayout, Arrangement)> {
    if let Some(layout) = forced {
        return Ok((layout, layout.0.arrange(top, context)?));
    }
    for layout in SourceLayout::all() {
        if layout.0.recognizes(top, context)? {
            if layout.0.labels_by_directories() && !context.labelled {
                foreign::refuse(top)?;
            }
            return Ok((layout, layout.0.arrange(top, context)?));
        }
    }
    unreachable!("the last layout takes every source")
}
