//! E35: an epoch order that takes samples in memory first.

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use forebay_image::Transform;
use forebay_loader::Options;
use forebay_loader::plan::{EpochPlan, PlanOptions};

use crate::experiment::data::{ImageFile, MediumData, image_files};
use crate::experiment::requests::limited;
use crate::experiment::shuffle_quality::{SPREAD, spread};
use crate::experiment::lab::{Cache, Lab, Sample, Trial};
use crate::experiment::mini_app::MiniApp;
use crate::experiment::small_memory::SmallMemory;
use crate::experiment::{CharacterizeOptions, Experiment, Findings};
use crate::Result;
use crate::cold::{FileBytes, Prober};
use crate::report::{Figure, FigureClass, Plot, Scale, Series};
use crate::storage::{self, JobFile, Medium, ReadJob, ReadOp, RunOptions};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E35",
    title: "An order that prefers what is cached",
    question: "What does reading resident samples first bring, and what does it cost in shuffling?",
    trials: |_| CASES.len() * ORDERS.len() * TIMES as usize,
    run,
    ..Experiment::OTHER
};

/// Factor of the time limit: whole epochs take longer than other runs.
const TIMES: u32 = 4;
/// Names of the orders, and whether resident samples come first.
const ORDERS: [(&str, bool); 2] = [("order of the loader", false), (FIRST, true)];
const FIRST: &str = "resident samples first";
const PART: &str = "% of the epoch";
const FOUND: &str = "% found in memory";
/// Shuffle quality: correlation of the positions of samples in two successive epochs. 0 means that they are independent.
const CORRELATION: &str = "correlation with the epoch before";

/// How images are read, and the memory for the page cache.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    /// Reads whole files, with memory for the resident part only.
    SmallMemory,
    /// Reads whole files, with all memory of the machine.
    Memory,
    /// Reads and decodes with the mini-application.
    MiniApp,
}

/// Percent of the images that are resident at the start of the epoch, and the reader.
const CASES: [(usize, Reader); 5] = [
    (25, Reader::SmallMemory),
    (50, Reader::SmallMemory),
    (75, Reader::SmallMemory),
    (50, Reader::Memory),
    (50, Reader::MiniApp),
];

/// The orders of two successive epochs of a loader.
struct Epochs {
    /// The images by sample number.
    images: Vec<ImageFile>,
    before: Vec<u64>,
    order: Vec<u64>,
}

/// An epoch in one order, with a part of the images resident at its start.
struct Case {
    epochs: Rc<Epochs>,
    /// Numbers of the images that the previous epoch read last, in its order.
    resident: Vec<u64>,
    reader: Reader,
    is_resident_first: bool,
    batch: u64,
    how: RunOptions,
}

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    for medium in &lab.media {
        let epochs = Rc::new(Epochs::new(medium, lab.options)?);
        // Fails before any run if the system cannot report residency.
        epochs.are_resident(&mut Prober::default(), &epochs.order[..1])?;
        let trials = CASES.iter().flat_map(|case| ORDERS.map(|order| trial(lab, medium, &epochs, *case, order)));
        let figures = lab.in_turns(trials.collect())?;
        found.plots.push(plot(&medium.name, &figures));
        found.figures.extend(figures);
    }
    if found.figures.iter().any(|figure| figure.more.get(PART).is_some_and(|part| *part < 99.0)) {
        found.notes.push("Some runs ended before their epoch did. Resident samples are a larger part of what they read in the order that takes these first: only whole epochs can be compared, so take a longer --run-time or fewer --files.".to_owned());
    }
    found.notes.push(format!(
        "Forebay's loader has no such order: its order never depends on caches, so that a run can be repeated and resumed. The reads of an epoch of single files are replayed with {} threads in the order that the loader would have, and in the same order with resident samples first. Resident are the files that the epoch before read last; the replay asks the kernel for each file, which is not timed. Decoded images are read by the mini-application.",
        lab.most_threads()
    ));
    found.notes.push("Stand-in for a machine with memory for the resident part only: files are dropped from the page cache that were not used for longest, in place of the kernel's choice. Cold shares then count a file that was resident and dropped before it was read as resident; \"% found in memory\" does not. With memory for all images both orders find the same samples in memory.".to_owned());
    Ok(found)
}

impl Epochs {
    fn new(medium: &MediumData, options: &CharacterizeOptions) -> Result<Self> {
        let mut images = medium.images()?.to_vec();
        // As in a listing, neighbors in a directory have successive numbers.
        images.sort_by(|a, b| a.path.cmp(&b.path));
        let bytes = images.iter().map(|image| image.bytes).sum();
        let order = |epoch| order_of(images.len() as u64, bytes, options.batch_size, epoch);
        Ok(Self {
            before: order(0)?,
            order: order(1)?,
            images,
        })
    }

