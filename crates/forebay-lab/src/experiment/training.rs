//! Training with checkpoints: a consumer that sleeps for each step, threads that read images, and files that become durable.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_staging::checkpoint::{Draft, Request, Saved, Uploader, UploaderOptions};
use forebay_store::{Location, StoreOptions};

use super::data::{ImageFile, MediumData};
use super::lab::{Lab, Sample};
use super::mini_app::{MiniApp, Ran};
use crate::random::Random;
use crate::storage::renew;
use crate::{Error, Result};

/// Checkpoints per run, as published.
const CHECKPOINTS: u64 = 5;
/// Steps between two checkpoints.
const EVERY: u64 = 4;
/// Bytes per write.
const PIECE: usize = 4 << 20;
/// Longer than draining takes, unless it hangs.
const LONG: Duration = Duration::from_secs(3600);

/// Name of a variant that writes checkpoints to their medium.
pub(super) const DIRECT: &str = "direct";

/// The destination of the checkpoints of a run.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    None,
    /// Written and fsynced.
    Direct(&'a MediumData),
    /// Written without fsync.
    Unforced(&'a MediumData),
    /// Written and fsynced on a fast medium, and drained to a slow one in the background.
    Staged {
        fast: &'a MediumData,
        slow: &'a MediumData,
    },
}

/// Options of a training run.
pub(super) struct Training<'a> {
    files: &'a [ImageFile],
    threads: usize,
    batch_size: u64,
    step: Duration,
    steps: u64,
    every: u64,
    /// Bytes of a checkpoint.
    bytes: u64,
}

/// The times of a run, in seconds.
#[derive(Debug, Default)]
pub(super) struct Times {
    ran: Ran,
    saves: Vec<f64>,
    /// From the start of each save until the checkpoint was durable at its destination.
    durable: Vec<f64>,
    /// From the end of training until all checkpoints were durable.
    pub(super) after_end: f64,
    pub(super) bytes_read: u64,
}

/// Returns pairs of media: the fast one that stages, and the slow one that is drained to.
pub(super) fn pairs(count: usize) -> Vec<(usize, usize)> {
    let all = (0..count).flat_map(|fast| (0..count).map(move |slow| (fast, slow)));
    all.filter(|(fast, slow)| fast != slow || count == 1)
        .collect()
}

/// Returns the size of a checkpoint in bytes, as a tenth of the large file.
pub(super) fn bytes_of_checkpoint(size: u64) -> u64 {
    (size / 10).max(1)
}

impl<'a> Training<'a> {
    pub(super) fn new(lab: &Lab<'_>, files: &'a [ImageFile]) -> Self {
        let options = lab.options;
        let steps = (files.len() as u64 / options.batch_size).clamp(1, CHECKPOINTS * EVERY);
        Self {
            files,
            threads: lab.most_threads(),
            batch_size: options.batch_size,
            step: options.limit.div_f64((CHECKPOINTS * EVERY) as f64),
            steps,
            every: (steps / CHECKPOINTS).max(1),
            bytes: bytes_of_checkpoint(options.size),
        }
    }

    pub(super) fn note(&self) -> String {
        format!(
            "Stand-in: a consumer that sleeps for {:.0} ms a step in place of training, {} steps of {} images with one batch of prefetch; a checkpoint of {} bytes every {} steps.",
            1e3 * self.step.as_secs_f64(),
            self.steps,
            self.batch_size,
            self.bytes,
            self.every
        )
    }

    /// Trains, and removes everything that was saved.
    pub(super) fn run(&self, target: Target<'_>) -> Result<Times> {
        let places: Vec<PathBuf> = match target {
            Target::None => Vec::new(),
            Target::Direct(medium) | Target::Unforced(medium) => {
                vec![medium.scratch().join("checkpoints")]
            }
            Target::Staged { fast, slow } => vec![
                fast.scratch().join("staging"),
                slow.scratch().join("drained"),
            ],
        };
        let ran = match target {
            Target::Staged { .. } => self.staged(&places[0], &places[1]),
            _ => self.plain(&places, matches!(target, Target::Direct(_))),
        };
        for place in places.iter().filter(|place| place.exists()) {
            fs::remove_dir_all(place)?;
        }
        ran
    }

    /// Trains, and calls `save` with the number of each checkpoint. `save` returns the seconds for which training waited.
    fn train(&self, mut save: impl FnMut(u64) -> Result<f64>) -> Result<Times> {
        let app = MiniApp {
            threads: self.threads,
            prefetch: 1,
            steps: self.step.into(),
            ..MiniApp::new(
                &self.files[..(self.steps * self.batch_size) as usize],
                self.batch_size,
                LONG,
            )
        };
        let mut saves = Vec::new();
        let ran = app.run_with(&mut |step| {
            if step % self.every == 0 {
                saves.push(save(step)?);
            }
            Ok(())
        })?;
        Ok(Times {
            bytes_read: ran.read,
            ran,
            saves,
            ..Times::default()
        })
    }

    fn plain(&self, places: &[PathBuf], is_forced: bool) -> Result<Times> {
        let Some(dir) = places.first() else {
            return self.train_without();
        };
        fs::create_dir_all(dir)?;
        let mut payload = Payload::new(self.bytes);
        let mut begins = Vec::new();
        let mut times = self.train(|step| {
            let begin = Instant::now();
            begins.push(begin);
            let mut file = File::create(dir.join(format!("step-{step}")))?;
            payload.write(&mut file)?;
            if is_forced {
                file.sync_all()?;
                File::open(dir)?.sync_all()?;
            }
            Ok(begin.elapsed().as_secs_f64())
        })?;
        let end = Instant::now();
        sync_all(dir)?;
        let durable = Instant::now();
        (times.durable, times.after_end) = match is_forced {
            true => (times.saves.clone(), 0.0),
            false => (
                begins
                    .iter()
                    .map(|begin| durable.duration_since(*begin).as_secs_f64())
                    .collect(),
                durable.duration_since(end).as_secs_f64(),
            ),
        };
        Ok(times)
    }

