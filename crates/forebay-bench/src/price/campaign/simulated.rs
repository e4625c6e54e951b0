//! Pipelines whose times are drawn from a seed: batches move through bounded queues one by one.

use forebay_loader::{MachineCpu, Network, RankPace, StageStats, Stats, Straggler};

use super::Outcome;
use crate::price::{Cores, Gain, StageTimes};
use crate::random::Random;

const BATCHES: usize = 400;
const BATCH: f64 = 32.0;
/// Batches between two stages, beside those in decode threads.
const QUEUE: usize = 4;

/// A pipeline of readers, decode threads and a consumer.
#[derive(Debug, Clone, Copy)]
struct Pipeline {
    times: StageTimes,
    cores: Cores,
    /// Fraction of the CPU time that others take from the decode threads.
    stolen: f64,
    /// Seconds of the consumer's loop that hand a batch over.
    handover_s: f64,
    /// Seconds that sending a batch takes; 0 in process.
    send_s: f64,
}

impl Pipeline {
    /// Runs it; returns its counters, without the first quarter, and images per second.
    fn run(&self, random: &mut Random) -> (Stats, f64) {
        // Times of a stage vary by a third in each direction.
        let mut vary = || 1.0 + (random.below(2001) as f64 / 1000.0 - 1.0) / 3.0;
        let threads = self.cores.threads.min(self.cores.cores).max(1.0) as usize;
        let decode_s = (self.times.decode_cpu_s + self.times.transform_cpu_s) * BATCH;
        let wall_decode_s = decode_s / (1.0 - self.stolen);
        let mut free = vec![0.0f64; threads];
        let (mut disk, mut sender, mut consumer) = (0.0f64, 0.0f64, 0.0f64);
        let (mut read, mut decoded, mut sent, mut taken) = (vec![], vec![], vec![], vec![]);
        let mut sums = [0.0f64; 8];
        let begin = BATCHES / 4;
        let mut from = 0.0;
        for batch in 0..BATCHES {
            let counts = f64::from(u8::from(batch >= begin));
            if batch == begin {
                from = consumer;
            }
            // A stage begins when its thread is free, its input is there, and its output has room.
            let queue = QUEUE + threads;
            let room = |done: &Vec<f64>| batch.checked_sub(queue).map_or(0.0, |at| done[at]);
            let start = disk.max(room(&decoded));
            disk = start + self.times.storage_s * BATCH * vary();
            read.push(disk);
            let (thread, &ready) = free
                .iter()
                .enumerate()
                .min_by(|a, b| a.1.total_cmp(b.1))
                .expect("a thread");
            let fed = ready.max(read[batch]);
            let start = fed.max(room(&taken));
            let work = wall_decode_s * vary();
            sums[0] += counts * work;
            sums[1] += counts * (fed - ready);
            sums[2] += counts * (start - fed);
            free[thread] = start + work;
            decoded.push(start + work);
            let arrived = sender.max(decoded[batch]);
            sums[3] += counts * (arrived - sender).max(0.0);
            let sending = self.send_s * vary();
            sums[4] += counts * sending;
            sender = arrived + sending;
            // A credit of the consumer.
            sent.push(sender.max(room(&taken)));
            sender = sent[batch];
            let got = consumer.max(sent[batch]);
            sums[5] += counts * (got - consumer);
            let (step, handover) = (
                self.times.consumer_s * BATCH * vary(),
                self.handover_s * vary(),
            );
            sums[6] += counts * (step + handover);
            sums[7] += counts * handover;
            consumer = got + step + handover;
            taken.push(consumer);
        }
        let wall_s = consumer - from;
        let images = (BATCHES - begin) as f64 * BATCH;
        (self.stats(&sums, wall_s, threads), images / wall_s)
    }

    fn stats(&self, sums: &[f64; 8], wall_s: f64, threads: usize) -> Stats {
        let stage = |name, threads, busy_s, starved_s, blocked_s| StageStats {
            name,
            threads,
            busy_s,
            starved_s,
            blocked_s,
        };
        let decode_cpu_s = sums[0] * (1.0 - self.stolen);
        let images = (BATCHES - BATCHES / 4) as u64 * BATCH as u64;
        let process_cpu_s = decode_cpu_s + self.times.fetch_cpu_s * images as f64;
        Stats {
            wall_s,
            fetch: stage("fetch", 1, wall_s / 2.0, 0.0, wall_s / 2.0),
            decode: stage("decode", threads, 0.7 * sums[0], sums[1], sums[2]),
            transform: stage("transform", threads, 0.3 * sums[0], 0.0, 0.0),
            trainer: stage("trainer", 1, sums[6], sums[5], 0.0),
            images,
            batches: images / BATCH as u64,
            bytes_read: images * 100_000,
            cores: self.cores.cores as usize,
            decode_cpu_s,
            process_cpu_s,
            machine: MachineCpu {
                busy_s: process_cpu_s + sums[0] * self.stolen,
                ..MachineCpu::default()
            },
            handover_s: sums[7],
            network: (self.send_s > 0.0).then(|| Network {
                sending: sums[4] / (sums[3] + sums[4]).max(f64::MIN_POSITIVE),
                waiting: sums[3] / (sums[3] + sums[4]).max(f64::MIN_POSITIVE),
                bytes_per_s: 1e8,
            }),
            ..Stats::default()
        }
    }
}

