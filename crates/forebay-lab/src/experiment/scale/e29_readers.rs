//! E29: the rate of each of several readers of one read-only copy.

use crate::experiment::requests::reads;
use crate::experiment::lab::Lab;
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::report::{FigureClass, Plot, Scale, Series};
use crate::storage::ReadJob;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E29",
    title: "Many readers of one copy",
    question: "What does each of several readers get from one copy, as image files and as shards?",
    trials: |_| 2 * READERS.len(),
    run,
    ..Experiment::OTHER
};

const READERS: [usize; 4] = [1, 2, 4, 8];
/// Bytes per read of a shard.
const BLOCK: u32 = 1 << 20;
const LAYOUTS: [&str; 2] = ["image files", "shards"];

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let mut trials = Vec::new();
    for medium in &lab.media {
        let direct = medium.direct_works()?;
        if !direct {
            found.notes.push(format!("{}: the file system cannot bypass the page cache, which readers of one host share", medium.name));
        }
        let files = medium.images()?;
        let files = ReadJob::whole_files(files.iter().map(|file| (file.path.clone(), file.bytes)))?;
        let shards = ReadJob::sequential(crate::experiment::requests::shards(medium)?, BLOCK)?;
        for (layout, job) in LAYOUTS.into_iter().zip([files, shards]) {
            for readers in READERS {
                let noun = if readers == 1 { "reader" } else { "readers" };
                let name = format!("{layout}, {readers} {noun}");
                trials.push(reads(lab, medium, &name, "MB/s", direct, job.clone(), readers).standing_in());
            }
        }
    }
    found.figures = lab.in_turns(trials)?;
    for (figures, medium) in found.figures.chunks(LAYOUTS.len() * READERS.len()).zip(&lab.media) {
        let series = figures.chunks(READERS.len()).zip(LAYOUTS).map(|(figures, layout)| {
            let readers = READERS.map(|readers| readers as f64);
            Series::of(layout, FigureClass::StandIn, readers, figures)
        });
        found.plots.push(Plot {
            title: medium.name.clone(),
            x: "readers".to_owned(),
            scale: Scale::Logarithmic,
            y: "MB/s".to_owned(),
            series: series.collect(),
        });
    }
    found.notes.push(
        "Stand-in: readers of one host with one read in flight each, past the page cache, in place of several hosts; network and their caches are not part of it, and no block device is mapped read-only."
            .to_owned(),
    );
    Ok(found)
}
