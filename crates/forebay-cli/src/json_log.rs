//! Lines of a log for programs, with one JSON object each.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};

/// Returns a line that is not an event of a server, with the `text` and the `hint` that a person would read.
pub(crate) fn line(level: &str, event: &str, text: &str, hint: Option<&str>) -> String {
    let mut line = Map::new();
    let fields = [
        ("time", json!(timestamp(SystemTime::now()))),
        ("level", json!(level)),
        ("event", json!(event)),
        ("message", json!(text)),
    ];
    line.extend(fields.map(|(name, value)| (name.to_owned(), value)));
    line.extend(hint.map(|hint| ("hint".to_owned(), json!(hint))));
    Value::Object(line).to_string()
}

/// Formats a time as RFC 3339, in UTC, with milliseconds.
pub(crate) fn timestamp(now: SystemTime) -> String {
    humantime::format_rfc3339_millis(now.max(UNIX_EPOCH)).to_string()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timestamps_follow_the_calendar() {
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
    fn a_line_stays_one_line() {
        let line = line("warning", "warning", "a \"b\"\nc\u{1b}[31m", Some("d"));
        assert_eq!(line.lines().count(), 1);
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(read["message"], "a \"b\"\nc\u{1b}[31m");
        assert_eq!(
            (&read["level"], &read["hint"]),
            (&json!("warning"), &json!("d"))
        );
    }
}
