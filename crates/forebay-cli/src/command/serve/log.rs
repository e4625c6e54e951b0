//! The server's log on stderr: lines for people, or one JSON object a line.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use forebay_server::Event;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::LogFormat;
use crate::console::Console;

/// How much an event matters.
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

/// The observer that prints.
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
                    // The URL says it better.
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

/// An event for programs that collect logs. The names stay as they are.
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

/// RFC 3339, in UTC, with milliseconds.
fn timestamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (seconds, ms) = (since.as_secs(), since.subsec_millis());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days since 1 March of the year 0, in cycles of 400 years (146,097 days).
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    let year = era * 400 + year + carry;
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day_of_month:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00.250Z"),
            (951_782_399, "2000-02-28T23:59:59.250Z"),
            (951_782_400, "2000-02-29T00:00:00.250Z"),
            (1_709_251_200, "2024-03-01T00:00:00.250Z"),
            (1_735_689_599, "2024-12-31T23:59:59.250Z"),
            (4_107_542_400, "2100-03-01T00:00:00.250Z"),
        ] {
            let now = UNIX_EPOCH + Duration::from_millis(seconds * 1000 + 250);
            assert_eq!(timestamp(now), text);
        }
    }

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
