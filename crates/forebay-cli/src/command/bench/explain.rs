//! `forebay bench explain`: measures the rate of each loading stage, and predicts the gain of each remedy.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use forebay_bench::price::{ExplainOptions, Price, explain};
use forebay_bench::report::REPORT_FILE;
use forebay_cache::ReadOptions;
use forebay_store::Location;
use serde_json::json;

use super::cold_args::ColdArgs;
use super::trainer::TrainerArgs;
use super::{figure, print_report};
use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::input::show;
use crate::paint::printable;
use crate::quantity::parse_duration;
use crate::store_args::StoreArgs;
use crate::table::{Align, Table};

#[derive(Debug, Args)]
pub(super) struct Explain {
    /// A dataset: a directory, a URL of a store, synthetic://
    source: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Consumer of the batches: none, a preset such as v100-resnet50-fp16, step:TIME for steps of this duration, recorded:FILE for recorded step times, or torch:resnet50 for those of a short training
    #[arg(long, value_name = "CONSUMER", default_value = "none")]
    consumer: String,
    #[command(flatten)]
    trainer: TrainerArgs,
    /// Decoding threads [default: the cores of the machine or container]
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..))]
    batch_size: u64,
    /// Duration of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1.5s")]
    run_time: Duration,
    /// Write report.json, report.md, report.html and the plot into this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    #[command(flatten)]
    cold: ColdArgs,
    #[command(flatten)]
    cache: CacheArgs,
    #[command(flatten)]
    store: StoreArgs,
}

impl Explain {
    pub(super) fn run(self, runs: usize, console: &Console) -> Result<Outcome, Failure> {
        let place = Location::parse(&self.source)?;
        let paths = std::slice::from_ref(&self.source);
        let options = ExplainOptions {
            split: self.split,
            batch_size: self.batch_size,
            threads: self.threads,
            consumer: match &*self.consumer {
                "none" => None,
                text => Some(self.trainer.consumer(text, self.batch_size, console)?),
            },
            run_time: self.run_time,
            runs,
            cold: self.cold.cold,
            read: ReadOptions::new(self.store.options())
                .with_cache(self.cache.open_for(paths, console)?),
            command: super::command(console),
        };
        let found = explain(&place, &options)?;
        print_report(&found.stages, console);
        console.blank();
        console.heading("What remedies would gain");
        prices(&found.prices, console);
        if let Some(dir) = &self.report {
            found.report.write(dir)?;
            let page = dir.join("report.html");
            console.note(format!(
                "report: {}, {}",
                show(&dir.join(REPORT_FILE)),
                show(&page)
            ));
        }
        console.event("bench", &found.stages);
        console.event(
            "prices",
            &json!({ "bottleneck": found.bottleneck, "prices": found.prices, "cost": found.cost }),
        );
        Ok(Outcome::Done)
    }
}

/// Prints the table of remedies with their predicted gains.
pub(crate) fn prices(prices: &[Price], console: &Console) {
    if prices.is_empty() {
        console.line("  nothing that Forebay knows would gain more than 2 %");
        return;
    }
    let mut table = Table::new(&[
        ("remedy", Align::Left),
        ("gain", Align::Right),
        ("from", Align::Right),
        ("to", Align::Right),
        ("images/s", Align::Right),
        ("bytes", Align::Right),
        ("then limits", Align::Left),
        ("how", Align::Left),
    ]);
    for price in prices {
        let times = |value: f64| format!("{value:.2}x");
        table.row([
            printable(&price.remedy),
            times(price.gain.gain),
            times(price.gain.lowest),
            times(price.gain.highest),
            figure(price.images_per_s),
            times(price.bytes),
            price.then.to_owned(),
            price.how.clone(),
        ]);
    }
    console.table(&table);
}
