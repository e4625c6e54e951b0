//! E20: which format gives a batch fastest, without training.

use crate::experiment::contestants::{CACHES, WORKERS, contestants, figures, name};
use crate::experiment::input::Delivery;
use crate::experiment::lab::{Lab, Sample, Trial};
use crate::experiment::{Experiment, Findings, Scratch};
use crate::Result;
use crate::report::{FigureClass, Plot, Scale, Series, series_name};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E20",
    title: "Formats, loader alone",
    question: "Which format gives a batch fastest?",
    trials: figures,
    run,
    scratch: Scratch::Formats,
    ..Experiment::OTHER
};

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let batch = lab.options.batch_size;
    for medium in &lab.media {
        let formats = contestants(lab, medium, &mut found.notes)?;
        let mut trials = Vec::new();
        for format in &formats {
            for workers in WORKERS {
                for (cache, state) in CACHES {
                    let run = move || Ok(sample(&format.run(workers, None)?, batch));
                    let trial = Trial::new(&medium.name, name(&format.name, workers, cache), "ms a batch", run);
                    trials.push(trial.reading(format.files.clone(), state));
                }
            }
        }
        let figures = lab.in_turns(trials)?;
        let rows = figures.chunks(CACHES.len());
        let names = rows.clone().map(|row| row[0].name.rsplit_once(", ").map_or(String::new(), |(name, _)| name.to_owned()));
        let series = CACHES.iter().enumerate().map(|(place, (cache, _))| {
            let figures = rows.clone().map(|row| &row[place]);
            Series::bars(series_name(cache, figures.clone()), FigureClass::Measured, figures)
        });
        found.plots.push(Plot {
            title: format!("{}, images as they are stored", medium.name),
            x: "format".to_owned(),
            scale: Scale::Names(names.collect()),
            y: "ms a batch".to_owned(),
            series: series.collect(),
        });
        found.figures.extend(figures);
    }
    found.notes.push(
        "Images stay encoded. Workers are threads. Forebay's loader reads formats where they are, a small program reads image files. A figure is shown only if labels and bytes of all samples are those of the indexed shards."
            .to_owned(),
    );
    Ok(found)
}

fn sample(ran: &Delivery, batch: u64) -> Sample {
    let images = ran.images.max(1) as f64;
    let more = [
        ("images/s", images / ran.seconds),
        ("MB/s", ran.bytes as f64 / 1e6 / ran.seconds),
        ("KB an image", ran.bytes as f64 / 1e3 / images),
    ];
    Sample::new(1e3 * ran.seconds * batch as f64 / images, ran.read, more)
}
