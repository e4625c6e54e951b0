//! Parses the options of a URL: `synthetic://imagenet?records=1000&latency=5ms`.
//!
//! The URL defines a synthetic dataset completely: the same URL gives the same bytes in every
//! process.

use std::time::Duration;

use forebay_options::misspelled;

/// URL scheme of synthetic datasets.
const SCHEME: &str = "synthetic://";
/// Name of the only imitated dataset.
const NAME: &str = "imagenet";
/// Default number of records: the size of ImageNet's training split.
const RECORDS: u64 = 1_281_167;
/// Maximum number of records. The manifest has a line per thousand records.
pub const MAX_RECORDS: u64 = 50_000_000;
/// Default number of different images: enough that the processor cache does not hold an image until
/// it is decoded again.
const PICTURES: u64 = 32;
/// Maximum number of different images, which are kept in memory.
const MAX_PICTURES: u64 = 1024;
/// Maximum delay.
const MAX_DELAY: Duration = Duration::from_secs(3600);
/// All keys, for hints in errors.
const KEYS: [&str; 10] = [
    "records",
    "seed",
    "pictures",
    "seek_points",
    "latency",
    "bandwidth",
    "stall",
    "fail",
    "damage",
    "decode",
];

/// An invalid URL, with a hint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct Error {
    /// The invalid part.
    pub problem: String,
    /// The valid form.
    pub hint: String,
}

impl Error {
    fn new(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Error {
            problem: problem.into(),
            hint: hint.into(),
        }
    }
}

/// Returns whether a location names a synthetic dataset.
#[must_use]
pub fn is_synthetic(text: &str) -> bool {
    text.get(..SCHEME.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(SCHEME))
}

/// A synthetic dataset, with the delays and faults of its simulated storage.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Recipe {
    /// Number of records in its only split, `train`.
    pub records: u64,
    /// Seed of the images, faults and damage.
    pub seed: u64,
    /// Number of different images.
    pub pictures: u64,
    /// Whether seek points are stored with the images, as `forebay pack` does.
    pub seek_points: bool,
    /// Delay before the first byte of a read.
    pub latency: Duration,
    /// Bandwidth of all reads together in bytes per second; `None` for no limit.
    pub bandwidth: Option<u64>,
    /// Fraction of reads that are delayed further, and the additional delay.
    pub stall: Option<(f64, Duration)>,
    /// Fraction of reads that fail.
    pub fail: f64,
    /// Fraction of records with a corrupted byte.
    pub damage: f64,
    /// Whether images are decoded. If not, the server sends synthetic batches, and there are no
    /// files.
    pub decode: bool,
    url: String,
}

impl Recipe {
    /// Parses a URL.
    ///
    /// # Errors
    /// Returns an error for another name, unknown keys and invalid values.
    pub fn parse(url: &str) -> Result<Recipe, Error> {
        let rest = match is_synthetic(url) {
            true => &url[SCHEME.len()..],
            false => {
                return Err(Error::new(
                    format!("{url} is not a synthetic dataset"),
                    example(),
                ));
            }
        };
        let (name, query) = rest.split_once('?').unwrap_or((rest, ""));
        if name.trim_end_matches('/') != NAME {
            return Err(Error::new(
                format!("there is no synthetic dataset {name:?}"),
                example(),
            ));
        }
        let mut recipe = Recipe {
            records: RECORDS,
            seed: 0,
            pictures: PICTURES,
            seek_points: true,
            latency: Duration::ZERO,
            bandwidth: None,
            stall: None,
            fail: 0.0,
            damage: 0.0,
            decode: true,
            url: url.to_owned(),
        };
        let mut seen: Vec<&str> = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if seen.contains(&key) {
                let hint = format!("give {key} once");
                return Err(Error::new(format!("{NAME}: {key} is given twice"), hint));
            }
            seen.push(key);
            recipe.set(key, value)?;
        }
        Ok(recipe)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let expected = match key {
            "records" => {
                let number = number(value).filter(|n| (1..=MAX_RECORDS).contains(n));
                put(&mut self.records, number)
                    .err()
                    .map(|()| format!("1 to {MAX_RECORDS}, such as records=1000000"))
            }
            "seed" => put(&mut self.seed, number(value))
                .err()
                .map(|()| "a number, such as seed=7".to_owned()),
            "pictures" => {
                let number = number(value).filter(|n| (1..=MAX_PICTURES).contains(n));
                put(&mut self.pictures, number)
                    .err()
                    .map(|()| format!("1 to {MAX_PICTURES}"))
            }
            "seek_points" => put(&mut self.seek_points, switch(value))
                .err()
                .map(|()| "on or off".to_owned()),
            "decode" => put(&mut self.decode, switch(value))
                .err()
                .map(|()| "on or off".to_owned()),
            "latency" => put(&mut self.latency, delay(value))
                .err()
                .map(|()| "a time, such as latency=5ms".to_owned()),
            "bandwidth" => put(&mut self.bandwidth, bandwidth(value).map(Some))
                .err()
                .map(|()| "bytes a second, such as bandwidth=1GB, or bandwidth=10Gbit".to_owned()),
            "stall" => put(&mut self.stall, stall(value).map(Some))
                .err()
                .map(|()| {
                    "which part of reads, and for how long, such as stall=0.001:2s".to_owned()
                }),
            "fail" => put(&mut self.fail, part(value))
                .err()
                .map(|()| "a part of all reads, 0 to 1, such as fail=0.001".to_owned()),
            "damage" => put(&mut self.damage, part(value))
                .err()
                .map(|()| "a part of all records, 0 to 1, such as damage=0.001".to_owned()),
            unknown => {
                let near = misspelled(unknown, KEYS.iter().copied());
                let hint = near.map_or(String::new(), |known| format!("did you mean {known}? "));
                return Err(Error::new(
                    format!("{NAME}: unknown key {unknown:?}"),
                    format!("{hint}there are {}", KEYS.join(", ")),
                ));
            }
        };
        match expected {
            None => Ok(()),
            Some(expected) => Err(Error::new(
                format!("{NAME}: {key} is {value:?}"),
                format!("expected {expected}"),
            )),
        }
    }

    /// Returns the URL as given.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns the dataset's default name when served.
    #[must_use]
    pub fn name(&self) -> &'static str {
        NAME
    }
}

