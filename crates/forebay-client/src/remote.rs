//! Descriptions and statistics that a server sends.

use forebay_wire::text::printable;
use forebay_wire::wire::{self, Stats as RemoteStats};

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

/// Escapes the texts of statistics, which are untrusted.
pub(crate) fn escaped(mut stats: RemoteStats) -> RemoteStats {
    for text in &mut stats.failures {
        *text = printable(text).into_owned();
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_in_statistics_are_escaped() {
        let stats = escaped(RemoteStats {
            failures: vec!["a\x1b[2Jb".to_owned()],
            ..RemoteStats::default()
        });
        assert_eq!(stats.failures, ["a\\u{1b}[2Jb"]);
    }
}
