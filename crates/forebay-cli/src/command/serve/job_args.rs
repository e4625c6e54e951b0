//! One job by flags: the keys of `[jobs.NAME]`, in the words of the command line.

use clap::{ArgAction, Args};

use super::config::{Job, Shuffle};
use crate::failure::Failure;

/// Options of the job that `--job` names.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct JobArgs {
    /// Let ranks join a job of this name, of the one dataset that is served: the options below are
    /// the server's, and the trainers' only the rank
    #[arg(long, value_name = "NAME")]
    job: Option<String>,

    /// Split [default: the only one]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,

    /// Samples a batch, of each rank [default: 32]
    #[arg(long, value_name = "N")]
    batch_size: Option<u64>,

    /// Ranks [default: any number]
    #[arg(long, value_name = "N")]
    world_size: Option<u64>,

    /// Seed of the order and of random transforms [default: 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Order: blocks, full or none [default: blocks]
    #[arg(long, value_name = "NAME")]
    shuffle: Option<String>,

    /// Records read together, with --shuffle blocks [default: by their size]
    #[arg(long, value_name = "N")]
    block_records: Option<u64>,

    /// Blocks mixed together in a lane, with --shuffle blocks [default: 2]
    #[arg(long, value_name = "N")]
    window_blocks: Option<u64>,

    /// Parts of the epoch that are read side by side, a multiple of the ranks [default: 64]
    #[arg(long, value_name = "N")]
    lanes: Option<u64>,

    /// What becomes of an image: train, eval or raw, or as in CONFIG.toml:
    /// '{ kind = "train", size = 160 }', or a list [default: train]
    #[arg(long, value_name = "TRANSFORM")]
    transform: Option<String>,

    /// How a batch is mixed, as in CONFIG.toml: '{ kind = "Mixup", alpha = 0.2 }' [default: not]
    #[arg(long, value_name = "TRANSFORM")]
    batch_transform: Option<String>,

    /// Order of the axes: nhwc or nchw [default: nhwc]
    #[arg(long, value_name = "NAME")]
    layout: Option<String>,

    /// Type of the numbers: uint8, float32, float16 or bfloat16 [default: uint8; float32 where normalised]
    #[arg(long, value_name = "NAME")]
    dtype: Option<String>,

    /// Whose pixels: pillow, opencv or tensorflow [default: pillow]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,

    /// Turn images as EXIF says
    #[arg(long, action = ArgAction::SetTrue)]
    exif_orientation: bool,

    /// Decode JPEG smaller where the crop allows it
    #[arg(long, action = ArgAction::SetTrue)]
    dct_scaling: bool,

    /// Fill up the last batch of an epoch instead of leaving it out
    #[arg(long, action = ArgAction::SetTrue)]
    keep_last: bool,

    /// Only records of these classes
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    classes: Vec<String>,

    /// Only the first so many records
    #[arg(long, value_name = "N")]
    limit: Option<u64>,

    /// Draw each class as often as any other
    #[arg(long, action = ArgAction::SetTrue)]
    class_balanced: bool,

    /// Samples drawn for an epoch
    #[arg(long, value_name = "N")]
    draws: Option<u64>,

    /// How often each sample comes in an epoch
    #[arg(long, value_name = "N")]
    repeats: Option<u64>,

    /// Of samples that cannot be read or decoded: raise, skip or zero [default: raise]
    #[arg(long, value_name = "NAME")]
    on_error: Option<String>,

    /// Its part of cores and bandwidth beside other names [default: 1]
    #[arg(long, value_name = "NUMBER")]
    weight: Option<f64>,
}

impl JobArgs {
    /// The job that is asked for, with its name.
    pub(super) fn job(&self) -> Result<Option<(String, Job)>, Failure> {
        let Some(name) = &self.job else {
            return match self.given() {
                None => Ok(None),
                Some(flag) => Err(Failure::usage(format!(
                    "--{flag} is about a job, and there is none"
                ))
                .hint("name it: --job NAME")),
            };
        };
        let job = Job {
            dataset: None,
            split: self.split.clone(),
            batch_size: self.batch_size,
            world_size: self.world_size,
            seed: self.seed,
            shuffle: self.shuffle.clone().map(Shuffle::Named),
            block_records: self.block_records,
            window_blocks: self.window_blocks,
            lanes: self.lanes,
            transform: self
                .transform
                .as_deref()
                .map(|t| value("transform", t))
                .transpose()?,
            batch_transform: self
                .batch_transform
                .as_deref()
                .map(|t| value("batch-transform", t))
                .transpose()?,
            layout: self.layout.clone(),
            dtype: self.dtype.clone(),
            profile: self.profile.clone(),
            exif_orientation: self.exif_orientation.then_some(true),
            dct_scaling: self.dct_scaling.then_some(true),
            drop_last: self.keep_last.then_some(false),
            classes: (!self.classes.is_empty()).then(|| self.classes.clone()),
            limit: self.limit,
            class_balanced: self.class_balanced.then_some(true),
            draws: self.draws,
            repeats: self.repeats,
            on_error: self.on_error.clone(),
            weight: self.weight,
        };
        Ok(Some((name.clone(), job)))
    }