fn example() -> String {
    format!("there is {SCHEME}{NAME}?records=1000000")
}

fn put<T>(place: &mut T, value: Option<T>) -> Result<(), ()> {
    value.map(|value| *place = value).ok_or(())
}

fn number(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" | "true" | "1" => Some(true),
        "off" | "false" | "0" => Some(false),
        _ => None,
    }
}

fn part(text: &str) -> Option<f64> {
    let part: f64 = text.parse().ok()?;
    (0.0..=1.0).contains(&part).then_some(part)
}

fn delay(text: &str) -> Option<Duration> {
    let units = [
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("m", 60.0),
        ("h", 3600.0),
    ];
    let (number, unit) = units
        .into_iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?, seconds)))?;
    let number: f64 = number.trim().parse().ok()?;
    let delay = Duration::try_from_secs_f64(number * unit).ok()?;
    (delay <= MAX_DELAY).then_some(delay)
}

fn stall(text: &str) -> Option<(f64, Duration)> {
    let (part_of, time) = text.split_once(':')?;
    Some((part(part_of)?, delay(time)?))
}

fn bandwidth(text: &str) -> Option<u64> {
    let units = [
        ("gbit", 1e9 / 8.0),
        ("mbit", 1e6 / 8.0),
        ("kib", 1024.0),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("kb", 1e3),
        ("mb", 1e6),
        ("gb", 1e9),
        ("", 1.0),
    ];
    let text = text.to_ascii_lowercase();
    let (number, unit) = units
        .into_iter()
        .find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)))?;
    let bytes = number.trim().parse::<f64>().ok()? * unit;
    // The cast saturates. Below one byte per second, reads would practically never end.
    (bytes.is_finite() && bytes >= 1.0).then_some(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(query: &str) -> Result<Recipe, Error> {
        Recipe::parse(&format!("synthetic://imagenet{query}"))
    }

    #[test]
    fn every_key_is_parsed() {
        let recipe = parse(
            "?records=1_000&seed=7&pictures=3&seek_points=off&latency=1.5ms&bandwidth=10Gbit&stall=0.25:2s&fail=0.001&damage=1&decode=off",
        )
        .unwrap();
        assert_eq!((recipe.records, recipe.seed, recipe.pictures), (1000, 7, 3));
        assert!(!recipe.seek_points && !recipe.decode);
        assert_eq!(recipe.latency, Duration::from_micros(1500));
        assert_eq!(recipe.bandwidth, Some(1_250_000_000));
        assert_eq!(recipe.stall, Some((0.25, Duration::from_secs(2))));
        assert_eq!((recipe.fail, recipe.damage), (0.001, 1.0));
        assert_eq!(parse("").unwrap().records, 1_281_167);
        assert_eq!(parse("/?bandwidth=3MiB").unwrap().bandwidth, Some(3 << 20));
        let recipe = parse("?latency=2m&bandwidth=5kB").unwrap();
        assert_eq!(recipe.latency, Duration::from_secs(120));
        assert_eq!(recipe.bandwidth, Some(5000));
    }

    #[test]
    fn invalid_urls_have_a_hint() {
        for (query, problem, hint) in [
            (
                "?recods=3",
                "unknown key \"recods\"",
                "did you mean records?",
            ),
            ("?lateny=5ms", "unknown key", "did you mean latency?"),
            ("?zzz=1", "unknown key", "there are records, seed"),
            ("?records=0", "records is \"0\"", "1 to 50000000"),
            ("?records", "records is \"\"", "such as records=1000000"),
            ("?latency=5", "latency is \"5\"", "latency=5ms"),
            ("?latency=2000000s", "latency", "latency=5ms"),
            ("?bandwidth=fast", "bandwidth", "bandwidth=1GB"),
            ("?bandwidth=0", "bandwidth", "bandwidth=1GB"),
            ("?fail=2", "fail is \"2\"", "0 to 1"),
            ("?fail=NaN", "fail", "0 to 1"),
            ("?stall=2s", "stall", "stall=0.001:2s"),
            ("?decode=maybe", "decode", "on or off"),
            ("?seed=1&seed=2", "seed is given twice", "once"),
        ] {
            let error = parse(query).unwrap_err();
            assert!(error.problem.contains(problem), "{query}: {error:?}");
            assert!(error.hint.contains(hint), "{query}: {error:?}");
        }
        let error = Recipe::parse("synthetic://cifar").unwrap_err();
        assert!(error.hint.contains("synthetic://imagenet"), "{error:?}");
        assert!(Recipe::parse("/data/imagenet").is_err());
        assert!(is_synthetic("SYNTHETIC://x") && !is_synthetic("syn") && !is_synthetic("s3://x"));
    }

    #[test]
    fn decode_off_cannot_be_opened_as_a_dataset() {
        let error = parse("?decode=off").unwrap().open().unwrap_err();
        assert!(error.to_string().contains("forebay serve"), "{error}");
    }
}
