//! Parses and formats sizes and durations.

use std::time::Duration;

const SIZE_UNITS: [(&str, u64); 13] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
];

/// Parses `256MiB`, `1.5GB`, `4096`: MB are 10^6 bytes, MiB (and M) 2^20.
///
/// # Errors
///
/// The message says how to write a size.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let unit = unit.to_ascii_lowercase();
    let factor = if unit.is_empty() {
        1
    } else {
        SIZE_UNITS
            .iter()
            .find(|(name, _)| *name == unit)
            .map(|(_, factor)| *factor)
            .ok_or_else(|| format!("unknown unit `{unit}`: write a size as 256MiB, 1GB or 4096"))?
    };
    // An integer keeps all its digits, which a float of this magnitude may not.
    if let Ok(whole) = number.parse::<u64>() {
        return match whole.checked_mul(factor) {
            Some(0) => Err("a size is at least one byte".to_owned()),
            Some(bytes) => Ok(bytes),
            None => Err("that is more than 16 EiB".to_owned()),
        };
    }
    let bytes = scale(number, factor as f64)
        .ok_or_else(|| "write a size as 256MiB, 1GB or 4096".to_owned())?;
    if bytes < 1.0 {
        Err("a size is at least one byte".to_owned())
    } else if bytes >= u64::MAX as f64 {
        Err("that is more than 16 EiB".to_owned())
    } else {
        Ok(bytes as u64)
    }
}

/// Parses `30s`, `500ms`, `2m`, `1h`, `1.5s`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    const EXAMPLE: &str = "write a duration as 30s, 500ms, 2m or 1h";
    let (number, unit) = split_unit(text);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "" => return Err(format!("a duration needs its unit: {EXAMPLE}")),
        _ => return Err(format!("unknown unit `{unit}`: {EXAMPLE}")),
    };
    let seconds = scale(number, seconds).ok_or_else(|| EXAMPLE.to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| EXAMPLE.to_owned())
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

fn scale(number: &str, factor: f64) -> Option<f64> {
    let value: f64 = number.parse().ok()?;
    value.is_finite().then_some(value * factor)
}

/// Formats a count with thousands separators: `1,281,167`.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a count with its noun: `1 record`, `2 records`.
pub fn counted(n: u64, singular: &str, plural: &str) -> String {
    format!("{} {}", count(n), if n == 1 { singular } else { plural })
}

/// Formats bytes in decimal units, with three significant digits: `12.3 MB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{n} B")
    } else {
        format!("{} {}", three_digits(value), UNITS[unit])
    }
}

/// Formats a power of two in binary units: `64 KiB`.
pub(crate) fn binary(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = n;
    let mut unit = 0;
    while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < UNITS.len() {
        value /= 1024;
        unit += 1;
    }
    format!("{value} {}", UNITS[unit])
}

/// Formats a rate in bytes per second.
pub(crate) fn byte_rate(n: u64, elapsed: Duration) -> String {
    format!("{}/s", bytes(per_second(n, elapsed) as u64))
}

/// Formats a rate in items per second, with three significant digits below 1000.
pub(crate) fn rate(n: u64, elapsed: Duration) -> String {
    let value = per_second(n, elapsed);
    if value >= 1000.0 {
        count(value.round() as u64)
    } else {
        three_digits(value)
    }
}

/// Returns the rate in items per second; 0 if no time has passed.
pub(crate) fn per_second(n: u64, elapsed: Duration) -> f64 {
    let seconds = elapsed.as_secs_f64();
    if seconds > 0.0 {
        n as f64 / seconds
    } else {
        0.0
    }
}

/// Formats a duration for people: `850 ms`, `12.3 s`, `4m 05s`, `2h 10m`.
pub fn duration(d: Duration) -> String {
    let seconds = d.as_secs_f64();
    if seconds < 0.000_999_5 {
        format!("{} µs", three_digits(seconds * 1e6))
    } else if seconds < 0.999_5 {
        format!("{} ms", three_digits(seconds * 1e3))
    } else if seconds < 59.95 {
        format!("{} s", three_digits(seconds))
    } else {
        let whole = seconds.round() as u64;
        let (hours, minutes, seconds) = (whole / 3600, whole / 60 % 60, whole % 60);
        if hours > 0 {
            format!("{hours}h {minutes:02}m")
        } else {
            format!("{minutes}m {seconds:02}s")
        }
    }
}

/// Formats the time left in whole seconds, because it is an estimate.
pub(crate) fn eta(d: Duration) -> String {
    match d.as_secs_f64().ceil() as u64 {
        seconds @ 0..60 => format!("{seconds}s"),
        _ => duration(d),
    }
}

fn three_digits(value: f64) -> String {
    if value >= 99.95 {
        format!("{value:.0}")
    } else if value >= 9.995 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_both_systems() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("256MiB"), Ok(256 << 20));
        assert_eq!(parse_size("256 MiB"), Ok(256 << 20));
        assert_eq!(parse_size("1GB"), Ok(1_000_000_000));
        assert_eq!(parse_size("1.5kib"), Ok(1536));
        assert_eq!(parse_size("2M"), Ok(2 << 20));
        assert_eq!(parse_size("18446744073709551615"), Ok(u64::MAX));
        for wrong in [
            "",
            "MiB",
            "-1",
            "1XB",
            "1e3",
            "0",
            "99999999TiB",
            "1.2.3",
            "0.1B",
        ] {
            assert!(parse_size(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5h"), Ok(Duration::from_secs(5400)));
        for wrong in ["", "30", "s", "3 weeks", "-1s"] {
            assert!(parse_duration(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn numbers_are_written_for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_281_167), "1,281,167");
        assert_eq!(counted(1, "record", "records"), "1 record");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(1000), "1.00 kB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(147_900_000_000), "148 GB");
        assert_eq!(binary(65536), "64 KiB");
        assert_eq!(duration(Duration::from_micros(1500)), "1.50 ms");
        assert_eq!(duration(Duration::from_secs(245)), "4m 05s");
        assert_eq!(duration(Duration::from_millis(59_970)), "1m 00s");
        assert_eq!(duration(Duration::from_secs(7800)), "2h 10m");
        assert_eq!(rate(3, Duration::ZERO), "0.00");
        assert_eq!(eta(Duration::from_millis(300)), "1s");
        assert_eq!(eta(Duration::from_secs(245)), "4m 05s");
    }
}
