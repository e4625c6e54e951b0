//! The journal of a session: which files were submitted, and which of them are at their destinations.
//!
//! Each line consists of the CRC32C of the JSON text in eight hex digits, a space, and the JSON text. The line of a submitted
//! file is on disk before `submit` returns. The line that a file is stored is written after the remote copy was verified and
//! before the local file is deleted. A crash can truncate the last line, so lines with a wrong checksum are skipped. Paths and
//! keys in a line are validated before use, because anyone with write access to the disk may have written the line.

use forebay_store::{Durability, Error, Result, write_file};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

/// The format version, raised when older journals cannot be continued.
const VERSION: u32 = 1;
/// The largest number of bytes that are read; a journal is rewritten long before it has this size.
const MAX_BYTES: u64 = 256 << 20;
/// A journal is rewritten without its finished files after this many lines other than `Submitted`.
const REWRITE_AFTER_LINES: u64 = 4096;
/// The longest key that stores accept.
const MAX_KEY_BYTES: usize = 1024;

/// A submitted file, as the journal describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Submitted {
    pub(super) id: u64,
    /// The path, relative to the session's `data` directory.
    pub(super) file: String,
    pub(super) len: u64,
    pub(super) crc32c: u32,
    /// The location that the key is relative to, without credentials and query.
    pub(super) location: String,
    pub(super) key: String,
    /// The endpoint without secrets, if the store's options have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) endpoint: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) region: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) anonymous: bool,
}

impl Submitted {
    /// Whether the path stays inside the session and the key is valid.
    fn is_sound(&self) -> bool {
        is_inside(Path::new(&self.file))
            && !self.key.is_empty()
            && self.key.len() <= MAX_KEY_BYTES
            && is_inside(Path::new(&self.key))
            && !self.key.chars().any(char::is_control)
    }

    /// The destination, for messages.
    pub(super) fn object(&self) -> String {
        format!("{}/{}", self.location.trim_end_matches('/'), self.key)
    }
}

/// Whether a path is relative and consists of normal names only (no `..`).
pub(super) fn is_inside(path: &Path) -> bool {
    !path.as_os_str().is_empty()
        && path
            .components()
            .all(|part| matches!(part, Component::Normal(_)))
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    /// The first line of a journal.
    Session {
        version: u32,
        title: String,
        next_id: u64,
    },
    Submitted(Submitted),
    Stored {
        id: u64,
    },
    /// The file was discarded by the process that submitted it.
    Dropped {
        id: u64,
    },
    Failed {
        id: u64,
        error: String,
    },
}

/// A file that is not at its destination yet.
#[derive(Debug, Clone)]
pub(super) struct Left {
    pub(super) submitted: Submitted,
    /// Why the last attempt failed.
    pub(super) error: Option<String>,
}

/// The contents of a journal.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) title: String,
    pub(super) next_id: u64,
    pub(super) left: BTreeMap<u64, Left>,
    pub(super) stored: u64,
}

/// Reads a journal. A missing or empty journal means that no file was submitted.
pub(super) fn read(path: &Path) -> Result<Found> {
    let mut text = Vec::new();
    match File::open(path) {
        Ok(file) => {
            file.take(MAX_BYTES)
                .read_to_end(&mut text)
                .map_err(|error| Error::io(path, "read", error))?;
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::default()),
        Err(error) => return Err(Error::io(path, "open", error)),
    }
    let mut found = Found::default();
    for line in text.split_inclusive(|b| *b == b'\n').filter_map(parse) {
        match line {
            Line::Session {
                version,
                title,
                next_id,
            } => {
                if version != VERSION {
                    return Err(Error::Staging {
                        dir: path.to_path_buf(),
                        what: "this journal was written by another version of forebay: recover it with that one".into(),
                    });
                }
                (found.title, found.next_id) = (title, found.next_id.max(next_id));
            }
            Line::Submitted(submitted) if submitted.is_sound() => {
                found.next_id = found.next_id.max(submitted.id.saturating_add(1));
                let left = Left {
                    submitted,
                    error: None,
                };
                found.left.insert(left.submitted.id, left);
            }
            Line::Submitted(_) => {}
            Line::Stored { id } => {
                if found.left.remove(&id).is_some() {
                    found.stored += 1;
                }
            }
            Line::Dropped { id } => drop(found.left.remove(&id)),
            Line::Failed { id, error } => {
                if let Some(left) = found.left.get_mut(&id) {
                    left.error = Some(error);
                }
            }
        }
    }
    Ok(found)
}

