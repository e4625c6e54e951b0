//! Descriptions and failures that a server sends, in types that do not change with the protocol.

use forebay_wire::text::printable;
use forebay_wire::wire;

macro_rules! remote_kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// The kind of an error that a server sent.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum RemoteKind {
            $($(#[$doc])* $kind,)*
        }

        impl RemoteKind {
            /// Returns the name, in lower case with underscores.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(RemoteKind::$kind => $name,)*
                }
            }

            pub(crate) fn new(kind: wire::error::Kind) -> Self {
                match kind {
                    $(wire::error::Kind::$kind => RemoteKind::$kind,)*
                }
            }
        }
    };
}

remote_kinds! {
    /// A kind that this version does not know.
    Unspecified = "unspecified",
    /// The client broke the protocol.
    Protocol = "protocol",
    /// There is no common version of the protocol.
    Version = "version",
    /// There is no such dataset or split.
    NotFound = "not_found",
    /// Options that the server does not support.
    Invalid = "invalid",
    /// The dataset has another fingerprint.
    Mismatch = "mismatch",
    /// A shard or a record is damaged.
    Data = "data",
    /// An image cannot be decoded.
    Image = "image",
    /// A limit of the server was reached.
    Busy = "busy",
    /// The server is stopping.
    Shutdown = "shutdown",
    /// The server failed.
    Internal = "internal",
    /// The client sent or read nothing before a timeout.
    Timeout = "timeout",
    /// A token is missing, unknown, or not for this name.
    Unauthorized = "unauthorized",
}

/// A split of a served dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RemoteSplit {
    /// The name.
    pub name: String,
    /// Number of records.
    pub records: u64,
}

impl RemoteSplit {
    pub(crate) fn new(split: wire::SplitInfo) -> Self {
        RemoteSplit {
            name: split.name,
            records: split.records,
        }
    }
}

/// Statistics of a server for one stream.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RemoteStats(wire::Stats);

/// Times of one stage of a server, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RemoteStage<'a> {
    /// The name.
    pub name: &'a str,
    /// Time spent working.
    pub busy_s: f64,
    /// Time waited for input.
    pub starved_s: f64,
    /// Time waited for room.
    pub blocked_s: f64,
}

impl RemoteStats {
    /// Escapes the texts, which are untrusted.
    pub(crate) fn new(mut stats: wire::Stats) -> Self {
        for text in &mut stats.failures {
            *text = printable(text).into_owned();
        }
        RemoteStats(stats)
    }

    /// Returns the stages in the order in which a sample passes them.
    pub fn stages(&self) -> impl Iterator<Item = RemoteStage<'_>> {
        self.0.stages.iter().map(|stage| RemoteStage {
            name: &stage.name,
            busy_s: stage.busy_s,
            starved_s: stage.starved_s,
            blocked_s: stage.blocked_s,
        })
    }

    /// Returns the number of batches that were sent or are in flight.
    #[must_use]
    pub fn batches(&self) -> u64 {
        self.0.batches
    }

    /// Returns the bytes that were read from storage.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.0.bytes_read
    }

    /// Returns the number of decoded images, including those of batches that were not sent yet.
    #[must_use]
    pub fn decoded(&self) -> u64 {
        self.0.decoded
    }

    /// Returns the number of samples that could not be read or decoded, and were replaced.
    #[must_use]
    pub fn failed(&self) -> u64 {
        self.0.failed
    }

    /// Returns the errors of the most recent of these samples.
    #[must_use]
    pub fn failures(&self) -> &[String] {
        &self.0.failures
    }

    /// Returns the message of the protocol, which changes with the protocol and not with the version of this crate.
    #[doc(hidden)]
    #[must_use]
    pub fn into_message(self) -> wire::Stats {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_kinds_are_those_of_the_protocol() {
        for kind in (0..32).flat_map(wire::error::Kind::try_from) {
            let name = RemoteKind::new(kind).name().to_uppercase();
            assert_eq!(kind.as_str_name(), format!("KIND_{name}"));
        }
    }

    #[test]
    fn texts_in_statistics_are_escaped() {
        let stats = RemoteStats::new(wire::Stats {
            failures: vec!["a\x1b[2Jb".to_owned()],
            ..wire::Stats::default()
        });
        assert_eq!(stats.failures(), ["a\\u{1b}[2Jb"]);
    }
}
