//! Sources of a pack: directories, archives and stores, their layouts, and labels and boxes beside images.

mod archive;
mod boxes;
pub(crate) mod foreign;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod labels;
mod layout;
mod mat;
mod objects;
mod source;
mod top;

pub(crate) use archive::Archive;
pub(crate) use archive::{Kind, Members, OpenVolume, OpenVolumes, Place, Volume, VolumeRef};
use archive::{MemberRef, VolumeKind};
pub(crate) use boxes::{BoundingBox, BoxIndex, read_dir as read_boxes};
pub(crate) use labels::{Columns, Labels, RowClass};
pub use layout::SourceLayout;
pub(crate) use layout::{Arrangement, LayoutContext, SplitSource, Unit, arrange};
pub(crate) use source::{Source, Tree};
pub(crate) use top::Top;
