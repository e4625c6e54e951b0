//! Names of TFRecord files of other tools: whether they are shards, and of which split.

use forebay_pack::RecordFormat;

/// Split of a file whose name does not contain one.
const DEFAULT_SPLIT: &str = "train";

/// A parsed name: `train-00003-of-00128` is number 3 of 128 of `train`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    pub(crate) stem: &'a str,
    pub(crate) number: Option<(u32, u32)>,
}

/// Extensions of files that are compressed as a whole.
const COMPRESSED: [&str; 3] = [".gz", ".gzip", ".zlib"];

fn without_ending<'a>(name: &'a str, endings: &[&str]) -> &'a str {
    let mut endings = endings.iter();
    endings
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(name)
}

/// Returns whether a name is that of a TFRecord shard.
pub(crate) fn is_shard(name: &str) -> bool {
    let plain = without_ending(name, &COMPRESSED);
    let extensions = RecordFormat::TFRECORD.extensions();
    let has_extension = extensions.iter().any(|end| plain.ends_with(end));
    !name.starts_with('.') && (parse(name).number.is_some() || has_extension)
}

/// Returns whether the name of a shard says that it is compressed as a whole.
pub(crate) fn is_compressed(name: &str) -> bool {
    COMPRESSED.iter().any(|end| name.ends_with(end))
}

/// Parses a name.
pub(crate) fn parse(name: &str) -> Name<'_> {
    let whole = Name {
        stem: name,
        number: None,
    };
    // An extension may follow the numbers, as in `train-00000-of-00001.tfrecord.gz`.
    let bare = without_ending(name, &COMPRESSED);
    let bare = without_ending(bare, RecordFormat::TFRECORD.extensions());
    let Some((rest, of)) = bare.rsplit_once("-of-") else {
        return Name {
            stem: bare,
            ..whole
        };
    };
    let Some((stem, number)) = rest.rsplit_once('-') else {
        return whole;
    };
    match (number.parse(), of.parse()) {
        (Ok(number), Ok(of)) if !stem.is_empty() => Name {
            stem,
            number: Some((number, of)),
        },
        _ => whole,
    }
}

/// Returns the split of a name: TFDS writes `imagenet2012-train.tfrecord`, TensorFlow's tool `train`.
pub(crate) fn split_of(name: &Name<'_>) -> String {
    if name.number.is_none() {
        return DEFAULT_SPLIT.to_owned();
    }
    let stem = name.stem.split('.').next().unwrap_or_default();
    let last = stem.rsplit('-').next().unwrap_or_default();
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !last.is_empty() && last.chars().all(fits) {
        last.to_owned()
    } else {
        DEFAULT_SPLIT.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_parsed_from_names() {
        for (name, split) in [
            ("train-00000-of-01024", "train"),
            ("validation-00001-of-00128", "validation"),
            ("imagenet2012-train.tfrecord-00000-of-01024", "train"),
            ("test-00000-of-00001.tfrecord", "test"),
            ("anything.tfrecord", "train"),
            ("test-00000-of-00001.tfrecord.gz", "test"),
            ("test-00000-of-00001.gz", "test"),
            ("odd", "train"),
        ] {
            assert_eq!(split_of(&parse(name)), split, "{name}");
        }
    }

    #[test]
    fn compressed_shards_are_shards() {
        for name in [
            "a.tfrecord",
            "a.tfrecords.gz",
            "a.tfrecord.zlib",
            "train-00000-of-00002.gz",
            "train-00000-of-00002",
        ] {
            assert!(is_shard(name), "{name}");
        }
        for name in ["a.gz", ".a.tfrecord.gz", "a.tfrecord.txt", "train-0.gz"] {
            assert!(!is_shard(name), "{name}");
        }
    }
}
