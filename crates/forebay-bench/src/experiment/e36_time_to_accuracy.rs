//! E36: seconds to a given accuracy, from files and from shards.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use forebay_image::{
    Decoder, EvalTransform, Limits, Output, RgbImage, SampleSeed, Transform, encode_jpeg,
};
use forebay_loader::{Loader, Options};
use forebay_pack::DatasetFormat;
use forebay_shard::Split;

use super::data::{MediumData, first_split, pack_tree};
use super::lab::{Cache, Lab, Sample, Trial};
use super::{Experiment, Findings};
use crate::Result;
use crate::cold::Footprint;
use crate::random::Random;
use crate::read::footprint;
use crate::report::{FigureClass, Plot, Scale, Series};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "E36",
    title: "Time to a given accuracy",
    question: "Does training reach the same accuracy sooner with shards, and with the same losses?",
    is_default: false,
    trials: |_| 2 * TIMES as usize,
    run,
};

/// A training takes longer than other runs.
const TIMES: u32 = 4;
const CLASSES: usize = 10;
/// Images to train with, at most, and to test with.
const IMAGES: u64 = 2048;
const TESTS: usize = 256;
/// Side of the generated images, and of what the model sees.
const SIDE: u32 = 64;
const SEEN: u32 = 16;
const FEATURES: usize = (3 * SEEN * SEEN) as usize;
const BATCH: u64 = 32;
const RATE: f32 = 0.5;
/// Height of the waves in images, under noise of up to 90: so faint that a model needs several epochs.
const WAVES: f32 = 2.5;
const MOST_EPOCHS: usize = 8;
/// Steps between two tests.
const EACH: usize = 8;
const GOAL: f64 = 0.9;
/// Batches of files that are made ahead.
const AHEAD: usize = 2;
const FILES: &str = "image files";
const SHARDS: &str = "indexed shards";

fn run(lab: &Lab<'_>) -> Result<Findings> {
    let mut found = Findings::default();
    for medium in &lab.media {
        let data = Data::make(lab, medium)?;
        let threads = lab.most_threads();
        // The losses that all runs must have.
        let right = train(&data, None, &mut |each| from_shards(&data.split, threads, each))?.losses;
        if right.is_empty() {
            return Err(format!("it needs at least {BATCH} images; use a larger --files").into());
        }
        let limit = Some(lab.options.limit * TIMES);
        let mut trials = Vec::new();
        for (name, files) in [(FILES, Footprint::files(data.paths.values())), (SHARDS, footprint(&data.split))] {
            let (data, right) = (&data, &right);
            let run = move || {
                let trained = match name {
                    FILES => train(data, limit, &mut |each| from_files(data, threads, each))?,
                    _ => train(data, limit, &mut |each| from_shards(&data.split, threads, each))?,
                };
                let apart = differences(&trained.losses, right);
                let more = [
                    ("accuracy, %", 100.0 * trained.accuracy),
                    ("steps", trained.losses.len() as f64),
                    ("last loss", f64::from(trained.losses.last().copied().unwrap_or(f32::NAN))),
                    ("steps whose loss differs", apart as f64),
                ];
                Ok(Sample::new(trained.seconds, trained.bytes, more))
            };
            trials.push(Trial::new(&medium.name, name, "s to the accuracy", run).reading(files, Cache::Emptied).standing_in());
        }
        let figures = lab.in_turns(trials)?;
        let is_reached = |runs: &Vec<f64>| runs.iter().all(|accuracy| *accuracy >= 100.0 * GOAL);
        for figure in &figures {
            if !figure.more_runs.get("accuracy, %").is_some_and(is_reached) {
                found.notes.push(format!(
                    "{}, {}: not all runs reached {:.0} % in {MOST_EPOCHS} epochs and the time of a run; their seconds are those until then.",
                    figure.medium,
                    figure.name,
                    100.0 * GOAL
                ));
            }
        }
        found.figures.extend(figures);
        found.plots.push(Plot {
            title: format!("{}: losses that the runs are compared with", medium.name),
            x: "step".to_owned(),
            scale: Scale::Linear,
            y: "loss".to_owned(),
            series: vec![Series {
                name: "softmax regression".to_owned(),
                class: FigureClass::StandIn,
                points: right.iter().enumerate().map(|(step, loss)| (step as f64, f64::from(*loss))).collect(),
            }],
        });
    }
    found.notes.push(format!(
        "Stand-in: softmax regression on {SEEN} x {SEEN} pixels of generated images of {CLASSES} classes, until {:.0} % of {TESTS} other images are right; a network takes longer for a step, so what loading gains is an upper bound. Files are read in the order of the shards' epochs; {} threads decode, {AHEAD} batches of files are made ahead. Caches are emptied before a run, and its epochs after the first are warm. The losses of each run are compared bit by bit with those of a training that was not timed.",
        100.0 * GOAL,
        lab.most_threads()
    ));
    Ok(found)
}

