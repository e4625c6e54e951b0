//! Rules for the names of files in a checkpoint, of attempts, and of checkpoints in a run.

use super::{Error, Result};
use forebay_store::{Location, is_temporary};
use std::ffi::OsStr;
use std::path::Path;

/// Maximum length of a file name: the smallest limit of any store on keys, less room for a prefix.
const NAME_MAX_BYTES: usize = 700;

/// Checks that a file of a checkpoint may have this name: a relative path of plain segments. The error says what is wrong.
pub(super) fn check(name: &str) -> std::result::Result<(), String> {
    let plain = |segment: &str| {
        !matches!(segment, "" | "." | "..")
            && segment.len() <= 255
            && !is_temporary(OsStr::new(segment))
    };
    if name.len() > NAME_MAX_BYTES
        || !name.split('/').all(plain)
        || name.contains(['\\', '\u{7f}'])
        || name.chars().any(char::is_control)
    {
        let shown: String = name.chars().take(80).collect();
        return Err(format!(
            "{shown:?} cannot be the name of a file in a checkpoint"
        ));
    }
    Ok(())
}

/// Checks that an attempt may have this name, which becomes a segment of keys.
pub(super) fn check_attempt(attempt: &str) -> std::result::Result<(), String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if attempt.is_empty()
        || attempt.len() > 64
        || !attempt.chars().all(plain)
        || attempt.starts_with('.')
    {
        let shown: String = attempt.chars().take(80).collect();
        return Err(format!(
            "{shown:?} cannot name an attempt: up to 64 letters, digits, '-', '_' and '.'"
        ));
    }
    Ok(())
}

/// The place of a checkpoint: the directory or prefix of its run, and its name there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct CheckpointPath {
    /// The run's directory or prefix; absolute if it is local.
    pub(super) prefix: Location,
    /// The checkpoint's name in the run.
    pub(super) name: String,
}

impl CheckpointPath {
    pub(super) fn of(location: &Location) -> Result<Self> {
        let refuse = |why: &str| Error::Option {
            what: format!("{location} cannot be a checkpoint: {why}"),
        };
        let absolute = absolute(location)?;
        let text = absolute.to_string();
        let trimmed = text.trim_end_matches('/');
        let (prefix, name) = trimmed
            .rsplit_once('/')
            .ok_or_else(|| refuse("it has no name"))?;
        let is_root = matches!(Location::parse(trimmed)?.parent_and_name(), Ok(None));
        if check(name).is_err() || prefix.ends_with(":/") || is_root {
            return Err(refuse(
                "name it below a run, as in s3://bucket/run/step-1000",
            ));
        }
        // `/name` has an empty prefix, which stands for the root directory.
        let prefix = if prefix.is_empty() { "/" } else { prefix };
        Ok(Self {
            prefix: Location::parse(prefix)?,
            name: name.to_owned(),
        })
    }

    pub(super) fn location(&self) -> String {
        let prefix = self.prefix.to_string();
        format!("{}/{}", prefix.trim_end_matches('/'), self.name)
    }

    /// Returns the key, in the run's store, of an object of this checkpoint.
    pub(super) fn key(&self, below: &str) -> String {
        format!("{}/{below}", self.name)
    }
}

/// Makes a local path absolute, so that it does not depend on the current directory. Other locations stay as they are.
pub(super) fn absolute(location: &Location) -> Result<Location> {
    if location.scheme().is_some() {
        return Ok(location.clone());
    }
    let path = location.local_path()?;
    let path = std::path::absolute(path)
        .map_err(|source| forebay_store::Error::io(path, "find", source))?;
    if path.to_str().is_none() {
        return Err(Error::Option {
            what: format!(
                "{} is not UTF-8: a checkpoint's path has to be",
                path.display()
            ),
        });
    }
    Ok(Location::from(without_dots(&path).as_path()))
}

/// Removes `.` segments, so that a directory has one spelling.
fn without_dots(path: &Path) -> std::path::PathBuf {
    path.components()
        .filter(|part| !matches!(part, std::path::Component::CurDir))
        .collect()
}

/// Returns the step of a checkpoint: the last run of digits in its name, as in `step-1000`. A name without digits has no step.
pub fn step_of(name: &str) -> Option<u64> {
    let digits = last_digits(name)?;
    digits.parse().ok()
}

/// Returns the text before and after the number in a name. Retention compares only checkpoints that share both.
pub(super) fn family_of(name: &str) -> Option<(&str, &str)> {
    let digits = last_digits(name)?;
    let start = digits.as_ptr() as usize - name.as_ptr() as usize;
    Some((name.get(..start)?, name.get(start + digits.len()..)?))
}

fn last_digits(name: &str) -> Option<&str> {
    let end = name.rfind(|c: char| c.is_ascii_digit())? + 1;
    let head = name.get(..end)?;
    let start = head.rfind(|c: char| !c.is_ascii_digit()).map_or(0, |at| {
        at + head[at..].chars().next().map_or(1, char::len_utf8)
    });
    head.get(start..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_is_the_last_number() {
        for (name, step) in [
            ("step-1000", Some(1000)),
            ("step_00042", Some(42)),
            ("v2-epoch3-final", Some(3)),
            ("7", Some(7)),
            ("best", None),
            ("ü9ü", Some(9)),
            ("x99999999999999999999999", None),
        ] {
            assert_eq!(step_of(name), step, "{name}");
        }
        assert_eq!(family_of("v2-epoch3-final"), Some(("v2-epoch", "-final")));
        assert_eq!(family_of("ü9ü"), Some(("ü", "ü")));
        assert_eq!(family_of("best"), None);
    }

    #[test]
    fn a_checkpoint_has_a_run_and_a_name() {
        let place = |text: &str| CheckpointPath::of(&Location::parse(text).unwrap());
        let made = place("s3://bucket/run/step-1000/").unwrap();
        assert_eq!(made.prefix.to_string(), "s3://bucket/run");
        assert_eq!(made.name, "step-1000");
        assert_eq!(made.location(), "s3://bucket/run/step-1000");
        assert_eq!(place("/a/./b/step-1").unwrap().location(), "/a/b/step-1");
        assert_eq!(place("/step-1").unwrap().location(), "/step-1");
        let here = std::env::current_dir().unwrap();
        let relative = place("run/step-1").unwrap();
        assert_eq!(relative.prefix.local_path().unwrap(), here.join("run"));
        for bad in ["s3://bucket", "s3://bucket/", "/", "/a/.."] {
            assert!(matches!(place(bad), Err(Error::Option { .. })), "{bad}");
        }
    }

    #[test]
    fn names_are_plain_paths() {
        for good in ["a", "a/b.c", "ü/x y", "...", "-"] {
            assert!(check(good).is_ok(), "{good}");
        }
        for bad in [
            "a/",
            "/a",
            "..",
            "a/./b",
            ".a.forebay-tmp",
            "\u{7f}",
            &"x".repeat(256),
        ] {
            assert!(check(bad).is_err(), "{bad}");
        }
    }
}
