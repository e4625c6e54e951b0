//! Images that are not packed yet: files of a directory, members of archives, objects of a store.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::sync::Arc;

use forebay_formats::images::{OpenSource, SourceArchive};
use forebay_pack::{Census, Error, SourceError, SplitCensus};
use forebay_shard::{ExampleBuilder, MAX_RECORD_BYTES};

use super::record::{EachKnown, Record};

/// A census with its files open for reading.
#[derive(Debug)]
pub(super) struct OpenImages {
    pub(super) census: Census,
    files: OpenSource,
}

/// The images of one split.
#[derive(Debug)]
pub(super) struct ImageFiles {
    pub(super) opened: Arc<OpenImages>,
    pub(super) split: usize,
}

/// Returns whether a source is compressed as a whole, so that its images can be read in order only.
pub(super) fn is_stream(census: &Census) -> bool {
    let mut archives = census.archives().iter();
    archives.any(SourceArchive::is_compressed_stream)
}

/// Opens the listed images.
pub(super) fn open(census: Census) -> Result<Arc<OpenImages>, Error> {
    if is_stream(&census) {
        let what = "it is compressed as a whole, so its images are read in order only: decompress it first, or pack it and view the dataset";
        return Err(SourceError::source(census.src(), what).into());
    }
    let dirs = census.splits().iter().map(|split| split.dir());
    let files = OpenSource::open(census.src(), dirs, census.archives())?;
    Ok(Arc::new(OpenImages { census, files }))
}

/// Returns the labels of the listed images, by their paths in the source.
pub(super) fn labels(census: &Census) -> HashMap<Vec<u8>, u32> {
    let mut labels = HashMap::new();
    for split in census.splits() {
        let dir = Path::new(OsStr::from_bytes(split.dir()));
        for entry in split.iter() {
            let path = dir.join(OsStr::from_bytes(&entry.key()));
            labels.extend(
                entry
                    .class
                    .map(|label| (path.into_os_string().into_vec(), label)),
            );
        }
    }
    labels
}

impl ImageFiles {
    pub(super) fn census(&self) -> &SplitCensus {
        &self.opened.census.splits()[self.split]
    }

    pub(super) fn known(&self, each: EachKnown<'_>) {
        for entry in self.census().iter() {
            each(entry.size, entry.class.map(i64::from), &entry.key());
        }
    }

    /// Reads an image and builds its record.
    pub(super) fn read(&self, at: u64, record: &mut Record) -> Result<(), String> {
        let entry = self.census().get(at);
        record.key = entry.key();
        record.label = entry.class.map(i64::from);
        record.bytes.clear();
        if entry.size > MAX_RECORD_BYTES {
            return Err(format!("{} bytes, more than a record holds", entry.size));
        }
        let mut image = Vec::new();
        let file = self.opened.files.file(self.split, &entry);
        let read = file.and_then(|file| file.append_to(entry.size, &mut image));
        read.map_err(|(reason, detail)| format!("{} ({detail})", reason.text()))?;
        let mut example = ExampleBuilder::new();
        example.add_bytes("image/encoded", &image);
        if let Some(label) = record.label {
            example.add_int64("image/class/label", label);
        }
        let (extras, label) = (entry.extras, record.label.unwrap_or(-1));
        extras.add_to(entry.name, label, &mut example);
        example.encode_into(&mut record.bytes);
        Ok(())
    }

    pub(super) fn place(&self, at: u64) -> String {
        let entry = self.census().get(at);
        let dir = self.opened.census.src();
        let dir = dir.join(OsStr::from_bytes(self.census().dir()));
        let path = dir.join(OsStr::from_bytes(&entry.key()));
        match entry.place.map(|place| place.offset) {
            Some(offset @ 1..) => format!("{}: in an archive, at byte {offset}", path.display()),
            _ => path.display().to_string(),
        }
    }
}
