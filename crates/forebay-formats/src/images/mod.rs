//! Sources of image files: directories, archives and stores, their layouts, and labels and boxes beside images.
//!
//! [`Source::open`] opens a location, [`Source::survey`] recognizes its layout and classes by names alone, [`Source::list`]
//! lists the files of a split in byte order of their keys, and an [`OpenSource`] reads them in any order.

mod ancestors;
mod archive;
mod boxes;
mod classes;
mod contents;
mod extras;
mod foreign;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod layout;
mod list;
mod mat;
mod members;
mod objects;
mod open;
mod source;
mod survey;
mod top;
mod walk;

pub use crate::archive::Archive;
pub use crate::labels::{Columns, LabelTable, RowClass};
pub use archive::{MemberLocation, Volume};
pub use boxes::BoxIndex;
pub use extras::{ExtraFeatures, Extras};
pub use foreign::LabelFile;
pub use layout::{LayoutUnit, SourceLayout, SplitSource};
pub use list::{EntryRef, FileList, FileListBuilder};
pub use open::{OpenFile, OpenSource, Refusal};
pub use source::{Source, SourceOptions};
pub use survey::{ClassesFrom, Survey};
pub(crate) use top::Top;
