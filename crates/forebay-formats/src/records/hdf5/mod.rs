//! HDF5 files: datasets with a row for each record, as h5py writes them.

#[cfg(feature = "formats")]
mod file;
#[cfg(feature = "formats")]
mod lzf;
#[cfg(all(test, feature = "formats"))]
mod tests;

use super::{Format, RecordInput, RecordSource, by_extension};
use crate::error::Result;

pub(super) struct Hdf5;

const EXTENSIONS: [&str; 3] = [".h5", ".hdf5", ".hdf"];

impl Format for Hdf5 {
    fn name(&self) -> &'static str {
        "hdf5"
    }

    fn title(&self) -> &'static str {
        "HDF5 files"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &EXTENSIONS
    }

    fn detect<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        by_extension(self, names)
    }

    fn advice(&self) -> &'static str {
        "`forebay convert SRC DST --to indexed` makes records of the rows of datasets"
    }

    #[cfg(feature = "formats")]
    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        use super::arrays::{self, ArrayFile};
        use crate::error::Error;
        use forebay_cache::read_storage;
        use std::sync::Arc;

        let (root, _) = read_storage(&input.location, &input.read)?;
        let mut splits = Vec::new();
        for (split, files) in arrays::places::find(input, None, &EXTENSIONS)? {
            let files = files
                .into_iter()
                .map(|(_, archive)| -> Result<Arc<dyn ArrayFile>> {
                    Ok(Arc::new(file::Hdf5File::open(archive)?))
                });
            splits.push((split, files.collect::<Result<_>>()?));
        }
        if splits.is_empty() {
            return Err(Error::source(&root, "there are no HDF5 files here"));
        }
        arrays::open(splits, input, None, &root)
    }

    #[cfg(not(feature = "formats"))]
    fn open(&self, input: &RecordInput) -> Result<RecordSource> {
        let what = "this build reads no HDF5 files: build it with `--features formats`";
        Err(crate::Error::source(input.location.local_path()?, what))
    }
}
