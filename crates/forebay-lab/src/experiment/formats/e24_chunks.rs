//! E24: how reading chunks of neighboring records changes throughput and shuffle quality.

use forebay_image::Transform;
use forebay_loader::Shuffle;

use crate::experiment::contestants::CACHES;
use crate::experiment::feed::Feed;
use crate::experiment::lab::{Lab, Sample, Trial};
use crate::experiment::shuffle_quality::{SPREAD, spread};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series, series_name};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E24",
    title: "Chunks and shuffle quality",
    question: "What does reading chunks of neighbors bring, and what does it cost in shuffling?",
    trials: |_| CACHES.len() * (1 + CHUNKS.len()),
    run,
    ..Experiment::OTHER
};

/// Records per chunk.
const CHUNKS: [u64; 4] = [8, 64, 256, 1024];
const FULL: &str = "full shuffle";

fn name(order: &str, cache: &str) -> String {
    format!("{order}, {cache}")
}

fn of_chunk(records: u64) -> String {
    format!("chunks of {records}")
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let (batch, limit, threads) = (lab.options.batch_size, lab.options.limit, lab.most_threads());
    let mut orders = vec![(FULL.to_owned(), Shuffle::FULL)];
    orders.extend(CHUNKS.map(|chunk| (of_chunk(chunk), Shuffle::blocks(chunk, 1))));
    let mut found = Findings::default();
    for medium in &lab.media {
        let split = medium.indexed()?;
        let mut trials = Vec::new();
        for (cache, state) in CACHES {
            for (order, shuffle) in &orders {
                let (split, files, shuffle) = (split.clone(), footprint(&split), *shuffle);
                let run = move || {
                    let feed = Feed {
                        threads,
                        ..Feed::new(&split, Transform::KeepEncoded, batch, limit)
                    };
                    let fed = feed.run_as(&mut |options| {
                        options.shuffle = shuffle;
                        // With more virtual ranks, a batch would hold chunks of several parts of the epoch.
                        options.virtual_ranks = 1;
                    })?;
                    let more = [
                        ("MB/s", fed.bytes as f64 / 1e6 / fed.seconds),
                        ("bytes read a byte used", fed.stats.bytes_read as f64 / fed.bytes.max(1) as f64),
                        (SPREAD, 100.0 * spread(&fed.samples, batch, split.len())),
                    ];
                    Ok(Sample::new(fed.images_per_s(), fed.read, more))
                };
                let trial = Trial::new(&medium.name, name(order, cache), "images/s", run);
                trials.push(trial.reading(files, state));
            }
        }
        let figures = lab.in_turns(trials)?;
        let series = figures.chunks(orders.len()).zip(CACHES).map(|(figures, (cache, _))| Series {
            name: series_name(cache, figures),
            class: FigureClass::Measured,
            points: figures.iter().map(|figure| (figure.more[SPREAD], figure.value)).collect(),
        });
        found.plots.push(Plot {
            title: medium.name.clone(),
            x: SPREAD.to_owned(),
            scale: Scale::Linear,
            y: "images/s".to_owned(),
            series: series.collect(),
        });
        found.figures.extend(figures);
    }
    found.notes.push(format!(
        "Encoded images of indexed shards, {threads} threads. A chunk is neighbors that are read together and stay together; batches are as large as --batch-size."
    ));
    Ok(found)
}
