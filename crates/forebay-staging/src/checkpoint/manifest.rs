//! The manifest of a checkpoint lists its files with their sizes and checksums. A checkpoint with a manifest is complete.
//!
//! It is small JSON, and published last; docs/format/checkpoints.md describes it. It contains a fingerprint of its content, so
//! a reader refuses a manifest that was changed. Keys of files are derived from the manifest, never read from it: no manifest
//! can lead a reader out of the checkpoint's own directory.

use super::name::CheckpointPath;
use super::{Error, Result, name};
use forebay_store::{Object, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The manifest's name in the checkpoint's directory.
pub const MANIFEST_NAME: &str = "forebay-checkpoint.json";
/// While an object of this name is beside the manifest, retention leaves the checkpoint alone.
pub const PIN_NAME: &str = "forebay-checkpoint.pin";
/// Maximum size of a manifest: enough for half a million files.
pub(super) const MANIFEST_MAX_BYTES: u64 = 64 << 20;
/// Maximum number of replaced attempts that a manifest lists, and of superseded ones that a part lists: far more replacements than happen while an upload is delayed.
pub(super) const REPLACED_MAX: usize = 64;
/// Maximum number of ranks, more than any training has. Manifests and requests with more are refused.
pub const WORLD_SIZE_MAX: u32 = 1 << 16;

const FORMAT: &str = "forebay-checkpoint";
const PART_FORMAT: &str = "forebay-checkpoint-part";
const VERSION: u32 = 1;

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its relative path, with `/` between segments.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// The CRC32C of all its bytes.
    #[serde(with = "hex32")]
    pub crc32c: u32,
}

/// The files of one rank; a checkpoint that is not distributed has one part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointPart {
    /// The kind of content: "bytes", "directory", "torch" and so on.
    pub content: String,
    /// The user's metadata.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// Attempts to save this checkpoint that the staging area of this rank had from before. Once this one is complete, none of
    /// them is published.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) superseded: Vec<String>,
    /// The files, sorted by name.
    pub files: Vec<FileEntry>,
}

impl CheckpointPart {
    /// The size of all files together.
    pub fn bytes(&self) -> u64 {
        self.files
            .iter()
            .fold(0, |sum, file| sum.saturating_add(file.bytes))
    }

    /// Returns the file of this name.
    pub fn file(&self, name: &str) -> Option<&FileEntry> {
        let at = self
            .files
            .binary_search_by(|file| file.name.as_str().cmp(name))
            .ok()?;
        self.files.get(at)
    }

    /// Checks that the names are valid, unique and sorted, that the total size fits a u64, and that `content` is a short text.
    pub(super) fn check(&self) -> std::result::Result<(), String> {
        let mut total = 0_u64;
        if self.superseded.len() > REPLACED_MAX {
            let many = self.superseded.len();
            return Err(format!("it names {many} attempts that it supersedes"));
        }
        for attempt in &self.superseded {
            name::check_attempt(attempt)?;
        }
        for file in &self.files {
            name::check(&file.name)?;
            total = total
                .checked_add(file.bytes)
                .ok_or("its sizes cannot be added up")?;
        }
        for pair in self.files.windows(2) {
            if pair[0].name >= pair[1].name {
                return Err(format!(
                    "{:?} is there twice, or out of order",
                    pair[1].name
                ));
            }
        }
        if self.content.len() > 64 || self.content.chars().any(char::is_control) {
            return Err("its content has no sensible name".to_owned());
        }
        Ok(())
    }
}

/// The manifest of a complete checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointManifest {
    format: String,
    version: u32,
    /// Identifies this attempt to save the checkpoint; part of the keys of its files.
    pub attempt: String,
    /// Attempts that were complete under this name and have been replaced, the most recent first. None of them may be published
    /// again, since their data is being deleted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    replaced: Vec<String>,
    /// The parts, by rank.
    pub parts: Vec<CheckpointPart>,
    fingerprint: String,
}

