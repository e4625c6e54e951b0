//! What a store answered before something was written: for stale reads.

use crate::http::Message;
use std::collections::HashMap;
use std::sync::Mutex;

/// Answers that are kept; larger ones are not.
const ANSWERS: usize = 2_000;
const ANSWER_BYTES: usize = 1 << 20;
/// So often an old answer is given after a write.
const READS: u32 = 3;

/// The answers to requests that change nothing.
#[derive(Debug, Default)]
pub(crate) struct Stale(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Requests so far that change something.
    writes: u64,
    answers: HashMap<String, Kept>,
}

#[derive(Debug)]
struct Kept {
    answer: Message,
    /// What was written when it was asked for.
    writes: u64,
    /// How often it was given since something else was written.
    given: u32,
}

impl Stale {
    /// What a request asks for; none if it changes something.
    pub(crate) fn key(&self, request: &Message) -> Option<String> {
        if !matches!(request.method(), "GET" | "HEAD") {
            return None;
        }
        let header = |name| request.header(name).unwrap_or_default();
        Some(format!(
            "{} {} {} {}",
            request.method(),
            request.target(),
            header("range"),
            header("if-match")
        ))
    }

    /// The answer from before the last write, unless it was given often enough.
    pub(crate) fn before(&self, key: &str) -> Option<Message> {
        let mut state = self.0.lock().expect("no panic holds it");
        let writes = state.writes;
        let kept = state.answers.get_mut(key)?;
        if kept.writes == writes || kept.given >= READS {
            return None;
        }
        kept.given += 1;
        Some(kept.answer.clone())
    }

    /// A request goes to the store: what was written until then.
    pub(crate) fn asking(&self, request: &Message) -> u64 {
        let mut state = self.0.lock().expect("no panic holds it");
        state.writes += u64::from(!matches!(request.method(), "GET" | "HEAD"));
        state.writes
    }

    /// Keeps the truth of this moment.
    pub(crate) fn remember(&self, key: String, writes: u64, answer: &Message) {
        let mut state = self.0.lock().expect("no panic holds it");
        let is_told = matches!(answer.status(), 200 | 206 | 404);
        if !is_told || answer.body.len() > ANSWER_BYTES || state.answers.len() >= ANSWERS {
            return;
        }
        let kept = Kept {
            answer: answer.clone(),
            writes,
            given: 0,
        };
        state.answers.insert(key, kept);
    }
}
