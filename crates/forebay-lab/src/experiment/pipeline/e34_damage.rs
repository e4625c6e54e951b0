//! E34: the cost of damaged samples, and whether they are reported.

use forebay_image::{EvalTransform, Transform};
use forebay_loader::OnError;
use forebay_synthetic::Recipe;

use crate::experiment::feed::Feed;
use crate::experiment::lab::{Lab, Sample, Trial};
use crate::experiment::mini_app::SIDE;
use crate::experiment::{Experiment, Findings};
use crate::Result;

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E34",
    title: "Damaged samples",
    question: "What do damaged samples cost, and are they reported?",
    trials: |_| PARTS.len() * POLICIES.len(),
    run,
    ..Experiment::OTHER
};

/// Fractions of the records that are damaged.
const PARTS: [f64; 3] = [0.0, 0.001, 0.01];
const POLICIES: [(&str, OnError); 2] = [("skip", OnError::Skip), ("zero", OnError::Zero)];

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let options = lab.options;
    let mut trials = Vec::new();
    for part in PARTS {
        let url = format!("synthetic://imagenet?records={}&pictures=8&damage={part}", options.files);
        let split = Recipe::parse(&url)?.open()?.split("train")?;
        for (policy, on_error) in POLICIES {
            let (split, batch, limit) = (split.clone(), options.batch_size, options.limit);
            let run = move || {
                let transform = Transform::Eval(EvalTransform::new(SIDE, SIDE));
                let fed = Feed::new(&split, transform, batch, limit).run_as(&mut |options| options.on_error = on_error)?;
                let more = [
                    ("samples lost", fed.stats.failed as f64),
                    ("% lost", 100.0 * fed.stats.failed as f64 / fed.stats.images.max(1) as f64),
                    ("reported", fed.stats.failures.len() as f64),
                ];
                Ok(Sample::new(fed.images_per_s(), 0, more))
            };
            let name = format!("{} % damaged, on_error={policy}", 100.0 * part);
            trials.push(Trial::new("memory", name, "images/s", run).standing_in());
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    found.notes.push(
        "Stand-in: generated records of which some have a wrong byte. Forebay counts each lost sample and names the last ones with shard and key; with on_error=raise the first one ends the epoch."
            .to_owned(),
    );
    Ok(found)
}
