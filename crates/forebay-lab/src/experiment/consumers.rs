//! Consumers that stand in for accelerators, with input and without.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use forebay_image::{EvalTransform, Transform};
use forebay_shard::Split;

use super::feed::Feed;
use super::lab::{Lab, Sample, Trial};
use super::mini_app::SIDE;
use crate::random::Random;
use crate::{Result, Steps};

/// Name of the medium in figures that read nothing.
pub(super) const MEMORY: &str = "memory";

/// Returns a trial that measures the images per second of `ranks` consumers whose batches are in memory.
pub(super) fn no_input<'t>(lab: &Lab<'_>, ranks: u64) -> Trial<'t> {
    let batch = lab.options.batch_size;
    let (steps, limit) = (lab.options.consumer.steps(batch), lab.options.limit);
    let noun = if ranks == 1 { "consumer" } else { "consumers" };
    let run = move || {
        let (images, seconds) = consume(ranks, batch, &steps, limit);
        Ok(Sample::new(images as f64 / seconds, 0, []))
    };
    Trial::new(MEMORY, format!("{ranks} {noun}, no input"), "images/s", run).standing_in()
}

/// Runs the consumers. Returns the number of images that they took, and the seconds.
fn consume(ranks: u64, batch: u64, steps: &Steps, limit: Duration) -> (u64, f64) {
    let mut pixels = vec![0; (batch * u64::from(SIDE * SIDE) * 3) as usize];
    Random::new(1).fill(&mut pixels);
    let count = (limit.as_secs_f64() / steps.mean().as_secs_f64().max(1e-3))
        .ceil()
        .clamp(1.0, 1e6) as u64;
    let barrier = Barrier::new(ranks as usize);
    let begin = Instant::now();
    thread::scope(|scope| {
        for _ in 0..ranks {
            scope.spawn(|| {
                let mut own = vec![0; pixels.len()];
                for number in 0..count {
                    own.copy_from_slice(&pixels);
                    std::hint::black_box(&own);
                    thread::sleep(steps.at(number));
                    barrier.wait();
                }
            });
        }
    });
    (ranks * batch * count, begin.elapsed().as_secs_f64())
}

/// Runs the loader with all consumers. With 0 `threads`, the loader uses its default.
pub(super) fn feed(lab: &Lab<'_>, split: &Split, decode: bool, threads: usize) -> Result<Sample> {
    let options = lab.options;
    let transform = match decode {
        true => Transform::Eval(EvalTransform::new(SIDE, SIDE)),
        false => Transform::KeepEncoded,
    };
    let feed = Feed {
        threads,
        ranks: lab.most_ranks(),
        steps: options.consumer.steps(options.batch_size),
        ..Feed::new(split, transform, options.batch_size, options.limit)
    };
    let fed = feed.run()?;
    let per_core = fed.images as f64 / fed.stats.process_cpu_s.max(1e-9);
    let more = [
        ("MB/s", fed.bytes as f64 / 1e6 / fed.seconds),
        ("% of time waiting", 100.0 * fed.waited / fed.seconds),
        ("cores used", fed.cores()),
        ("images/s a core", per_core),
    ];
    Ok(Sample::new(fed.images_per_s(), fed.read, more))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_take_no_more_than_their_step_allows() {
        let (images, seconds) = consume(
            3,
            2,
            &Duration::from_millis(10).into(),
            Duration::from_millis(35),
        );
        assert_eq!(images, 3 * 2 * 4);
        assert!(seconds >= 0.04, "{seconds}");
    }
}
