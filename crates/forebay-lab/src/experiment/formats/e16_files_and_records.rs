//! E16: image files and records with one to several consumers.

use crate::experiment::input::{Delivery, Input, Reading};
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::SIDE;
use crate::experiment::{Experiment, Findings};
use crate::Result;
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
fn run(lab: &Lab<'_>) -> Result<Findings> {
    let (options, threads) = (lab.options, lab.most_threads());
    let mut trials = Vec::new();
    for medium in &lab.media {
        let inputs = [Input::Files(medium.images()?), Input::Records(medium.tfrecord()?), Input::Records(medium.indexed()?)];
        for (format, input) in FORMATS.into_iter().zip(inputs) {
            for &ranks in &options.ranks {
                let noun = if ranks == 1 { "consumer" } else { "consumers" };
                let (footprint, input) = (input.footprint(), input.clone());
                let how = Reading {
                    threads,
                    ranks,
                    decode: true,
                    steps: Some(options.consumer.steps(options.batch_size)),
                };
                let run = move || Ok(sample(&input.run(options, &how)?));
                let trial = Trial::new(&medium.name, format!("{format}, {ranks} {noun}"), "images/s", run);
                trials.push(trial.reading(footprint, Cache::Emptied).standing_in());
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

fn sample(ran: &Delivery) -> Sample {
    let more = [
        ("MB/s", ran.bytes as f64 / 1e6 / ran.seconds),
        ("% of time waiting", 100.0 * ran.waited / ran.seconds),
    ];
    Sample::new(ran.images as f64 / ran.seconds, ran.read, more)
}
