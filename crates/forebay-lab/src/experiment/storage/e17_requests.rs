//! E17: which requests single files and records cause.

use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::trace::{Interval, watched};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::cold::Mount;
use crate::report::{FigureClass, Plot, Scale, Series};
use crate::storage::{self, Medium, ReadJob};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E17",
    title: "Device statistics: files against records",
    question: "Which requests does each format cause?",
    is_default: true,
    trials: |_| 2,
    run,
    ..Experiment::OTHER
};

/// Reads in flight.
const DEPTH: usize = 16;
const SHARD_BLOCK: u32 = 1 << 20;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    for medium in &lab.media {
        let mount = Mount::of(medium.scratch()).ok_or("the file system of the medium is not known")?;
        let files = medium.images()?;
        let files = ReadJob::whole_files(files.iter().map(|file| (file.path.clone(), file.bytes)))?;
        let split = medium.tfrecord()?;
        let shards = split.shards().iter().map(|shard| shard.path().to_owned());
        let shards = shards.map(|path| Ok((path.clone(), path.metadata()?.len())));
        let shards = ReadJob::sequential(shards.collect::<Result<Vec<_>>>()?, SHARD_BLOCK)?;
        let mut series = Vec::new();
        for (name, job) in [("image files", files), ("TFRecords", shards)] {
            let options = crate::experiment::requests::limited(lab, DEPTH);
            let mut last = Vec::new();
            let trial = Trial::new(&medium.name, name, "MB/s", || {
                let (report, seen) =
                    watched(&mount, || storage::run(&job, &Medium::Local { direct: false }, &options))?;
                last.clone_from(&seen);
                Ok(sample(&seen, report.bytes))
            });
            let trial = trial.reading(job.footprint(), Cache::Emptied);
            found.figures.extend(lab.in_turns(vec![trial])?);
            series.push(Series {
                name: name.to_owned(),
                class: FigureClass::Measured,
                points: last.iter().map(|interval| (interval.at, interval.mb_per_s)).collect(),
            });
        }
        found.plots.push(Plot {
            title: format!("{}: reads of the last run", medium.name),
            x: "s".to_owned(),
            scale: Scale::Linear,
            y: "MB/s".to_owned(),
            series,
        });
    }
    found.notes.push(
        "Requests of the device are counted, those of other processes as well. Queue length is requests/s by wait (Little's law); the size of a request is limited by max_sectors_kb.".to_owned(),
    );
    Ok(found)
}

/// Returns means over the intervals. Values per request are weighted by the number of requests.
fn sample(intervals: &[Interval], bytes: u64) -> Sample {
    let count = intervals.len().max(1) as f64;
    let requests: f64 = intervals.iter().map(|interval| interval.requests_per_s).sum();
    let mean = |of: fn(&Interval) -> f64| intervals.iter().map(of).sum::<f64>() / count;
    let each = |of: fn(&Interval) -> f64| {
        let sum: f64 = intervals.iter().map(|interval| interval.requests_per_s * of(interval)).sum();
        sum / requests.max(f64::MIN_POSITIVE)
    };
    let more = [
        ("requests/s", requests / count),
        ("KB a request", each(|interval| interval.request_kb)),
        ("wait ms", each(|interval| interval.wait_ms)),
        ("queue length", mean(|interval| interval.queue)),
    ];
    Sample::new(mean(|interval| interval.mb_per_s), bytes, more)
}