    /// The first option that is given.
    fn given(&self) -> Option<&'static str> {
        let given = [
            ("split", self.split.is_some()),
            ("batch-size", self.batch_size.is_some()),
            ("world-size", self.world_size.is_some()),
            ("seed", self.seed.is_some()),
            ("shuffle", self.shuffle.is_some()),
            ("block-records", self.block_records.is_some()),
            ("window-blocks", self.window_blocks.is_some()),
            ("lanes", self.lanes.is_some()),
            ("transform", self.transform.is_some()),
            ("batch-transform", self.batch_transform.is_some()),
            ("layout", self.layout.is_some()),
            ("dtype", self.dtype.is_some()),
            ("profile", self.profile.is_some()),
            ("exif-orientation", self.exif_orientation),
            ("dct-scaling", self.dct_scaling),
            ("keep-last", self.keep_last),
            ("classes", !self.classes.is_empty()),
            ("limit", self.limit.is_some()),
            ("class-balanced", self.class_balanced),
            ("draws", self.draws.is_some()),
            ("repeats", self.repeats.is_some()),
            ("on-error", self.on_error.is_some()),
            ("weight", self.weight.is_some()),
        ];
        given
            .into_iter()
            .find(|(_, given)| *given)
            .map(|(name, _)| name)
    }
}

/// A word, or a table or list as TOML has it.
fn value(flag: &str, text: &str) -> Result<toml::Value, Failure> {
    if !text.trim_start().starts_with(['{', '[']) {
        return Ok(toml::Value::String(text.to_owned()));
    }
    let wrong = |what: &str| {
        let text = format!("--{flag} {text}: {}", what.replace('\n', " "));
        Failure::usage(text).hint(r#"write it as in CONFIG.toml: { kind = "train", size = 160 }"#)
    };
    let mut table: toml::Table =
        toml::from_str(&format!("value = {text}")).map_err(|e| wrong(e.message()))?;
    table.remove("value").ok_or_else(|| wrong("no value"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        job: JobArgs,
    }

    fn job(flags: &[&str]) -> Result<Option<(String, Job)>, Failure> {
        let flags = ["x"].iter().chain(flags);
        Flags::try_parse_from(flags).unwrap().job.job()
    }

    #[test]
    fn flags_say_what_the_file_says() {
        let (name, by_flags) = job(&[
            "--job",
            "a",
            "--split",
            "train",
            "--batch-size",
            "8",
            "--world-size",
            "4",
            "--seed",
            "7",
            "--shuffle",
            "blocks",
            "--block-records",
            "16",
            "--window-blocks",
            "3",
            "--lanes",
            "8",
            "--transform",
            r#"[{ kind = "RandomResizedCrop", size = 96 }, { kind = "Normalize" }]"#,
            "--batch-transform",
            r#"{ kind = "Mixup", alpha = 0.2 }"#,
            "--layout",
            "nchw",
            "--dtype",
            "float16",
            "--profile",
            "opencv",
            "--exif-orientation",
            "--dct-scaling",
            "--keep-last",
            "--classes",
            "a,b",
            "--limit",
            "9",
            "--class-balanced",
            "--draws",
            "20",
            "--repeats",
            "2",
            "--on-error",
            "skip",
            "--weight",
            "2.5",
        ])
        .unwrap()
        .unwrap();
        let by_file: Job = toml::from_str(
            r#"
            split = "train"
            batch_size = 8
            world_size = 4
            seed = 7
            shuffle = "blocks"
            block_records = 16
            window_blocks = 3
            lanes = 8
            transform = [{ kind = "RandomResizedCrop", size = 96 }, { kind = "Normalize" }]
            batch_transform = { kind = "Mixup", alpha = 0.2 }
            layout = "nchw"
            dtype = "float16"
            profile = "opencv"
            exif_orientation = true
            dct_scaling = true
            drop_last = false
            classes = ["a", "b"]
            limit = 9
            class_balanced = true
            draws = 20
            repeats = 2
            on_error = "skip"
            weight = 2.5
            "#,
        )
        .unwrap();
        assert_eq!(name, "a");
        assert_eq!(format!("{by_flags:?}"), format!("{by_file:?}"));
        // Every key of the file has its flag.
        assert!(
            !format!(
                "{:?}",
                Job {
                    dataset: Some(String::new()),
                    ..by_flags
                }
            )
            .contains("None")
        );
    }

    #[test]
    fn options_of_a_job_want_a_job() {
        assert!(job(&[]).unwrap().is_none());
        let failure = job(&["--keep-last"]).unwrap_err();
        assert!(failure.message().contains("--keep-last"), "{failure}");
        assert!(failure.hint_line().unwrap().contains("--job NAME"));
        let (_, named) = job(&["--job", "a", "--transform", "eval"])
            .unwrap()
            .unwrap();
        assert_eq!(
            named.transform,
            Some(toml::Value::String("eval".to_owned()))
        );
        let failure = job(&["--job", "a", "--transform", "{ kind = "]).unwrap_err();
        assert!(failure.message().contains("--transform"), "{failure}");
        assert_eq!(failure.exit_code(), 2);
    }
}
