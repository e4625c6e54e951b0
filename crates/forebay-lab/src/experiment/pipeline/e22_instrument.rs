//! E22: whether printing in the training loop changes the loading times.

use std::fs::File;
use std::io::{self, Read, Write};
use std::thread;
use std::time::Duration;

use crate::experiment::data::image_files;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::{MiniApp, Ran};
use crate::experiment::{Experiment, Findings};
use crate::Result;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E22",
    title: "A print per batch",
    question: "Does printing in the training loop change the loading times?",
    trials: |_| 3,
    run,
    ..Experiment::OTHER
};

const QUIET: &str = "no print";
const FILE: &str = "a print per batch, to a file";
const PIPE: &str = "a print per batch, to a pipe";
const STEP: Duration = Duration::from_millis(20);

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut trials = Vec::new();
    for medium in &lab.media {
        for name in [QUIET, FILE, PIPE] {
            let files = medium.images()?;
            let footprint = image_files(&files);
            let (batch, limit, threads) = (lab.options.batch_size, lab.options.limit, lab.most_threads());
            let run = move || {
                let app = MiniApp {
                    threads,
                    prefetch: 1,
                    steps: STEP.into(),
                    ..MiniApp::new(&files, batch, limit)
                };
                let ran = match name {
                    QUIET => app.run()?,
                    FILE => printing(&app, &mut File::create(medium.scratch_file())?)?,
                    _ => piped(&app)?,
                };
                let batches = ran.taken.len() as f64;
                let more = [("images/s", ran.images as f64 / ran.seconds)];
                Ok(Sample::new(1e3 * ran.waited() / batches, ran.read, more))
            };
            let trial = Trial::new(&medium.name, name, "ms loading a batch", run);
            trials.push(trial.reading(footprint, Cache::Filled).standing_in());
        }
    }
    Ok(Findings {
        figures: lab.in_turns(trials)?,
        plots: Vec::new(),
        notes: vec![format!(
            "Stand-in: a consumer that sleeps for {} ms with each batch. Each line is flushed. A copy from a GPU for each print, which waits for its work, is not simulated.",
            STEP.as_millis()
        )],
    })
}

fn printing(app: &MiniApp<'_>, out: &mut dyn Write) -> Result<Ran> {
    app.run_with(&mut |step| {
        writeln!(out, "step {step}: loaded, loss {:.4}", 1.0 / step as f64)?;
        Ok(out.flush()?)
    })
}

/// Prints into a pipe that another thread reads.
fn piped(app: &MiniApp<'_>) -> Result<Ran> {
    let (mut from, mut to) = io::pipe()?;
    thread::scope(|scope| {
        scope.spawn(move || io::copy(&mut from.by_ref(), &mut io::sink()));
        let ran = printing(app, &mut to);
        drop(to);
        ran
    })
}