impl CheckpointManifest {
    /// Reads the manifest of a checkpoint together with its object. A damaged manifest is the inner error.
    pub(super) fn find(
        store: &Store,
        place: &CheckpointPath,
    ) -> Result<Option<(Object, Result<CheckpointManifest>)>> {
        let key = place.key(MANIFEST_NAME);
        let Some(object) = store.head(&key)? else {
            return Ok(None);
        };
        match store.get(&key, MANIFEST_MAX_BYTES) {
            Ok(bytes) => {
                let shown = format!("{}/{MANIFEST_NAME}", place.location());
                Ok(Some((object, CheckpointManifest::parse(&bytes, &shown))))
            }
            Err(forebay_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the manifest of these parts. `attempt` comes from [`CheckpointManifest::new_attempt`], or all ranks agree on it.
    pub(super) fn new(attempt: String, parts: Vec<CheckpointPart>) -> Self {
        let mut made = Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            attempt,
            replaced: Vec::new(),
            parts,
            fingerprint: String::new(),
        };
        made.fingerprint = made.expected_fingerprint();
        made
    }

    /// Returns this manifest with `old`, and the attempts that `old` replaced, listed as replaced.
    pub(super) fn replacing(&self, old: Option<&Self>) -> Self {
        let mut made = self.clone();
        made.replaced = old.map_or_else(Vec::new, |old| {
            let attempts = [&old.attempt].into_iter().chain(&old.replaced);
            attempts
                .chain(old.superseded())
                .take(REPLACED_MAX)
                .cloned()
                .collect()
        });
        made.fingerprint = made.expected_fingerprint();
        made
    }

    /// Whether this manifest replaced the attempt, directly or after other replacements.
    pub(super) fn has_replaced(&self, attempt: &str) -> bool {
        self.replaced.iter().any(|replaced| replaced == attempt)
    }

    /// Attempts that were staged before this one on a rank, and may never have been complete.
    pub(super) fn superseded(&self) -> impl Iterator<Item = &String> {
        self.parts.iter().flat_map(|part| &part.superseded)
    }

    /// Whether an earlier attempt is obsolete now that this one is complete: its parts are of no use to any rank.
    pub(super) fn supersedes(&self, attempt: &str) -> bool {
        attempt != self.attempt && self.superseded().any(|earlier| earlier == attempt)
    }

    /// Whether both have the same files and metadata.
    pub(super) fn has_content_of(&self, other: &Self) -> bool {
        let contents = |made: &Self| {
            let mut parts = made.parts.clone();
            parts.iter_mut().for_each(|part| part.superseded.clear());
            parts
        };
        contents(self) == contents(other)
    }

    /// Whether both describe the same attempt and parts, regardless of the attempts that they replaced.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.attempt == other.attempt && self.parts == other.parts
    }

    /// Returns a random name, so that no two attempts share data: replacing a checkpoint deletes the data of the old attempt,
    /// which must not be in use by another attempt with the same content.
    pub(super) fn new_attempt() -> Result<String> {
        let random = getrandom::u64()
            .map_err(|error| forebay_store::Error::io("the name of an attempt", "make", error))?;
        Ok(format!("{random:016x}"))
    }

    /// Returns a hash that identifies the checkpoint.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the number of ranks that saved it.
    pub fn world_size(&self) -> u32 {
        u32::try_from(self.parts.len()).unwrap_or(u32::MAX)
    }

    /// The size of all files of all parts.
    pub fn bytes(&self) -> u64 {
        self.parts
            .iter()
            .fold(0, |sum, part| sum.saturating_add(part.bytes()))
    }

    fn expected_fingerprint(&self) -> String {
        let (format, attempt) = (&self.format, &self.attempt);
        if self.replaced.is_empty() {
            return fingerprint(&(format, self.version, attempt, &self.parts));
        }
        fingerprint(&(format, self.version, attempt, &self.replaced, &self.parts))
    }

    /// Returns the JSON text of the manifest.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        to_json(self)
    }

    /// Reads and checks a manifest; `place` is where it came from, for the error.
    pub fn parse(bytes: &[u8], place: &str) -> Result<Self> {
        let bad = |why: String| Error::Manifest {
            place: place.to_owned(),
            why,
        };
        let made: Self =
            forebay_shard::json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
        if made.format != FORMAT || made.version != VERSION {
            return Err(bad(format!(
                "it is {:?} version {}, and this build reads {FORMAT} version {VERSION}",
                made.format, made.version
            )));
        }
        if made.parts.is_empty() || made.parts.len() > WORLD_SIZE_MAX as usize {
            return Err(bad(format!("it has {} parts", made.parts.len())));
        }
        if made.replaced.len() > REPLACED_MAX {
            let many = made.replaced.len();
            return Err(bad(format!("it names {many} attempts that were replaced")));
        }
        for attempt in [&made.attempt].into_iter().chain(&made.replaced) {
            name::check_attempt(attempt).map_err(bad)?;
        }
        for part in &made.parts {
            part.check().map_err(bad)?;
        }
        if made.fingerprint != made.expected_fingerprint() {
            return Err(bad(
                "its content is not what its fingerprint says: it was changed".to_owned(),
            ));
        }
        Ok(made)
    }

    /// Returns the key of a part's file, relative to the checkpoint's directory.
    pub fn key(&self, rank: u32, file: &str) -> String {
        data_key(&self.attempt, rank, self.world_size(), file)
    }
}

