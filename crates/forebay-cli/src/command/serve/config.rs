//! Parses CONFIG.toml, and reports errors with their line.
//!
//! The names of the keys are defined here. Missing keys are `None`; [`decide`](super::decide) applies flags and defaults.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_loader::MixLabels;
use forebay_options::{LoaderOptions, is_option, misspelled, unknown};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use crate::failure::Failure;
use crate::input::show;
use crate::quantity::{parse_duration, parse_size};

/// Size limit of the file in bytes; a larger file is no configuration.
const MAX_BYTES: u64 = 1 << 20;

/// The whole file. [`Config::read`] makes relative paths relative to the directory of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    pub(super) listen: Option<SocketAddr>,
    pub(super) admin_listen: Option<SocketAddr>,
    pub(super) health_listen: Option<SocketAddr>,
    pub(super) admin_images: Option<bool>,
    pub(super) token_file: Option<PathBuf>,
    pub(super) insecure: Option<bool>,
    pub(super) drain_timeout: Option<Time>,
    pub(super) log_format: Option<super::LogFormat>,
    pub(super) tls: Option<Tls>,
    #[serde(default)]
    pub(super) limits: Limits,
    #[serde(default)]
    pub(super) datasets: BTreeMap<String, Dataset>,
    #[serde(default)]
    pub(super) mixes: BTreeMap<String, MixTable>,
    #[serde(default)]
    pub(super) jobs: BTreeMap<String, Job>,
}

/// The table `[tls]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    pub(super) cert: PathBuf,
    pub(super) key: PathBuf,
    pub(super) client_ca: Option<PathBuf>,
}

/// The table `[limits]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    pub(super) max_connections: Option<usize>,
    pub(super) max_connections_per_address: Option<usize>,
    pub(super) handshake_timeout: Option<Time>,
    pub(super) threads: Option<usize>,
    pub(super) memory: Option<Size>,
    pub(super) total_memory: Option<Size>,
    pub(super) shared_memory: Option<Shared>,
    pub(super) max_pixels: Option<u64>,
    pub(super) max_image_bytes: Option<Size>,
    pub(super) max_batch_bytes: Option<Size>,
    pub(super) bandwidth: Option<Size>,
    pub(super) shared_batches: Option<Shared>,
}

/// A table `[datasets.NAME]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Dataset {
    pub(super) path: PathBuf,
    pub(super) weight: Option<f64>,
}

/// A table `[mixes.NAME]`: datasets of the file, by name, as one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MixTable {
    pub(super) datasets: Vec<String>,
    /// For each epoch.
    #[serde(default, deserialize_with = "mix_weights")]
    pub(super) weights: Vec<Vec<f64>>,
    #[serde(default, deserialize_with = "mix_labels")]
    pub(super) labels: MixLabels,
}

fn mix_weights<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<f64>>, D::Error> {
    let value = toml::Value::deserialize(deserializer)?;
    let constant = Vec::deserialize(value.clone()).map(|weights| vec![weights]);
    constant.or_else(|_| Vec::deserialize(value)).map_err(|_| {
        D::Error::custom("expected a weight for each dataset, or a list of them for each epoch")
    })
}

fn mix_labels<'de, D: Deserializer<'de>>(deserializer: D) -> Result<MixLabels, D::Error> {
    match toml::Value::deserialize(deserializer)? {
        toml::Value::String(name) => MixLabels::named(&name).map_err(D::Error::custom),
        value => Vec::deserialize(value)
            .map(MixLabels::Add)
            .map_err(|error| D::Error::custom(error.message())),
    }
}

/// A table `[jobs.NAME]`: the options of `forebay.Loader`, and the keys in [`JOB_KEYS`].
#[derive(Debug, Default)]
pub(super) struct Job {
    pub(super) dataset: Option<String>,
    pub(super) weight: Option<f64>,
    pub(super) options: LoaderOptions,
}

/// Keys of a job that are not loader options.
const JOB_KEYS: [&str; 2] = ["dataset", "weight"];

impl<'de> Deserialize<'de> for Job {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Keys;

        impl<'de> Visitor<'de> for Keys {
            type Value = Job;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a job")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Job, A::Error> {
                let mut job = Job::default();
                while let Some(key) = map.next_key::<String>()? {
                    match key.as_str() {
                        "dataset" => job.dataset = Some(map.next_value()?),
                        "weight" => job.weight = Some(map.next_value()?),
                        // The rank differs between the trainers of a job.
                        key if key == "rank" || !is_option(key) => {
                            return Err(A::Error::custom(unknown(key, &JOB_KEYS)));
                        }
                        key => map.next_value_seed(job.options.entry(key))?,
                    }
                }
                Ok(job)
            }
        }

        deserializer.deserialize_map(Keys)
    }
}

