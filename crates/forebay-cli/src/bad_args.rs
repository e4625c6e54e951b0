//! The options for bad images and records, the same in every command that packs or converts.

use clap::Args;
use forebay_pack::{MaxBad, OnBad};

/// Bad images and records.
#[derive(Debug, Args)]
#[command(next_help_heading = "Bad input")]
pub(crate) struct BadArgs {
    /// Policy for bad records: skip, fail or quarantine:DIR
    #[arg(
        long,
        value_name = "POLICY",
        default_value = "skip",
        value_parser = parse_policy
    )]
    pub(crate) on_bad: OnBad,

    /// Most bad records, a number or a share [default: 1%, at least 100]
    #[arg(long, value_name = "N")]
    max_bad: Option<MaxBad>,
}

impl BadArgs {
    pub(crate) fn max_bad(&self) -> MaxBad {
        self.max_bad.unwrap_or_default()
    }
}

fn parse_policy(text: &str) -> Result<OnBad, String> {
    match text.split_once(':') {
        None if text == "skip" => Ok(OnBad::Skip),
        None if text == "fail" => Ok(OnBad::Fail),
        Some(("quarantine", dir)) if !dir.is_empty() => Ok(OnBad::Quarantine(dir.into())),
        _ => Err("give skip, fail or quarantine:DIR".to_owned()),
    }
}
