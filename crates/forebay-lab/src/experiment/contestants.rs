//! The formats that E20 and E21 compare: image files read by a small program, and formats that Forebay's loader reads where they are.
//! None of them is measured before its samples are those of the indexed shards. `tools/peers` compares packages of formats.

use std::rc::Rc;
use std::time::Duration;

use forebay_image::{EvalTransform, Transform};
use forebay_shard::Split;

use super::CharacterizeOptions;
use super::data::{ImageFile, MediumData, image_files};
use super::feed::Feed;
use super::formats::{Differences, Samples};
use super::lab::{Cache, Lab};
use super::mini_app::{MiniApp, SIDE};
use crate::Result;
use crate::cold::Footprint;
use crate::read::footprint;

/// Workers and caches of all figures.
pub(super) const WORKERS: [usize; 2] = [1, 4];
pub(super) const CACHES: [(&str, Cache); 2] = [("cold", Cache::Emptied), ("warm", Cache::Filled)];
const FILES: &str = "image files";
/// The names of all formats, sorted but for the first, which names image files.
pub(super) const NAMES: [&str; 7] = [
    "files",
    "arrayrecord",
    "indexed",
    "mds",
    "parquet",
    "tfrecord",
    "webdataset",
];
/// Batches of image files that are made ahead while training.
const AHEAD: u64 = 2;

/// The figures of an experiment with all formats.
pub(super) fn figures(options: &CharacterizeOptions) -> usize {
    let formats = NAMES.iter().filter(|name| options.has_format(name));
    formats.count() * WORKERS.len() * CACHES.len()
}

/// The name of a figure.
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
    /// Bytes that were read, those of batches that were not taken included.
    pub(super) read: u64,
}

impl Contestant<'_> {
    /// Reads for the time of a run. `step` is the time of a training step: images are decoded for it.
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

/// The formats that give the right samples; the others become notes.
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