/// Fuzz target: all keys of a manifest with a correct fingerprint lie below the checkpoint's directory.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz(bytes: &[u8]) {
    let _ = CheckpointManifest::parse(bytes, "here");
    let Ok(mut made) = forebay_shard::json::from_slice::<CheckpointManifest>(bytes) else {
        return;
    };
    made.fingerprint = made.expected_fingerprint();
    let Ok(made) = CheckpointManifest::parse(&made.to_bytes(), "here") else {
        return;
    };
    for (rank, part) in (0..).zip(&made.parts) {
        for file in &part.files {
            let key = made.key(rank, &file.name);
            assert!(!key.starts_with('/') && !key.split('/').any(|part| part == ".."));
        }
    }
}

/// The manifest of one rank, published when its files are uploaded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartManifest {
    format: String,
    version: u32,
    pub(super) attempt: String,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) part: CheckpointPart,
    fingerprint: String,
}

impl PartManifest {
    pub(super) fn new(attempt: String, rank: u32, world_size: u32, part: CheckpointPart) -> Self {
        let mut made = Self {
            format: PART_FORMAT.to_owned(),
            version: VERSION,
            attempt,
            rank,
            world_size,
            part,
            fingerprint: String::new(),
        };
        made.fingerprint = made.expected_fingerprint();
        made
    }

    fn expected_fingerprint(&self) -> String {
        fingerprint(&(
            &self.format,
            self.version,
            &self.attempt,
            self.rank,
            self.world_size,
            &self.part,
        ))
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        to_json(self)
    }

    /// Reads and checks the manifest of one rank's part, which has to be of this attempt, rank and world size.
    pub(super) fn parse(
        bytes: &[u8],
        place: &str,
        attempt: &str,
        rank: u32,
        world_size: u32,
    ) -> Result<Self> {
        let bad = |why: String| Error::Manifest {
            place: place.to_owned(),
            why,
        };
        let made: Self =
            forebay_shard::json::from_slice(bytes).map_err(|error| bad(error.to_string()))?;
        if made.format != PART_FORMAT || made.version != VERSION {
            return Err(bad(
                "it is no part of a checkpoint that this build reads".to_owned()
            ));
        }
        if made.attempt != attempt || made.rank != rank || made.world_size != world_size {
            return Err(bad(format!(
                "it is rank {} of {} of attempt {:?}, expected was rank {rank} of {world_size} of {attempt:?}",
                made.rank, made.world_size, made.attempt
            )));
        }
        made.part.check().map_err(bad)?;
        if made.fingerprint != made.expected_fingerprint() {
            return Err(bad(
                "its content is not what its fingerprint says: it was changed".to_owned(),
            ));
        }
        Ok(made)
    }

    pub(super) fn key(attempt: &str, rank: u32, world_size: u32) -> String {
        format!("{DATA_PREFIX}{attempt}/rank-{rank:05}-of-{world_size:05}.json")
    }
}

/// Prefix of the keys of a checkpoint's data, relative to its directory.
pub(super) const DATA_PREFIX: &str = "data-";

/// Returns the key of a rank's file, relative to the checkpoint's directory.
pub(super) fn data_key(attempt: &str, rank: u32, world_size: u32, file: &str) -> String {
    if world_size == 1 {
        format!("{DATA_PREFIX}{attempt}/{file}")
    } else {
        format!("{DATA_PREFIX}{attempt}/rank-{rank:05}/{file}")
    }
}

/// Returns the first 8 bytes, in hex, of the BLAKE3 hash of the value as JSON without white space.
pub(super) fn fingerprint(value: &impl Serialize) -> String {
    // Serialization cannot fail: all map keys are text.
    let json = serde_json::to_vec(value).unwrap_or_default();
    blake3::hash(&json).to_hex()[..16].to_owned()
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(value).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}

