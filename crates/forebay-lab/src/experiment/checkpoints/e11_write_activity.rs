//! E11: when the bytes of checkpoints reach a device.

use crate::experiment::data::image_files;
use crate::experiment::lab::{Cache, Lab, Trial};
use crate::experiment::trace::{Interval, is_counted, watched};
use crate::experiment::training::{DIRECT, Target, Training, pairs};
use crate::experiment::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::cold::Mount;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E11",
    title: "Write activity during checkpoints",
    question: "When do the bytes of checkpoints reach each device, and is all of it durable when training ends?",
    trials,
    run,
    ..Experiment::OTHER
};

/// Written to the medium without fsync.
const UNFORCED: &str = "direct, not forced to disk";
/// Factor of the estimated time: saving and draining take more than the training itself.
const TIMES: usize = 3;

fn trials(options: &CharacterizeOptions) -> usize {
    TIMES * (options.media.len().saturating_sub(1).max(1) + 2)
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    let Some(first) = lab.media.first() else {
        return Ok(found);
    };
    let files = first.images()?;
    let training = Training::new(lab, &files);
    for (place, medium) in lab.media.iter().enumerate() {
        let mount = Mount::of(medium.scratch()).filter(is_counted);
        let mut variants = vec![
            (DIRECT.to_owned(), Target::Direct(medium)),
            (UNFORCED.to_owned(), Target::Unforced(medium)),
        ];
        for (fast, _) in pairs(lab.media.len()).into_iter().filter(|pair| pair.1 == place) {
            let fast = &lab.media[fast];
            variants.push((format!("staged on {}, drained to this", fast.name), Target::Staged { fast, slow: medium }));
        }
        let mut series = Vec::new();
        for (name, target) in variants {
            let mut seen = Vec::new();
            let trial = Trial::new(&medium.name, &name, "s after the end until durable", || {
                let times = match &mount {
                    Some(mount) => {
                        let (times, intervals) = watched(mount, || training.run(target))?;
                        seen = intervals;
                        times
                    }
                    None => training.run(target)?,
                };
                let mut sample = times.sample();
                sample.more.insert("s of runtime".to_owned(), sample.value);
                sample.more.remove("s until durable after the end");
                sample.value = times.after_end;
                Ok(sample)
            });
            let trial = trial.reading(image_files(&files), Cache::Emptied).standing_in();
            found.figures.extend(lab.in_turns(vec![trial])?);
            series.push(writes(name, &seen));
        }
        match mount {
            Some(_) => found.plots.push(Plot {
                title: format!("{}: writes of the last run", medium.name),
                x: "s".to_owned(),
                scale: Scale::Linear,
                y: "MB/s".to_owned(),
                series,
            }),
            None => found.notes.push(format!("{}: writes over time are unknown, /proc/diskstats has no line for its device", medium.name)),
        }
    }
    found.notes.push(training.note());
    found.notes.push(
        "A host that is lost before all is durable has its last checkpoints on the fast medium only, or nowhere if they were not forced. Requests of the device are counted, those of other processes as well."
            .to_owned(),
    );
    Ok(found)
}

fn writes(name: String, seen: &[Interval]) -> Series {
    Series {
        name,
        class: FigureClass::StandIn,
        points: seen.iter().map(|interval| (interval.at, interval.written_mb_per_s)).collect(),
    }
}
