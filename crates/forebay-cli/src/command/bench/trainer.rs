//! `--consumer`: the step times of the consumer, from a preset, a fixed time, a file, or a short training run with torch.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_bench::Consumer;
use serde::Deserialize;

use crate::console::Console;
use crate::failure::Failure;
use crate::input::show;
use crate::quantity::parse_duration;

/// The torchvision networks that `torch:NETWORK` can train.
const NETWORKS: [&str; 2] = ["resnet50", "resnet18"];
const SCRIPT: &str = include_str!("torch_steps.py");
/// Size limit in bytes, for a file of step times and for the output of the training process.
const MOST_BYTES: u64 = 16 << 20;
/// Upper limit of a step time in seconds; a longer step is reported as invalid input.
const MOST_SECONDS: f64 = 3600.0;
/// Timeout of the training process beyond [`TRAIN_TIME`], for importing torch, building the network and slow steps.
const PATIENCE: Duration = Duration::from_secs(600);

/// Duration of the training run whose step times are recorded. At least 3 steps are recorded, even if they take longer.
const TRAIN_TIME: Duration = Duration::from_secs(5);

/// The training whose step times a consumer waits.
#[derive(Debug, Args)]
pub struct TrainerArgs {
    /// Python interpreter with torch and torchvision, for --consumer torch:NETWORK
    #[arg(long, value_name = "PYTHON", default_value = "python3")]
    python: PathBuf,
}

impl TrainerArgs {
    /// Parses the name of a preset, `step:TIME`, `recorded:FILE` or `torch:NETWORK`. The last form runs a short training.
    pub fn consumer(
        &self,
        text: &str,
        batch_size: u64,
        console: &Console,
    ) -> Result<Consumer, Failure> {
        if let Some(preset) = Consumer::preset(text) {
            return Ok(preset);
        }
        match text.split_once(':') {
            Some(("step", time)) => match parse_duration(time) {
                Ok(step) if !step.is_zero() => Ok(Consumer::with_step(step, batch_size)),
                _ => Err(invalid(text)),
            },
            Some(("recorded", file)) if !file.is_empty() => recorded(Path::new(file), batch_size),
            Some(("torch", network)) if NETWORKS.contains(&network) => {
                self.train(network, batch_size, console)
            }
            _ => Err(invalid(text)),
        }
    }

    /// Trains a network in a Python process, and returns a consumer with the measured step times.
    fn train(
        &self,
        network: &str,
        batch_size: u64,
        console: &Console,
    ) -> Result<Consumer, Failure> {
        console.note(format!(
            "training {network} with batches of {batch_size} for {:?} to record step times",
            TRAIN_TIME
        ));
        let python = self.python.as_path();
        let mut command = Command::new(python);
        command
            .args(["-c", SCRIPT, network])
            .arg(batch_size.to_string())
            .arg(TRAIN_TIME.as_secs_f64().to_string());
        let failed = |why: String| {
            Failure::new(format!(
                "--consumer torch:{network}: {why} ({})",
                show(python)
            ))
            .hint("--python names an interpreter with torch and torchvision; recorded:FILE needs none")
        };
        let (status, out, err) = outputs(&mut command, TRAIN_TIME + PATIENCE)
            .map_err(|error| failure_of(&error, &failed))?;
        if !status.success() {
            let last = err.lines().rfind(|line| !line.trim().is_empty());
            return Err(failed(match last {
                Some(line) => line.trim().to_owned(),
                None => format!("the program ended with {status}"),
            }));
        }
        // The JSON is the last line, since libraries may print lines before it.
        let line = out.lines().rfind(|line| !line.trim().is_empty());
        let trained: Trained = forebay_shard::json::from_str(line.unwrap_or_default())
            .map_err(|error| failed(format!("invalid output of the program: {error}")))?;
        let steps = durations(&trained.step_s).map_err(failed)?;
        let source = format!(
            "torch:{network} on {} with torch {}, {} threads",
            trained.device, trained.torch, trained.threads
        );
        Consumer::recorded(&source, &steps, batch_size)
            .ok_or_else(|| Failure::new(format!("--consumer torch:{network}: no steps were run")))
    }
}

/// The JSON that `torch_steps.py` prints.
#[derive(Debug, Deserialize)]
struct Trained {
    step_s: Vec<f64>,
    torch: String,
    device: String,
    threads: u64,
}

/// Step times in JSON: an array of seconds, or an object with such an array as `step_s`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Times {
    Array(Vec<f64>),
    Object { step_s: Vec<f64> },
}

