//! Object ids, and the times at which blocks were read.

use std::fmt;

/// Identifies the bytes of an object: a hash of location, key, version and length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ObjectId([u8; 32]);

impl ObjectId {
    /// The smallest id.
    pub(super) const LEAST: Self = Self([0; 32]);

    /// The BLAKE3 hash of the four values; each text is preceded by its length. Without a version, an object that is replaced by
    /// another one of the same length keeps its id, so the cache returns the old bytes.
    #[must_use]
    pub fn of(location: &str, key: &str, version: Option<&str>, len: u64) -> Self {
        let mut hash = blake3::Hasher::new();
        hash.update(b"forebay cache 1\0");
        for text in [Some(location), Some(key), version] {
            match text {
                Some(text) => {
                    hash.update(&[1]);
                    hash.update(&(text.len() as u64).to_le_bytes());
                    hash.update(text.as_bytes());
                }
                None => {
                    hash.update(&[0]);
                }
            }
        }
        hash.update(&len.to_le_bytes());
        Self(*hash.finalize().as_bytes())
    }

    pub(super) fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// 64 hexadecimal digits.
    pub(super) fn to_hex(self) -> String {
        self.to_string()
    }

    /// Parses the output of [`to_hex`](Self::to_hex), and nothing else.
    pub(super) fn from_hex(text: &str) -> Option<Self> {
        if text.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return None;
        }
        let hash = blake3::Hash::from_hex(text).ok()?;
        Some(Self(*hash.as_bytes()))
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The times of the last two full reads of a block: nanoseconds since 1970, 0 for never.
///
/// A full read ends when as many bytes were read as the block has, at once or record by record, which is once per epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reads {
    pub(super) last: u64,
    pub(super) before_last: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_if_any_input_differs() {
        let ids = [
            ObjectId::of("a", "bc", Some("1"), 9),
            ObjectId::of("ab", "c", Some("1"), 9),
            ObjectId::of("a", "bc", Some("2"), 9),
            ObjectId::of("a", "bc", None, 9),
            ObjectId::of("a", "bc", Some(""), 9),
            ObjectId::of("a", "bc", Some("1"), 10),
        ];
        for (i, id) in ids.iter().enumerate() {
            assert!(!ids[..i].contains(id), "{i}");
            assert_eq!(ObjectId::from_hex(&id.to_hex()), Some(*id));
        }
        assert_eq!(ids[0], ObjectId::of("a", "bc", Some("1"), 9));
    }

    #[test]
    fn invalid_hex_names_are_refused() {
        let hex = ObjectId::of("a", "b", None, 1).to_hex();
        let upper = format!("A{}", &hex[1..]);
        let plus = format!("+{}", &hex[1..]);
        for name in ["", "..", &hex[1..], &upper, &plus, &format!("{hex}0")] {
            assert_eq!(ObjectId::from_hex(name), None, "{name}");
        }
    }
}