    fn files<'e>(&'e self, numbers: &'e [u64]) -> impl Iterator<Item = &'e ImageFile> {
        numbers.iter().map(|&number| &self.images[number as usize])
    }

    /// Returns by position in `numbers` whether at least half of an image's bytes are in the page cache.
    fn are_resident(&self, prober: &mut Prober, numbers: &[u64]) -> Result<Vec<bool>> {
        let ask = |image: &ImageFile| {
            let file = FileBytes { path: image.path.clone(), ranges: None };
            let resident = prober.measure(&[file]).map_err(|why| format!("residency unknown: {why}"))?;
            Ok(resident.part >= 0.5)
        };
        self.files(numbers).map(ask).collect()
    }
}

/// Returns the order of an epoch of the loader with default options.
fn order_of(records: u64, bytes: u64, batch_size: u64, epoch: u64) -> Result<Vec<u64>> {
    let options = Options::new(batch_size, Transform::KeepEncoded).resolve(records, bytes)?;
    let plan = EpochPlan::new(&PlanOptions {
        records,
        seed: options.seed,
        epoch,
        virtual_ranks: options.virtual_ranks,
        shuffle: options.shuffle,
        run_records: 1,
    })?;
    Ok((0..records).map(|position| plan.sample_at(position)).collect())
}

/// Returns the samples of `order`, with the resident ones first.
fn resident_first(order: &[u64], resident: &[bool]) -> Vec<u64> {
    let of = |wanted: bool| order.iter().zip(resident).filter(move |(_, is)| **is == wanted).map(|(number, _)| *number);
    of(true).chain(of(false)).collect()
}

/// Returns the correlation of the positions of samples in two epochs, from -1 to 1.
fn correlation(before: &[u64], after: &[u64]) -> f64 {
    let mut places = vec![0.0; before.len()];
    before.iter().enumerate().for_each(|(place, &number)| places[number as usize] = place as f64);
    let mean = (before.len() as f64 - 1.0) / 2.0;
    let (mut both, mut square) = (0.0, 0.0);
    for (place, &number) in after.iter().enumerate() {
        both += (place as f64 - mean) * (places[number as usize] - mean);
        square += (place as f64 - mean).powi(2);
    }
    both / square.max(f64::MIN_POSITIVE)
}

fn trial<'t>(
    lab: &Lab<'_>,
    medium: &MediumData,
    epochs: &Rc<Epochs>,
    (percent, reader): (usize, Reader),
    (order, is_resident_first): (&str, bool),
) -> Trial<'t> {
    let count = epochs.images.len() * percent / 100;
    let case = Case {
        epochs: Rc::clone(epochs),
        resident: epochs.before[epochs.before.len() - count..].to_vec(),
        reader,
        is_resident_first,
        batch: lab.options.batch_size,
        how: RunOptions {
            limit: Some(lab.options.limit * TIMES),
            ..limited(lab, lab.most_threads())
        },
    };
    let name = format!("{percent} % resident, {}{order}", reader.name());
    let resident: Vec<ImageFile> = epochs.files(&case.resident).cloned().collect();
    let files = image_files(&epochs.images);
    let trial = Trial::new(&medium.name, name, "images/s", move || case.run());
    let trial = trial.reading(files, Cache::Emptied).with_resident(image_files(&resident));
    match reader {
        Reader::SmallMemory => trial.standing_in(),
        Reader::Memory | Reader::MiniApp => trial,
    }
}

impl Reader {
    fn name(self) -> &'static str {
        match self {
            Self::SmallMemory => "memory for these, ",
            Self::Memory => "",
            Self::MiniApp => "decoded, ",
        }
    }
}

impl Case {
    fn run(&self) -> Result<Sample> {
        let (epochs, begin) = (&self.epochs, Instant::now());
        let resident = epochs.are_resident(&mut Prober::default(), &epochs.order)?;
        let asking = begin.elapsed().as_secs_f64();
        let order = match self.is_resident_first {
            true => resident_first(&epochs.order, &resident),
            false => epochs.order.clone(),
        };
        let (images, bytes, seconds, hits) = match self.reader {
            Reader::MiniApp => self.decode(&order)?,
            Reader::SmallMemory | Reader::Memory => self.replay(&order)?,
        };
        let all = order.len().max(1) as f64;
        let held = resident.iter().filter(|is| **is).count() as f64;
        let more = [
            ("MB/s", bytes as f64 / 1e6 / seconds),
            (PART, 100.0 * images as f64 / all),
            ("% resident at first", 100.0 * held / all),
            ("ms asking for residency", 1e3 * asking),
            (CORRELATION, correlation(&epochs.before, &order)),
            (SPREAD, 100.0 * spread(&order, self.batch, order.len() as u64)),
        ];
        let mut sample = Sample::new(images as f64 / seconds, bytes, more);
        if let Some(hits) = hits {
            let found = 100.0 * hits as f64 / images.max(1) as f64;
            sample.more.insert(FOUND.to_owned(), found);
        }
        Ok(sample)
    }

