//! A shard that may be damaged or missing: what is known of it, and what is lost.

use crate::error::{Error, Result};
use forebay_shard::dataset::sidecar_path;
use forebay_shard::index::PIECE_BYTES;
use forebay_shard::verify::{Lost, ShardPlace, VerifyFinding};
use forebay_shard::{Codec, Shard, ShardFormat, Storage};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A shard that may be damaged or missing.
pub(in crate::convert) struct DamagedShard {
    path: PathBuf,
    format: ShardFormat,
    sidecar: Option<PathBuf>,
    pub(super) storage: Arc<dyn Storage>,
    /// Number of records in the manifest.
    pub(in crate::convert) records: Option<u64>,
    crc32c: Option<u32>,
    /// Size of the file, or the size in the manifest if it is missing.
    pub(in crate::convert) bytes: u64,
    pub(super) is_missing: bool,
}

/// The name of a shard, and its entry in the manifest, if known.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) records: Option<u64>,
    pub(super) bytes: u64,
    pub(super) crc32c: Option<u32>,
}

impl DamagedShard {
    pub(super) fn find(
        root: &Path,
        storage: &Arc<dyn Storage>,
        format: ShardFormat,
        entry: Entry,
    ) -> Result<Self> {
        let path = root.join(&entry.name);
        let (bytes, is_missing) = match storage.open(&path) {
            Ok(file) => (file.len(), false),
            Err(error) if error.kind() == ErrorKind::NotFound => (entry.bytes, true),
            // A failing disk is not damage, so nothing may be left out because of it.
            Err(error) => return Err(Error::io(&path, "open", error)),
        };
        let sidecar = Some(sidecar_path(root, &entry.name)).filter(|sidecar| {
            format == ShardFormat::TfRecord && storage.exists(sidecar).unwrap_or(false)
        });
        Ok(Self {
            path,
            format,
            sidecar,
            storage: Arc::clone(storage),
            records: entry.records,
            crc32c: entry.crc32c,
            bytes,
            is_missing,
        })
    }

    /// Returns the finding and the losses of a missing file.
    pub(super) fn missing(&self) -> (Vec<VerifyFinding>, Vec<Lost>) {
        let error = forebay_shard::Error::Io {
            path: self.path.clone(),
            op: "open",
            source: ErrorKind::NotFound.into(),
        };
        let lost = Lost {
            path: self.path.clone(),
            records: self.records.map(|records| 0..records),
            bytes: 0..self.bytes,
        };
        (vec![error.into()], vec![lost])
    }

    /// Returns the finding and the loss of an intact record that cannot be converted.
    pub(super) fn refused(&self, number: u64, what: String) -> (VerifyFinding, Lost) {
        let records = number..number + 1;
        let range = self.open().and_then(|s| s.byte_range(records.clone()).ok());
        let finding = VerifyFinding {
            path: self.path.clone(),
            record: Some(number),
            offset: range.as_ref().map(|range| range.start),
            what,
            expected: None,
            found: None,
        };
        let lost = Lost {
            path: self.path.clone(),
            records: Some(records),
            bytes: range.unwrap_or(0..self.bytes),
        };
        (finding, lost)
    }

    /// Adds the identity of the file to a hash: a run that continues must find the same file.
    pub(super) fn identify(&self, hasher: &mut blake3::Hasher) {
        let name = self.path.file_name().unwrap_or_default();
        let name = name.as_encoded_bytes();
        hasher
            .update(&(name.len() as u64).to_le_bytes())
            .update(name);
        hasher.update(&self.bytes.to_le_bytes());
        hasher.update(&[u8::from(self.is_missing), u8::from(self.sidecar.is_some())]);
        let modified = std::fs::metadata(&self.path).and_then(|meta| meta.modified());
        let since = modified
            .ok()
            .and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
        hasher.update(&since.map_or(0, |since| since.as_nanos()).to_le_bytes());
    }

    /// Opens the shard by its index, if the index is intact.
    pub(super) fn open(&self) -> Option<Shard> {
        let options = Shard::options().storage(Arc::clone(&self.storage));
        let options = options.format(self.format, self.sidecar.as_deref());
        options.open(&self.path).ok()
    }

    pub(super) fn codec(&self) -> Option<Codec> {
        let mut header = [0; PIECE_BYTES];
        let file = self.storage.open(&self.path).ok()?;
        file.read_exact_at(&mut header, 0).ok()?;
        Codec::of_shard(&header)
    }

    pub(super) fn place(&self) -> ShardPlace<'_> {
        ShardPlace {
            path: &self.path,
            format: self.format,
            sidecar: self.sidecar.as_deref(),
            records: self.records,
            crc32c: self.crc32c,
        }
    }

    /// Returns the lost records and their number, given that `found` records are intact. The number comes from the manifest
    /// if possible.
    pub(super) fn lost(&self, mut lost: Vec<Lost>, found: u64) -> (Vec<Lost>, u64) {
        let count = |records: &Option<Range<u64>>| records.as_ref().map_or(0, |r| r.end - r.start);
        let Some(records) = self.records else {
            let known = lost.iter().map(|lost| count(&lost.records)).sum();
            return (lost, known);
        };
        let missing = records.saturating_sub(found);
        if missing == 0 {
            lost.clear();
        } else if lost.is_empty() {
            // The file is truncated between two records.
            lost.push(Lost {
                path: self.path.clone(),
                records: Some(found..records),
                bytes: self.bytes..self.bytes,
            });
        }
        (lost, missing)
    }
}
