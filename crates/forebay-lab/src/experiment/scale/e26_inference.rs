//! E26: images per second of inference, which consumes images faster than training.

use forebay_image::{EvalTransform, Transform};

use crate::experiment::feed::Feed;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::SIDE;
use crate::experiment::{Experiment, Findings};
use crate::{Consumer, Result};
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E26",
    title: "Inference",
    question: "Does inference, which takes images faster than training, need more than this storage gives?",
    trials: |options| options.ranks.len(),
    run,
    ..Experiment::OTHER
};

const CONSUMER: &str = "v100-googlenet-inference";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let (options, threads) = (lab.options, lab.most_threads());
    let consumer = Consumer::preset(CONSUMER).ok_or("the preset of inference is missing")?;
    let mut trials = Vec::new();
    for medium in &lab.media {
        let split = medium.tfrecord()?;
        for &ranks in &options.ranks {
            let (files, split) = (footprint(&split), split.clone());
            let (batch, limit) = (options.batch_size, options.limit);
            let steps = consumer.steps(batch);
            let demanded = consumer.images_per_s() * ranks as f64;
            let run = move || {
                let transform = Transform::Eval(EvalTransform::new(SIDE, SIDE));
                let feed = Feed {
                    threads,
                    ranks,
                    steps: steps.clone(),
                    ..Feed::new(&split, transform, batch, limit)
                };
                let fed = feed.run()?;
                let rate = fed.images_per_s();
                let more = [
                    ("% of the demand", 100.0 * rate / demanded),
                    ("MB/s", fed.bytes as f64 / 1e6 / fed.seconds),
                    ("cores used", fed.cores()),
                    ("% of time waiting", 100.0 * fed.waited / fed.seconds),
                ];
                Ok(Sample::new(rate, fed.read, more))
            };
            let noun = if ranks == 1 { "consumer" } else { "consumers" };
            let trial = Trial::new(&medium.name, format!("{ranks} {noun}"), "images/s", run);
            trials.push(trial.reading(files, Cache::Emptied).standing_in());
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    let series = found.figures.chunks(options.ranks.len()).map(|figures| {
        let ranks = options.ranks.iter().map(|&ranks| ranks as f64);
        Series::of(&figures[0].medium, FigureClass::StandIn, ranks, figures)
    });
    found.plots.push(Plot {
        title: consumer.name().to_owned(),
        x: "consumers".to_owned(),
        scale: Scale::Logarithmic,
        y: "images/s".to_owned(),
        series: series.collect(),
    });
    found.notes.push(consumer.note());
    found.notes.push(format!(
        "Each image once, with the transform of an evaluation; {threads} threads decode. If all cores are used, decoding is the limit and not the storage: the experiment with real input has the rate without decoding."
    ));
    Ok(found)
}
