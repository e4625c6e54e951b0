//! Formats that experiments compare: image files, which the mini-application reads, and formats that Forebay's loader reads
//! in place. A format is measured only if its samples equal those of the indexed shards. `tools/peers` compares other data
//! loaders.

use std::rc::Rc;
use std::time::Duration;

use forebay_image::{EvalTransform, Transform};
use forebay_shard::Split;

use super::CharacterizeOptions;
use super::data::{ImageFile, MediumData, image_files};
use super::feed::Feed;
use super::lab::{Cache, Lab};
use super::mini_app::{MiniApp, SIDE};
use super::stored::{Differences, Samples};
use crate::Result;
use crate::cold::Footprint;
use crate::read::footprint;

/// Numbers of workers and states of the page cache that each format is measured with.
pub(super) const WORKERS: [usize; 2] = [1, 4];
pub(super) const CACHES: [(&str, Cache); 2] = [("cold", Cache::Emptied), ("warm", Cache::Filled)];
const FILES: &str = "image files";
/// Names of all formats: first that of image files, then the others, sorted.
pub(super) const NAMES: [&str; 7] = [
    "files",
    "arrayrecord",
    "indexed",
    "mds",
    "parquet",
    "tfrecord",
    "webdataset",
];
/// Batches of image files that are prefetched while training.
const AHEAD: u64 = 2;

/// Returns the number of figures of an experiment with all selected formats.
pub(super) fn figures(options: &CharacterizeOptions) -> usize {
    let formats = NAMES.iter().filter(|name| options.has_format(name));
    formats.count() * WORKERS.len() * CACHES.len()
}

pub(super) fn name(format: &str, workers: usize, cache: &str) -> String {
    let noun = if workers == 1 { "worker" } else { "workers" };
    format!("{format}, {workers} {noun}, {cache}")
}

/// A format and its reader.
pub(super) struct Contestant<'l> {
    pub(super) name: String,
    pub(super) files: Footprint,
    reader: Reader,
    options: &'l CharacterizeOptions,
}

#[derive(Clone)]
enum Reader {
    Files(Rc<[ImageFile]>),
    Loader(Split),
}

/// The result of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Delivery {
    pub(super) seconds: f64,
    pub(super) waited: f64,
    pub(super) images: u64,
    pub(super) batches: u64,
    pub(super) bytes: u64,
    /// Bytes read, including those of prefetched batches that the consumer did not take.
    pub(super) read: u64,
}

impl Contestant<'_> {
    /// Reads until the time limit of a run. With `step`, the time of a training step, images are decoded; without, they stay
    /// encoded.
    pub(super) fn run(&self, workers: usize, step: Option<Duration>) -> Result<Delivery> {
        let (batch, limit) = (self.options.batch_size, self.options.limit);
        match &self.reader {
            Reader::Files(files) => {
                let app = MiniApp {
                    threads: workers,
                    decode: step.is_some(),
                    prefetch: if step.is_some() { AHEAD } else { 0 },
                    steps: step.unwrap_or_default().into(),
                    ..MiniApp::new(files, batch, limit)
                };
                let ran = app.run()?;
                Ok(Delivery {
                    seconds: ran.seconds,
                    waited: ran.waited(),
                    images: ran.images,
                    batches: ran.images / batch,
                    bytes: ran.bytes,
                    read: ran.read,
                })
            }
            Reader::Loader(split) => {
                let transform = match step {
                    Some(_) => Transform::Eval(EvalTransform::new(SIDE, SIDE)),
                    None => Transform::KeepEncoded,
                };
                let feed = Feed {
                    threads: workers,
                    steps: step.unwrap_or_default().into(),
                    ..Feed::new(split, transform, batch, limit)
                };
                let fed = feed.run()?;
                Ok(Delivery {
                    seconds: fed.seconds,
                    waited: fed.waited,
                    images: fed.images,
                    batches: fed.images.div_ceil(batch),
                    bytes: fed.bytes,
                    read: fed.read,
                })
            }
        }
    }
}

/// Returns the formats that give the right samples, and adds a note for each of the others.
pub(super) fn contestants<'l>(
    lab: &'l Lab<'_>,
    medium: &MediumData,
    notes: &mut Vec<String>,
) -> Result<Vec<Contestant<'l>>> {
    let options = lab.options;
    let mut found = Vec::new();
    if options.has_format(NAMES[0]) {
        let files = medium.images()?;
        found.push(Contestant {
            name: FILES.to_owned(),
            files: image_files(&files),
            reader: Reader::Files(files),
            options,
        });
    }
    let most = WORKERS[WORKERS.len() - 1];
    let right = Samples::of(&medium.indexed()?, 1)?;
    for format in medium.formats(options)?.iter() {
        let Differences {
            wrong,
            missing,
            repeated,
        } = Samples::of(&format.split, most)?.differences(&right);
        if wrong + missing + repeated > 0 {
            notes.push(format!(
                "{}: no figures of {}: {wrong} samples are wrong, {missing} missing, {repeated} repeated",
                medium.name, format.name
            ));
            continue;
        }
        found.push(Contestant {
            name: format.name.to_owned(),
            files: footprint(&format.split),
            reader: Reader::Loader(format.split.clone()),
            options,
        });
    }
    Ok(found)
}
