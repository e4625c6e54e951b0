//! The mini-application of the published experiments: threads read and decode files, and consumers take the batches.

use std::fs::File;
use std::io::Read;
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use forebay_image::{Decoder, EvalTransform, Limits, Output, SampleSeed, Transform};

use super::data::ImageFile;
use crate::{Error, Result, Steps};

/// Width and height of the decoded images in pixels.
pub(super) const SIDE: u32 = 224;

/// Options of the mini-application.
#[derive(Debug, Clone)]
pub(super) struct MiniApp<'a> {
    pub(super) files: &'a [ImageFile],
    /// Threads that read and decode.
    pub(super) threads: usize,
    pub(super) batch_size: u64,
    /// Batches that are prefetched while the consumer is busy.
    pub(super) prefetch: u64,
    pub(super) decode: bool,
    /// Times of the steps, for which the consumers sleep.
    pub(super) steps: Steps,
    /// Number of consumers. Each takes a batch; then all start a step at the same time.
    pub(super) ranks: u64,
    /// Time limit. The run ends after the first batch past it.
    pub(super) limit: Duration,
}

/// The result of a run.
#[derive(Debug, Default)]
pub(super) struct Ran {
    pub(super) seconds: f64,
    /// Seconds that the consumers waited for each batch.
    pub(super) waits: Vec<f64>,
    pub(super) images: u64,
    /// Bytes of the images.
    pub(super) bytes: u64,
    /// Bytes of all images that were read, including those in no batch.
    pub(super) read: u64,
    /// Seconds from the start of the run until each batch was taken.
    pub(super) taken: Vec<f64>,
}

#[derive(Default)]
struct State {
    /// Number of the next image to read.
    next: u64,
    /// Number of images that the threads may read so far.
    granted: u64,
    /// Number of finished images of each batch.
    done: Vec<u64>,
    bytes: u64,
    failure: Option<Error>,
    ended: bool,
}

impl Ran {
    /// Returns the seconds that the consumers waited for batches.
    pub(super) fn waited(&self) -> f64 {
        self.waits.iter().sum()
    }
}

impl<'a> MiniApp<'a> {
    /// Creates options with one thread that decodes, one consumer that takes no time, and no prefetch.
    pub(super) fn new(files: &'a [ImageFile], batch_size: u64, limit: Duration) -> Self {
        Self {
            files,
            threads: 1,
            batch_size,
            prefetch: 0,
            decode: true,
            steps: Steps::none(),
            ranks: 1,
            limit,
        }
    }

    /// Runs until all files were read once, or the limit passes.
    pub(super) fn run(&self) -> Result<Ran> {
        self.run_with(&mut |_| Ok(()))
    }

    /// Runs as [`MiniApp::run`], and calls `after` at the end of each step with its number, counted from 1.
    pub(super) fn run_with(&self, after: &mut dyn FnMut(u64) -> Result<()>) -> Result<Ran> {
        let batches = self.files.len() as u64 / self.batch_size;
        if batches == 0 {
            return Err(format!(
                "{} images are less than a batch of {}",
                self.files.len(),
                self.batch_size
            )
            .into());
        }
        let state = Mutex::new(State {
            done: vec![0; batches as usize],
            ..State::default()
        });
        let (work, finished) = (Condvar::new(), Condvar::new());
        let begin = Instant::now();
        let mut ran = Ran::default();
        thread::scope(|scope| {
            for _ in 0..self.threads {
                scope.spawn(|| self.work(&state, &work, &finished));
            }
            for batch in 0..batches {
                let asked = Instant::now();
                let mut now = lock(&state);
                now.granted = batches.min(batch + 1 + self.prefetch) * self.batch_size;
                work.notify_all();
                while now.done[batch as usize] < self.batch_size && now.failure.is_none() {
                    now = finished.wait(now).unwrap_or_else(PoisonError::into_inner);
                }
                if now.failure.is_some() {
                    break;
                }
                drop(now);
                ran.waits.push(asked.elapsed().as_secs_f64());
                ran.taken.push(begin.elapsed().as_secs_f64());
                ran.images += self.batch_size;
                if (batch + 1) % self.ranks == 0 {
                    thread::sleep(self.steps.at(batch / self.ranks));
                    if let Err(error) = after((batch + 1) / self.ranks) {
                        lock(&state).failure.get_or_insert(error);
                        break;
                    }
                }
                if begin.elapsed() > self.limit {
                    break;
                }
            }
            lock(&state).ended = true;
            work.notify_all();
        });
        ran.seconds = begin.elapsed().as_secs_f64();
        let images = &self.files[..ran.images as usize];
        ran.bytes = images.iter().map(|file| file.bytes).sum();
        let state = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        match state.failure {
            Some(failure) => Err(failure),
            None => Ok(Ran {
                read: state.bytes,
                ..ran
            }),
        }
    }

    fn work(&self, state: &Mutex<State>, work: &Condvar, finished: &Condvar) {
        let mut decoder = Decoder::new(Limits::default());
        let transform = Transform::Eval(EvalTransform::new(SIDE, SIDE));
        let mut pixels = vec![0; transform.output_values()];
        let mut bytes = Vec::new();
        let mut now = lock(state);
        loop {
            while now.next >= now.granted && !now.ended {
                now = work.wait(now).unwrap_or_else(PoisonError::into_inner);
            }
            if now.ended {
                return;
            }
            let number = now.next;
            now.next += 1;
            drop(now);
            let file = &self.files[number as usize];
            let made = read(file, &mut bytes).and_then(|()| {
                if self.decode {
                    let seed = SampleSeed::default();
                    transform.apply(
                        &mut decoder,
                        &bytes[..],
                        seed,
                        &Output::default(),
                        &mut pixels,
                    )?;
                }
                Ok(())
            });
            now = lock(state);
            match made {
                Ok(()) => {
                    now.bytes += bytes.len() as u64;
                    let batch = (number / self.batch_size) as usize;
                    now.done[batch] += 1;
                    if now.done[batch] == self.batch_size {
                        finished.notify_all();
                    }
                }
                Err(error) => {
                    let path = file.path.display();
                    now.failure.get_or_insert(format!("{path}: {error}").into());
                    now.ended = true;
                    finished.notify_all();
                    work.notify_all();
                }
            }
        }
    }
}

fn read(file: &ImageFile, bytes: &mut Vec<u8>) -> Result<()> {
    bytes.clear();
    File::open(&file.path)?.read_to_end(bytes)?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
