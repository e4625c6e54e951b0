//! `forebay-lab formats`: the experiments of the catalog that compare formats.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use forebay_bench::Consumer;
use forebay_bench::cold::Cold;
use forebay_cli::frontend::quantity::parse_duration;
use forebay_cli::frontend::{Console, Failure, Outcome, ways};
use forebay_store::Location;

use super::characterize::measure;
use super::typed;
use crate::experiment::{CharacterizeOptions, Experiment, Group, format_names};

/// Threads of Forebay's loader in experiments that do not vary the number of workers.
const THREADS: usize = 4;

#[derive(Debug, Args)]
pub(super) struct Formats {
    /// Directories on the storages to test; what is written there is removed at the end
    #[arg(required = true)]
    media: Vec<PathBuf>,
    /// A dataset whose images are used in place of generated ones
    #[arg(long, value_name = "DATASET")]
    data: Option<PathBuf>,
    /// Images that are written in each format
    #[arg(long, value_name = "N", default_value_t = 1024)]
    files: u64,
    /// Formats to compare [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = PossibleValuesParser::new(format_names()))]
    formats: Vec<String>,
    /// Check each format with 1 to 8 workers too
    #[arg(long)]
    right_samples: bool,
    /// Longest time of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "500ms")]
    run_time: Duration,
    /// How the page cache is emptied before each cold run
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = ways())]
    cold: Cold,
    /// Images of a batch
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    batch_size: u64,
    /// Write report.json, report.md, report.html and the plots into this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Do not ask before writing
    #[arg(long)]
    yes: bool,
}

impl Formats {
    pub(super) fn run(self, runs: usize, console: &Console) -> Result<Outcome, Failure> {
        for medium in &self.media {
            if Location::parse(medium)?.is_remote() {
                return Err(Failure::usage(format!(
                    "\"{}\" is a store; formats are compared in directories",
                    medium.display()
                )));
            }
        }
        let checked = self.right_samples.then_some(Group::RightSamples);
        let groups = [Group::Formats].into_iter().chain(checked);
        let experiments = groups.flat_map(Experiment::of_group);
        let options = CharacterizeOptions {
            media: self.media,
            stores: Vec::new(),
            store: Default::default(),
            experiments: experiments.map(|e| e.id.to_owned()).collect(),
            files: self.files,
            size: 0,
            runs,
            limit: self.run_time,
            cold: self.cold,
            threads: vec![THREADS],
            batch_size: self.batch_size,
            prefetch: Vec::new(),
            steps: Vec::new(),
            consumer: Consumer::default(),
            ranks: vec![1],
            data: self.data,
            limits: None,
            formats: self.formats,
            command: typed(console),
        };
        measure(
            "formats",
            &options,
            self.report.as_deref(),
            self.yes,
            console,
        )
    }
}
