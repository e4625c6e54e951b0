//! E32: the storage throughput that consumers need, compared with that of this storage.

use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::MiniApp;
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::report::{Figure, FigureClass};
use crate::storage::{self, Medium, ReadJob};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E32",
    title: "Storage that the accelerators need",
    question: "How many MB/s, reads/s and cores do the accelerators need, and does this storage give them?",
    trials: |_| 3,
    run,
    ..Experiment::OTHER
};

/// Start of the name of the figure with the demand.
const NEEDED: &str = "needed by";
const DEPTH: usize = 32;
const BLOCK: u32 = 1 << 20;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let Some(first) = lab.media.first() else {
        return Ok(Findings::default());
    };
    let (consumer, ranks) = (&lab.options.consumer, lab.most_ranks());
    let images = consumer.images_per_s() * ranks as f64;
    let sizes = first.images()?;
    let mean = sizes.iter().map(|file| file.bytes).sum::<u64>() as f64 / sizes.len().max(1) as f64;
    let needed = images * mean / 1e6;
    let name = format!("{NEEDED} {ranks} consumers, {}", consumer.name());
    let mut demand = Figure::measured("all", name, "GB/s", vec![needed / 1e3]);
    demand.class = FigureClass::StandIn;
    demand.more = [("images/s".to_owned(), images), ("KB an image".to_owned(), mean / 1e3)].into();
    let mut trials = Vec::new();
    for medium in &lab.media {
        let files = medium.images()?;
        let single = ReadJob::whole_files(files.iter().map(|file| (file.path.clone(), file.bytes)))?;
        let shards = ReadJob::sequential(crate::experiment::requests::shards(medium)?, BLOCK)?;
        for (name, job) in [("image files", single), ("shards", shards)] {
            let options = crate::experiment::requests::limited(lab, DEPTH);
            let files = job.footprint();
            let run = move || {
                let report = storage::run(&job, &Medium::Local { direct: false }, &options)?;
                let rate = report.mb_per_s();
                Ok(Sample::new(100.0 * rate / needed, report.bytes, [("MB/s", rate), ("images/s", 1e6 * rate / mean)]))
            };
            trials.push(Trial::new(&medium.name, name, "% of the demand", run).reading(files, Cache::Emptied));
        }
        let (batch, limit) = (lab.options.batch_size, lab.options.limit);
        let footprint = crate::experiment::data::image_files(&files);
        let run = move || {
            let ran = MiniApp::new(&files, batch, limit).run()?;
            let rate = ran.images as f64 / ran.seconds;
            Ok(Sample::new(images / rate, ran.read, [("images/s", rate)]))
        };
        trials.push(Trial::new(&medium.name, "decoding, one thread, warm", "cores needed", run).reading(footprint, Cache::Filled));
    }
    let mut found = Findings {
        figures: vec![demand],
        ..Findings::default()
    };
    found.figures.extend(lab.in_turns(trials)?);
    found.notes.push(format!(
        "The demand is that of {ranks} consumers that never wait, with the mean size of these images; reads through the page cache, {DEPTH} in flight."
    ));
    found.notes.push("Cores are those of one thread that opens, reads, decodes and resizes image files.".to_owned());
    Ok(found)
}
