//! `forebay advise`: recommends how to store a dataset for a training job, and prints the calculation.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use forebay_bench::Consumer;
use forebay_bench::cold::Cold;
use forebay_bench::price::{AdviseOptions, advise};
use forebay_cache::ReadOptions;
use forebay_store::Location;

use super::bench::prices;
use super::record_source::needs_dataset;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::paint::printable;
use crate::quantity::parse_duration;
use crate::store_args::StoreArgs;

/// Advise how to store a dataset and where to read it, for a number of GPUs
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Looks at sizes, formats and counts, and measures storage and decoding on this machine for a few seconds. Each
piece of advice has its arithmetic: what the GPUs take, what the storage gives, what a core decodes.

Examples:
  forebay advise shards/ --gpus 8 --model v100-resnet50-fp16
  forebay advise photos/ --images-per-second 3000 --cold auto
  forebay advise s3://bucket/imagenet --gpus 4 --images-per-second 2500 --json")]
pub(crate) struct Args {
    /// A dataset (a directory or a URL), or a directory of images
    source: PathBuf,

    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,

    /// GPUs of the training
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    gpus: u64,

    /// A model on a GPU, with its published rate
    #[arg(long, value_name = "NAME", conflicts_with = "images_per_second", value_parser = models())]
    model: Option<Consumer>,

    /// Images that one GPU takes in a second
    #[arg(long, value_name = "X", value_parser = positive)]
    images_per_second: Option<f64>,

    /// How caches are emptied before the storage is measured: auto, root, advise or off
    #[arg(long, value_name = "WAY", default_value = "auto")]
    cold: Cold,

    /// Duration of a measurement
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "500ms")]
    run_time: Duration,

    #[command(flatten)]
    store: StoreArgs,
}

fn models() -> impl TypedValueParser<Value = Consumer> {
    let names = PossibleValuesParser::new(Consumer::names());
    names.map(|name| Consumer::preset(&name).unwrap_or_default())
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err(format!(
            "invalid rate \"{text}\"; expected a number above 0"
        )),
    }
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let place = Location::parse(&args.source)?;
    let each = args.model.map(|model| model.images_per_s());
    let options = AdviseOptions {
        split: args.split,
        gpus: args.gpus,
        gpu_images_per_s: each.or(args.images_per_second),
        cold: args.cold,
        read: ReadOptions::new(args.store.options()),
        run_time: args.run_time,
    };
    let found = advise(&place, &options).map_err(|error| {
        needs_dataset(&args.source, &options.read.store, "advise").unwrap_or_else(|| error.into())
    })?;
    console.heading(format!("Advice for {}", printable(&place.to_string())));
    for advice in &found.advice {
        console.line(format!("  {:<8} {}", advice.topic, printable(&advice.text)));
    }
    console.line(format!("  cache: {}", printable(&found.proof)));
    console.blank();
    console.heading("What remedies would gain on this machine");
    prices(&found.prices, console);
    console.event("advice", &found);
    Ok(Outcome::Done)
}
