//! The fingerprint of a manifest, which identifies its dataset.

use super::Manifest;
#[cfg(feature = "blake3")]
use crate::example::RecordFeatures;

impl Manifest {
    /// Returns the identity of the dataset: 32 hexadecimal digits of a BLAKE3 hash over the splits,
    /// the records, bytes and checksum of every shard, the label base and the classes. Pack options
    /// are not included.
    ///
    /// Needs the feature `blake3`. Without it, the field
    /// [`fingerprint`](Self#structfield.fingerprint) is returned without verification.
    #[cfg(feature = "blake3")]
    pub fn fingerprint(&self) -> String {
        let mut hash = blake3::Hasher::new_derive_key("forebay dataset fingerprint v1");
        let mut text = |value: &str| {
            hash.update(&(value.len() as u64).to_le_bytes());
            hash.update(value.as_bytes());
        };
        text(self.shard_format.name());
        text(self.compression.name());
        text(&self.label_base.to_string());
        text(&self.splits.len().to_string());
        for split in &self.splits {
            text(&split.name);
            text(&split.shards.len().to_string());
            for shard in &split.shards {
                text(&shard.name);
                text(&format!(
                    "{} {} {:08x}",
                    shard.records, shard.bytes, shard.crc32c
                ));
            }
        }
        text(&self.classes.len().to_string());
        self.classes.iter().for_each(|class| text(&class.name));
        if !self.record_features.is_standard() {
            let RecordFeatures {
                image,
                label,
                first_of_several,
            } = &self.record_features;
            text(image);
            text(label);
            text(if *first_of_several { "first" } else { "one" });
        }
        hash.finalize().to_hex()[..32].to_owned()
    }

    /// Returns the fingerprint; `None` if this build cannot compute it.
    #[cfg(feature = "blake3")]
    pub(super) fn computed_fingerprint(&self) -> Option<String> {
        Some(self.fingerprint())
    }

    #[cfg(not(feature = "blake3"))]
    pub(super) fn computed_fingerprint(&self) -> Option<String> {
        None
    }
}