/// The labelled images of a medium.
struct Data {
    split: Split,
    /// The files of the samples, by their numbers in the split.
    paths: HashMap<u64, PathBuf>,
    labels: HashMap<u64, usize>,
    /// The batches of the shards' epochs.
    order: Vec<Vec<u64>>,
    tests: Vec<(Vec<f32>, usize)>,
}

impl Data {
    fn make(lab: &Lab<'_>, medium: &MediumData) -> Result<Self> {
        let tree = medium.scratch().join("labelled");
        let mut random = Random::new(36);
        let mut by_content = HashMap::new();
        for number in 0..lab.options.files.min(IMAGES) {
            let class = number as usize % CLASSES;
            let encoded = picture(class, &mut random)?;
            let dir = tree.join(format!("class-{class:02}"));
            fs::create_dir_all(&dir)?;
            let path = dir.join(format!("{number:05}.jpg"));
            fs::write(&path, &encoded)?;
            by_content.insert(encoded, (path, class));
        }
        let mut seen = Seen::default();
        let tests = (0..TESTS).map(|number| {
            let class = number % CLASSES;
            Ok((features(seen.of(&picture(class, &mut random)?)?), class))
        });
        let tests = tests.collect::<Result<_>>()?;
        let shards = medium.scratch().join("labelled-shards");
        pack_tree(&tree, &shards, |options| options.format = DatasetFormat::INDEXED)?;
        super::training::sync_all(&tree)?;
        let split = first_split(&shards)?;
        let (mut paths, mut labels, mut record) = (HashMap::new(), HashMap::new(), Vec::new());
        for number in 0..split.len() {
            split.read(number, &mut record)?;
            let image = split.record_features().image_record(&record)?.image;
            let (path, class) = by_content.get(image).ok_or("a shard has an image that is in no file")?;
            paths.insert(number, path.clone());
            labels.insert(number, *class);
        }
        let mut order = Vec::new();
        epochs(&split, Transform::KeepEncoded, lab.most_threads(), &mut |batch| {
            order.push(batch.samples.clone());
            Ok(true)
        })?;
        Ok(Self {
            split,
            paths,
            labels,
            order,
            tests,
        })
    }
}

/// Waves whose direction and length are those of the class, under noise.
fn picture(class: usize, random: &mut Random) -> Result<Vec<u8>> {
    let mut data = Vec::with_capacity((3 * SIDE * SIDE) as usize);
    let mut noise = vec![0; (3 * SIDE * SIDE) as usize];
    random.fill(&mut noise);
    let (along, across) = ((class % 5 + 1) as f32, (class / 5 + 1) as f32);
    for y in 0..SIDE {
        for x in 0..SIDE {
            for channel in 0..3 {
                let angle = (along * x as f32 + across * (y + 7 * channel) as f32) * 0.06;
                let noise = f32::from(noise[data.len()]) - 128.0;
                data.push((128.0 + WAVES * angle.sin() + 0.7 * noise).clamp(0.0, 255.0) as u8);
            }
        }
    }
    let image = RgbImage {
        width: SIDE,
        height: SIDE,
        data,
    };
    Ok(encode_jpeg(&image, 90, false)?)
}

/// The transform of the images before the model.
fn seen() -> Transform {
    Transform::Eval(EvalTransform::new(SEEN, SEEN))
}

/// Decodes images for the model.
struct Seen {
    decoder: Decoder,
    transform: Transform,
    pixels: Vec<u8>,
}

impl Default for Seen {
    fn default() -> Self {
        Self {
            decoder: Decoder::new(Limits::default()),
            transform: seen(),
            pixels: vec![0; FEATURES],
        }
    }
}