fn recorded(path: &Path, batch_size: u64) -> Result<Consumer, Failure> {
    let failed = |why: String| {
        Failure::new(format!(
            "--consumer recorded: cannot read step times: {why} ({})",
            show(path)
        ))
        .hint("the file has seconds: one number a line, a JSON array, or {\"step_s\": [...]}")
    };
    let mut text = String::new();
    let file = File::open(path).map_err(|error| failed(error.to_string()))?;
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    let read = read.map_err(|error| failed(error.to_string()))?;
    if read as u64 > MOST_BYTES {
        return Err(failed(format!(
            "the file is larger than {MOST_BYTES} bytes"
        )));
    }
    let seconds = numbers(&text).map_err(failed)?;
    let steps = durations(&seconds).map_err(failed)?;
    Consumer::recorded(&format!("recorded:{}", show(path)), &steps, batch_size)
        .ok_or_else(|| failed("it has no numbers".to_owned()))
}

/// Parses step times in seconds from JSON, or from text with one number per line. Empty lines are skipped.
fn numbers(text: &str) -> Result<Vec<f64>, String> {
    if text.trim_start().starts_with(['[', '{']) {
        return match forebay_shard::json::from_str(text).map_err(|error| error.to_string())? {
            Times::Array(step_s) | Times::Object { step_s } => Ok(step_s),
        };
    }
    let lines = text.lines().enumerate();
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| {
            line.trim()
                .parse()
                .map_err(|_| format!("line {}: invalid number {line:?}", number + 1))
        })
        .collect()
}

fn durations(seconds: &[f64]) -> Result<Vec<Duration>, String> {
    let times = seconds.iter().enumerate();
    times
        .map(
            |(number, &seconds)| match seconds > 0.0 && seconds <= MOST_SECONDS {
                true => Ok(Duration::from_secs_f64(seconds)),
                false => Err(format!(
                    "step {} takes {seconds} s; expected more than 0 and at most {MOST_SECONDS}",
                    number + 1
                )),
            },
        )
        .collect()
}

fn failure_of(error: &std::io::Error, failed: &impl Fn(String) -> Failure) -> Failure {
    failed(match error.kind() {
        std::io::ErrorKind::NotFound => "the interpreter does not exist".to_owned(),
        _ => error.to_string(),
    })
}

fn invalid(text: &str) -> Failure {
    let names: Vec<&str> = Consumer::names().collect();
    Failure::usage(format!(
        "invalid --consumer \"{text}\"; expected one of {}, step:TIME such as step:75ms, recorded:FILE, or torch:{}",
        names.join(", "),
        NETWORKS.join(" or torch:")
    ))
}

/// Runs a program, and returns its status, stdout and stderr. After `patience`, the program is killed and an error returned.
fn outputs(
    command: &mut Command,
    patience: Duration,
) -> std::io::Result<(ExitStatus, String, String)> {
    let command = command.stdin(Stdio::null());
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let readers = [
        child
            .stdout
            .take()
            .map(|pipe| thread::spawn(|| text_of(pipe))),
        child
            .stderr
            .take()
            .map(|pipe| thread::spawn(|| text_of(pipe))),
    ];
    let begin = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if begin.elapsed() > patience => {
                child.kill()?;
                child.wait()?;
                return Err(std::io::Error::other(format!(
                    "the program did not end within {patience:?}"
                )));
            }
            None => thread::sleep(Duration::from_millis(5)),
        }
    };
    let [out, err] = readers.map(|reader| {
        let read = reader.and_then(|reader| reader.join().ok());
        read.unwrap_or_default()
    });
    Ok((status, out, err))
}

/// Returns the first `MOST_BYTES` of a pipe as text. The rest is read and discarded, so that the program does not block.
fn text_of(mut pipe: impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = pipe.by_ref().take(MOST_BYTES).read_to_end(&mut bytes);
    let _ = std::io::copy(&mut pipe, &mut std::io::sink());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_times_are_lines_or_json() {
        for text in [
            "0.5\n\n 2 \n",
            " [5e-1, 2]",
            r#"{"network": "x", "step_s": [0.5, 2.0]}"#,
        ] {
            assert_eq!(numbers(text), Ok(vec![0.5, 2.0]), "{text}");
        }
        assert!(numbers(r#"{"step_s": "0.5"}"#).is_err() && numbers("[0.5").is_err());
        let seconds = |value| durations(&[value]).map(|steps| steps[0].as_secs_f64());
        assert_eq!(seconds(3600.0), Ok(3600.0));
        for wrong in [0.0, -1.0, 3600.1, f64::NAN, f64::INFINITY] {
            assert!(
                seconds(wrong).unwrap_err().starts_with("step 1 takes "),
                "{wrong}"
            );
        }
    }
}
