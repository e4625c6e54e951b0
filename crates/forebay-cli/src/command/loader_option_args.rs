//! Loader options on the command line, such as `-o batch_size=256`, with the same names as in `CONFIG.toml` and Python.

use std::collections::BTreeMap;

use clap::Args;
use forebay_options::{LoaderOptions, OPTIONS, OptionKind};
use serde_json::Value;

use crate::failure::Failure;

/// Options of a loader that were given.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LoaderOptionArgs {
    /// An option of the loader, such as batch_size=256, transform=train or normalize='{ mean = [0.5, 0.5, 0.5], std =
    /// [0.25, 0.25, 0.25] }'; can be given several times. docs/loader.md lists them
    #[arg(short = 'o', long = "option", value_name = "NAME=VALUE")]
    options: Vec<String>,
}

impl LoaderOptionArgs {
    pub(super) fn is_empty(&self) -> bool {
        self.options.is_empty()
    }

    /// Removes an option that is not a loader option. Returns its last value.
    pub(super) fn take(&mut self, name: &str) -> Option<String> {
        let value = |given: &String| Some(given.strip_prefix(name)?.strip_prefix('=')?.to_owned());
        let found = self.options.iter().filter_map(value).next_back();
        self.options.retain(|given| value(given).is_none());
        found
    }

    /// Parses the options. `is_known` returns whether the command accepts a loader option.
    pub(super) fn read(&self, is_known: impl Fn(&str) -> bool) -> Result<LoaderOptions, Failure> {
        let mut options = LoaderOptions::default();
        for given in &self.options {
            let wrong = |what: String| Failure::usage(format!("-o {given}: {what}"));
            let Some((name, text)) = given.split_once('=') else {
                return Err(wrong("expected NAME=VALUE".to_owned()));
            };
            let known = || OPTIONS.iter().filter(|option| is_known(option.name));
            let Some(option) = known().find(|option| option.name == name) else {
                let names: Vec<&str> = known().map(|option| option.name).collect();
                let names = names.join(", ");
                return Err(wrong(format!("there is no such option; they are {names}")));
            };
            let wrong = |what: String| match option.kind {
                OptionKind::Transform | OptionKind::BatchTransform => wrong(what)
                    .hint(r#"write it as in CONFIG.toml: { kind = "train", size = 160 }"#),
                _ => wrong(what),
            };
            let value = value(option.kind, text).map_err(wrong)?;
            options.set(name, value).map_err(|what| match option.kind {
                OptionKind::Transform | OptionKind::BatchTransform => wrong(what),
                kind => wrong(format!("expected {}", kind.expected())),
            })?;
        }
        Ok(options)
    }
}

/// Parses the value of an option: a word, a list separated by commas, or a TOML table or array.
fn value(kind: OptionKind, text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with(['{', '[']) {
        let mut table: BTreeMap<String, Value> = toml::from_str(&format!("value = {text}"))
            .map_err(|e| e.message().replace('\n', " "))?;
        return table.remove("value").ok_or_else(|| "no value".to_owned());
    }
    // Text stays a string; `LoaderOptions::set` rejects it for a number or a flag.
    let number = |text: &str| {
        let number = text.parse::<u64>();
        number.map_or_else(|_| Value::from(text), Value::from)
    };
    Ok(match kind {
        OptionKind::Count(_) | OptionKind::Bytes | OptionKind::Base => number(text),
        OptionKind::Flag => match text {
            "true" => true.into(),
            "false" => false.into(),
            _ => text.into(),
        },
        OptionKind::Indices => text.split(',').map(number).collect(),
        OptionKind::Classes | OptionKind::Columns => text.split(',').collect(),
        _ => text.into(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        options: LoaderOptionArgs,
    }

    fn parse(given: &[&str]) -> LoaderOptionArgs {
        let flags = given.iter().flat_map(|given| ["-o", given]);
        Cli::try_parse_from(["x"].into_iter().chain(flags))
            .unwrap()
            .options
    }

    #[test]
    fn options_equal_those_of_a_file() {
        let by_file: LoaderOptions = toml::from_str(
            r#"
            split = "train"
            batch_size = 8
            reshuffle = false
            transform = [{ kind = "RandomResizedCrop", size = 96 }, { kind = "Normalize" }]
            batch_transform = { kind = "Mixup", alpha = 0.2 }
            layout = "nchw"
            normalize = { mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }
            indices = [4, 7]
            classes = ["a", "3"]
            weights = { a = 0.5 }
            label_base = 1
            columns = ["caption", "boxes"]
            "#,
        )
        .unwrap();
        let given = parse(&[
            "split=train",
            "batch_size=8",
            "reshuffle=false",
            r#"transform=[{ kind = "RandomResizedCrop", size = 96 }, { kind = "Normalize" }]"#,
            r#"batch_transform={ kind = "Mixup", alpha = 0.2 }"#,
            "layout=nchw",
            "normalize={ mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }",
            "indices=4,7",
            "classes=a,3",
            "weights={ a = 0.5 }",
            "label_base=1",
            "columns=caption,boxes",
        ]);
        let read = given.read(|_| true).unwrap();
        assert_eq!(format!("{read:?}"), format!("{by_file:?}"));
    }

    #[test]
    fn wrong_options_are_refused_by_name() {
        for (given, said) in [
            ("batch_size", "expected NAME=VALUE"),
            (
                "batch-size=8",
                "there is no such option; they are split, batch_size",
            ),
            ("rank=8", "there is no such option"),
            (
                "batch_size=many",
                "-o batch_size=many: expected a whole number",
            ),
            ("layout=hwc", "expected \"nhwc\" or \"nchw\""),
            ("label_base=2", "expected 0, 1 or \"stored\""),
            ("transform={ kind = ", "-o transform={ kind = "),
        ] {
            let failure = parse(&[given]).read(|name| name != "rank").unwrap_err();
            assert!(failure.message().contains(said), "{failure}");
            assert_eq!(failure.exit_code(), 2);
        }
        let mut given = parse(&["weight=1", "weights={ a = 0.5 }", "weight=2.5"]);
        assert_eq!(given.take("weight").as_deref(), Some("2.5"));
        assert!(given.read(|_| true).unwrap().weights.is_some());
    }
}
