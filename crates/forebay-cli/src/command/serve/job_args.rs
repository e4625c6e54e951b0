//! One job by flags: the keys of `[jobs.NAME]`, in the words of the command line.

use clap::Args;

use super::config::Job;
use crate::command::loader_flags::{LoaderFlags, Without};
use crate::failure::Failure;

/// Options of the job that `--job` names.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct JobArgs {
    /// Let ranks join a job of this name, of the one dataset that is served: the options below are
    /// the server's, and the trainers' only the rank
    #[arg(long, value_name = "NAME")]
    job: Option<String>,

    #[command(flatten)]
    options: LoaderFlags<NotOfJobs>,

    /// Its part of cores and bandwidth beside other names [default: 1]
    #[arg(long, value_name = "NUMBER")]
    weight: Option<f64>,
}

/// Options without a flag of a job: each trainer has its own rank, and the server's limits of images hold for all jobs.
#[derive(Debug, Clone)]
enum NotOfJobs {}

impl Without for NotOfJobs {
    const NAMES: &'static [&'static str] = &["rank", "max_pixels", "max_image_bytes"];
}

impl JobArgs {
    /// The requested job, with its name.
    pub(super) fn job(&self) -> Result<Option<(String, Job)>, Failure> {
        let Some(name) = &self.job else {
            let weight = self.weight.map(|_| "weight".to_owned());
            return match self.options.first().or(weight) {
                None => Ok(None),
                Some(flag) => Err(Failure::usage(format!(
                    "--{flag} is about a job, and there is none"
                ))
                .hint("name it: --job NAME")),
            };
        };
        let job = Job {
            dataset: None,
            weight: self.weight,
            options: self.options.read()?,
        };
        Ok(Some((name.clone(), job)))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use forebay_options::OPTIONS;

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
        let by_file: Job = toml::from_str(
            r#"
            split = "train"
            batch_size = 8
            world_size = 4
            seed = 7
            shuffle = "blocks"
            reshuffle = false
            block_records = 16
            window_blocks = 3
            virtual_ranks = 8
            transform = [{ kind = "RandomResizedCrop", size = 96 }, { kind = "Normalize" }]
            batch_transform = { kind = "Mixup", alpha = 0.2 }
            layout = "nchw"
            dtype = "float16"
            normalize = { mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }
            resize_like = "opencv"
            exif_orientation = true
            dct_scaling = true
            drop_last = false
            indices = [4, 7]
            classes = ["a", "3"]
            limit = 9
            weights = { a = 0.5 }
            class_balanced = true
            num_samples = 20
            repeats = 2
            on_error = "skip"
            label_base = 1
            columns = ["caption", "boxes"]
            keep_empty_boxes = true
            weight = 2.5
            "#,
        )
        .unwrap();
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
            "--reshuffle=false",
            "--block-records",
            "16",
            "--window-blocks",
            "3",
            "--virtual-ranks",
            "8",
            "--transform",
            r#"[{ kind = "RandomResizedCrop", size = 96 }, { kind = "Normalize" }]"#,
            "--batch-transform",
            r#"{ kind = "Mixup", alpha = 0.2 }"#,
            "--layout",
            "nchw",
            "--dtype",
            "float16",
            "--normalize",
            "{ mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }",
            "--resize-like",
            "opencv",
            "--exif-orientation",
            "--dct-scaling=true",
            "--drop-last=false",
            "--indices",
            "4,7",
            "--classes",
            "a,3",
            "--limit",
            "9",
            "--weights",
            "{ a = 0.5 }",
            "--class-balanced",
            "--num-samples",
            "20",
            "--repeats",
            "2",
            "--on-error",
            "skip",
            "--label-base",
            "1",
            "--columns",
            "caption,boxes",
            "--keep-empty-boxes",
            "--weight",
            "2.5",
        ])
        .unwrap()
        .unwrap();
        assert_eq!(name, "a");
        assert_eq!(format!("{by_flags:?}"), format!("{by_file:?}"));
        // Every option that has a flag was given.
        let flags = OPTIONS.len() - NotOfJobs::NAMES.len();
        assert_eq!(by_flags.options.given().len(), flags);
    }

    #[test]
    fn options_of_a_job_want_a_job() {
        assert!(job(&[]).unwrap().is_none());
        let failure = job(&["--drop-last=false"]).unwrap_err();
        assert!(failure.message().contains("--drop-last"), "{failure}");
        assert!(failure.hint_line().unwrap().contains("--job NAME"));
        let (_, named) = job(&["--job", "a", "--transform", "eval"])
            .unwrap()
            .unwrap();
        assert_eq!(named.options.given()["transform"]["kind"], "eval");
        for (flag, text, said) in [
            ("--transform", "{ kind = ", "--transform { kind = "),
            (
                "--batch-size",
                "many",
                "--batch-size many: expected a whole number",
            ),
            ("--layout", "hwc", "expected \"nhwc\" or \"nchw\""),
            ("--label-base", "2", "expected 0, 1 or \"stored\""),
        ] {
            let failure = job(&["--job", "a", flag, text]).unwrap_err();
            assert!(failure.message().contains(said), "{failure}");
            assert_eq!(failure.exit_code(), 2);
        }
    }
}
