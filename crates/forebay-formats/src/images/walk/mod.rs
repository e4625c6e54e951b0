//! Lists the files of directories, archives and stores.
//!
//! [`Top`] lists the names in one directory of a tree. [`Collector`] reads the headers of archives, and [`objects`] lists a
//! store; both build [`Members`]. [`directory`] and [`member_files`] list the images below a directory as a [`FileList`].
//! Layouts read a [`Top`], and sources call the rest; nothing here knows layouts or sources.

mod ancestors;
mod collector;
mod contents;
pub(super) mod directory;
mod file_list;
pub(super) mod member_files;
mod members;
pub(super) mod objects;
mod source_archive;
mod top;
mod tree;

pub(super) use collector::{Collected, Collector, Mount, collect, drain, inner_dir, read_files};
pub use file_list::{EntryRef, FileList, FileListBuilder};
pub use members::MemberLocation;
pub(crate) use members::Members;
pub use objects::ObjectList;
pub use source_archive::{SourceArchive, StoredArchive};
pub(crate) use top::Top;
pub(crate) use tree::Tree;