/// Serializes a checksum as eight hex digits.
pub(super) mod hex32 {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in super::super) fn serialize<S: Serializer>(
        value: &u32,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{value:08x}"))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.len() != 8
            || !text
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        {
            return Err(D::Error::custom("a checksum is eight hex digits"));
        }
        u32::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fuzz_corpus_passes() {
        let corpus = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/fuzz/corpus/checkpoint_manifest"
        );
        forebay_rigs::replay_corpus(corpus.as_ref(), 1000, super::fuzz);
    }

    fn part() -> CheckpointPart {
        let file = |name: &str, bytes| FileEntry {
            name: name.to_owned(),
            bytes,
            crc32c: 0xe306_9283,
        };
        let mut metadata = Map::new();
        metadata.insert("step".to_owned(), Value::from(1000));
        CheckpointPart {
            content: "files".to_owned(),
            metadata,
            superseded: vec!["run-0".to_owned()],
            files: vec![file("a/model.bin", 9), file("b", 9)],
        }
    }

    #[test]
    fn a_manifest_round_trips() {
        let made =
            CheckpointManifest::new(CheckpointManifest::new_attempt().unwrap(), vec![part()]);
        let bytes = made.to_bytes();
        assert_eq!(CheckpointManifest::parse(&bytes, "x").unwrap(), made);
        assert_eq!(made.bytes(), 18);
        assert_eq!(made.key(0, "b"), format!("data-{}/b", made.attempt));
        assert_eq!(made.parts[0].file("b").unwrap().bytes, 9);
        assert!(made.parts[0].file("c").is_none());
    }

    #[test]
    fn replaced_attempts_are_listed_up_to_a_limit() {
        let mut last = CheckpointManifest::new("0".to_owned(), vec![part()]);
        let bare = last.to_bytes();
        assert!(!String::from_utf8(bare).unwrap().contains("replaced"));
        for number in 1..100 {
            let own = CheckpointManifest::new(number.to_string(), vec![part()]);
            let next = own.replacing(Some(&last));
            assert!(next.is_same(&own) && !next.is_same(&last));
            assert_ne!(next.fingerprint(), own.fingerprint());
            assert_eq!(
                CheckpointManifest::parse(&next.to_bytes(), "x").unwrap(),
                next
            );
            last = next;
        }
        for (attempt, is_known) in [("99", false), ("98", true), ("35", true), ("34", false)] {
            assert_eq!(last.has_replaced(attempt), is_known, "{attempt}");
        }
        assert!(!last.replacing(None).has_replaced("98"));
        last.replaced.push("34".to_owned());
        last.fingerprint = last.expected_fingerprint();
        assert!(CheckpointManifest::parse(&last.to_bytes(), "x").is_err());
        last.replaced = vec!["../x".to_owned()];
        last.fingerprint = last.expected_fingerprint();
        assert!(CheckpointManifest::parse(&last.to_bytes(), "x").is_err());
    }

    #[test]
    fn every_changed_byte_and_every_cut_is_refused() {
        let old = CheckpointManifest::new("run-0".to_owned(), vec![part()]);
        let made = CheckpointManifest::new("run-1".to_owned(), vec![part(), part()]);
        let bytes = made.replacing(Some(&old)).to_bytes();
        for at in 0..bytes.len() - 1 {
            for flip in [1_u8, 0x20, 0x80] {
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                // A flipped bit may turn white space into other white space, which leaves the content as it is.
                if let Ok(read) = CheckpointManifest::parse(&changed, "x") {
                    assert_eq!(
                        read,
                        CheckpointManifest::parse(&bytes, "x").unwrap(),
                        "byte {at}"
                    );
                    assert!(bytes[at].is_ascii_whitespace(), "byte {at}");
                }
            }
            assert!(
                CheckpointManifest::parse(&bytes[..at], "x").is_err(),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn names_that_leave_the_directory_are_refused() {
        for bad in [
            "../x",
            "/etc/passwd",
            "a//b",
            "",
            ".",
            "a/../b",
            "a\\b",
            "a\nb",
        ] {
            let mut evil = part();
            evil.files = vec![FileEntry {
                name: bad.to_owned(),
                bytes: 1,
                crc32c: 0,
            }];
            let bytes = CheckpointManifest::new("run-1".to_owned(), vec![evil]).to_bytes();
            assert!(
                matches!(
                    CheckpointManifest::parse(&bytes, "x"),
                    Err(Error::Manifest { .. })
                ),
                "{bad:?}"
            );
        }
        for bad in ["", "../..", "a/b", "A b"] {
            let bytes = CheckpointManifest::new(bad.to_owned(), vec![part()]).to_bytes();
            assert!(CheckpointManifest::parse(&bytes, "x").is_err(), "{bad:?}");
        }
        let mut twice = part();
        twice.files[1].name = "a/model.bin".to_owned();
        assert!(
            CheckpointManifest::parse(
                &CheckpointManifest::new("r".to_owned(), vec![twice]).to_bytes(),
                "x"
            )
            .is_err()
        );
        let mut huge = part();
        huge.files[0].bytes = u64::MAX;
        assert!(
            CheckpointManifest::parse(
                &CheckpointManifest::new("r".to_owned(), vec![huge]).to_bytes(),
                "x"
            )
            .is_err()
        );
    }

    #[test]
    fn a_part_of_another_attempt_is_refused() {
        let made = PartManifest::new("run-1".to_owned(), 2, 4, part());
        let bytes = made.to_bytes();
        assert_eq!(
            PartManifest::parse(&bytes, "x", "run-1", 2, 4).unwrap(),
            made
        );
        for (attempt, rank, world) in [("run-2", 2, 4), ("run-1", 1, 4), ("run-1", 2, 8)] {
            assert!(PartManifest::parse(&bytes, "x", attempt, rank, world).is_err());
        }
        let text = String::from_utf8(bytes)
            .unwrap()
            .replace("\"bytes\": 9", "\"bytes\": 8");
        assert!(PartManifest::parse(text.as_bytes(), "x", "run-1", 2, 4).is_err());
    }
}
