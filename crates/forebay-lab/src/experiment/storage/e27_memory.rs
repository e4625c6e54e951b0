//! E27: throughput of the storage compared with that of memory.

use std::path::Path;

use forebay_shard::Split;
use forebay_store::free_bytes;

use crate::experiment::consumers::feed;
use crate::experiment::lab::{Cache, Lab, Trial};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E27",
    title: "Memory, page cache and storage",
    question: "How near to memory does the storage come?",
    trials: |_| 5,
    run,
    ..Experiment::OTHER
};

/// A file system in memory.
const MEMORY: &str = "/dev/shm";
pub(super) const COLD: &str = "cold, decoded";
const ROWS: [(&str, Cache, bool); 4] = [
    (COLD, Cache::Emptied, true),
    ("page cache, decoded", Cache::Filled, true),
    ("cold, encoded", Cache::Emptied, false),
    ("page cache, encoded", Cache::Filled, false),
];
pub(super) const SHARE: &str = "% of tmpfs";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let Some(first) = lab.media.first() else {
        return Ok(Findings::default());
    };
    let needed = lab.options.image_bytes()?;
    let free = free_bytes(Path::new(MEMORY)).map_err(|error| format!("{MEMORY}: {error}"))?;
    if free < needed {
        return Err(format!("{MEMORY} has {free} bytes free and {needed} are needed: --files takes less").into());
    }
    let memory = tempfile::Builder::new().prefix("forebay-bench-").tempdir_in(MEMORY)?;
    let in_memory = first.copy_tfrecord(&memory.path().join("tfrecord"))?;
    let mut trials = vec![
        trial(lab, MEMORY, "tmpfs, decoded", &in_memory, Cache::Kept, true),
        trial(lab, MEMORY, "tmpfs, encoded", &in_memory, Cache::Kept, false),
    ];
    for medium in &lab.media {
        let split = medium.tfrecord()?;
        trials.extend(ROWS.map(|(name, cache, decode)| trial(lab, &medium.name, name, &split, cache, decode)));
    }
    let mut found = Findings::measured(lab, trials)?;
    // Runs from tmpfs, with decoding and without. Each run of a medium is compared with the tmpfs run of the same round.
    let of_memory = [found.figures[0].runs.clone(), found.figures[1].runs.clone()];
    for figure in &mut found.figures {
        let base = &of_memory[usize::from(figure.name.ends_with("encoded"))];
        let shares: Vec<f64> = figure.runs.iter().zip(base).map(|(own, base)| 100.0 * own / base).collect();
        figure.more.insert(SHARE.to_owned(), crate::measure::median(&shares));
        figure.more_runs.insert(SHARE.to_owned(), shares);
    }
    let names = found.figures.iter().map(|figure| format!("{}: {}", figure.medium, figure.name));
    found.plots.push(Plot {
        title: format!("{} consumers", lab.most_ranks()),
        x: "storage".to_owned(),
        scale: Scale::Names(names.collect()),
        y: "images/s".to_owned(),
        series: vec![Series::bars(lab.options.consumer.name(), FigureClass::StandIn, &found.figures)],
    });
    found.notes.push(lab.options.consumer.note());
    Ok(found)
}

fn trial<'t>(lab: &'t Lab<'_>, medium: &str, name: &str, split: &Split, cache: Cache, decode: bool) -> Trial<'t> {
    let (files, split) = (footprint(split), split.clone());
    let run = move || feed(lab, &split, decode, lab.most_threads());
    Trial::new(medium, name, "images/s", run).reading(files, cache).standing_in()
}
