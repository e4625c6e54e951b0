//! A job defined by flags, with the same keys as `[jobs.NAME]`.

use clap::Args;

use super::config::Job;
use crate::command::loader_option_args::LoaderOptionArgs;
use crate::failure::Failure;

/// Options of the job that `--job` names.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Job")]
pub(super) struct JobArgs {
    /// Let ranks join a job of this name on the dataset. The server decides about all options but the rank, which `-o` gives
    /// as CONFIG.toml does; weight=2 is the job's share of cores and bandwidth
    #[arg(long, value_name = "NAME")]
    job: Option<String>,

    #[command(flatten)]
    options: LoaderOptionArgs,
}

/// Loader options that a job cannot set: each trainer has its own rank, and the server's image limits apply to all jobs.
const NOT_OF_JOBS: [&str; 3] = ["rank", "max_pixels", "max_image_bytes"];

impl JobArgs {
    /// Returns the job with its name; `None` without `--job`.
    pub(super) fn job(&self) -> Result<Option<(String, Job)>, Failure> {
        let mut options = self.options.clone();
        let Some(name) = &self.job else {
            return match options.is_empty() {
                true => Ok(None),
                false => Err(Failure::usage("-o is about a job, and there is none")
                    .hint("name it: --job NAME")),
            };
        };
        let weight = options.take("weight").map(|text| {
            let weight = text.parse::<f64>();
            weight.map_err(|_| Failure::usage(format!("-o weight={text}: expected a number")))
        });
        let job = Job {
            dataset: None,
            weight: weight.transpose()?,
            options: options.read(|name| !NOT_OF_JOBS.contains(&name))?,
        };
        Ok(Some((name.clone(), job)))
    }
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
    fn job_options_require_a_job() {
        assert!(job(&[]).unwrap().is_none());
        let failure = job(&["-o", "drop_last=false"]).unwrap_err();
        assert!(failure.hint_line().unwrap().contains("--job NAME"));
        let given = ["--job", "a", "-o", "transform=eval", "-o", "weight=2.5"];
        let (name, named) = job(&given).unwrap().unwrap();
        assert_eq!((name.as_str(), named.weight), ("a", Some(2.5)));
        assert_eq!(named.options.given()["transform"]["kind"], "eval");
        for given in ["rank=1", "weight=many"] {
            assert!(job(&["--job", "a", "-o", given]).is_err(), "{given}");
        }
    }
}
