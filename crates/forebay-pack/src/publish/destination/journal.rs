//! The journal lists the finished shards, so that an interrupted pack can continue.
//!
//! Each line consists of the CRC32C of the text in eight hex digits, a space, and JSON. The first line identifies the
//! pack. The line of a shard is written and synced after the shard itself is synced under its final name, so a listed
//! shard always exists. A crash can tear the last line, or leave garbage in its place: lines with a wrong checksum are
//! dropped, and their shards are written again.

use super::split_of_numbered;
use crate::census::Census;
use crate::differences::differences;
use crate::error::{Error, Result};
use crate::observer::ShardDone;
use crate::plan::Plan;
use crate::report::{FastCount, ProgressiveCount, SeekPointCount};
use forebay_formats::{Finding, escape};
use forebay_shard::{SampleDigest, verify};
use forebay_store::{AtomicFile, Durability};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Incremented when older journals can no longer be continued.
const JOURNAL_VERSION: u32 = 3;
/// Maximum number of listed differences; further ones are counted.
const DIFFERENCES_SHOWN: usize = 5;

/// The first line of a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    version: u32,
    /// Location of the source. It is not compared, because machines may see the source under different paths.
    #[serde(default)]
    source: String,
    plan: String,
    arguments: BTreeMap<String, String>,
    classes: u64,
    pub(crate) shards: Vec<String>,
    parts: Vec<Directory>,
    /// Whether the number of shards is unknown in advance. Shards that `shards` does not list are numbered.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_open_ended: bool,
}

/// A class directory as listed by the census, so that messages can name a changed directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Directory {
    place: String,
    files: u64,
    bytes: u64,
    content: u64,
    times: u64,
}

/// The differences between an earlier pack and this one, as text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PlanDifference {
    /// No difference, so this pack continues the earlier one.
    None,
    /// The arguments and the location of the source are equal, but the source has changed.
    Source(Vec<String>),
    /// Other arguments, another source, or another version of forebay.
    Arguments(Vec<String>),
}

/// A shard: what is known of it while it is written, and all of it when it is finished.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShardLine {
    pub(crate) name: String,
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) blake3: Option<String>,
    /// Size of the images in the records, in bytes.
    pub(crate) image_bytes: u64,
    /// Digest of the labels and keys of the records.
    pub(crate) samples: SampleDigest,
    /// Stored bytes of the records.
    pub(crate) record_bytes: u64,
    /// Number of records with seek points.
    #[serde(default)]
    pub(crate) seek_points: SeekPointCount,
    /// Number of progressive JPEGs that were transcoded to baseline, and of those that were not.
    #[serde(default)]
    pub(crate) progressive: ProgressiveCount,
    /// Number of fast images.
    #[serde(default)]
    pub(crate) fast: FastCount,
    /// The lowest and the highest label of converted records, ignoring negative ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<(i64, i64)>,
    pub(crate) sidecars: Vec<Sidecar>,
    pub(crate) findings: Vec<Finding>,
    /// Whether the shard ended with its split, rather than by reaching its size.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) ends_split: bool,
    /// Damage in the shard from which this one was salvaged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) damage: Vec<verify::VerifyFinding>,
    /// Ranges of records that were lost to the damage; `lost_records` is their number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<verify::Lost>,
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) lost_records: u64,
    /// Entry of the file in the index of another tool's format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) entry: Option<serde_json::Value>,
}

impl ShardLine {
    /// Creates the line of a shard without records.
    pub(crate) fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            ..Self::default()
        }
    }

    /// Returns the event for observers.
    pub(crate) fn done(&self, resumed: bool) -> ShardDone {
        ShardDone {
            name: self.name.clone(),
            records: self.records,
            bytes: self.bytes,
            resumed,
        }
    }
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// A file in `index/` that belongs to a shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sidecar {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) crc32c: u32,
}

/// Contents of a journal file.
#[derive(Debug)]
pub(crate) struct JournalContents {
    pub(crate) header: Header,
    pub(crate) shards: Vec<ShardLine>,
}

/// The open journal of a running pack.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    durability: Durability,
}

/// Properties that distinguish a dataset from those of other writers to the same destination.
pub(crate) struct Identity<'a> {
    pub(crate) plan: &'a str,
    pub(crate) arguments: &'a BTreeMap<String, String>,
    shards: &'a [String],
    is_open_ended: bool,
}

impl Identity<'_> {
    /// Returns whether the dataset has, or may have, a shard with this name.
    pub(crate) fn owns(&self, shard: &str) -> bool {
        self.shards.iter().any(|name| name == shard)
            || self.is_open_ended && split_of_numbered(shard).is_some()
    }
}

