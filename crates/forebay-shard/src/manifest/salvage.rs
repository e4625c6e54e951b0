//! Recovers the parts of a damaged manifest that its fingerprint proves.

use std::io::ErrorKind;
use std::path::Path;

use super::{FILE_NAME, FORMAT, KNOWN_FEATURES, MAX_BYTES, Manifest, VERSION};
use crate::error::{Error, Result};
use crate::storage::{self, Storage};

impl Manifest {
    /// Recovers a manifest that [`parse`](Self::parse) refuses, as far as a correct fingerprint proves it to be
    /// intact: the shards, the format, the label base, the record features and the
    /// names of the classes. All other parts are left out. Returns `None` without the feature
    /// `blake3`, which computes the fingerprint.
    pub fn salvage(bytes: &[u8]) -> Option<Self> {
        let mut manifest: Self = crate::json::from_slice(bytes).ok()?;
        let mut required = manifest.requires.iter();
        let is_known = manifest.format == FORMAT
            && required.all(|name| KNOWN_FEATURES.contains(&name.as_str()));
        if !is_known || manifest.computed_fingerprint().as_ref() != Some(&manifest.fingerprint) {
            return None;
        }
        manifest.version = VERSION;
        (manifest.sample_fingerprint, manifest.order) = (None, None);
        manifest.features.clear();
        manifest.pack.clear();
        for class in &mut manifest.classes {
            class.text = None;
        }
        for shard in manifest
            .splits
            .iter_mut()
            .flat_map(|split| &mut split.shards)
        {
            shard.blake3 = None;
        }
        manifest.check().is_ok().then_some(manifest)
    }

    /// As [`salvage`](Self::salvage), for `forebay.json` of a dataset in any storage.
    ///
    /// # Errors
    /// If the manifest exists and cannot be read.
    pub fn salvage_in(root: impl AsRef<Path>, storage: &dyn Storage) -> Result<Option<Self>> {
        let path = root.as_ref().join(FILE_NAME);
        match storage::read_whole(storage, &path, MAX_BYTES, "a manifest") {
            Ok(bytes) => Ok(Self::salvage(&bytes)),
            Err(Error::Io { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
