//! HDF5 files: datasets with one row per record, as h5py writes them.

#[cfg(feature = "formats")]
mod file;
#[cfg(feature = "formats")]
mod links;
#[cfg(feature = "formats")]
mod lzf;
#[cfg(test)]
#[cfg(feature = "formats")]
mod tests;
#[cfg(feature = "formats")]
mod write;

use super::{CreateSink, Format, FormatInfo, RecordInput, RecordSource};
use crate::error::Result;

pub(super) struct Hdf5;

const EXTENSIONS: [&str; 3] = [".h5", ".hdf5", ".hdf"];

impl Format for Hdf5 {
    fn info(&self) -> &'static FormatInfo {
        &FormatInfo {
            name: "hdf5",
            title: "HDF5 files",
            extensions: &EXTENSIONS,
            names_in_split_dirs: &EXTENSIONS,
            advice: "`forebay convert SRC DST --format indexed` makes records of the rows of datasets",
            ..FormatInfo::NONE
        }
    }

    #[cfg(feature = "formats")]
    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let open = file::Hdf5File::open;
        super::arrays::places::open_each(self.info(), input, "HDF5 files", open)
    }

    #[cfg(not(feature = "formats"))]
    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let what = "this build reads no HDF5 files: build it with `--features formats`";
        Err(crate::Error::source(input.location.local_path()?, what))
    }

    fn writer(&self) -> Option<CreateSink> {
        #[cfg(feature = "formats")]
        return Some(|facts, options| {
            Ok(Box::new(super::arrays::ArraySink::new(
                facts,
                options,
                &write::FORMAT,
            )?))
        });
        #[cfg(not(feature = "formats"))]
        Some(|_, _| {
            Err("this build writes no HDF5 files: build it with `--features formats`".to_owned())
        })
    }
}
