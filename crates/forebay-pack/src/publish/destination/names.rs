//! The names of the files of a dataset.

use forebay_formats::key_path::is_split_name;
use forebay_formats::records::Conversion;
use forebay_shard::manifest::FILE_NAME as MANIFEST;

/// The files that are published last, one per kind of dataset. A dataset that has one is complete.
pub(crate) const LAST_FILES: [&str; 2] = [MANIFEST, Conversion::FILE_NAME];
/// Name of the list of a split's files, in formats that have one.
const SPLIT_INDEX: &str = "index.json";
/// Extensions of other tools' formats whose files are numbered from 0.
const NUMBERED: [&str; 5] = [".npz", ".safetensors", ".h5", ".lmdb", ".zarr.zip"];

/// Returns whether a name is that of a file of records: `name-00000-of-00001` or `name-00000`, with or without `.fbs`,
/// `name-00000-of-00001.fbm`, `name-00000-of-00001.array_record`, `name-000000.tar`, `name-00000` with an extension of
/// [`NUMBERED`], `name/shard.00000.mds` (also compressed), or `data/name-00000-of-00001.parquet`.
pub(crate) fn is_shard_name(name: &str) -> bool {
    let parquet = name.strip_prefix("data/");
    if let Some(stem) = parquet.and_then(|file| file.strip_suffix(".parquet")) {
        return is_one_of_many(stem);
    }
    if let Some((split, file)) = name.split_once('/') {
        let file = file.strip_prefix("shard.").unwrap_or_default();
        let file = file.strip_suffix(".zstd").unwrap_or(file);
        let number = file.strip_suffix(".mds").unwrap_or_default();
        return is_split_name(split) && is_number(number, 5);
    }
    if let Some(stem) = name.strip_suffix(".tar") {
        let parts = stem.rsplit_once('-');
        return parts.is_some_and(|(split, number)| is_split_name(split) && is_number(number, 6));
    }
    if let Some(stem) = NUMBERED.iter().find_map(|end| name.strip_suffix(end)) {
        return !stem.ends_with(".fbs") && split_of_numbered(stem).is_some();
    }
    let stem = [".fbs", ".fbm", ".array_record"]
        .iter()
        .find_map(|end| name.strip_suffix(end));
    is_one_of_many(stem.unwrap_or(name)) || split_of_numbered(name).is_some()
}

/// Returns whether a name is `name-00000-of-00001`.
fn is_one_of_many(stem: &str) -> bool {
    let parts: Vec<&str> = stem.rsplitn(4, '-').collect();
    match parts[..] {
        [count, "of", number, split] => {
            is_number(count, 5) && is_number(number, 5) && is_split_name(split)
        }
        _ => false,
    }
}

/// Returns split and number of `name-00000`, with or without `.fbs`: a shard of a dataset that is written without knowing
/// the number of shards.
pub(crate) fn split_of_numbered(name: &str) -> Option<(&str, u32)> {
    let stem = name.strip_suffix(".fbs").unwrap_or(name);
    let (split, number) = stem.rsplit_once('-')?;
    let is_name = is_number(number, 5) && is_split_name(split);
    Some((split, number.parse().ok()?)).filter(|_| is_name)
}

fn is_number(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| b.is_ascii_digit())
}

/// Returns whether a name is that of the list of a split's files.
pub(crate) fn is_split_index(name: &str) -> bool {
    let parts = name.split_once('/');
    parts.is_some_and(|(split, file)| is_split_name(split) && file == SPLIT_INDEX)
}

/// Returns the directory of a split and the path of its list of files, if shards are in a directory per split.
pub(crate) fn split_dir(shard: &str) -> Option<(&str, String)> {
    let (dir, _) = shard.split_once('/')?;
    Some((dir, format!("{dir}/{SPLIT_INDEX}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shard_names_are_distinguished_from_others() {
        for name in [
            "train-00000-of-00001",
            "train-clean-100-00000-of-00001.fbs",
            "train-clean-00000",
            "train-clean-000000.tar",
            "a.b_c-12345-of-99999.fbs",
            "train-00000-of-00001.fbm",
            "train-00000-of-00001.array_record",
            "train-00000",
            "a.b_c-12345.fbs",
            "train-000000.tar",
            "a.b_c-12345.npz",
            "train-00000.safetensors",
            "train-00000.lmdb",
            "train-00000.h5",
            "train-00000.zarr.zip",
            "train/shard.00012.mds",
            "data/train-00000-of-00001.parquet",
            "train/shard.00012.mds.zstd",
        ] {
            assert!(is_shard_name(name), "{name}");
        }
        for name in [
            "",
            "train",
            "train.npz",
            "train-00000.fbs.npz",
            "../x-00000-of-00001",
            "train-0-of-1",
            "train-00000-of-00001.idx",
            "-00000-of-00001",
            "train-0000",
            "-00000",
            "00000",
            "train-0.tar",
            "x/train-000000.tar",
            "../shard.00012.mds",
            "a/b/shard.00012.mds",
            "train-00000-of-00001.parquet",
            "data/train.parquet",
            "train/shard.0.mds",
            "train/shard.00000.zstd",
        ] {
            assert!(!is_shard_name(name), "{name}");
        }
        assert!(is_split_index("train/index.json") && !is_split_index("index.json"));
        let (dir, index) = split_dir("train/shard.00000.mds").unwrap();
        assert_eq!((dir, index.as_str()), ("train", "train/index.json"));
        assert_eq!(split_dir("train-000000.tar"), None);
    }
}