impl Header {
    pub(crate) fn new(census: &Census, plan: &Plan) -> Self {
        let mut parts = Vec::new();
        for split in census.splits() {
            for chunk in split.chunks() {
                let place = match chunk.name() {
                    b"" => split.name().to_owned(),
                    class => format!("{}: {}", split.name(), escape(class)),
                };
                parts.push(Directory {
                    place,
                    files: chunk.files(),
                    bytes: chunk.bytes(),
                    content: chunk.content_digest(),
                    times: chunk.times_digest(),
                });
            }
        }
        Self {
            version: JOURNAL_VERSION,
            source: escape(source_path(census).as_os_str().as_bytes()),
            plan: plan.digest().to_owned(),
            arguments: plan.arguments().clone(),
            classes: census.classes().len() as u64,
            shards: plan.shards().map(|shard| shard.name).collect(),
            parts,
            is_open_ended: false,
        }
    }

    /// Creates the first line for a dataset that is written sample by sample; its arguments and samples determine it.
    pub(crate) fn of_writer(plan: &str, arguments: BTreeMap<String, String>) -> Self {
        Self {
            is_open_ended: true,
            ..Self::of_conversion(plan, arguments, Vec::new())
        }
    }

    /// Returns whether there may be shards that [`shards`](Self::shards) does not list.
    pub(crate) fn is_open_ended(&self) -> bool {
        self.is_open_ended
    }

    /// Creates the first line for a conversion, which its arguments (including the source) determine.
    pub(crate) fn of_conversion(
        plan: &str,
        arguments: BTreeMap<String, String>,
        shards: Vec<String>,
    ) -> Self {
        Self {
            version: JOURNAL_VERSION,
            source: String::new(),
            plan: plan.to_owned(),
            arguments,
            classes: 0,
            shards,
            parts: Vec::new(),
            is_open_ended: false,
        }
    }

    /// Returns the value of an argument.
    pub(super) fn argument(&self, name: &str) -> Option<&str> {
        self.arguments.get(name).map(String::as_str)
    }

    /// Returns whether this is the first line of a pack, whose source is a tree of images.
    pub(super) fn is_of_pack(&self) -> bool {
        !self.source.is_empty() || !self.parts.is_empty()
    }

    /// Returns the identity that a claim of the destination records.
    pub(crate) fn identity(&self) -> Identity<'_> {
        Identity {
            plan: &self.plan,
            arguments: &self.arguments,
            shards: &self.shards,
            is_open_ended: self.is_open_ended,
        }
    }

    /// Compares an earlier pack with this one.
    pub(crate) fn difference(&self, now: &Self) -> PlanDifference {
        let mut all = Vec::new();
        if self.version != now.version {
            all.push("it was started by another version of forebay".to_owned());
        }
        let arguments = [&self.arguments, &now.arguments];
        all.extend(differences(arguments, ["then", "now"]));
        let mut same_arguments = all.is_empty();
        self.source_differences(now, &mut all);
        if all.is_empty()
            && (&self.plan, self.classes, &self.shards) != (&now.plan, now.classes, &now.shards)
        {
            // The class list or the file of labels has another content; the arguments contain only their paths.
            all.push("the class list was another".to_owned());
            same_arguments = false;
        }
        if all.is_empty() {
            return PlanDifference::None;
        }
        let same_source = self.source == now.source;
        if !same_source {
            all.insert(
                0,
                format!("source: then {}, now {}", self.source, now.source),
            );
        }
        if all.len() > DIFFERENCES_SHOWN {
            let more = all.len() - DIFFERENCES_SHOWN;
            all.truncate(DIFFERENCES_SHOWN);
            all.push(format!("and {more} more"));
        }
        if same_arguments && same_source {
            PlanDifference::Source(all)
        } else {
            PlanDifference::Arguments(all)
        }
    }

    fn source_differences(&self, now: &Self, all: &mut Vec<String>) {
        let then: BTreeMap<_, _> = self.parts.iter().map(|part| (&part.place, part)).collect();
        for part in &now.parts {
            let place = &part.place;
            let Some(old) = then.get(place) else {
                all.push(format!("{place} is new in the source"));
                continue;
            };
            if (old.files, old.bytes) != (part.files, part.bytes) {
                all.push(format!(
                    "{place}: then {} files of {} bytes, now {} of {}",
                    old.files, old.bytes, part.files, part.bytes
                ));
            } else if old.content != part.content {
                all.push(format!("{place}: names or sizes of files changed"));
            } else if old.times != part.times {
                all.push(format!("{place}: files were modified since"));
            }
        }
        let current: std::collections::BTreeSet<_> =
            now.parts.iter().map(|part| &part.place).collect();
        for place in then.keys().filter(|place| !current.contains(*place)) {
            all.push(format!("{place} is gone from the source"));
        }
    }
}

