//! The server's log on stderr, as text or as one JSON object per line.

use std::time::SystemTime;

use forebay_server::Event;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::LogFormat;
use crate::console::Console;
use crate::json_log::timestamp;

/// The log level of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Debug,
    Info,
    Warning,
}

impl Level {
    fn of(event: &Event<'_>) -> Level {
        match event {
            _ if event.is_trouble() => Level::Warning,
            Event::EpochEnd { .. } => Level::Debug,
            _ => Level::Info,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warning => "warning",
        }
    }
}

/// Returns an observer that prints the server's events.
pub(super) fn printer(
    console: &Console,
    format: LogFormat,
) -> impl Fn(&Event<'_>) + Send + Sync + use<> {
    let console = console.clone();
    move |event: &Event<'_>| {
        let level = Level::of(event);
        let text = match format {
            LogFormat::Json => {
                let now = SystemTime::now();
                let line = Value::Object(fields(event, level, now)).to_string();
                match level {
                    Level::Debug => console.log_line(&line, 1),
                    Level::Info => console.log_line(&line, 0),
                    Level::Warning => console.log_line(&line, -1),
                }
                event.to_string()
            }
            LogFormat::Text => {
                let text = event.to_string();
                match (event, level) {
                    // The command itself prints the URLs that it serves.
                    (Event::Listening { .. }, _) => {}
                    (_, Level::Warning) => console.warning(&text),
                    (_, Level::Debug) => console.detail(&text),
                    (_, Level::Info) => console.note(&text),
                }
                text
            }
        };
        console.event("log", &Line { message: text });
    }
}

#[derive(Serialize)]
struct Line {
    message: String,
}

/// Returns the JSON fields of an event. Log collectors depend on the names, so they must not change.
fn fields(event: &Event<'_>, level: Level, now: SystemTime) -> Map<String, Value> {
    let (name, details) = details(event);
    let mut line = Map::new();
    line.insert("time".to_owned(), timestamp(now).into());
    line.insert("level".to_owned(), level.name().into());
    if let Value::Object(details) = details {
        line.extend(details);
    }
    line.insert("event".to_owned(), name.into());
    line.insert("message".to_owned(), event.to_string().into());
    line
}

/// Returns the name of an event and its fields.
fn details(event: &Event<'_>) -> (&'static str, Value) {
    match event {
        Event::Listening { address } => ("listening", json!({"address": address.to_string()})),
        Event::Welcomed {
            connection,
            peer,
            client,
            dataset,
        } => (
            "welcomed",
            json!({
                "connection": connection,
                "peer": peer.to_string(),
                "client": client,
                "name": dataset,
            }),
        ),
        Event::Opened {
            connection,
            dataset,
            stream,
            epoch,
            position,
        } => (
            "opened",
            json!({
                "connection": connection,
                "name": dataset,
                "split": stream.options.split,
                "rank": stream.rank(),
                "world_size": stream.world_size(),
                "batch_size": stream.batch_size(),
                "epoch": epoch,
                "position": position,
            }),
        ),
        Event::EpochEnd {
            connection,
            epoch,
            batches,
        } => (
            "epoch_end",
            json!({
                "connection": connection,
                "epoch": epoch,
                "batches": batches,
            }),
        ),
        Event::Closed {
            connection,
            peer,
            why,
            clean,
            stats,
        } => (
            "closed",
            json!({
                "connection": connection,
                "peer": peer.to_string(),
                "why": why,
                "clean": clean,
                "batches": stats.batches,
                "images": stats.images,
                "payload_bytes": stats.payload_bytes,
                "sending_s": stats.sending.as_secs_f64(),
                "starved_s": stats.starved.as_secs_f64(),
                "blocked_s": stats.blocked.as_secs_f64(),
            }),
        ),
        Event::Refused {
            peer,
            max_connections,
        } => (
            "refused",
            json!({"peer": peer.to_string(), "max_connections": max_connections}),
        ),
        Event::RefusedAddress {
            peer,
            max_connections,
        } => (
            "refused",
            json!({"peer": peer.to_string(), "max_connections_per_address": max_connections}),
        ),
        Event::Reloaded { what, problem } => {
            ("reloaded", json!({"what": what, "problem": problem}))
        }
        Event::AcceptFailed { error, retry_in } => (
            "accept_failed",
            json!({"error": error.to_string(), "retry_in_s": retry_in.as_secs_f64()}),
        ),
        Event::Stopping { connections } => ("stopping", json!({"connections": connections})),
        Event::Stopped => ("stopped", Value::Null),
        _ => ("other", Value::Null),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    #[test]
    fn events_have_names_levels_and_fields() {
        let event = Event::Reloaded {
            what: "tokens",
            problem: Some("gone"),
        };
        let line = fields(&event, Level::of(&event), UNIX_EPOCH);
        assert_eq!(line["event"], "reloaded");
        assert_eq!(line["level"], "warning");
        assert_eq!(line["problem"], "gone");
        assert!(line["message"].as_str().unwrap().contains("gone"));
    }
}
