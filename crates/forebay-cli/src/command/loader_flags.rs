//! The options of a loader as flags: one for each of the schema.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use clap::builder::ValueRange;
use clap::{Arg, ArgMatches, Args, Command, FromArgMatches};
use forebay_options::{LoaderOption, LoaderOptions, OPTIONS, OptionKind};
use serde_json::Value;

use crate::failure::Failure;

/// The options that a command has no flags for, or flags of its own.
pub(super) trait Without: Clone {
    /// Their names.
    const NAMES: &'static [&'static str];
}

/// Flags that were given, in the order of the schema.
#[derive(Debug, Clone)]
pub(super) struct LoaderFlags<W> {
    given: Vec<(&'static LoaderOption, String)>,
    without: PhantomData<W>,
}

fn flag(option: &LoaderOption) -> String {
    option.name.replace('_', "-")
}

impl<W: Without> LoaderFlags<W> {
    fn options() -> impl Iterator<Item = &'static LoaderOption> {
        OPTIONS
            .iter()
            .filter(|option| !W::NAMES.contains(&option.name))
    }

    /// The first flag that is given, without its dashes.
    pub(super) fn first(&self) -> Option<String> {
        self.given.first().map(|(option, _)| flag(option))
    }

    /// The options that are given.
    pub(super) fn read(&self) -> Result<LoaderOptions, Failure> {
        let mut options = LoaderOptions::default();
        for (option, text) in &self.given {
            let wrong = |what: String| {
                let failure = Failure::usage(format!("--{} {text}: {what}", flag(option)));
                match option.kind {
                    OptionKind::Transform | OptionKind::BatchTransform => failure
                        .hint(r#"write it as in CONFIG.toml: { kind = "train", size = 160 }"#),
                    _ => failure,
                }
            };
            let value = value(option.kind, text).map_err(wrong)?;
            options
                .set(option.name, value)
                .map_err(|what| match option.kind {
                    OptionKind::Transform | OptionKind::BatchTransform => wrong(what),
                    kind => wrong(format!("expected {}", kind.expected())),
                })?;
        }
        Ok(options)
    }
}

/// A value as it is typed: a word, a list with commas, or a table or list as TOML has it.
fn value(kind: OptionKind, text: &str) -> Result<Value, String> {
    if text.trim_start().starts_with(['{', '[']) {
        let mut table: BTreeMap<String, Value> = toml::from_str(&format!("value = {text}"))
            .map_err(|e| e.message().replace('\n', " "))?;
        return table.remove("value").ok_or_else(|| "no value".to_owned());
    }
    // What is no number or flag is refused as a text.
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

impl<W: Without> FromArgMatches for LoaderFlags<W> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let text = |option: &'static LoaderOption| {
            let text = matches.get_one::<String>(option.name)?;
            Some((option, text.clone()))
        };
        Ok(LoaderFlags {
            given: Self::options().filter_map(text).collect(),
            without: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<W: Without> Args for LoaderFlags<W> {
    fn augment_args(command: Command) -> Command {
        command.args(Self::options().map(|option| {
            let mut help = option.doc.trim().to_owned();
            let form = match option.kind {
                OptionKind::Choice(names) => Some(names.join(", ")),
                kind => kind.toml_form().map(str::to_owned),
            };
            if let Some(form) = form {
                help += &format!(": {form}");
            }
            if !option.default.is_empty() {
                help += &format!(" [default: {}]", option.default);
            }
            let arg = Arg::new(option.name).long(flag(option)).help(help);
            match option.kind {
                OptionKind::Flag => arg
                    .value_name("true|false")
                    .num_args(ValueRange::new(0..=1))
                    .require_equals(true)
                    .default_missing_value("true"),
                OptionKind::Count(_) => arg.value_name("N"),
                OptionKind::Bytes => arg.value_name("BYTES"),
                OptionKind::Indices => arg.value_name("N,..."),
                OptionKind::Classes | OptionKind::Columns => arg.value_name("NAME,..."),
                OptionKind::Transform | OptionKind::BatchTransform => arg.value_name("TRANSFORM"),
                OptionKind::Base => arg.value_name("BASE"),
                OptionKind::Weights => arg.value_name("WEIGHTS"),
                OptionKind::Normalize => arg.value_name("NUMBERS"),
                _ => arg.value_name("NAME"),
            }
        }))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}