impl PlanDifference {
    /// Returns the differences of one kind; [`None`](Self::None) without any.
    pub(crate) fn of(words: Vec<String>, kind: fn(Vec<String>) -> Self) -> Self {
        match words.is_empty() {
            true => Self::None,
            false => kind(words),
        }
    }

    /// Refuses a part whose plan differs from the one that the parts at `root` share.
    pub(crate) fn refuse_part(self, root: &Path, part: String) -> Result<()> {
        match self {
            Self::None => Ok(()),
            different => Err(Error::DifferentPart {
                path: root.to_path_buf(),
                part,
                differences: different.into_words(),
            }),
        }
    }

    /// Returns the differences as text.
    pub(crate) fn into_words(self) -> Vec<String> {
        match self {
            Self::None => Vec::new(),
            Self::Source(words) | Self::Arguments(words) => words,
        }
    }
}

impl Journal {
    /// Creates a journal with its first line, so that every journal identifies its pack. A continued journal
    /// is rewritten with its valid lines, so that new lines do not follow a torn one.
    pub(crate) fn begin<'a>(
        path: &Path,
        header: &Header,
        shards: impl Iterator<Item = &'a ShardLine>,
        durability: Durability,
    ) -> Result<Self> {
        let text = Self::encode(path, header, shards)?;
        let mut file = AtomicFile::create(path)?;
        file.write_all(&text)
            .map_err(|e| Error::io(path, "write", e))?;
        file.commit(durability)?;
        Self::open(path, durability)
    }

    /// Returns the text of a journal with these shards.
    pub(crate) fn encode<'a>(
        path: &Path,
        header: &Header,
        shards: impl Iterator<Item = &'a ShardLine>,
    ) -> Result<Vec<u8>> {
        let mut text = line(path, header)?;
        for shard in shards {
            text.extend_from_slice(&line(path, shard)?);
        }
        Ok(text)
    }

    /// Appends a finished shard.
    pub(crate) fn append(&mut self, shard: &ShardLine) -> Result<()> {
        let line = line(&self.path, shard)?;
        self.file
            .write_all(&line)
            .map_err(|e| Error::io(&self.path, "write", e))?;
        if self.durability == Durability::Synced {
            self.file
                .sync_data()
                .map_err(|e| Error::io(&self.path, "fsync", e))?;
        }
        Ok(())
    }

    /// Reads a journal. `None` if it does not exist or has no readable first line; then no shard was finished.
    pub(crate) fn read(path: &Path) -> Result<Option<JournalContents>> {
        let text = match forebay_shard::storage::read_file(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(path, "read", error)),
        };
        Ok(Self::parse(&text))
    }

    /// Reads the text of a journal. `None` if it has no readable first line.
    pub(crate) fn parse(text: &[u8]) -> Option<JournalContents> {
        let mut lines = text.split_inclusive(|b| *b == b'\n');
        let header = lines.next().and_then(parse::<Header>)?;
        let mut shards: Vec<ShardLine> = Vec::new();
        for shard in lines.filter_map(parse::<ShardLine>) {
            // A shard is listed twice only if it was lost and written again, so the later line is valid.
            shards.retain(|known| known.name != shard.name);
            shards.push(shard);
        }
        Some(JournalContents { header, shards })
    }

    fn open(path: &Path, durability: Durability) -> Result<Self> {
        let file = OpenOptions::new()
            .append(true)
            .open(path)
            .map_err(|e| Error::io(path, "open", e))?;
        Ok(Self {
            path: path.to_path_buf(),
            file,
            durability,
        })
    }
}

/// Returns the canonical location of the source, as far as the system can resolve it.
fn source_path(census: &Census) -> PathBuf {
    let path = census.src();
    path.canonicalize().unwrap_or_else(|_| path.to_path_buf())
}

pub(super) fn line<T: Serialize>(path: &Path, value: &T) -> Result<Vec<u8>> {
    let json = serde_json::to_string(value).map_err(|e| Error::io(path, "encode", e))?;
    Ok(format!(
        "{:08x} {json}\n",
        forebay_shard::checksum::crc32c(json.as_bytes())
    )
    .into_bytes())
}

pub(super) fn parse<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (sum, json) = text.split_once(' ')?;
    let intact = sum == format!("{:08x}", forebay_shard::checksum::crc32c(json.as_bytes()));
    if intact {
        forebay_shard::json::from_str(json).ok()
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
