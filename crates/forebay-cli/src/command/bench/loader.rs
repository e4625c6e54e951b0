//! `forebay bench loader`: the arguments, and their conversion to options of the loader.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use forebay_bench::{BenchReport, LoadOptions};
use forebay_image::{EvalTransform, TrainTransform, Transform};
use forebay_loader::Options;
use forebay_options::{TransformSpec, Transforms};

use super::Experiment;
use super::cold_args::ColdArgs;
use crate::command::loader_option_args::LoaderOptionArgs;
use crate::console::Console;
use crate::failure::Failure;
use crate::quantity::{parse_duration, parse_size};

#[derive(Debug, Args)]
pub(super) struct LoaderArgs {
    /// A dataset
    dataset: PathBuf,
    /// Numbers of decoding threads to compare
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        default_value = "1,2"
    )]
    threads: Vec<usize>,
    /// Least duration of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "3s")]
    run_time: Duration,
    /// Transforms to compare
    #[arg(
        long,
        value_name = "NAME,...",
        value_delimiter = ',',
        default_value = "train,eval"
    )]
    transform: Vec<What>,
    /// Side of decoded images in pixels
    #[arg(long, value_name = "PIXELS", default_value_t = 224)]
    size: u32,
    /// Memory for records and batches
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1GiB")]
    memory: u64,

    #[command(flatten)]
    cold: ColdArgs,

    #[command(flatten)]
    options: LoaderOptionArgs,
}

/// Loader options that `-o` does not accept: the transforms come from their own option, and the benchmark has one rank.
const NOT_MEASURED: [&str; 3] = ["transform", "rank", "world_size"];

#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// Random crop, flip
    Train,
    /// Resize, center crop
    Eval,
    /// Images stay encoded
    KeepEncoded,
}

impl Experiment for LoaderArgs {
    fn measure(self, runs: usize, _console: &Console) -> Result<Vec<BenchReport>, Failure> {
        let dataset = self.dataset.clone();
        Ok(vec![forebay_bench::load(&dataset, &self.options(runs)?)?])
    }
}

impl LoaderArgs {
    fn options(self, runs: usize) -> Result<LoadOptions, Failure> {
        let transforms = self.transform.iter().map(|&what| self.transform(what));
        let transforms: Vec<(String, Transform)> = transforms.collect();
        let is_known = |name: &str| !NOT_MEASURED.contains(&name);
        let mut given = self.options.read(is_known)?;
        given.drop_last.get_or_insert(false);
        given.shuffle.get_or_insert(true.into());
        // Options need a transform. The benchmark replaces it by each of `transforms` in turn.
        given.transform = Some(Transforms::One(TransformSpec::new("train")));
        let mut options =
            Options::from_schema(&given).map_err(|error| Failure::usage(error.to_string()))?;
        options.memory_bytes = self.memory;
        Ok(LoadOptions {
            split: given.split,
            threads: self.threads,
            duration: self.run_time,
            transforms,
            options,
            cold: self.cold.cold,
            runs,
        })
    }

    /// Returns the name of a transform for the report, and the transform.
    fn transform(&self, what: What) -> (String, Transform) {
        let side = self.size;
        match what {
            What::Train => (
                format!("RandomResizedCrop({side}) + flip"),
                Transform::Train(TrainTransform::new(side)),
            ),
            What::Eval => {
                // The usual ratio for ImageNet: resize the short side to 256, crop 224.
                let short = side.saturating_mul(8).div_ceil(7);
                (
                    format!("Resize({short}) + CenterCrop({side})"),
                    Transform::Eval(EvalTransform::new(short, side)),
                )
            }
            What::KeepEncoded => ("encoded".to_owned(), Transform::KeepEncoded),
        }
    }
}