    fn train_without(&self) -> Result<Times> {
        let without = Training {
            every: u64::MAX,
            ..*self
        };
        without.train(|_| Ok(0.0))
    }

    fn staged(&self, fast: &Path, slow: &Path) -> Result<Times> {
        let mut options = UploaderOptions::new(fast);
        options.keep_local = 0;
        let uploader = Uploader::open(options)?;
        let mut payload = Payload::new(self.bytes);
        let (send, receive) = mpsc::channel::<(Saved, Instant)>();
        let times = thread::scope(|scope| {
            let drained = scope.spawn(move || {
                let waited = receive
                    .iter()
                    .map(|(saved, begin)| match saved.wait_for(LONG) {
                        Some(Ok(())) => Ok(begin.elapsed().as_secs_f64()),
                        Some(Err(error)) => Err(Error::from(error.to_string())),
                        None => Err(Error::from("draining a checkpoint took over an hour")),
                    });
                waited.collect::<Result<Vec<f64>>>()
            });
            let times = self.train(|step| {
                let begin = Instant::now();
                let draft = uploader
                    .begin(self.bytes, LONG)?
                    .ok_or("there is no room for a checkpoint")?;
                payload.draft(&draft)?;
                let location = Location::from(slow.join(format!("step-{step}")).as_path());
                let saved =
                    uploader.save(draft, &Request::new(location, StoreOptions::default()))?;
                let took = begin.elapsed().as_secs_f64();
                // The receiver outlives the last save.
                let _ = send.send((saved, begin));
                Ok(took)
            });
            let end = Instant::now();
            drop(send);
            let durable = drained
                .join()
                .map_err(|_| "the thread that waits for draining panicked")??;
            let mut times = times?;
            (times.durable, times.after_end) = (durable, end.elapsed().as_secs_f64());
            Result::Ok(times)
        });
        uploader.close();
        times
    }
}

/// Waits until everything written to the file system of a directory is durable.
#[cfg(target_os = "linux")]
pub(super) fn sync_all(dir: &Path) -> Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

#[cfg(not(target_os = "linux"))]
pub(super) fn sync_all(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        File::open(entry?.path())?.sync_all()?;
    }
    Ok(())
}

/// Incompressible bytes of a checkpoint.
struct Payload {
    bytes: u64,
    piece: Vec<u8>,
    random: Random,
}

impl Payload {
    fn new(bytes: u64) -> Self {
        let mut piece = vec![0; PIECE.min(bytes as usize)];
        let mut random = Random::new(11);
        random.fill(&mut piece);
        Self {
            bytes,
            piece,
            random,
        }
    }

    fn write(&mut self, to: &mut impl Write) -> Result<()> {
        let mut left = self.bytes;
        while left > 0 {
            let len = left.min(self.piece.len() as u64) as usize;
            renew(&mut self.piece[..len], &mut self.random);
            to.write_all(&self.piece[..len])?;
            left -= len as u64;
        }
        Ok(())
    }

    fn draft(&mut self, draft: &Draft) -> Result<()> {
        let mut file = draft.create("weights")?;
        self.write(&mut file)?;
        Ok(draft.finish(file)?)
    }
}

impl Times {
    /// Returns a quantile of the seconds of a save; 0 without saves.
    pub(super) fn save(&self, part: f64) -> f64 {
        part_of(&self.saves, part)
    }

    /// Returns the figures of a run; the value is its seconds.
    pub(super) fn sample(&self) -> Sample {
        let saving: f64 = self.saves.iter().sum();
        let seconds = self.ran.seconds;
        let mut sample = Sample::new(
            seconds,
            self.bytes_read,
            [
                (
                    "p99 wait for a batch, ms",
                    1e3 * part_of(&self.ran.waits, 0.99),
                ),
                ("s waiting for batches", self.ran.waited()),
            ],
        );
        if !self.saves.is_empty() {
            let more = [
                ("s a save", self.save(0.5)),
                ("longest save, s", self.save(1.0)),
                ("s saving", saving),
                ("% of runtime saving", 100.0 * saving / seconds),
                ("s until durable", part_of(&self.durable, 0.5)),
                ("s until durable after the end", self.after_end),
            ];
            sample
                .more
                .extend(more.map(|(name, value)| (name.to_owned(), value)));
        }
        sample
    }
}

/// Returns the quantile `part` of the values by nearest rank; 0 without values.
fn part_of(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() as f64 * part).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_medium_stages_for_each_other() {
        assert_eq!(pairs(1), [(0, 0)]);
        assert_eq!(pairs(2), [(0, 1), (1, 0)]);
        assert_eq!(pairs(3).len(), 6);
    }

    #[test]
    fn quantiles_have_the_nearest_rank() {
        let values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(
            (
                part_of(&values, 0.5),
                part_of(&values, 1.0),
                part_of(&[], 0.5)
            ),
            (2.0, 4.0, 0.0)
        );
    }

    #[test]
    fn a_payload_has_its_length_and_differs_each_time() {
        let mut payload = Payload::new(10_000);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        payload.write(&mut first).unwrap();
        payload.write(&mut second).unwrap();
        assert_eq!((first.len(), second.len()), (10_000, 10_000));
        assert!(first[..4096] != second[..4096]);
    }
}
