//! E19: how the page cache changes the throughput of later epochs.

use forebay_image::Transform;

use crate::experiment::feed::Feed;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E19",
    title: "Long runs become warm",
    question: "When does the page cache take over, and what does the second epoch gain?",
    trials: |_| EPOCHS * TIMES as usize,
    run,
    ..Experiment::OTHER
};

const EPOCHS: usize = 3;
/// Factor of the time limit: a whole epoch takes longer than other runs.
const TIMES: u32 = 4;

pub(super) fn epoch(number: usize) -> String {
    format!("epoch {number}")
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let threads = lab.most_threads();
    for medium in &lab.media {
        let split = medium.tfrecord()?;
        let trials = (1..=EPOCHS).map(|number| {
            let (files, split) = (footprint(&split), split.clone());
            let (batch, limit) = (lab.options.batch_size, lab.options.limit * TIMES);
            let cache = if number == 1 { Cache::Emptied } else { Cache::Kept };
            let run = move || {
                let feed = Feed {
                    threads,
                    ..Feed::new(&split, Transform::KeepEncoded, batch, limit)
                };
                let fed = feed.run()?;
                let more = [
                    ("MB/s", fed.bytes as f64 / 1e6 / fed.seconds),
                    ("% of the epoch", 100.0 * fed.images as f64 / split.len().max(1) as f64),
                ];
                Ok(Sample::new(fed.images_per_s(), fed.read, more))
            };
            Trial::new(&medium.name, epoch(number), "images/s", run).reading(files, cache)
        });
        found.figures.extend(lab.in_turns(trials.collect())?);
    }
    let series = found.figures.chunks(EPOCHS).map(|figures| Series::bars(&figures[0].medium, FigureClass::Measured, figures));
    found.plots.push(Plot {
        title: "Encoded images of TFRecords".to_owned(),
        x: "epoch".to_owned(),
        scale: Scale::Names((1..=EPOCHS).map(|number| number.to_string()).collect()),
        y: "images/s".to_owned(),
        series: series.collect(),
    });
    let bytes = lab.options.image_bytes()?;
    let available = crate::experiment::settings::available_memory();
    found.notes.push(format!(
        "About {bytes} bytes of images; {}. Images stay encoded, so that decoding hides nothing. A dataset larger than memory does not become warm: --files makes it larger.",
        available.map_or_else(|| "the memory that is available is unknown".to_owned(), |available| format!("{available} of memory are available"))
    ));
    Ok(found)
}