/// A size in bytes, written as `"256MiB"` or as a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size(pub(super) u64);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::Integer(bytes) if bytes > 0 => Ok(Size(bytes.unsigned_abs())),
            toml::Value::String(text) => parse_size(&text).map(Size).map_err(D::Error::custom),
            other => Err(D::Error::custom(format!(
                "expected a size such as \"256MiB\" or a number of bytes, found {other}"
            ))),
        }
    }
}

/// A size in bytes, written like [`Size`]; `false` stands for 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shared(pub(super) u64);

impl<'de> Deserialize<'de> for Shared {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::Boolean(false) => Ok(Shared(0)),
            value => Size::deserialize(value)
                .map(|size| Shared(size.0))
                .map_err(|e| D::Error::custom(e.message())),
        }
    }
}

/// A duration, written as `"10s"`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(pub(super) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Time).map_err(D::Error::custom)
    }
}

impl Config {
    /// Reads and parses a file.
    pub(super) fn read(path: &Path) -> Result<Config, Failure> {
        let failed = |what: String| Failure::new(format!("cannot read {}: {what}", show(path)));
        let mut text = String::new();
        forebay_shard::storage::open_input(path)
            .and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text))
            .map_err(|e| failed(e.to_string()))?;
        if text.len() as u64 > MAX_BYTES {
            return Err(failed(format!(
                "it has more than {MAX_BYTES} bytes, which no configuration has"
            )));
        }
        let mut config = Config::parse(&text, &show(path))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        config.resolve_paths(directory);
        Ok(config)
    }

    /// Parses the text of a file. `name` is the file name for errors.
    pub(super) fn parse(text: &str, name: &str) -> Result<Config, Failure> {
        toml::from_str(text).map_err(|e| {
            let message = e.message().replace('\n', " ");
            let place = match e.span() {
                Some(span) => {
                    let start = start_of_unknown(&message, text, span.start).unwrap_or(span.start);
                    format!("{name}, line {}", line_of(text, start))
                }
                None => name.to_owned(),
            };
            Failure::usage(format!("{place}: {message}")).maybe_hint(suggestion(&message))
        })
    }

    fn resolve_paths(&mut self, directory: &Path) {
        let tls = self.tls.as_mut();
        let tls = tls.map(|tls| {
            [
                Some(&mut tls.cert),
                Some(&mut tls.key),
                tls.client_ca.as_mut(),
            ]
        });
        for path in tls
            .into_iter()
            .flatten()
            .flatten()
            .chain(&mut self.token_file)
            .chain(self.datasets.values_mut().map(|dataset| &mut dataset.path))
        {
            // URLs are not changed.
            if path.is_relative() && !path.to_string_lossy().contains("://") {
                *path = directory.join(&path);
            }
        }
    }
}

/// Returns the byte offset of the unknown key that `message` names. The span of the error starts at the table, not at the key.
fn start_of_unknown(message: &str, text: &str, table: usize) -> Option<usize> {
    let key = message.strip_prefix("unknown field `")?.split('`').next()?;
    let mut at = table;
    text.get(table..)?.split_inclusive('\n').find_map(|line| {
        let start = at;
        at += line.len();
        let rest = line.trim_start().strip_prefix(key)?;
        rest.trim_start().starts_with('=').then_some(start)
    })
}

/// Returns the line number, from 1, of a byte offset.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())]
        .iter()
        .filter(|&&byte| byte == b'\n')
        .count()
        + 1
}