/// The journal of an open session.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    title: String,
    file: File,
    next_id: u64,
    done_lines: u64,
    /// A write failed, perhaps in the middle of a line: the next write begins with a line break.
    is_torn: bool,
    /// An fsync failed. This is final: the kernel may have dropped the bytes, even if a later fsync succeeds.
    is_lost: bool,
}

impl Journal {
    /// Begins a journal, or continues it with the files of `found` that are not stored yet.
    pub(super) fn begin(path: &Path, title: &str, found: &Found) -> Result<Self> {
        let title = if title.is_empty() {
            &found.title
        } else {
            title
        };
        let file = rewrite(
            path,
            title,
            found.next_id,
            found.left.values().map(|left| &left.submitted),
        )?;
        Ok(Self {
            path: path.to_path_buf(),
            title: title.to_owned(),
            file,
            next_id: found.next_id,
            done_lines: 0,
            is_torn: false,
            is_lost: false,
        })
    }

    /// Returns a new id, unique within the session.
    pub(super) fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Appends lines for submitted files. They are on disk when it returns.
    pub(super) fn submitted(&mut self, submitted: &[Submitted]) -> Result<()> {
        let lines: Vec<Line> = submitted.iter().cloned().map(Line::Submitted).collect();
        self.append(&lines, true)
    }

    /// Appends a line that a file is at its destination, without fsync: if a power cut loses the line, the next process finds the
    /// object at the destination.
    pub(super) fn stored(&mut self, id: u64) -> Result<()> {
        self.append(&[Line::Stored { id }], false)
    }

    /// Rewrites a long journal without its finished files. `left` are the files that are not at their destinations.
    pub(super) fn shorten<'a>(&mut self, left: impl Iterator<Item = &'a Submitted>) -> Result<()> {
        if self.done_lines >= REWRITE_AFTER_LINES {
            self.file = rewrite(&self.path, &self.title, self.next_id, left)?;
            self.done_lines = 0;
        }
        Ok(())
    }

    /// Appends a line that a file was discarded.
    pub(super) fn dropped(&mut self, id: u64) -> Result<()> {
        self.append(&[Line::Dropped { id }], true)
    }

    /// Appends the error of a file, for users who inspect the area, without fsync.
    pub(super) fn failed(&mut self, id: u64, error: &str) -> Result<()> {
        let error = error.to_owned();
        self.append(&[Line::Failed { id, error }], false)
    }

    fn append(&mut self, lines: &[Line], is_synced: bool) -> Result<()> {
        if self.is_lost {
            return Err(Error::Staging {
                dir: self.path.clone(),
                what: "an earlier fsync of this journal failed: open the staging area again".into(),
            });
        }
        let mut text = Vec::new();
        if self.is_torn {
            text.push(b'\n');
        }
        for line in lines {
            text.extend(encode(&self.path, line)?);
        }
        self.is_torn = true;
        self.file
            .write_all(&text)
            .map_err(|error| Error::io(&self.path, "write", error))?;
        self.is_torn = false;
        let done = lines
            .iter()
            .filter(|line| !matches!(line, Line::Submitted(_)));
        self.done_lines += done.count() as u64;
        if is_synced {
            self.file.sync_data().map_err(|error| {
                self.is_lost = true;
                Error::io(&self.path, "fsync", error)
            })?;
        }
        Ok(())
    }
}

fn rewrite<'a>(
    path: &Path,
    title: &str,
    next_id: u64,
    left: impl Iterator<Item = &'a Submitted>,
) -> Result<File> {
    let title = title.to_owned();
    let mut text = encode(
        path,
        &Line::Session {
            version: VERSION,
            title,
            next_id,
        },
    )?;
    for submitted in left {
        text.extend(encode(path, &Line::Submitted(submitted.clone()))?);
    }
    write_file(path, &text, Durability::Synced)?;
    OpenOptions::new()
        .append(true)
        .open(path)
        .map_err(|error| Error::io(path, "open", error))
}

fn encode(path: &Path, line: &Line) -> Result<Vec<u8>> {
    let json = serde_json::to_string(line).map_err(|error| Error::io(path, "encode", error))?;
    Ok(format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes())).into_bytes())
}

fn parse(line: &[u8]) -> Option<Line> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (sum, json) = text.split_once(' ')?;
    let is_intact = sum == format!("{:08x}", crc32c::crc32c(json.as_bytes()));
    if is_intact {
        forebay_shard::json::from_str(json).ok()
    } else {
        None
    }
}