/// A pipeline in which one thing limits by a factor of 1.3 at least.
fn limited_by(bound: &str, random: &mut Random) -> Pipeline {
    let mut between = |low: f64, high: f64| low + (high - low) * random.below(1000) as f64 / 1e3;
    let cores = Cores {
        cores: between(1.0, 9.0).floor(),
        threads: 16.0,
    };
    let threads = cores.cores;
    // Seconds of an image where it limits, and everywhere else.
    let slow = between(0.001, 0.01);
    let mut rest = || slow / between(1.4, 8.0);
    let mut times = StageTimes {
        storage_s: rest(),
        decode_cpu_s: rest() * threads * 0.7,
        transform_cpu_s: 0.0,
        consumer_s: rest(),
        ..StageTimes::default()
    };
    times.transform_cpu_s = times.decode_cpu_s * 0.3 / 0.7;
    let (mut stolen, mut handover_s, mut send_s) = (0.0, 0.0, 0.0);
    match bound {
        "storage" => times.storage_s = slow,
        "decode" => {
            times.decode_cpu_s = slow * threads * 0.7;
            times.transform_cpu_s = slow * threads * 0.3;
        }
        "neighbor" => {
            stolen = 0.5;
            times.decode_cpu_s = slow * threads * 0.35;
            times.transform_cpu_s = slow * threads * 0.15;
        }
        "trainer" => times.consumer_s = slow,
        "handover" => {
            handover_s = slow * BATCH;
            times.consumer_s = 0.3 * slow;
        }
        "network" => send_s = slow * BATCH,
        other => panic!("unknown bottleneck {other}"),
    }
    Pipeline {
        times,
        cores,
        stolen,
        handover_s,
        send_s,
    }
}

/// Times as a measurement finds them: 3 % off in each direction.
fn noisy(times: StageTimes, random: &mut Random) -> StageTimes {
    let mut vary = |value: f64| value * (1.0 + (random.below(2001) as f64 / 1000.0 - 1.0) * 0.03);
    StageTimes {
        storage_s: vary(times.storage_s),
        fetch_cpu_s: vary(times.fetch_cpu_s),
        decode_cpu_s: vary(times.decode_cpu_s),
        transform_cpu_s: vary(times.transform_cpu_s),
        consumer_s: vary(times.consumer_s),
        ..times
    }
}

/// A change of one of the times or of the cores.
fn remedy(pipeline: &Pipeline, random: &mut Random) -> Pipeline {
    let factor = 0.2 + random.below(800) as f64 / 1e3;
    let mut after = *pipeline;
    match random.below(4) {
        0 => after.times.storage_s *= factor,
        1 => {
            after.times.decode_cpu_s *= factor;
            after.times.transform_cpu_s *= factor;
        }
        2 => after.cores.cores *= 2.0,
        _ => after.times.consumer_s *= factor,
    }
    after
}

const BOUNDS: [&str; 6] = [
    "storage", "decode", "neighbor", "trainer", "handover", "network",
];

fn bottlenecks(each: u64, seed: u64, outcome: &mut Outcome) {
    let mut random = Random::new(seed);
    for bound in BOUNDS {
        for _ in 0..each {
            let pipeline = limited_by(bound, &mut random);
            let found = pipeline.run(&mut random).0.bottleneck().bound;
            outcome.found(bound, found.name());
        }
    }
}

fn gains(each: u64, seed: u64, outcome: &mut Outcome) {
    let mut random = Random::new(seed);
    for bound in ["storage", "decode", "trainer"] {
        for _ in 0..each {
            let before = limited_by(bound, &mut random);
            let after = remedy(&before, &mut random);
            let rounds: Vec<_> = (0..3)
                .map(|_| {
                    let change = |pipeline: &Pipeline, random: &mut Random| {
                        (noisy(pipeline.times, random), pipeline.cores)
                    };
                    [change(&before, &mut random), change(&after, &mut random)]
                })
                .collect();
            let gained = after.run(&mut random).1 / before.run(&mut random).1;
            outcome.gained(&Gain::predict(&rounds), gained);
        }
    }
}

/// Jobs of 2 to 9 ranks, with a straggler in half of them.
fn stragglers(count: u64, seed: u64, outcome: &mut Outcome) {
    let mut random = Random::new(seed);
    for job in 0..count {
        let world = 2 + random.below(8);
        let slow = (job % 2 == 0).then(|| random.below(world));
        let synchronizes = random.below(2) == 0;
        let paces: Vec<RankPace> = (0..world)
            .map(|rank| {
                let is_slow = slow == Some(rank);
                let batches = match is_slow && !synchronizes {
                    true => 20 + random.below(8),
                    false => 38 + random.below(5),
                };
                let waits = match is_slow && synchronizes {
                    true => 0.2 + random.below(600) as f64 / 1e3,
                    false => random.below(40) as f64 / 1e3,
                };
                RankPace {
                    rank,
                    seconds: 10.0,
                    images: 64 * batches,
                    batches,
                    waits,
                }
            })
            .collect();
        let found = Straggler::find(&paces).map(|found| found.rank);
        outcome.found(&format!("{slow:?}"), &format!("{found:?}"));
    }
}

#[test]
fn bottlenecks_and_gains_of_simulated_pipelines_are_right() {
    let mut outcome = Outcome::default();
    bottlenecks(40, 1, &mut outcome);
    stragglers(60, 2, &mut outcome);
    gains(60, 3, &mut outcome);
    outcome.check_bottlenecks();
    outcome.check_gains();
}
