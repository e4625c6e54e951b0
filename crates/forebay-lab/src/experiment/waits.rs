//! How long a consumer waits for batches of single files.

use std::time::Duration;

use super::data::{MediumData, image_files};
use super::lab::{Cache, Lab, Sample, Trial};
use super::mini_app::MiniApp;
use crate::Result;

/// Returns a trial that measures the share of time for which the consumer waits for batches.
pub(super) fn trial<'t>(
    lab: &Lab<'_>,
    medium: &MediumData,
    prefetch: u64,
    step: Duration,
    batch_size: u64,
) -> Result<Trial<'t>> {
    let files = medium.images()?;
    let (threads, limit) = (lab.most_threads(), lab.options.limit);
    let footprint = image_files(&files);
    let name = format!("prefetch {prefetch}, step {} ms", 1e3 * step.as_secs_f64());
    let run = move || {
        let app = MiniApp {
            threads,
            prefetch,
            steps: step.into(),
            ..MiniApp::new(&files, batch_size, limit)
        };
        let ran = app.run()?;
        let per_batch = 1e3 / ran.taken.len() as f64;
        let more = [
            ("images/s", ran.images as f64 / ran.seconds),
            ("wait ms a batch", ran.waited() * per_batch),
            (
                "MB/s demanded",
                demand(ran.bytes, ran.images, batch_size, step),
            ),
        ];
        Ok(Sample::new(
            100.0 * ran.waited() / ran.seconds,
            ran.read,
            more,
        ))
    };
    let trial = Trial::new(&medium.name, name, "% of time waiting", run);
    Ok(trial.reading(footprint, Cache::Emptied).standing_in())
}

/// Returns the MB/s that a consumer demands if it never waits; 0 for a step that takes no time.
fn demand(bytes: u64, images: u64, batch_size: u64, step: Duration) -> f64 {
    match step.is_zero() {
        true => 0.0,
        false => bytes as f64 / images as f64 * batch_size as f64 / 1e6 / step.as_secs_f64(),
    }
}
