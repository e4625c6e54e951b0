//! Sources of image files: directories, archives and stores, their layouts, and labels and boxes beside images.
//!
//! [`Source::open`] opens a location, [`Source::survey`] recognizes its layout and classes by names alone, [`Source::list`]
//! lists the files of a split in byte order of their keys, and an [`OpenSource`] reads them in any order.
//!
//! Three folders use each other in one direction only: `walk` lists what there is, `layout` decides from the listed names what
//! the directories stand for, and `source` calls both.

mod boxes;
mod extras;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod layout;
mod source;
mod walk;

pub use crate::archive::Archive;
pub use crate::finding::Refusal;
pub use crate::labels::{Columns, LabelTable, RowClass};
pub use boxes::BoxIndex;
pub use extras::{ExtraFeatures, Extras};
pub use layout::{LayoutUnit, SourceLayout, SplitSource};
pub use source::{ClassesFrom, LabelFile, OpenFile, OpenSource, Source, SourceOptions, Survey};
pub use walk::{
    EntryRef, FileList, FileListBuilder, MemberLocation, ObjectList, SourceArchive, StoredArchive,
};
