//! Facts about a source besides its files: layout, splits, class names, boxes, and lists that are not used.

use super::foreign::{self, ForeignTree, LabelFile};
use super::layout::SplitSource;
use super::source::Source;
use super::{SourceLayout, classes};
use crate::class_list::{ClassList, FileClasses};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::labels::LabelTable;
use std::path::Path;

/// Origin of the classes of images.
#[derive(Debug, Clone, Copy)]
pub enum ClassesFrom<'a> {
    /// The layout, and lists beside the images.
    Layout,
    /// A file of labels; none if it is not at hand.
    LabelTable(Option<&'a LabelTable>),
}

/// The layout of a source, and what is known before its files are listed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The layout, as asked or recognized.
    pub layout: SourceLayout,
    /// The splits in the order of their names.
    pub splits: Vec<SplitSource>,
    /// The classes in the order of their labels.
    pub classes: ClassList,
    /// The classes of single validation files, if a list has them.
    pub file_classes: Option<FileClasses>,
    /// Files and directories at the top that are no part of any split.
    pub findings: Vec<Finding>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Files that may hold labels and are not used.
    pub label_files: Vec<LabelFile>,
    pub(super) has_boxes: bool,
    pub(super) annotation_dirs: Vec<Vec<u8>>,
    container: Option<ForeignTree>,
}

impl Source {
    /// Recognizes the layout of the source, its splits and its classes, by names and small files alone. `classes` is a list of
    /// classes that the user gave.
    ///
    /// # Errors
    /// [`Error::ForeignTree`] for a tree of another tool whose directories are no classes; [`Error::List`] for a list of
    /// classes that does not fit.
    pub fn survey(&self, from: ClassesFrom<'_>, classes: Option<&Path>) -> Result<Survey> {
        let top = self.top()?;
        let labelled = matches!(from, ClassesFrom::LabelTable(_));
        let (layout, mut arrangement) = self.arrange(&top, labelled)?;
        let label_files = match labelled {
            true => Vec::new(),
            false => foreign::unused_label_files(&top, &arrangement.splits)?,
        };
        let container = foreign::container(&top)?;
        if let ClassesFrom::LabelTable(labels) = from {
            let names = labels.and_then(LabelTable::names);
            arrangement.class_dirs = names.unwrap_or_default().to_vec();
            arrangement.validation = None;
        }
        let order = self.class_order();
        let (classes, file_classes) = classes::decide(&top, classes, order, &mut arrangement)?;
        Ok(Survey {
            layout,
            splits: arrangement.splits,
            classes,
            file_classes,
            findings: arrangement.findings,
            warnings: arrangement.warnings,
            label_files,
            has_boxes: arrangement.has_boxes,
            annotation_dirs: arrangement.annotation_dirs,
            container,
        })
    }
}

impl Survey {
    /// Returns the error of a source without images, if it is a dataset of another tool.
    pub fn into_foreign_tree(self, root: &Path) -> Option<Error> {
        Some(self.container?.into_error(root.to_path_buf()))
    }
}
