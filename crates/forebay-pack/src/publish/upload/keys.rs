//! The keys of the objects that a pack writes below its destination.

use crate::publish::destination::{
    INDEX_DIR, LAST_FILES, REPORT, ShardLine, is_shard_name, is_split_index,
};

/// Returns key, size and CRC32C of the files of a shard. The shard comes last, so that its indexes exist when it is visible.
pub(super) fn files(line: &ShardLine) -> impl Iterator<Item = (String, u64, u32)> {
    let sidecars = line.sidecars.iter();
    let sidecars = sidecars.map(|file| {
        (
            format!("{INDEX_DIR}/{}", file.name),
            file.bytes,
            file.crc32c,
        )
    });
    sidecars
        .chain(std::iter::once((
            line.name.clone(),
            line.bytes,
            line.crc32c,
        )))
        .collect::<Vec<_>>()
        .into_iter()
}

/// Returns whether a key is that of a probe for conditional puts, which is temporary or was left by a killed process.
pub(super) fn is_probe(key: &str) -> bool {
    key.starts_with(".forebay-probe-")
}

/// Returns whether a pack writes objects with this key.
pub(super) fn is_of_pack(key: &str) -> bool {
    let is_index = |name: &str| {
        let shard = name
            .strip_suffix(".fbi")
            .or_else(|| name.strip_suffix(".idx"));
        shard.is_some_and(is_shard_name)
    };
    LAST_FILES.contains(&key)
        || is_split_index(key)
        || is_probe(key)
        || is_shard_name(key)
        || key.strip_prefix("index/").is_some_and(is_index)
        || key.strip_prefix("pack/") == Some(REPORT)
}

/// Returns whether a pack with these shards writes an object with this key, other than the manifest.
pub(super) fn is_of_shards(key: &str, is_shard: &dyn Fn(&str) -> bool) -> bool {
    let name = key.strip_prefix("index/").map_or(key, |name| {
        name.strip_suffix(".fbi")
            .or_else(|| name.strip_suffix(".idx"))
            .unwrap_or(name)
    });
    is_of_pack(key) && (is_shard(name) || key.starts_with("pack/") || is_split_index(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_packs_are_distinguished_from_others() {
        for key in [
            "forebay.json",
            "train-00000-of-00001",
            "train-00000-of-00001.fbs",
            "index/train-00000-of-00001.fbi",
            "index/train-00000-of-00001.idx",
            "pack/report.jsonl",
        ] {
            assert!(is_of_pack(key), "{key}");
        }
        for key in [
            "thesis.tex",
            "index/x.fbi",
            "index/train-00000-of-00001",
            "pack/x",
            "train-0-of-1",
            "a/train-00000-of-00001",
        ] {
            assert!(!is_of_pack(key), "{key}");
        }
        let is_shard = |name: &str| name == "train-00000-of-00001";
        assert!(is_of_shards("index/train-00000-of-00001.idx", &is_shard));
        assert!(!is_of_shards("train-00000-of-00002", &is_shard));
        assert!(!is_of_shards("forebay.json", &is_shard));
    }
}
