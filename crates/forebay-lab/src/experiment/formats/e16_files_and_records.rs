//! E16: image files and records with one to several consumers.

use forebay_image::{EvalTransform, Transform};

use crate::experiment::data::image_files;
use crate::experiment::feed::Feed;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::{MiniApp, SIDE};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E16",
    title: "Image files, records and consumers",
    question: "How does training on image files scale, and what do records change?",
    trials: |options| FORMATS.len() * options.ranks.len(),
    run,
    ..Experiment::OTHER
};

const FORMATS: [&str; 3] = ["image files", "TFRecords, Forebay's loader", "indexed shards, Forebay's loader"];
/// Batches that are prefetched for each consumer, as torch's DataLoader does for each worker.
const AHEAD: u64 = 2;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let (options, threads) = (lab.options, lab.most_threads());
    let (batch, limit) = (options.batch_size, options.limit);
    let steps = options.consumer.steps(batch);
    let mut trials = Vec::new();
    for medium in &lab.media {
        for format in FORMATS {
            for &ranks in &options.ranks {
                let noun = if ranks == 1 { "consumer" } else { "consumers" };
                let name = format!("{format}, {ranks} {noun}");
                let steps = steps.clone();
                let trial = if format == FORMATS[0] {
                    let files = medium.images()?;
                    let footprint = image_files(&files);
                    let run = move || {
                        let app = MiniApp {
                            threads,
                            prefetch: AHEAD * ranks,
                            steps: steps.clone(),
                            ranks,
                            ..MiniApp::new(&files, batch, limit)
                        };
                        let ran = app.run()?;
                        Ok(sample(ran.images, ran.seconds, ran.waited(), ran.bytes, ran.read))
                    };
                    Trial::new(&medium.name, name, "images/s", run).reading(footprint, Cache::Emptied)
                } else {
                    let split = match format == FORMATS[1] {
                        true => medium.tfrecord()?,
                        false => medium.indexed()?,
                    };
                    let footprint = footprint(&split);
                    let run = move || {
                        let feed = Feed {
                            threads,
                            ranks,
                            steps: steps.clone(),
                            ..Feed::new(&split, Transform::Eval(EvalTransform::new(SIDE, SIDE)), batch, limit)
                        };
                        let fed = feed.run()?;
                        Ok(sample(fed.images, fed.seconds, fed.waited, fed.bytes, fed.read))
                    };
                    Trial::new(&medium.name, name, "images/s", run).reading(footprint, Cache::Emptied)
                };
                trials.push(trial.standing_in());
            }
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    for (figures, medium) in found.figures.chunks(FORMATS.len() * options.ranks.len()).zip(&lab.media) {
        let series = figures.chunks(options.ranks.len()).zip(FORMATS).map(|(figures, format)| {
            let ranks = options.ranks.iter().map(|&ranks| ranks as f64);
            Series::of(format, FigureClass::StandIn, ranks, figures)
        });
        found.plots.push(Plot {
            title: medium.name.clone(),
            x: "consumers".to_owned(),
            scale: Scale::Logarithmic,
            y: "images/s".to_owned(),
            series: series.collect(),
        });
    }
    found.notes.push(options.consumer.note());
    found.notes.push(format!(
        "{threads} threads decode to {SIDE} x {SIDE} pixels in all rows. torch's DataLoader, DALI and tf.data are Python: tools/peers/bench_peers.py runs some of them."
    ));
    Ok(found)
}

fn sample(images: u64, seconds: f64, waited: f64, bytes: u64, read: u64) -> Sample {
    let more = [
        ("MB/s", bytes as f64 / 1e6 / seconds),
        ("% of time waiting", 100.0 * waited / seconds),
    ];
    Sample::new(images as f64 / seconds, read, more)
}
