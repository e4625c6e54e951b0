//! The images of a medium: single files, which the mini-application reads, or records, which Forebay's loader reads.

use std::rc::Rc;

use forebay_image::{EvalTransform, Transform};
use forebay_shard::Split;

use super::CharacterizeOptions;
use super::data::{ImageFile, image_files};
use super::feed::Feed;
use super::mini_app::{MiniApp, SIDE};
use crate::cold::Footprint;
use crate::read::footprint;
use crate::{Result, Steps};

/// Batches of image files that are prefetched for each consumer, as torch's DataLoader does for each worker.
const AHEAD: u64 = 2;

/// Images that are read.
#[derive(Debug, Clone)]
pub(super) enum Input {
    Files(Rc<[ImageFile]>),
    Records(Split),
}

/// How images are read.
#[derive(Debug, Clone)]
pub(super) struct Reading {
    pub(super) threads: usize,
    /// Number of consumers.
    pub(super) ranks: u64,
    pub(super) decode: bool,
    /// Steps of the consumers; without, they take no time, and files are not prefetched.
    pub(super) steps: Option<Steps>,
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

impl Input {
    pub(super) fn footprint(&self) -> Footprint {
        match self {
            Input::Files(files) => image_files(files),
            Input::Records(split) => footprint(split),
        }
    }

    /// Reads until the time limit of a run.
    pub(super) fn run(&self, options: &CharacterizeOptions, how: &Reading) -> Result<Delivery> {
        let (batch, limit) = (options.batch_size, options.limit);
        let steps = how.steps.clone().unwrap_or_else(Steps::none);
        match self {
            Input::Files(files) => {
                let app = MiniApp {
                    threads: how.threads,
                    decode: how.decode,
                    prefetch: how.steps.as_ref().map_or(0, |_| AHEAD * how.ranks),
                    steps,
                    ranks: how.ranks,
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
            Input::Records(split) => {
                let transform = match how.decode {
                    true => Transform::Eval(EvalTransform::new(SIDE, SIDE)),
                    false => Transform::KeepEncoded,
                };
                let feed = Feed {
                    threads: how.threads,
                    ranks: how.ranks,
                    steps,
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
