//! E24: how reading chunks of neighboring records changes throughput and shuffle quality.

use std::collections::BTreeSet;

use forebay_image::Transform;
use forebay_loader::Shuffle;

use super::contestants::CACHES;
use super::feed::Feed;
use super::lab::{Lab, Sample, Trial};
use super::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series, series_name};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E24",
    title: "Chunks and shuffle quality",
    question: "What does reading chunks of neighbors bring, and what does it cost in shuffling?",
    is_default: false,
    trials: |_| CACHES.len() * (1 + CHUNKS.len()),
    run,
};

/// Records per chunk.
const CHUNKS: [u64; 4] = [8, 64, 256, 1024];
const FULL: &str = "full shuffle";
/// Shuffle quality: the number of chunks of 64 neighbors that a batch has samples of, in percent of the largest possible
/// number.
pub(super) const SPREAD: &str = "% different chunks in a batch";
const SPREAD_CHUNK: u64 = 64;

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

/// Returns the number of different chunks that a batch has samples of, divided by the largest possible number, as a mean over
/// all batches.
pub(super) fn spread(samples: &[u64], batch: u64, all: u64) -> f64 {
    let chunks = |samples: &[u64]| samples.iter().map(|sample| sample / SPREAD_CHUNK).collect::<BTreeSet<u64>>().len();
    let batches = samples.chunks(batch as usize);
    let most = |batch: &[u64]| (batch.len() as u64).min(all.div_ceil(SPREAD_CHUNK)).max(1) as f64;
    let shares: Vec<f64> = batches.map(|batch| chunks(batch) as f64 / most(batch)).collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_counts_different_chunks() {
        let in_order: Vec<u64> = (0..128).collect();
        assert_eq!(spread(&in_order, 64, 128), 0.5, "one chunk of two");
        let apart: Vec<u64> = (0..64).map(|number| number * 64).collect();
        assert_eq!(spread(&apart, 16, 4096), 1.0);
        assert_eq!(spread(&[], 16, 4096), 0.0);
    }
}
