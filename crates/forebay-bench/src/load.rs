//! The loader in this process: decoded batches by number of threads.

use std::path::Path;
use std::time::{Duration, Instant};

use forebay_image::{EvalTransform, TrainTransform, Transform};
use forebay_loader::{Loader, Options};
use forebay_shard::Split;

use crate::Result;
use crate::measure::{Alternative, Report, Sample, side_by_side};
use crate::read::open;

/// What to load, and how.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Split, the first one by default.
    pub split: Option<String>,
    /// Samples a batch.
    pub batch_size: u64,
    /// Numbers of decoding threads to compare.
    pub threads: Vec<usize>,
    /// Seconds a run takes at least; runs are whole epochs.
    pub seconds: f64,
    /// Counted runs of each alternative.
    pub runs: usize,
}

/// Images a second through the training transform and the evaluation transform, side 224.
///
/// # Errors
/// A dataset that cannot be read or decoded.
pub fn load(root: &Path, options: &LoadOptions) -> Result<Report> {
    let split = open(root, options.split.as_deref())?;
    let transforms = [
        (
            "RandomResizedCrop(224) + flip",
            Transform::Train(TrainTransform::new(224)),
        ),
        (
            "Resize(256) + CentreCrop(224)",
            Transform::Eval(EvalTransform::new(256, 224)),
        ),
    ];
    let mut alternatives = Vec::new();
    for (name, transform) in transforms {
        for &threads in &options.threads {
            let (split, transform) = (split.clone(), transform.clone());
            alternatives.push(Alternative::here(
                format!(
                    "{name}, {threads} thread{}",
                    if threads == 1 { "" } else { "s" }
                ),
                "images/s",
                move || epochs(&split, &transform, threads, options),
            ));
        }
    }
    let title = format!(
        "Loading {} ({} records), batches of {}",
        root.display(),
        split.len(),
        options.batch_size
    );
    side_by_side(title, options.runs, alternatives)
}

/// Whole epochs until the time is up. The first batch is taken before the clock starts, so that
/// opening is not counted; reading ahead makes up for it at the end.
fn epochs(
    split: &Split,
    transform: &Transform,
    threads: usize,
    options: &LoadOptions,
) -> Result<Sample> {
    let mut asked = Options::new(options.batch_size, transform.clone());
    asked.threads = threads;
    asked.keep_last = true;
    let mut loader = Loader::new(split.clone(), asked)?;
    loader.next_batch()?;
    let start = Instant::now();
    let mut images = 0;
    loop {
        match loader.next_batch()? {
            Some(batch) => images += batch.samples.len(),
            None if start.elapsed() >= Duration::from_secs_f64(options.seconds) => break,
            None => {}
        }
    }
    Ok(Sample {
        amount: images as f64,
        seconds: start.elapsed().as_secs_f64(),
    })
}
