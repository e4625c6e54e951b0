//! Image and record formats of Forebay and of other tools.
//!
//! This crate lists and reads sources, and writes the files of a format. `forebay-pack` decides which records go into which
//! file.
//!
//! - [`images`]: image files in directories, archives and stores, their layouts, classes, labels and boxes.
//! - [`records`]: encoded records of datasets and of other tools' files, read and written.
//!
//! A file that cannot be used is reported as a [`Finding`], one line of a report, and is not an error. Lists are in byte order
//! of the keys and include sizes and modification times, so that a caller can resume only if the source has not changed.
//!
//! ```
//! use forebay_formats::images::{ClassesFrom, OpenSource, Source, SourceOptions};
//! use forebay_store::Cancel;
//!
//! # let dir = tempfile::tempdir()?;
//! # std::fs::create_dir(dir.path().join("cat"))?;
//! # std::fs::write(dir.path().join("cat/1.png"), b"\x89PNG\r\n\x1a\n")?;
//! # let path = dir.path();
//! let cancel = Cancel::new();
//! let source = Source::open(&SourceOptions::new(path), &(), &cancel)?;
//! let survey = source.survey(ClassesFrom::Layout, None)?;
//! let split = &survey.splits[0];
//! let dirs = survey.splits.iter().map(|split| split.dir.as_slice());
//! let open = OpenSource::open(path, dirs, source.archives())?;
//! for (files, _left_out) in source.list(split, &(), &cancel)? {
//!     for entry in (0..files.files()).map(|number| files.get(number)) {
//!         let mut bytes = Vec::new();
//!         let file = open.file(0, &entry).expect("it is still there");
//!         file.append_to(entry.size, &mut bytes).expect("it has the same size");
//!         assert_eq!((entry.key(), bytes.len()), (b"cat/1.png".to_vec(), 8));
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod annotation_size;
mod archive;
mod class_list;
mod class_order;
mod error;
mod finding;
mod finding_list;
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod fuzzing;
pub mod images;
pub mod key_path;
mod labels;
mod name_forms;
pub mod option_names;
mod progress;
pub mod records;
pub mod sniff;
mod system_names;
mod voc_xml;

pub use class_list::{ClassList, ClassName, FileClasses, is_list_path};
pub use class_order::ClassOrder;
pub use error::{Error, Result};
pub use finding::{Action, Finding, Reason, escape};
pub use finding_list::FindingList;
pub use progress::Progress;
