//! E30: how many requests in flight hide the latency of a store.

use forebay_shard::Dataset;
use forebay_synthetic::Recipe;

use crate::experiment::requests::{limited, of_store};
use crate::experiment::lab::{Lab, Sample, Trial};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::report::{FigureClass, Plot, Scale, Series};
use crate::storage::{self, Medium, ReadJob, SizeMix};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E30",
    title: "Latency of a store",
    question: "How many requests in flight does a store with a latency need?",
    trials: |_| LATENCIES_MS.len() * IN_FLIGHT.len(),
    run,
    ..Experiment::OTHER
};

const LATENCIES_MS: [u64; 4] = [1, 10, 30, 100];
const IN_FLIGHT: [usize; 4] = [1, 8, 32, 128];
/// About the size of an image.
const PIECE: u32 = 128 << 10;
const READS: u64 = 200_000;
const RECORDS: u64 = 20_000;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut trials = Vec::new();
    for latency in LATENCIES_MS {
        let url = format!("synthetic://imagenet?records={RECORDS}&pictures=4&latency={latency}ms");
        let (root, storage) = Recipe::parse(&url)?.storage()?;
        let dataset = Dataset::options().storage(storage.clone()).open(root)?;
        let split = dataset.split("train")?;
        let shards = split.shards().iter().map(|shard| (shard.path().to_owned(), shard.index().data_len()));
        let job = ReadJob::random(shards, &SizeMix::fixed(PIECE), READS, 5)?;
        for depth in IN_FLIGHT {
            let (job, medium) = (job.clone(), Medium::Storage(storage.clone()));
            let options = limited(lab, depth);
            let run = move || {
                let report = storage::run(&job, &medium, &options)?;
                let more = [("MB/s", report.mb_per_s()), ("p99 ms", 1e3 * report.latency(0.99))];
                Ok(Sample::new(report.reads_per_s(), 0, more))
            };
            let name = format!("latency {latency} ms, {depth} in flight");
            trials.push(Trial::new("synthetic store", name, "reads/s", run).standing_in());
        }
    }
    for store in &lab.stores {
        for depth in IN_FLIGHT {
            let name = format!("{depth} in flight");
            trials.push(of_store(lab, store, name, "reads/s", PIECE, depth));
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    let series = IN_FLIGHT.iter().enumerate().map(|(place, depth)| {
        let figures = found.figures.iter().skip(place).step_by(IN_FLIGHT.len());
        let latencies = LATENCIES_MS.map(|latency| latency as f64);
        Series::of(format!("{depth} in flight"), FigureClass::StandIn, latencies, figures)
    });
    found.plots.push(Plot {
        title: format!("Reads of {} KiB", PIECE >> 10),
        x: "latency, ms".to_owned(),
        scale: Scale::Logarithmic,
        y: "reads/s".to_owned(),
        series: series.collect(),
    });
    found.notes.push(
        "Stand-in: generated data with a delay before each read in place of a store; its load, errors and cache are not simulated. A URL of a store as a medium measures a real one."
            .to_owned(),
    );
    Ok(found)
}
