//! Converts library errors to the lines that the user reads, with hints.

use forebay_cache::ReadError;
use forebay_shard::some_of;

use crate::failure::{Failure, io_cause, io_hint};
use crate::input::{MANIFEST, show};
use crate::quantity;

impl From<forebay_store::Error> for Failure {
    fn from(error: forebay_store::Error) -> Self {
        use forebay_store::Error;
        let hint = match &error {
            Error::Io { source, .. } => io_hint(source),
            Error::Locked { .. } => Some("wait until it is done, or stop it first".to_owned()),
            error => store_hint(error),
        };
        Self::from_error(&error).maybe_hint(hint)
    }
}

/// Returns the hint of an error of a store, with options as they are typed.
fn store_hint(error: &forebay_store::Error) -> Option<String> {
    use forebay_store::Error;
    let hint = match error {
        Error::Shared(error) => return store_hint(error),
        Error::Undelivered { source, .. } => return store_hint(source),
        Error::AreaNotWritable { .. } => {
            "name a directory that can be written to with --staging, or in FOREBAY_STAGING"
        }
        Error::AreaTooSmall { left_bytes: 0, .. } => {
            "give it more room, or another directory, with --staging-bytes and --staging"
        }
        Error::NotConditional { .. } => {
            "if there is no other writer, set --storage-option assume_conditional_put=true"
        }
        error => return error.hint(),
    };
    Some(hint.to_owned())
}

impl From<forebay_staging::checkpoint::Error> for Failure {
    fn from(error: forebay_staging::checkpoint::Error) -> Self {
        use forebay_staging::checkpoint::Error;
        match error {
            Error::Store(error) => Self::from(error),
            Error::Option { what } => Self::usage(what),
            Error::Missing { .. } => Self::from_error(&error).hint(
                "`forebay inspect` lists those of a run; one without a manifest is not complete",
            ),
            error => Self::from_error(&error),
        }
    }
}

impl From<forebay_pack::SourceError> for Failure {
    fn from(error: forebay_pack::SourceError) -> Self {
        forebay_pack::Error::from(error).into()
    }
}

impl From<forebay_pack::Error> for Failure {
    fn from(error: forebay_pack::Error) -> Self {
        use forebay_pack::Error;
        let hint = pack_hint(&error);
        match error {
            Error::Interrupted { finished, total } => {
                Self::interrupted(format!("{finished} of {total} shards are finished"))
                    .maybe_hint(hint)
            }
            Error::Options(_) => Self::usage(error.to_string()).maybe_hint(hint),
            Error::Option { option, value, why } => {
                let flag = match option {
                    "drop_features" => "drop-feature".to_owned(),
                    option => option.replace('_', "-"),
                };
                let value = value.map_or(String::new(), |value| format!(" {value:?}"));
                Self::usage(format!("--{flag}{value}: {why}"))
            }
            Error::NoFastImages { .. } => Self::usage(format!("{error} (--format indexed)")),
            Error::PartOverwrites => Self::usage(
                "a part never replaces what other parts may be writing: overwrite with --plan --overwrite, then run the parts",
            ),
            Error::OtherDataset { .. } => Self::new(format!(
                "{error}: choose another one, or replace it with --overwrite"
            )),
            Error::NoSpace {
                path,
                free_bytes,
                needed_bytes,
            } => Self::new(format!(
                "{} has {} free, and the shards need about {}",
                show(&path),
                quantity::bytes(free_bytes),
                quantity::bytes(needed_bytes)
            ))
            .maybe_hint(hint),
            Error::Store(error) => Self::from(error).maybe_hint(hint),
            Error::Shard(error) => Self::from(error).maybe_hint(hint),
            error => Self::from_error(&error)
                .maybe_hint(io_cause(&error).and_then(io_hint))
                .maybe_hint(hint),
        }
    }
}

/// Returns the hint of an error of a pack, with options as they are typed.
fn pack_hint(error: &forebay_pack::Error) -> Option<String> {
    use forebay_pack::{Error, Part};
    let hint = match error {
        Error::DifferentPack { .. } => {
            "repeat the earlier arguments to continue it, choose another destination, or start over with --overwrite"
        }
        Error::Claimed { .. } => {
            "let it finish, or run the same command again where it ran; if it is gone for good, --overwrite takes over and starts again"
        }
        Error::Store(forebay_store::Error::Undelivered { source, .. }) => {
            let kept =
                "what is packed is kept in the staging area: the same command continues from there";
            let hint = store_hint(source);
            return Some(hint.map_or(kept.into(), |hint| format!("{hint}; {kept}")));
        }
        Error::DifferentPart { .. } => {
            "give all parts the same arguments; if the source has changed, run the command with --plan again and then all parts"
        }
        Error::Missing { parts, .. } if parts.is_empty() => "run the parts again",
        Error::Missing { parts, .. } => {
            return Some(format!(
                "run the command with --part {} again",
                some_of(parts.iter().map(Part::to_string))
            ));
        }
        Error::SourceChanged(_) => {
            "nothing is published; the same command again packs the source as it is then (parts: after the command with --plan)"
        }
        Error::BadImage(_) => {
            "--on-bad skip leaves such files out and lists them, quarantine:DIR copies them there too"
        }
        Error::TooManyBad { .. } => {
            "look at the source: this is no damage of single files; --max-bad N or N% allows more"
        }
        error => return error.hint(),
    };
    Some(hint.to_owned())
}

impl From<forebay_shard::Error> for Failure {
    fn from(error: forebay_shard::Error) -> Self {
        use forebay_shard::Error;
        let hint = match &error {
            Error::Io { source, .. } => match ReadError::of(&error) {
                Some(forebay_store::Error::Changed { .. }) => Some(
                    "open the dataset again; do not replace a dataset while it is read"
                        .to_owned(),
                ),
                Some(store) => store_hint(store),
                None => io_hint(source),
            },
            Error::Corrupt(_) => Some(
                "`forebay verify` lists all the damage, `forebay repair` copies the intact records; or restore the file from where it was copied"
                    .to_owned(),
            ),
            Error::Version { .. } | Error::Feature { .. } => {
                Some("update forebay".to_owned())
            }
            Error::Manifest { path, .. } | Error::Mismatch { path, .. }
                if path.file_name().is_some_and(|name| name == MANIFEST) =>
            {
                Some(
                    "restore the manifest from a copy, or let `forebay repair SRC DST` rebuild it from the shards"
                        .to_owned(),
                )
            }
            Error::Mismatch { .. } => Some(
                "the files are of different datasets or packs: copy the whole dataset again, or pack again"
                    .to_owned(),
            ),
            _ => None,
        };
        Self::from_error(&error).maybe_hint(hint)
    }
}

impl From<forebay_server::Error> for Failure {
    fn from(error: forebay_server::Error) -> Self {
        use forebay_server::Error;
        let hint = match &error {
            Error::Listen { source, .. } => io_hint(source),
            Error::Name { .. } => Some("give the dataset another name with --name NAME".to_owned()),
            Error::NotLoopback { .. } => {
                let hint = "give --tls-cert, --tls-key and --token-file; on a network that you trust --insecure does without them";
                return Self::usage(error.to_string()).hint(hint);
            }
            _ => None,
        };
        Self::from_error(&error).maybe_hint(hint)
    }
}

impl From<forebay_client::Error> for Failure {
    fn from(error: forebay_client::Error) -> Self {
        Self::from_error(&error).maybe_hint(io_cause(&error).and_then(io_hint))
    }
}
