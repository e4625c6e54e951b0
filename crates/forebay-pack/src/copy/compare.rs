//! Decides whether an object exists unchanged at the destination.

use super::listing::SourceItem;
use super::{Compare, CopyError, CopyMode, CopyObserver, CopyOptions};
use forebay_shard::checksum::Crc32c;
use forebay_store::{Cancel, Object, Store};
use serde::Serialize;

/// Why an object is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Why {
    /// The destination has no object of that name.
    Missing,
    /// The destination's object has a different size.
    Size,
    /// The destination's object has a different checksum.
    Content,
    /// The destination's object has the same size, and its checksum is not known.
    Unknown,
    /// The destination's object is older, and no checksum is known.
    Newer,
}

/// Bytes of one read while the checksum of an object is computed.
const READ_BYTES: u64 = 4 << 20;

/// Both sides of a comparison.
pub(super) struct Comparison<'a> {
    pub(super) source: &'a Store,
    pub(super) target: &'a Store,
    pub(super) options: &'a CopyOptions,
    pub(super) observer: &'a dyn CopyObserver,
    pub(super) cancel: &'a Cancel,
}

impl Comparison<'_> {
    /// Why an object has to be copied; `None` if it exists already. `there` is the object of that name at the destination.
    ///
    /// Checksums decide if they are known or can be computed without reading over a network. Listings do not contain them, so
    /// if the sizes are equal, the metadata of the destination's object is requested.
    pub(super) fn why(
        &self,
        item: &SourceItem,
        there: Option<&Object>,
    ) -> Result<Option<Why>, CopyError> {
        let Some(there) = there else {
            return Ok(Some(Why::Missing));
        };
        if there.len != item.object.len {
            return Ok(Some(Why::Size));
        }
        let is_local = |store: &Store| !store.location().is_remote();
        let reads = self.options.compare == Compare::Read;
        let mut expected = item.crc32c;
        let mut found = there.crc32c;
        if found.is_none() && !is_local(self.target) {
            match self.target.head(&there.key)? {
                Some(now) if now.len == item.object.len => found = now.crc32c,
                Some(_) => return Ok(Some(Why::Size)),
                // The object was listed, and was removed since.
                None => return Ok(Some(Why::Unknown)),
            }
        }
        // The source's stored checksum is needed if the destination's is known or can be computed from a local file.
        // The Hugging Face Hub has none.
        if expected.is_none()
            && !is_local(self.source)
            && self.source.location().scheme() != Some("hf")
            && (found.is_some() || is_local(self.target))
        {
            expected = self
                .source
                .head(&item.object.key)?
                .and_then(|object| object.crc32c);
        }
        if expected.is_none() && (reads || (found.is_some() && is_local(self.source))) {
            expected = Some(self.sum(self.source, &item.object)?);
        }
        if found.is_none() && (reads || (expected.is_some() && is_local(self.target))) {
            found = Some(self.sum(self.target, there)?);
        }
        Ok(match (expected, found) {
            (Some(expected), Some(found)) if expected == found => None,
            (Some(_), Some(_)) => Some(Why::Content),
            // For files of a dataset the modification time is not sufficient.
            _ if item.dataset.is_some() || self.options.mode == CopyMode::Copy => {
                Some(Why::Unknown)
            }
            _ => match (item.object.modified, there.modified) {
                (Some(source), Some(there)) if there >= source => None,
                _ => Some(Why::Newer),
            },
        })
    }

    /// Reads an object and returns its CRC-32C.
    fn sum(&self, store: &Store, object: &Object) -> Result<u32, CopyError> {
        let now = match store.location().is_remote() {
            true => store.head(&object.key)?,
            false => None,
        };
        let object = now.as_ref().unwrap_or(object);
        let mut buffer = vec![0; READ_BYTES.min(object.len) as usize];
        let mut at = 0;
        let mut crc = Crc32c::default();
        while at < object.len {
            if self.cancel.is_cancelled() {
                return Err(CopyError::Interrupted { done: 0, total: 0 });
            }
            let step = (object.len - at).min(READ_BYTES) as usize;
            store.read_at_if(object, at, &mut buffer[..step])?;
            crc.update(&buffer[..step]);
            at += step as u64;
            self.observer.compared(step as u64);
        }
        Ok(crc.value())
    }
}
