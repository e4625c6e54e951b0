//! E31: the rate of reads by their size.

use crate::experiment::requests::{RANDOM_READS, of_store, reads};
use crate::experiment::lab::Lab;
use crate::experiment::{Experiment, Findings};
use crate::Result;
use crate::report::{FigureClass, Plot, Scale, Series};
use crate::storage::{ReadJob, SizeMix};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E31",
    title: "Sizes of reads",
    question: "From which size on do reads use all of the storage's bandwidth?",
    trials: |_| SIZES.len(),
    run,
    ..Experiment::OTHER
};

const SIZES: [u32; 7] = [4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20];
const DEPTH: usize = 16;

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut trials = Vec::new();
    for medium in &lab.media {
        let direct = medium.direct_works()?;
        for size in SIZES {
            let job = ReadJob::random([(medium.large()?, medium.size())], &SizeMix::fixed(size), RANDOM_READS, 4)?;
            let name = format!("random reads of {} KiB", size >> 10);
            trials.push(reads(lab, medium, &name, "MB/s", direct, job, DEPTH));
        }
    }
    for store in &lab.stores {
        for size in SIZES {
            let name = format!("random reads of {} KiB", size >> 10);
            trials.push(of_store(lab, store, name, "MB/s", size, DEPTH));
        }
    }
    let mut found = Findings::measured(lab, trials)?;
    let series = found.figures.chunks(SIZES.len()).map(|figures| {
        let sizes = SIZES.map(|size| f64::from(size >> 10));
        Series::of(&figures[0].medium, FigureClass::Measured, sizes, figures)
    });
    found.plots.push(Plot {
        title: format!("Random reads, {DEPTH} in flight"),
        x: "KiB a read".to_owned(),
        scale: Scale::Logarithmic,
        y: "MB/s".to_owned(),
        series: series.collect(),
    });
    Ok(found)
}