impl Seen {
    fn of(&mut self, encoded: &[u8]) -> Result<&[u8]> {
        let (seed, output) = (SampleSeed::default(), Output::default());
        self.transform.apply(&mut self.decoder, encoded, seed, &output, &mut self.pixels)?;
        Ok(&self.pixels)
    }
}

fn features(pixels: &[u8]) -> Vec<f32> {
    pixels.iter().map(|&value| f32::from(value) / 255.0 - 0.5).collect()
}

/// A batch: features of each image, the numbers of the samples, and the bytes that were read for it.
type Each<'e> = dyn FnMut(&[Vec<f32>], &[u64], u64) -> Result<bool> + 'e;

/// All epochs of the loader, until the function returns false.
fn epochs(split: &Split, transform: Transform, threads: usize, each: &mut dyn FnMut(&forebay_loader::Batch) -> Result<bool>) -> Result<()> {
    let mut options = Options::new(BATCH, transform);
    (options.threads, options.drop_last) = (threads, true);
    let mut loader = Loader::new(split.clone(), options)?;
    for _ in 0..MOST_EPOCHS {
        while let Some(batch) = loader.next_batch()? {
            if !each(&batch)? {
                return Ok(());
            }
        }
    }
    Ok(())
}

fn from_shards(split: &Split, threads: usize, each: &mut Each<'_>) -> Result<()> {
    let mean = crate::read::record_bytes(split) / split.len().max(1);
    epochs(split, seen(), threads, &mut |batch| {
        let images = (0..batch.len()).filter_map(|place| batch.image(place));
        let images: Vec<Vec<f32>> = images.map(features).collect();
        each(&images, &batch.samples, mean * batch.samples.len() as u64)
    })
}

/// Image files in the order of the shards. Batches are made ahead, each read and decoded by all threads.
fn from_files(data: &Data, threads: usize, each: &mut Each<'_>) -> Result<()> {
    let (made, batches) = sync_channel(AHEAD);
    thread::scope(|scope| {
        scope.spawn(move || {
            for samples in &data.order {
                let batch = batch_of_files(data, samples, threads);
                // The consumer ends once the accuracy is reached.
                if made.send((samples, batch)).is_err() {
                    break;
                }
            }
        });
        // Dropped within the scope, so that the thread ends.
        for (samples, batch) in batches {
            let (images, bytes) = batch?;
            if !each(&images, samples, bytes)? {
                break;
            }
        }
        Ok(())
    })
}

/// Features of images, and the bytes that were read for them.
type Decoded = (Vec<Vec<f32>>, u64);

fn batch_of_files(data: &Data, samples: &[u64], threads: usize) -> Result<Decoded> {
    let paths: Vec<&Path> = samples.iter().map(|number| data.paths[number].as_path()).collect();
    let part = paths.len().div_ceil(threads.max(1)).max(1);
    let parts: Vec<Result<Decoded>> = thread::scope(|scope| {
        let threads: Vec<_> = paths.chunks(part).map(|paths| scope.spawn(move || decode(paths))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.map_err(|_| "a thread that decodes panicked")?).collect()
    });
    let (mut images, mut bytes) = (Vec::with_capacity(samples.len()), 0);
    for part in parts {
        let (some, read) = part?;
        images.extend(some);
        bytes += read;
    }
    Ok((images, bytes))
}

fn decode(paths: &[&Path]) -> Result<Decoded> {
    let (mut seen, mut images, mut bytes) = (Seen::default(), Vec::new(), 0);
    for path in paths {
        let encoded = fs::read(path)?;
        bytes += encoded.len() as u64;
        images.push(features(seen.of(&encoded)?));
    }
    Ok((images, bytes))
}

struct Trained {
    seconds: f64,
    accuracy: f64,
    losses: Vec<f32>,
    bytes: u64,
}

