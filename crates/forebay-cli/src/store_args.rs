//! Options for connecting to a store, for every command that takes a location.

use clap::Args;
use forebay_store::{Cancel, StoreOptions};

use crate::console::Console;

/// Options about stores. Credentials come from the environment and profiles; docs/storage.md has the names.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Storage")]
pub struct StoreArgs {
    /// URL of the object store, if not the provider's own
    #[arg(long, value_name = "URL")]
    pub(crate) endpoint: Option<String>,

    /// Region of the bucket
    #[arg(long, value_name = "NAME")]
    pub(crate) region: Option<String>,

    /// Send no credentials: for public buckets
    #[arg(long)]
    pub(crate) anonymous: bool,

    /// A setting such as profile=work, several times if needed; no
    /// secrets, since other users see command lines
    #[arg(long = "storage-option", value_name = "KEY=VALUE", value_parser = parse_pair)]
    pub(crate) storage_options: Vec<(String, Setting)>,
}

/// A value that is never printed, because it may be a secret.
#[derive(Clone)]
pub(crate) struct Setting(String);

impl std::fmt::Debug for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("...")
    }
}

impl Setting {
    /// Returns the value.
    pub(crate) fn get(&self) -> String {
        self.0.clone()
    }
}

impl StoreArgs {
    /// Returns the options for the library.
    pub fn options(&self) -> StoreOptions {
        let mut options = StoreOptions::new();
        options.endpoint.clone_from(&self.endpoint);
        options.region.clone_from(&self.region);
        options.anonymous = self.anonymous;
        for (name, value) in &self.storage_options {
            options = options.with(name, value.0.clone());
        }
        options
    }

    /// Returns the options for a command that handles a first Ctrl-C, which ends all waits for the store.
    pub(crate) fn options_until(&self, console: &Console) -> StoreOptions {
        let flag = console.interrupt().flag();
        StoreOptions {
            cancel: Some(Cancel::from_flag(flag)),
            ..self.options()
        }
    }
}

pub(crate) fn parse_pair(text: &str) -> Result<(String, Setting), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), Setting(value.to_owned())))
        }
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_reach_the_options_and_are_not_shown() {
        let args = StoreArgs {
            region: Some("here".to_owned()),
            storage_options: vec![parse_pair(" aws_session_token = =HIDDEN").unwrap()],
            ..StoreArgs::default()
        };
        let options = args.options();
        assert_eq!(options.extra["aws_session_token"], " =HIDDEN");
        assert_eq!(options.region.as_deref(), Some("here"));
        assert!(!format!("{args:?} {options:?}").contains("HIDDEN"));
        assert!(parse_pair("x").is_err() && parse_pair("=x").is_err());
    }
}
