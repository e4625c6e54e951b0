//! Facts about a source other than its files: layout, splits, class names, boxes, and unused files of labels.

use super::label_files::{self, LabelFile};
use super::{Source, classes};
use crate::class_list::{ClassList, FileClasses};
use crate::error::{Error, Result};
use crate::finding::Finding;
use crate::images::layout::{ForeignTree, SourceLayout, SplitSource, foreign};
use crate::labels::LabelTable;
use std::path::Path;

/// Source of the classes of images.
#[derive(Debug, Clone, Copy)]
pub enum ClassesFrom<'a> {
    /// From the layout, and from lists beside the images.
    Layout,
    /// From a file of labels; `None` if it was not read.
    LabelTable(Option<&'a LabelTable>),
}

/// The layout of a source, and the facts that are known before its files are listed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Survey {
    /// The layout, requested or detected.
    pub layout: SourceLayout,
    /// The splits, sorted by name.
    pub splits: Vec<SplitSource>,
    /// The classes in the order of their labels.
    pub classes: ClassList,
    /// The class of each validation file, if a list has them.
    pub file_classes: Option<FileClasses>,
    /// Findings about files and directories at the top that are not part of any split.
    pub findings: Vec<Finding>,
    /// Warnings for the user.
    pub warnings: Vec<String>,
    /// Files that may hold labels but are not used.
    pub label_files: Vec<LabelFile>,
    pub(super) has_boxes: bool,
    pub(super) annotation_dirs: Vec<Vec<u8>>,
    container: Option<ForeignTree>,
}

impl Source {
    /// Detects the layout of the source, its splits and its classes, from names and small files alone. `classes` is a class
    /// list from the user.
    ///
    /// # Errors
    /// [`Error::ForeignTree`] for a tree of another tool whose directories are not classes; [`Error::List`] for a class list
    /// that does not fit.
    pub fn survey(&self, from: ClassesFrom<'_>, classes: Option<&Path>) -> Result<Survey> {
        let top = self.top()?;
        let labelled = matches!(from, ClassesFrom::LabelTable(_));
        let (layout, mut arrangement) = self.arrange(&top, labelled)?;
        let label_files = match labelled {
            true => Vec::new(),
            false => label_files::unused(&top, &arrangement.splits)?,
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
    /// Returns the error for a source without images, if it is a dataset of another tool.
    pub fn into_foreign_tree(self, root: &Path) -> Option<Error> {
        Some(self.container?.into_error(root.to_path_buf()))
    }
}