/// Trains until the accuracy is reached, the batches end, or a time is up.
fn train(data: &Data, limit: Option<Duration>, batches: &mut dyn FnMut(&mut Each<'_>) -> Result<()>) -> Result<Trained> {
    let begin = Instant::now();
    let mut model = Model::new();
    let mut trained = Trained {
        seconds: 0.0,
        accuracy: 0.0,
        losses: Vec::new(),
        bytes: 0,
    };
    batches(&mut |images, samples, bytes| {
        let labels: Vec<usize> = samples.iter().map(|number| data.labels[number]).collect();
        trained.losses.push(model.step(images, &labels));
        trained.bytes += bytes;
        if trained.losses.len().is_multiple_of(EACH) {
            trained.accuracy = model.accuracy(&data.tests);
        }
        Ok(trained.accuracy < GOAL && limit.is_none_or(|limit| begin.elapsed() < limit))
    })?;
    trained.accuracy = model.accuracy(&data.tests);
    trained.seconds = begin.elapsed().as_secs_f64();
    Ok(trained)
}

/// Steps at which the losses are not the same. A run that ends at its time has fewer steps; more than are right count as different.
fn differences(losses: &[f32], right: &[f32]) -> usize {
    let different = losses.iter().zip(right).filter(|(a, b)| a.to_bits() != b.to_bits());
    different.count() + losses.len().saturating_sub(right.len())
}

/// Softmax regression.
struct Model {
    weights: Vec<[f32; FEATURES]>,
    bias: [f32; CLASSES],
}

impl Model {
    fn new() -> Self {
        Self {
            weights: vec![[0.0; FEATURES]; CLASSES],
            bias: [0.0; CLASSES],
        }
    }

    fn probabilities(&self, image: &[f32]) -> [f32; CLASSES] {
        let mut scores = self.bias;
        for (score, weights) in scores.iter_mut().zip(&self.weights) {
            *score += weights.iter().zip(image).map(|(weight, value)| weight * value).sum::<f32>();
        }
        let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        scores.iter_mut().for_each(|score| *score = (*score - most).exp());
        let all: f32 = scores.iter().sum();
        scores.map(|score| score / all)
    }

    /// A step of gradient descent; gives the mean loss before it.
    fn step(&mut self, images: &[Vec<f32>], labels: &[usize]) -> f32 {
        let (mut loss, scale) = (0.0, RATE / images.len().max(1) as f32);
        let found: Vec<[f32; CLASSES]> = images.iter().map(|image| self.probabilities(image)).collect();
        for ((image, &label), mut errors) in images.iter().zip(labels).zip(found) {
            loss -= errors[label].max(f32::MIN_POSITIVE).ln();
            errors[label] -= 1.0;
            for ((weights, bias), error) in self.weights.iter_mut().zip(&mut self.bias).zip(errors) {
                let change = scale * error;
                weights.iter_mut().zip(image).for_each(|(weight, value)| *weight -= change * value);
                *bias -= change;
            }
        }
        loss / images.len().max(1) as f32
    }

    fn accuracy(&self, tests: &[(Vec<f32>, usize)]) -> f64 {
        let right = tests.iter().filter(|(image, label)| {
            let found = self.probabilities(image);
            (0..CLASSES).max_by(|&a, &b| found[a].total_cmp(&found[b])) == Some(*label)
        });
        right.count() as f64 / tests.len().max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_learns_the_generated_classes() {
        let (mut random, mut seen) = (Random::new(1), Seen::default());
        let mut image = |class: usize| features(seen.of(&picture(class, &mut random).unwrap()).unwrap());
        let known: Vec<(Vec<f32>, usize)> = (0..240).map(|number| (image(number % CLASSES), number % CLASSES)).collect();
        let mut model = Model::new();
        let mut losses = Vec::new();
        for _ in 0..5 {
            for batch in known.chunks(20) {
                let (images, labels): (Vec<_>, Vec<_>) = batch.iter().cloned().unzip();
                losses.push(model.step(&images, &labels));
            }
        }
        assert!((losses[0] - (CLASSES as f32).ln()).abs() < 1e-4, "{}", losses[0]);
        let (first, last) = (losses[1], losses[losses.len() - 1]);
        assert!(last < first, "{losses:?}");
        let accuracy = model.accuracy(&known);
        assert!(accuracy > 0.5, "{accuracy}, one of {CLASSES} is chance");
    }

    #[test]
    fn losses_are_compared_bit_by_bit() {
        assert_eq!(differences(&[1.0, 2.0], &[1.0, 2.0]), 0);
        assert_eq!(differences(&[1.0, 2.5], &[1.0, 2.0, 3.0]), 1);
        assert_eq!(differences(&[1.0, 2.0, 3.0], &[1.0, 2.0]), 1);
    }
}
