//! The last events of a server, kept in memory for the dashboard.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::observer::Event;

/// Events kept of each kind, in separate queues: routine events do not push out problems, nor
/// rejected clients the routine events.
const KEPT: usize = 50;
/// Maximum length of an event, in characters.
const LONGEST: usize = 400;

/// A recorded event.
#[derive(Debug, Clone, PartialEq)]
pub struct JournalEntry {
    /// When it happened.
    pub at: SystemTime,
    /// Counts events from 1.
    pub number: u64,
    /// Whether it is a problem.
    pub is_trouble: bool,
    /// The event as a sentence.
    pub text: String,
}

#[derive(Default)]
pub(crate) struct Journal(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    count: u64,
    usual: VecDeque<JournalEntry>,
    trouble: VecDeque<JournalEntry>,
}

impl Journal {
    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an event, except the end of an epoch: small datasets finish many epochs a second,
    /// and the report shows the position of each rank.
    pub(crate) fn note(&self, event: &Event<'_>) {
        if matches!(event, Event::EpochEnd { .. }) {
            return;
        }
        let mut text = event.to_string();
        if let Some((end, _)) = text.char_indices().nth(LONGEST) {
            text.truncate(end);
            text.push('…');
        }
        let is_trouble = event.is_trouble();
        let mut entries = self.lock();
        entries.count += 1;
        let entry = JournalEntry {
            at: SystemTime::now(),
            number: entries.count,
            is_trouble,
            text,
        };
        let kept = match is_trouble {
            true => &mut entries.trouble,
            false => &mut entries.usual,
        };
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(entry);
    }

    /// Returns the recorded events, the latest first.
    pub(crate) fn read(&self) -> Vec<JournalEntry> {
        let entries = self.lock();
        let both = entries.usual.iter().chain(&entries.trouble);
        let mut all: Vec<JournalEntry> = both.cloned().collect();
        drop(entries);
        all.sort_by_key(|entry| std::cmp::Reverse(entry.number));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_wire::Peer;

    #[test]
    fn a_flood_of_one_kind_of_event_keeps_the_other() {
        let journal = Journal::default();
        journal.note(&Event::Listening {
            address: "127.0.0.1:7070".parse().unwrap(),
        });
        for i in 0..1000u16 {
            journal.note(&Event::Refused {
                peer: Peer::Address(([127, 0, 0, 1], i).into()),
                max_connections: 1,
            });
        }
        journal.note(&Event::EpochEnd {
            connection: 1,
            epoch: 0,
            batches: 1,
        });
        let kept = journal.read();
        assert_eq!(kept.len(), KEPT + 1);
        assert!(kept[0].is_trouble && kept[0].text.contains("127.0.0.1:999"));
        assert_eq!(kept[KEPT].text, "listening on 127.0.0.1:7070");
        assert_eq!(kept[KEPT].number, 1);
        let long = "é".repeat(5000);
        journal.note(&Event::Reloaded {
            what: "tokens",
            problem: Some(&long),
        });
        assert_eq!(journal.read()[0].text.chars().count(), LONGEST + 1);
    }
}