    /// Reads the images in `order`. Returns images, bytes, seconds, and for a small memory the number of images found in it.
    fn replay(&self, order: &[u64]) -> Result<(u64, u64, f64, Option<u64>)> {
        let images = &self.epochs.images;
        let job = job(images, order)?;
        let memory = match self.reader {
            Reader::SmallMemory => {
                let held = self.epochs.files(&self.resident);
                Some(Arc::new(SmallMemory::holding(held.map(|image| Path::new(&image.path)))?))
            }
            Reader::Memory | Reader::MiniApp => None,
        };
        let medium = match &memory {
            Some(memory) => Medium::Storage(Arc::clone(memory) as _),
            None => Medium::Local { direct: false },
        };
        let report = storage::run(&job, &medium, &self.how)?;
        let hits = memory.map(|memory| memory.hits());
        Ok((report.operations, report.bytes, report.seconds, hits))
    }

    fn decode(&self, order: &[u64]) -> Result<(u64, u64, f64, Option<u64>)> {
        let files: Vec<ImageFile> = self.epochs.files(order).cloned().collect();
        let limit = self.how.limit.unwrap_or_default();
        let app = MiniApp {
            threads: self.how.depth,
            prefetch: 1,
            ..MiniApp::new(&files, self.batch, limit)
        };
        let ran = app.run()?;
        Ok((ran.images, ran.bytes, ran.seconds, None))
    }
}

/// Returns reads of whole files in the given order.
fn job(images: &[ImageFile], order: &[u64]) -> Result<ReadJob> {
    let files: Vec<JobFile> = images.iter().map(|image| JobFile::from((&image.path, image.bytes))).collect();
    let op = |&number: &u64| -> Result<ReadOp> {
        Ok(ReadOp {
            file: u32::try_from(number)?,
            announce: false,
            len: u32::try_from(images[number as usize].bytes)?,
            offset: 0,
        })
    };
    let ops = order.iter().map(op).collect::<Result<Vec<ReadOp>>>()?;
    ReadJob::new(files, ops)
}

/// Plots the rate of each order by the correlation with the previous epoch.
fn plot(medium: &str, figures: &[Figure]) -> Plot {
    let series = ORDERS.map(|(order, _)| {
        let of_order: Vec<&Figure> = figures.iter().filter(|figure| figure.name.ends_with(order) && figure.more.contains_key(FOUND)).collect();
        Series {
            name: format!("{order}, memory for 25, 50 and 75 %"),
            class: FigureClass::StandIn,
            points: of_order.iter().map(|figure| (figure.more[CORRELATION], figure.value)).collect(),
        }
    });
    Plot {
        title: medium.to_owned(),
        x: CORRELATION.to_owned(),
        scale: Scale::Linear,
        y: "images/s".to_owned(),
        series: series.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_samples_come_first_in_stable_order() {
        let order = [3, 0, 4, 1, 2];
        let first = resident_first(&order, &[false, true, false, true, false]);
        assert_eq!(first, [0, 1, 3, 4, 2]);
    }

    #[test]
    fn similar_orders_correlate() {
        let order: Vec<u64> = (0..100).collect();
        let back: Vec<u64> = (0..100).rev().collect();
        assert!((correlation(&order, &order) - 1.0).abs() < 1e-12);
        assert!((correlation(&order, &back) + 1.0).abs() < 1e-12);
        assert_eq!(correlation(&[0], &[0]), 0.0);
        // The orders of two epochs of the loader; then the second one with the last samples of the first in front.
        let [before, after] = [0, 1].map(|epoch| order_of(4000, 400_000_000, 64, epoch).unwrap());
        assert!(correlation(&before, &after).abs() < 0.1);
        let resident: Vec<bool> = after.iter().map(|number| before[2000..].contains(number)).collect();
        let first = resident_first(&after, &resident);
        assert!((correlation(&before, &first) + 0.75).abs() < 0.1);
        let mut sorted = first;
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..4000), "each sample once");
    }
}
