//! E28: whether to read from shared storage, or to copy to a local disk first.

use std::time::Instant;

use forebay_image::Transform;
use forebay_shard::Split;

use crate::experiment::data::MediumData;
use crate::experiment::feed::Feed;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::read::{footprint, record_bytes};
use crate::report::{Figure, FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E28",
    title: "Read shared storage, or copy first",
    question: "After how many epochs does a copy to a local disk pay?",
    trials,
    run,
    ..Experiment::OTHER
};

/// Factor of the time limit: whole epochs take longer than other runs.
const TIMES: u32 = 4;
/// The largest number of epochs in the plot.
pub(super) const EPOCHS: f64 = 90.0;
const EPOCH: &str = "an epoch, cold";
const COPY: &str = "copy to ";

fn trials(options: &CharacterizeOptions) -> usize {
    match options.media.len() {
        0 | 1 => 0,
        _ => 2 * TIMES as usize,
    }
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let [shared, others @ ..] = lab.media.as_slice() else {
        return Ok(Findings::default());
    };
    if others.is_empty() {
        return Err("it needs two media: the shared storage, and a local disk after it".into());
    }
    let mut trials = vec![epoch(lab, shared, &shared.tfrecord()?)];
    for local in others {
        let to = local.scratch().join("copied");
        trials.push(epoch(lab, local, &local.tfrecord()?));
        let files = footprint(&shared.tfrecord()?);
        let run = move || {
            let begin = Instant::now();
            let copied = shared.copy_tfrecord(&to)?;
            let seconds = begin.elapsed().as_secs_f64();
            let bytes = record_bytes(&copied);
            std::fs::remove_dir_all(&to)?;
            Ok(Sample::new(seconds, bytes, [("MB/s", bytes as f64 / 1e6 / seconds)]))
        };
        let trial = Trial::new(&shared.name, format!("{COPY}{}", local.name), "s", run);
        trials.push(trial.reading(files, Cache::Emptied));
    }
    let mut found = Findings::measured(lab, trials)?;
    let epoch_of = |medium: &str| found.figures.iter().find(|figure| figure.medium == medium && figure.is_row(EPOCH));
    if let Some(base) = epoch_of(&shared.name).map(|figure| figure.value) {
        for local in others {
            let copy = found.figures.iter().find(|figure| figure.name == format!("{COPY}{}", local.name));
            if let (Some(copy), Some(own)) = (copy, epoch_of(&local.name)) {
                found.plots.push(plot(&shared.name, base, copy, own));
                found.notes.push(break_even(base, copy.value, own));
            }
        }
    }
    found.notes.push(format!(
        "Encoded images with {} threads, caches emptied before each epoch: a dataset that fits into memory is read once from either. Caches of the shared storage's servers cannot be seen.",
        lab.most_threads()
    ));
    Ok(found)
}

/// Returns a trial that measures the seconds of an epoch of encoded images.
fn epoch<'t>(lab: &Lab<'_>, medium: &MediumData, split: &Split) -> Trial<'t> {
    let (threads, batch, limit) = (lab.most_threads(), lab.options.batch_size, lab.options.limit * TIMES);
    let (files, split) = (footprint(split), split.clone());
    let run = move || {
        let feed = Feed {
            threads,
            ..Feed::new(&split, Transform::KeepEncoded, batch, limit)
        };
        let fed = feed.run()?;
        // A run that ends early reads part of an epoch; its rate gives the time of the whole one.
        let seconds = split.len() as f64 / fed.images_per_s();
        let part = 100.0 * fed.images as f64 / split.len() as f64;
        Ok(Sample::new(seconds, fed.read, [("% of the epoch", part), ("MB/s", fed.bytes as f64 / 1e6 / fed.seconds)]))
    };
    Trial::new(&medium.name, EPOCH, "s", run).reading(files, Cache::Emptied)
}

fn break_even(shared: f64, copy: f64, local: &Figure) -> String {
    match shared - local.value {
        gain if gain > 0.0 => format!("A copy to {} pays after {:.1} epochs.", local.medium, copy / gain),
        _ => format!("A copy to {} never pays: an epoch there takes no less time.", local.medium),
    }
}

fn plot(shared: &str, epoch: f64, copy: &Figure, local: &Figure) -> Plot {
    let series = |name: String, begin: f64, each: f64| Series {
        name,
        class: FigureClass::Measured,
        points: [1.0, EPOCHS].map(|epochs| (epochs, begin + epochs * each)).to_vec(),
    };
    Plot {
        title: "Time of all epochs".to_owned(),
        x: "epochs".to_owned(),
        scale: Scale::Linear,
        y: "s".to_owned(),
        series: vec![
            series(format!("read {shared}"), 0.0, epoch),
            series(format!("copy, then read {}", local.medium), copy.value, local.value),
        ],
    }
}
