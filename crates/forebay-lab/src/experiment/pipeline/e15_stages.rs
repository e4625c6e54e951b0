//! E15: what the threads that decode do with their time.

use forebay_image::{Dtype, Output, TrainTransform, Transform};
use forebay_loader::Stats;

use crate::experiment::feed::Feed;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::SIDE;
use crate::experiment::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::read::footprint;
use crate::report::{Figure, FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E15",
    title: "Where the time of the pipeline goes",
    question: "What do the input threads do, and what do they wait for?",
    trials: |options| counts(options).len(),
    run,
    ..Experiment::OTHER
};

const WAITING: &str = "% of thread time waiting";
/// Values that are plotted in addition to the share of decoding.
const WORK: [&str; 2] = ["% resize, flip, cast", "% read, verify"];

/// Returns the first, the middle and the last of the numbers of threads.
fn counts(options: &CharacterizeOptions) -> Vec<usize> {
    let all = &options.threads;
    let mut some = vec![all[0], all[all.len() / 2], all[all.len() - 1]];
    some.dedup();
    some
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let counts = counts(lab.options);
    let mut trials = Vec::new();
    for medium in &lab.media {
        let split = medium.tfrecord()?;
        for &threads in &counts {
            let (files, split) = (footprint(&split), split.clone());
            let name = format!("JPEG decoding, {threads} {}", if threads == 1 { "thread" } else { "threads" });
            let (batch, limit) = (lab.options.batch_size, lab.options.limit);
            let run = move || {
                let transform = Transform::Train(TrainTransform::new(SIDE));
                let feed = Feed {
                    threads,
                    ..Feed::new(&split, transform, batch, limit)
                };
                let fed = feed.run_as(&mut |options| {
                    options.output = Output {
                        dtype: Dtype::Float32,
                        ..Output::default()
                    };
                })?;
                Ok(sample(&fed.stats, fed.images_per_s(), fed.read))
            };
            let trial = Trial::new(&medium.name, name, "% of the work", run);
            trials.push(trial.reading(files, Cache::Filled));
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    found.plots = found.figures.chunks(counts.len()).map(|figures| plot(figures, &counts)).collect();
    found.notes.push(
        "Warm TFRecords, random crops to float32, a consumer that takes no time. Work is that of reading and decoding threads together; waits are those of the decoding threads, for records and for room in a batch. Waits for locks are part of both."
            .to_owned(),
    );
    Ok(found)
}

fn plot(figures: &[Figure], counts: &[usize]) -> Plot {
    let mut all = vec![Series::bars("JPEG decoding", FigureClass::Measured, figures)];
    all.extend(WORK.map(|name| Series::bars_of(name.trim_start_matches("% "), FigureClass::Measured, figures, name)));
    Plot {
        title: format!("{}, work", figures.first().map_or("", |figure| figure.medium.as_str())),
        x: "threads".to_owned(),
        scale: Scale::Names(counts.iter().map(usize::to_string).collect()),
        y: "% of the work".to_owned(),
        series: all,
    }
}

fn sample(stats: &Stats, images_per_s: f64, bytes: u64) -> Sample {
    let (read, decode, transform) = (stats.fetch.busy_s, stats.decode.busy_s, stats.transform.busy_s);
    let work = (read + decode + transform).max(1e-9);
    let waits = stats.decode.starved_s + stats.decode.blocked_s;
    let threads = (decode + transform + waits).max(1e-9);
    let more = [
        (WORK[0], 100.0 * transform / work),
        (WORK[1], 100.0 * read / work),
        (WAITING, 100.0 * waits / threads),
        ("% of thread time on a core", 100.0 * (stats.decode_cpu_s / threads).min(1.0)),
        ("images/s", images_per_s),
    ];
    Sample::new(100.0 * decode / work, bytes, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up() {
        let mut stats = Stats::default();
        (stats.fetch.busy_s, stats.decode.busy_s, stats.transform.busy_s) = (1.0, 6.0, 3.0);
        (stats.decode.starved_s, stats.decode.blocked_s) = (0.5, 0.5);
        stats.decode_cpu_s = 5.0;
        let sample = sample(&stats, 7.0, 1);
        assert_eq!(sample.value, 60.0);
        assert_eq!(sample.value + sample.more[WORK[0]] + sample.more[WORK[1]], 100.0);
        assert_eq!(sample.more[WAITING], 10.0);
        assert_eq!(sample.more["% of thread time on a core"], 50.0);
    }
}