/// Fuzz target: parses lines with corrected checksums, and checks that accepted paths and keys stay inside the session and the
/// destination.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(bytes: &[u8]) {
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let _ = parse(line);
        let Ok(json) = std::str::from_utf8(line.strip_suffix(b"\n").unwrap_or(line)) else {
            continue;
        };
        let signed = format!("{:08x} {json}\n", crc32c::crc32c(json.as_bytes()));
        if let Some(Line::Submitted(submitted)) = parse(signed.as_bytes())
            && submitted.is_sound()
        {
            assert!(!submitted.file.starts_with('/') && !submitted.key.starts_with('/'));
            assert!(!submitted.file.split('/').any(|part| part == ".."));
            assert!(!submitted.key.split('/').any(|part| part == ".."));
            let line = Line::Submitted(submitted.clone());
            let line = encode(Path::new("journal"), &line).unwrap_or_default();
            assert!(matches!(parse(&line), Some(Line::Submitted(same)) if same == submitted));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzz_corpus_passes() {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/stage_journal");
        forebay_rigs::replay_corpus(corpus.as_ref(), 1000, super::fuzz);
    }

    fn submitted(id: u64, file: &str, key: &str) -> Submitted {
        Submitted {
            id,
            file: file.into(),
            len: 3,
            crc32c: 7,
            location: "s3://bucket/a".into(),
            key: key.into(),
            endpoint: Some("http://127.0.0.1:1".into()),
            region: None,
            anonymous: false,
        }
    }

    #[test]
    fn truncated_and_damaged_lines_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::begin(&path, "title", &Found::default()).unwrap();
        let wanted: Vec<Submitted> = (0..3)
            .map(|id| submitted(id, &format!("f{id}"), &format!("k/{id}")))
            .collect();
        for one in &wanted {
            assert_eq!(journal.next_id(), one.id);
            journal.submitted(std::slice::from_ref(one)).unwrap();
        }
        journal.failed(2, "refused").unwrap();
        journal.stored(1).unwrap();
        let found = read(&path).unwrap();
        assert_eq!(found.left.keys().copied().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(found.left[&2].error.as_deref(), Some("refused"));
        assert_eq!(found.left[&0].submitted, wanted[0]);
        assert_eq!(
            (found.title.as_str(), found.next_id, found.stored),
            ("title", 3, 1)
        );

        let text = std::fs::read(&path).unwrap();
        for at in 0..text.len() {
            std::fs::write(&path, &text[..at]).unwrap();
            let found = read(&path).unwrap();
            // At any length, every file that is read is one that was written.
            assert!(
                found
                    .left
                    .values()
                    .all(|left| wanted.contains(&left.submitted)),
                "cut at {at}"
            );
            let mut flipped = text.clone();
            flipped[at] ^= 0x20;
            std::fs::write(&path, &flipped).unwrap();
            let found = read(&path).unwrap();
            assert!(
                found
                    .left
                    .values()
                    .all(|left| wanted.contains(&left.submitted)),
                "flip at {at}"
            );
        }
        // A truncated last line does not affect lines that are appended later.
        std::fs::write(&path, &text[..text.len() - 3]).unwrap();
        let found = read(&path).unwrap();
        let mut journal = Journal::begin(&path, "", &found).unwrap();
        journal
            .submitted(&[submitted(journal.next_id, "more", "more")])
            .unwrap();
        assert_eq!(read(&path).unwrap().left.len(), 4);
        assert_eq!(read(&path).unwrap().title, "title");
    }

    #[test]
    fn unsafe_paths_and_keys_are_skipped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        for (file, key) in [
            ("/etc/passwd", "k"),
            ("../x", "k"),
            ("a/../../x", "k"),
            ("", "k"),
            ("f", ""),
            ("f", "../k"),
            ("f", "a\nb"),
            ("f", &"k".repeat(1025)),
        ] {
            let mut journal = Journal::begin(&path, "", &Found::default()).unwrap();
            journal.submitted(&[submitted(0, file, key)]).unwrap();
            assert!(read(&path).unwrap().left.is_empty(), "{file:?} {key:?}");
        }
    }

    #[test]
    fn a_long_journal_is_rewritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let mut journal = Journal::begin(&path, "", &Found::default()).unwrap();
        // `failed` appends lines without fsync, which is fast.
        for _ in 0..REWRITE_AFTER_LINES {
            journal.failed(0, "x").unwrap();
        }
        let long = std::fs::metadata(&path).unwrap().len();
        let left = submitted(9, "f", "k");
        journal.shorten([&left].into_iter()).unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < long / 10);
        assert_eq!(read(&path).unwrap().left.len(), 1);
    }
}
