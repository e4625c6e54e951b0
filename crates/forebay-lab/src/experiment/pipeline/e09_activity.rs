//! E9: whether the device is read smoothly or in bursts.

use std::time::Duration;

use crate::experiment::data::image_files;
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::MiniApp;
use crate::experiment::trace::{Interval, watched};
use crate::experiment::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::cold::Mount;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E9",
    title: "Read activity over time",
    question: "Is reading smooth or bursty, with and without prefetch?",
    is_default: true,
    trials,
    run,
    ..Experiment::OTHER
};

/// Long enough for several samples of the device counters within a step.
const STEP: Duration = Duration::from_millis(500);
/// An interval counts as busy above this share of the mean rate.
const BUSY: f64 = 0.1;

/// Returns the time of all runs in units of the time limit. A run takes at least 8 steps even if the limit is shorter.
fn trials(options: &CharacterizeOptions) -> usize {
    let times = length(options.limit).as_secs_f64() / options.limit.as_secs_f64().max(1e-3);
    options.prefetch.len() * times.ceil() as usize
}

fn length(limit: Duration) -> Duration {
    limit.max(STEP * 8)
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let options = lab.options;
    for medium in &lab.media {
        let mount = Mount::of(medium.scratch()).ok_or("the file system of the medium is not known")?;
        let files = medium.images()?;
        let mut series = Vec::new();
        for &prefetch in &options.prefetch {
            let app = MiniApp {
                threads: lab.most_threads(),
                prefetch,
                steps: STEP.into(),
                ..MiniApp::new(&files, options.batch_size, length(options.limit))
            };
            let mut intervals = Vec::new();
            let name = format!("prefetch {prefetch}, duty cycle");
            let trial = Trial::new(&medium.name, name, "% of intervals", || {
                let (ran, seen) = watched(&mount, || app.run())?;
                let activity = Activity::of(&seen);
                intervals = seen;
                Ok(activity.sample(ran.read))
            });
            let trial = trial.reading(image_files(&files), Cache::Emptied).standing_in();
            found.figures.extend(lab.in_turns(vec![trial])?);
            series.push(Series {
                name: format!("prefetch {prefetch}"),
                class: FigureClass::StandIn,
                points: intervals.iter().map(|interval| (interval.at, interval.mb_per_s)).collect(),
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
    found.notes.push(format!(
        "Stand-in: a consumer that sleeps for {} ms in place of training. Requests of the device are counted, those of other processes as well; a duty cycle counts intervals of 0.1 s with more than a tenth of the mean rate.",
        STEP.as_millis()
    ));
    Ok(found)
}

/// How evenly a device was read.
struct Activity {
    duty: f64,
    longest_gap: f64,
    peak_by_mean: f64,
}

impl Activity {
    fn of(intervals: &[Interval]) -> Activity {
        let rates = || intervals.iter().map(|interval| interval.mb_per_s);
        let mean = rates().sum::<f64>() / intervals.len().max(1) as f64;
        let is_busy = |interval: &Interval| interval.mb_per_s > BUSY * mean;
        let (mut gap, mut longest, mut before) = (0.0, 0.0f64, 0.0);
        for interval in intervals {
            gap = if is_busy(interval) { 0.0 } else { gap + interval.at - before };
            longest = longest.max(gap);
            before = interval.at;
        }
        let busy = intervals.iter().filter(|interval| is_busy(interval)).count();
        Activity {
            duty: 100.0 * busy as f64 / intervals.len().max(1) as f64,
            longest_gap: longest,
            peak_by_mean: rates().fold(0.0, f64::max) / mean.max(f64::MIN_POSITIVE),
        }
    }

    fn sample(&self, bytes: u64) -> Sample {
        let more = [("longest gap s", self.longest_gap), ("peak by mean", self.peak_by_mean)];
        Sample::new(self.duty, bytes, more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_peaks_are_found() {
        let interval = |at, mb_per_s| Interval {
            at,
            mb_per_s,
            requests_per_s: 0.0,
            request_kb: 0.0,
            wait_ms: 0.0,
            queue: 0.0,
            written_mb_per_s: 0.0,
        };
        let rates = [100.0, 0.0, 0.0, 0.0, 100.0];
        let intervals: Vec<Interval> = (1..).zip(rates).map(|(at, rate)| interval(f64::from(at), rate)).collect();
        let activity = Activity::of(&intervals);
        assert_eq!(activity.duty, 40.0);
        assert_eq!(activity.longest_gap, 3.0);
        assert_eq!(activity.peak_by_mean, 2.5);
    }
}