/// Suggests the most similar known key for an unknown key. serde's message has all of them in backquotes.
fn suggestion(message: &str) -> Option<String> {
    if !message.contains("unknown field") {
        return None;
    }
    let mut quoted = message.split('`').skip(1).step_by(2);
    let found = quoted.next()?;
    let near = misspelled(found, quoted)?;
    Some(format!("did you mean `{near}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> (String, Option<String>) {
        let failure = Config::parse(text, "x.toml").unwrap_err();
        (
            failure.message().to_owned(),
            failure.hint_line().map(str::to_owned),
        )
    }

    #[test]
    fn deeply_nested_values_are_rejected() {
        for levels in [100, 100_000] {
            for (open, close) in [("[", "]"), ("{a=", "}")] {
                let (open, close) = (open.repeat(levels), close.repeat(levels));
                let (message, _) = wrong(&format!("[jobs.a]\ntransform = {open}1{close}\n"));
                assert!(message.contains("recurs"), "{message}");
            }
        }
    }

    #[test]
    fn unknown_keys_have_a_line_and_a_suggestion() {
        let (message, hint) = wrong("listen = \"127.0.0.1:1\"\n\n[limits]\nmax_conections = 3\n");
        assert!(
            message.starts_with("x.toml, line 4: unknown field `max_conections`"),
            "{message}"
        );
        assert_eq!(hint.as_deref(), Some("did you mean `max_connections`?"));
        let (message, hint) = wrong("[jobs.a]\ndataset = \"x\"\nbatchsize = 3\n");
        assert!(message.contains("unknown field `batchsize`"), "{message}");
        assert_eq!(hint.as_deref(), Some("did you mean `batch_size`?"));
        let (_, hint) = wrong("zzzzzzzzzzzz = 1\n");
        assert_eq!(hint, None);
    }

    #[test]
    fn invalid_values_have_a_line() {
        for (text, part) in [
            ("listen = \"here\"\n", "line 1"),
            ("\ndrain_timeout = \"10\"\n", "a duration needs its unit"),
            ("[limits]\nmemory = \"much\"\n", "line 2"),
            ("[limits]\nmemory = -3\n", "found -3"),
            ("[limits\n", "line 1"),
            ("[datasets.a]\n", "missing field `path`"),
            ("[jobs.a]\nshuffle = 3\n", "line 2: option shuffle is 3"),
            ("[jobs.a]\nrank = 0\n", "unknown field `rank`"),
            ("a = 1\na = 2\n", "duplicate key"),
            ("[mixes.a]\n", "missing field `datasets`"),
            (
                "[mixes.a]\ndatasets = []\nweights = 3\n",
                "line 3: expected a weight for each",
            ),
            (
                "[mixes.a]\ndatasets = []\nlabels = \"x\"\n",
                "labels is \"x\": expected",
            ),
        ] {
            let (message, _) = wrong(text);
            assert!(message.contains(part), "{text}: {message}");
        }
    }

    /// The documentation of the file.
    const DOCUMENT: &str = include_str!("../../../../../docs/serving.md");

    #[test]
    fn every_key_is_documented() {
        let words: Vec<&str> = DOCUMENT
            .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .collect();
        let mut count = 0;
        let tables = [
            "[tls]\n",
            "[limits]\n",
            "[datasets.a]\n",
            "[mixes.a]\n",
            "[jobs.a]\n",
        ];
        for table in [&[""], &tables[..]].concat() {
            let (message, _) = wrong(&format!("{table}nothing_like_it = 1\n"));
            let known = message.split('`').skip(3).step_by(2);
            for key in known {
                assert!(
                    words.contains(&key),
                    "{table}{key} is not in docs/serving.md"
                );
                count += 1;
            }
        }
        assert!(count >= 50, "{count}");
    }

    #[test]
    fn the_documented_examples_are_valid() {
        let blocks: Vec<&str> = DOCUMENT
            .split("```toml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
            .collect();
        assert!(!blocks.is_empty());
        for block in blocks {
            for text in [
                block.to_owned(),
                // With all keys that are commented out in the example.
                block.replace("\n# ", "\n"),
            ] {
                let config = Config::parse(&text, "docs/serving.md").unwrap();
                for (name, job) in &config.jobs {
                    super::super::job::options(job).unwrap_or_else(|e| panic!("{name}: {e}"));
                }
                assert!(!config.datasets.is_empty() && !config.jobs.is_empty());
            }
        }
    }

    #[test]
    fn weights_and_shared_sizes_are_parsed() {
        let config = Config::parse(
            "[limits]\nbandwidth = \"1GB\"\nshared_batches = false\n[datasets.a]\npath = \"x\"\nweight = 2\n[jobs.b]\nweight = 0.5\n",
            "x",
        )
        .unwrap();
        assert_eq!(config.limits.bandwidth.unwrap().0, 1_000_000_000);
        assert_eq!(config.limits.shared_batches.unwrap().0, 0);
        assert_eq!(config.datasets["a"].weight, Some(2.0));
        assert_eq!(config.jobs["b"].weight, Some(0.5));
        assert!(wrong("[jobs.b]\nweight = \"much\"\n").0.contains("line 2"));
    }

    #[test]
    fn paths_are_relative_to_the_file() {
        let text = "token_file = \"t\"\n[tls]\ncert = \"/c\"\nkey = \"k\"\n[datasets.a]\npath = \"d/e\"\n[datasets.b]\npath = \"s3://x/y\"\n";
        let mut config = Config::parse(text, "x").unwrap();
        config.resolve_paths(Path::new("/etc/forebay"));
        assert_eq!(
            config.token_file.as_deref(),
            Some(Path::new("/etc/forebay/t"))
        );
        let tls = config.tls.unwrap();
        assert_eq!((tls.cert, tls.key), ("/c".into(), "/etc/forebay/k".into()));
        assert_eq!(config.datasets["a"].path, Path::new("/etc/forebay/d/e"));
        assert_eq!(config.datasets["b"].path, Path::new("s3://x/y"));
    }
}
