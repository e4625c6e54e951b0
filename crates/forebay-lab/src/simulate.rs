//! Sizes a cluster: how many GPUs a number of servers can feed, and which resource is the first bottleneck.
//!
//! [`ClusterPlan`] describes the cluster. [`ClusterPlan::limits`] computes the images per second of each resource as if it were
//! the only limit. [`run`] moves single batches through queues, so it includes effects that the limits do not: uneven
//! placement, slow servers, servers that die, and steps that wait for the last of many batches. Its result depends on the plan
//! and its seed only, not on this machine.
//!
//! A GPU has `ahead` batches that are requested or ready. A batch is read from storage as far as no cache has it, decoded by
//! all cores of its server, sent, and received. A step starts once every GPU of its training has a batch, and requests the next
//! ones. Each resource processes one batch at a time, in the order of arrival.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use clap::{Args, ValueEnum};
use forebay_cli::frontend::quantity::{parse_duration, parse_size};
use serde::Serialize;

use crate::random::Random;

const GBIT: f64 = 1e9 / 8.0;

/// Assignment of streams to servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// The same number of streams on each server.
    Even,
    /// By a hash of the stream's name: some servers have more streams than others.
    Hash,
}

/// A cluster, as `forebay-lab size-cluster` takes it; docs/scale.md explains its parameters. All machines of a kind are alike,
/// apart from slow servers.
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct ClusterPlan {
    /// GPUs that train
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub gpus: u64,
    /// Images a second that a GPU takes when it never waits
    #[arg(long = "gpu-images", value_name = "N", default_value_t = 2500.0)]
    pub gpu_images_per_s: f64,
    /// Trainings that the GPUs are divided among; the GPUs of one take each step together
    #[arg(long = "trainings", value_name = "N", default_value_t = 1)]
    pub jobs: u64,
    /// GPUs of a host
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub gpus_per_trainer: u64,
    /// Network of such a host, Gbit/s
    #[arg(long, value_name = "GBIT", default_value_t = 100.0)]
    pub trainer_gbit: f64,
    /// Samples of a GPU's batch
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub batch_size: u64,
    /// Size of a sample as it is sent: 224 x 224 x 3 bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value_t = 224 * 224 * 3)]
    pub sample_bytes: u64,
    /// Size of a sample as it is stored
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "110kB")]
    pub record_bytes: u64,
    /// Batches that a GPU has asked for ahead
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub ahead: u64,
    /// Servers
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub servers: u64,
    /// Cores of a server
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub cores: u64,
    /// Images a second that a core decodes: `forebay bench loader` measures it
    #[arg(long = "core-images", value_name = "N", default_value_t = 1000.0)]
    pub core_images_per_s: f64,
    /// CPU time that sending a GB takes: `forebay-lab transport` measures it
    #[arg(long = "send-cpu", value_name = "TIME", value_parser = parse_seconds, default_value = "210ms")]
    pub send_s_per_gb: f64,
    /// Network of a server, Gbit/s in each direction
    #[arg(long, value_name = "GBIT", default_value_t = 100.0)]
    pub server_gbit: f64,
    /// Bytes a second of storage for all servers together: `forebay-lab store` measures it for one
    #[arg(long = "storage", value_name = "SIZE", value_parser = parse_gb, default_value = "100GB")]
    pub storage_gb_s: f64,
    /// Time to the first byte from storage
    #[arg(long = "storage-latency", value_name = "TIME", value_parser = parse_ms, default_value = "20ms")]
    pub storage_latency_ms: f64,
    /// Size of the dataset
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "150GB")]
    pub dataset_bytes: u64,
    /// Size of the warm cache of each server
    #[arg(long = "cache", value_name = "SIZE", value_parser = parse_size_or_none, default_value = "100GB")]
    pub cache_bytes: u64,
    /// How streams find servers: even or hash
    #[arg(
        long,
        value_name = "HOW",
        hide_possible_values = true,
        default_value = "even"
    )]
    pub placement: Placement,
    /// Servers that are slow
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub slow_servers: u64,
    /// How fast those are, as a part of the others
    #[arg(long, value_name = "PART", default_value_t = 0.5)]
    pub slow_factor: f64,
    /// Servers that die in the first half of the run
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub failures: u64,
    /// Time until the streams of a dead server continue elsewhere
    #[arg(long = "failover", value_name = "TIME", value_parser = parse_seconds, default_value = "2s")]
    pub failover_s: f64,
    /// Time until a dead server is back
    #[arg(long = "restart", value_name = "TIME", value_parser = parse_seconds, default_value = "30s")]
    pub restart_s: f64,
    /// How much longer or shorter a batch may take to decode than usual, as a part
    #[arg(long, value_name = "PART", default_value_t = 0.1)]
    pub jitter: f64,
    /// Simulated time
    #[arg(long = "duration", value_name = "TIME", value_parser = parse_seconds, default_value = "20s")]
    pub seconds: f64,
    /// Simulated time before that, which does not count
    #[arg(long = "warm-up", value_name = "TIME", value_parser = parse_seconds, default_value = "5s")]
    pub warm_up_s: f64,
    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

/// Parses a size in GB.
fn parse_gb(text: &str) -> Result<f64, String> {
    parse_size(text).map(|bytes| bytes as f64 / 1e9)
}

/// Parses a duration in seconds.
fn parse_seconds(text: &str) -> Result<f64, String> {
    parse_duration(text).map(|time| time.as_secs_f64())
}

/// Parses a duration in milliseconds.
fn parse_ms(text: &str) -> Result<f64, String> {
    parse_duration(text).map(|time| time.as_secs_f64() * 1e3)
}

/// Parses a size, which may be 0.
fn parse_size_or_none(text: &str) -> Result<u64, String> {
    match text.trim() {
        "0" => Ok(0),
        text => parse_size(text),
    }
}

/// An invalid plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {found}: expected {expected}")]
pub struct PlanError {
    /// Name of the option on the command line.
    pub name: &'static str,
    /// The invalid value.
    pub found: String,
    /// The valid values.
    pub expected: &'static str,
}

/// A resource that batches pass through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Reads from the storage.
    Storage,
    /// Bytes that servers receive.
    ServerIn,
    /// Cores of servers.
    Cores,
    /// Bytes that servers send.
    ServerOut,
    /// Bytes that trainers' hosts receive.
    TrainerIn,
    /// The GPUs themselves.
    Gpus,
}

impl Resource {
    /// Returns the name for reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Resource::Storage => "storage",
            Resource::ServerIn => "servers' network, in",
            Resource::Cores => "servers' cores",
            Resource::ServerOut => "servers' network, out",
            Resource::TrainerIn => "trainers' network",
            Resource::Gpus => "GPUs",
        }
    }
}

/// The throughput of a resource as if it were the only limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// The resource.
    pub resource: Resource,
    /// Images per second; infinite where the plan does not use the resource.
    pub images_per_s: f64,
}

impl ClusterPlan {
    /// Checks the plan.
    ///
    /// # Errors
    /// An option has an invalid value; the first one is returned.
    pub fn check(&self) -> Result<(), PlanError> {
        let wrong = |name, found: &dyn std::fmt::Display, expected| PlanError {
            name,
            found: found.to_string(),
            expected,
        };
        let counts: [(&'static str, u64, u64); 8] = [
            ("gpus", self.gpus, 1_000_000),
            ("trainings", self.jobs, self.gpus),
            ("gpus-per-trainer", self.gpus_per_trainer, 1_000_000),
            ("batch-size", self.batch_size, 1 << 24),
            ("sample-bytes", self.sample_bytes, 1 << 40),
            ("servers", self.servers, 1_000_000),
            ("cores", self.cores, 1_000_000),
            ("ahead", self.ahead, 10_000),
        ];
        for (name, value, most) in counts {
            if !(1..=most).contains(&value) {
                let expected = match name {
                    "trainings" => "1 to as many as there are GPUs",
                    _ => "at least 1, and no more than anybody has",
                };
                return Err(wrong(name, &value, expected));
            }
        }
        let positive = [
            ("gpu-images", self.gpu_images_per_s),
            ("core-images", self.core_images_per_s),
            ("trainer-gbit", self.trainer_gbit),
            ("server-gbit", self.server_gbit),
            ("storage", self.storage_gb_s),
            ("duration", self.seconds),
            ("slow-factor", self.slow_factor),
        ];
        for (name, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                return Err(wrong(name, &value, "a number above 0"));
            }
        }
        let others = [
            ("send-cpu", self.send_s_per_gb),
            ("storage-latency", self.storage_latency_ms),
            ("warm-up", self.warm_up_s),
            ("failover", self.failover_s),
            ("restart", self.restart_s),
        ];
        for (name, value) in others {
            if !(value.is_finite() && (0.0..=1e6).contains(&value)) {
                return Err(wrong(name, &value, "0 or more"));
            }
        }
        if !(0.0..1.0).contains(&self.jitter) {
            return Err(wrong("jitter", &self.jitter, "0 to 1"));
        }
        if self.slow_servers > self.servers {
            return Err(wrong(
                "slow-servers",
                &self.slow_servers,
                "no more than there are",
            ));
        }
        if self.failures >= self.servers && self.failures > 0 {
            return Err(wrong(
                "failures",
                &self.failures,
                "fewer than there are servers",
            ));
        }
        let batches = self.gpus as f64 * self.gpu_images_per_s / self.batch_size as f64
            * (self.seconds + self.warm_up_s);
        if batches > 20e6 {
            return Err(wrong(
                "duration",
                &self.seconds,
                "fewer seconds: that is more than 20 million batches, which takes minutes",
            ));
        }
        Ok(())
    }

    /// Returns the images per second that the GPUs take if they never wait.
    #[must_use]
    pub fn demand(&self) -> f64 {
        self.gpus as f64 * self.gpu_images_per_s
    }

    /// Returns the size of a batch as it is sent, in bytes.
    #[must_use]
    pub fn batch_bytes(&self) -> f64 {
        self.batch_size as f64 * self.sample_bytes as f64
    }

    /// Returns the fraction of reads that miss the caches. Each server reads its own part of the dataset, again in every epoch.
    #[must_use]
    pub fn misses(&self) -> f64 {
        let cached = self.servers as f64 * self.cache_bytes as f64;
        (1.0 - cached / (self.dataset_bytes as f64).max(1.0)).max(0.0)
    }

    /// Returns the number of servers, of which a slow one counts as a fraction.
    fn whole_servers(&self) -> f64 {
        let slow = self.slow_servers as f64;
        self.servers as f64 - slow + slow * self.slow_factor
    }

    /// Returns the core seconds of decoding and sending an image.
    fn core_s_per_image(&self) -> f64 {
        1.0 / self.core_images_per_s + self.sample_bytes as f64 / 1e9 * self.send_s_per_gb
    }

    fn trainers(&self) -> u64 {
        self.gpus.div_ceil(self.gpus_per_trainer)
    }

    /// Returns the capacity of each resource with evenly spread work. The GPUs come last.
    #[must_use]
    pub fn limits(&self) -> [Limit; 6] {
        let read = self.record_bytes as f64 * self.misses();
        let per = |bytes_per_s: f64, bytes: f64| match bytes > 0.0 {
            true => bytes_per_s / bytes,
            false => f64::INFINITY,
        };
        let servers = self.whole_servers();
        let network = servers * self.server_gbit * GBIT;
        let sample = self.sample_bytes as f64;
        [
            (Resource::Storage, per(self.storage_gb_s * 1e9, read)),
            (Resource::ServerIn, per(network, read)),
            (
                Resource::Cores,
                servers * self.cores as f64 / self.core_s_per_image(),
            ),
            (Resource::ServerOut, per(network, sample)),
            (
                Resource::TrainerIn,
                per(self.trainers() as f64 * self.trainer_gbit * GBIT, sample),
            ),
            (Resource::Gpus, self.demand()),
        ]
        .map(|(resource, images_per_s)| Limit {
            resource,
            images_per_s,
        })
    }

    /// Returns the resource with the least capacity.
    #[must_use]
    pub fn first_limit(&self) -> Limit {
        let slower = |a: Limit, b: Limit| {
            if b.images_per_s < a.images_per_s {
                b
            } else {
                a
            }
        };
        let limits = self.limits();
        limits.iter().copied().fold(limits[0], slower)
    }
}

/// Nanoseconds since the beginning.
type Time = u64;

/// Converts seconds to a time.
fn seconds(s: f64) -> Time {
    // Casting saturates, and no plan lasts centuries.
    (s * 1e9).round() as Time
}

/// Utilization of a resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Use {
    /// The resource.
    pub resource: Resource,
    /// Busy share over all machines that have the resource.
    pub mean: f64,
    /// Busy share of the busiest machine.
    pub most: f64,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Images per second that the GPUs took.
    pub images_per_s: f64,
    /// The same as a fraction of the demand.
    pub of_demand: f64,
    /// Fraction of its time that a GPU waits for data: the median over all GPUs.
    pub stall_p50: f64,
    /// The 99th percentile of this fraction.
    pub stall_p99: f64,
    /// Time that a step waits for its last batch, ms: the median.
    pub wait_ms_p50: f64,
    /// The 99th percentile of this time.
    pub wait_ms_p99: f64,
    /// Time from requesting a batch until it arrives, ms: the median.
    pub batch_ms_p50: f64,
    /// The 99th percentile of this time.
    pub batch_ms_p99: f64,
    /// Largest number of streams on a server.
    pub most_streams: u64,
    /// Smallest number of streams on a server.
    pub fewest_streams: u64,
    /// Utilization of each resource.
    pub uses: Vec<Use>,
    /// Capacity of each resource alone.
    pub limits: Vec<Limit>,
    /// The resource with the least capacity.
    pub first_limit: Limit,
}

/// A resource that processes one batch at a time.
#[derive(Clone, Default)]
struct Queue {
    free: Time,
    busy: Time,
}

#[derive(Clone)]
struct Server {
    reads: Queue,
    cores: Queue,
    sends: Queue,
    /// Speed factor of cores and network.
    speed: f64,
    /// Number of its deaths. Requests from before the last one are lost.
    life: u32,
    is_up: bool,
    streams: u64,
}

struct Gpu {
    job: usize,
    trainer: usize,
    home: usize,
    server: usize,
    /// Number of batches that are ready for steps.
    ready: u64,
    /// Number of lost batches that are requested again once the GPU has a live server.
    lost: u64,
}

struct Job {
    gpus: Vec<usize>,
    /// Number of GPUs without a batch.
    missing: usize,
    /// Time since which the training waits; `None` while it computes.
    waits_since: Option<Time>,
    stalled: Time,
    /// Images of the steps in the window. A step that is partly in the window counts by that fraction.
    images: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    gpu: usize,
    server: usize,
    life: u32,
    asked: Time,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A batch arrives at its next stage.
    At(Request, Stage),
    /// A training has computed a step.
    Computed(usize),
    Dies(usize),
    /// The streams of a dead server move to other servers.
    Moves(usize),
    Back(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Storage,
    ServerIn,
    Cores,
    ServerOut,
    TrainerIn,
    Ready,
}

struct World<'a> {
    plan: &'a ClusterPlan,
    /// Future events with their times, and sequence numbers that order events of the same time.
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pushed: u64,
    random: Random,
    /// Start and end of the measured window.
    window: (Time, Time),
    storage: Queue,
    servers: Vec<Server>,
    trainers: Vec<Queue>,
    gpus: Vec<Gpu>,
    jobs: Vec<Job>,
    /// Waits of steps and times of batches after the warm-up, in nanoseconds.
    waits: Vec<Time>,
    latencies: Vec<Time>,
}

/// Simulates a plan.
///
/// # Errors
/// The plan is invalid.
pub fn run(plan: &ClusterPlan) -> Result<Outcome, PlanError> {
    plan.check()?;
    let mut world = World::new(plan);
    world.run();
    Ok(world.outcome())
}

impl Queue {
    /// Queues a batch that arrives at `now` and needs the time `takes`. Returns when it is done.
    fn serve(&mut self, now: Time, takes: Time, window: (Time, Time)) -> Time {
        let begins = self.free.max(now);
        let ends = begins.saturating_add(takes);
        self.busy += within(begins, ends, window);
        self.free = ends;
        ends
    }
}

/// Returns how much of a time span is in the window.
fn within(from: Time, to: Time, window: (Time, Time)) -> Time {
    to.min(window.1).saturating_sub(from.max(window.0))
}

impl<'a> World<'a> {
    fn new(plan: &'a ClusterPlan) -> Self {
        let mut random = Random::new(plan.seed);
        let count = plan.servers as usize;
        let mut order: Vec<usize> = (0..count).collect();
        random.shuffle(&mut order);
        let mut servers = vec![
            Server {
                reads: Queue::default(),
                cores: Queue::default(),
                sends: Queue::default(),
                speed: 1.0,
                life: 0,
                is_up: true,
                streams: 0,
            };
            count
        ];
        for &slow in &order[..plan.slow_servers as usize] {
            servers[slow].speed = plan.slow_factor;
        }
        let mut jobs: Vec<Job> = (0..plan.jobs)
            .map(|_| Job {
                gpus: Vec::new(),
                missing: 0,
                waits_since: Some(0),
                stalled: 0,
                images: 0.0,
            })
            .collect();
        let gpus: Vec<Gpu> = (0..plan.gpus)
            .map(|gpu| {
                let home = match plan.placement {
                    Placement::Even => (gpu % plan.servers) as usize,
                    Placement::Hash => random.below(plan.servers) as usize,
                };
                servers[home].streams += 1;
                // Neighboring GPUs belong to the same training, so that few trainings share a host.
                let job =
                    (u128::from(gpu) * u128::from(plan.jobs) / u128::from(plan.gpus)) as usize;
                jobs[job].gpus.push(gpu as usize);
                jobs[job].missing += 1;
                Gpu {
                    job,
                    trainer: (gpu / plan.gpus_per_trainer) as usize,
                    home,
                    server: home,
                    ready: 0,
                    lost: 0,
                }
            })
            .collect();
        let begin = seconds(plan.warm_up_s);
        let window = (begin, begin + seconds(plan.seconds));
        let mut world = World {
            plan,
            events: BinaryHeap::new(),
            pushed: 0,
            random,
            window,
            storage: Queue::default(),
            servers,
            trainers: vec![Queue::default(); plan.trainers() as usize],
            gpus,
            jobs,
            waits: Vec::new(),
            latencies: Vec::new(),
        };
        for &dying in order.iter().rev().take(plan.failures as usize) {
            let at = plan.warm_up_s + world.random.unit() * plan.seconds / 2.0;
            world.push(seconds(at), Event::Dies(dying));
        }
        world
    }

    fn push(&mut self, at: Time, event: Event) {
        self.pushed += 1;
        self.events.push(Reverse((at, self.pushed, event)));
    }

    fn run(&mut self) {
        for _ in 0..self.plan.ahead {
            for gpu in 0..self.gpus.len() {
                self.ask(gpu, 0);
            }
        }
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= self.window.1 {
                break;
            }
            match event {
                Event::At(request, stage) => self.at(now, request, stage),
                Event::Computed(job) => {
                    self.jobs[job].waits_since = Some(now);
                    self.step(now, job);
                }
                Event::Dies(server) => {
                    self.servers[server].is_up = false;
                    self.servers[server].life += 1;
                    let moves = now + seconds(self.plan.failover_s);
                    self.push(moves, Event::Moves(server));
                    let back = now + seconds(self.plan.restart_s);
                    self.push(back, Event::Back(server));
                }
                Event::Moves(server) => self.move_from(now, server),
                Event::Back(server) => self.back(now, server),
            }
        }
    }

    fn ask(&mut self, gpu: usize, now: Time) {
        let server = self.gpus[gpu].server;
        let Server { is_up, life, .. } = self.servers[server];
        if !is_up {
            self.gpus[gpu].lost += 1;
            return;
        }
        let request = Request {
            gpu,
            server,
            life,
            asked: now,
        };
        let stage = match self.misses(gpu) > 0.0 {
            true => Stage::Storage,
            false => Stage::Cores,
        };
        self.push(now, Event::At(request, stage));
    }

    /// Returns the fraction of a GPU's records that its server fetches. A server that replaces another has none of them in its
    /// cache.
    fn misses(&self, gpu: usize) -> f64 {
        let Gpu { home, server, .. } = self.gpus[gpu];
        match home == server {
            true => self.plan.misses(),
            false => 1.0,
        }
    }

    fn at(&mut self, now: Time, request: Request, stage: Stage) {
        let plan = self.plan;
        let server = request.server;
        // A batch that has left the server arrives even if the server dies.
        let is_at_server = matches!(
            stage,
            Stage::Storage | Stage::ServerIn | Stage::Cores | Stage::ServerOut
        );
        if is_at_server && self.servers[server].life != request.life {
            if self.gpus[request.gpu].server == server && !self.servers[server].is_up {
                self.gpus[request.gpu].lost += 1;
            } else {
                self.ask(request.gpu, now);
            }
            return;
        }
        let read = plan.batch_size as f64 * plan.record_bytes as f64 * self.misses(request.gpu);
        let speed = self.servers[server].speed;
        let network = plan.server_gbit * GBIT * speed;
        let window = self.window;
        let (done, next) = match stage {
            Stage::Storage => {
                let takes = seconds(read / (plan.storage_gb_s * 1e9));
                let latency = seconds(plan.storage_latency_ms / 1e3);
                let done = self.storage.serve(now, takes, window);
                (done + latency, Stage::ServerIn)
            }
            Stage::ServerIn => {
                let takes = seconds(read / network);
                let reads = &mut self.servers[server].reads;
                (reads.serve(now, takes, window), Stage::Cores)
            }
            Stage::Cores => {
                let varies = 1.0 + plan.jitter * (2.0 * self.random.unit() - 1.0);
                let takes = plan.batch_size as f64 * plan.core_s_per_image() * varies;
                let takes = seconds(takes / (plan.cores as f64 * speed));
                let cores = &mut self.servers[server].cores;
                (cores.serve(now, takes, window), Stage::ServerOut)
            }
            Stage::ServerOut => {
                let takes = seconds(plan.batch_bytes() / network);
                let sends = &mut self.servers[server].sends;
                (sends.serve(now, takes, window), Stage::TrainerIn)
            }
            Stage::TrainerIn => {
                let takes = seconds(plan.batch_bytes() / (plan.trainer_gbit * GBIT));
                let trainer = &mut self.trainers[self.gpus[request.gpu].trainer];
                (trainer.serve(now, takes, window), Stage::Ready)
            }
            Stage::Ready => return self.ready(now, request),
        };
        self.push(done, Event::At(request, next));
    }

    fn ready(&mut self, now: Time, request: Request) {
        if now >= self.window.0 {
            self.latencies.push(now - request.asked);
        }
        let gpu = &mut self.gpus[request.gpu];
        gpu.ready += 1;
        if gpu.ready == 1 {
            let job = gpu.job;
            self.jobs[job].missing -= 1;
            self.step(now, job);
        }
    }

    /// Starts the next step of a training if each of its GPUs has a batch and the last step is computed.
    fn step(&mut self, now: Time, job: usize) {
        let Some(since) = self.jobs[job].waits_since else {
            return;
        };
        if self.jobs[job].missing > 0 {
            return;
        }
        let gpus = std::mem::take(&mut self.jobs[job].gpus);
        let state = &mut self.jobs[job];
        state.waits_since = None;
        state.stalled += within(since, now, self.window);
        if now >= self.window.0 {
            self.waits.push(now - since);
        }
        let computes = seconds(self.plan.batch_size as f64 / self.plan.gpu_images_per_s);
        let done = now.saturating_add(computes);
        let counts = within(now, done, self.window) as f64 / computes.max(1) as f64;
        state.images += counts * gpus.len() as f64 * self.plan.batch_size as f64;
        for &gpu in &gpus {
            self.gpus[gpu].ready -= 1;
            if self.gpus[gpu].ready == 0 {
                self.jobs[job].missing += 1;
            }
            self.ask(gpu, now);
        }
        self.jobs[job].gpus = gpus;
        self.push(done, Event::Computed(job));
    }

    fn move_from(&mut self, now: Time, dead: usize) {
        if self.servers[dead].is_up {
            // The server is up again before its streams moved.
            return self.ask_lost(now, dead);
        }
        for gpu in 0..self.gpus.len() {
            if self.gpus[gpu].server != dead {
                continue;
            }
            let up = (0..self.servers.len()).filter(|&server| self.servers[server].is_up);
            let to = match self.plan.placement {
                Placement::Even => up.min_by_key(|&server| self.servers[server].streams),
                Placement::Hash => {
                    let up: Vec<usize> = up.collect();
                    (!up.is_empty()).then(|| up[self.random.below(up.len() as u64) as usize])
                }
            };
            // If all servers are down, the stream waits for the first one that returns.
            let Some(to) = to else { return };
            self.assign(gpu, to);
            self.ask_again(now, gpu);
        }
    }

    fn back(&mut self, now: Time, server: usize) {
        self.servers[server].is_up = true;
        for gpu in 0..self.gpus.len() {
            if self.gpus[gpu].home == server && self.gpus[gpu].server != server {
                self.assign(gpu, server);
            }
        }
        self.ask_lost(now, server);
    }

    fn assign(&mut self, gpu: usize, to: usize) {
        let from = self.gpus[gpu].server;
        self.servers[from].streams -= 1;
        self.servers[to].streams += 1;
        self.gpus[gpu].server = to;
    }

    fn ask_lost(&mut self, now: Time, server: usize) {
        for gpu in 0..self.gpus.len() {
            if self.gpus[gpu].server == server {
                self.ask_again(now, gpu);
            }
        }
    }

    fn ask_again(&mut self, now: Time, gpu: usize) {
        for _ in 0..std::mem::take(&mut self.gpus[gpu].lost) {
            self.ask(gpu, now);
        }
    }

    fn outcome(mut self) -> Outcome {
        let plan = self.plan;
        let window = self.window;
        let span = (window.1 - window.0) as f64;
        for job in &mut self.jobs {
            if let Some(since) = job.waits_since {
                job.stalled += within(since, window.1, window);
            }
        }
        let images: f64 = self.jobs.iter().map(|job| job.images).sum();
        let images_per_s = images / plan.seconds;
        let mut stalls: Vec<Time> = self
            .jobs
            .iter()
            .flat_map(|job| std::iter::repeat_n(job.stalled, job.gpus.len()))
            .collect();
        let stalled: f64 = stalls.iter().map(|&s| s as f64).sum::<f64>() / stalls.len() as f64;
        let servers = |pick: fn(&Server) -> &Queue| {
            self.servers
                .iter()
                .map(|s| pick(s).busy)
                .collect::<Vec<_>>()
        };
        let busy = [
            (Resource::Storage, vec![self.storage.busy]),
            (Resource::ServerIn, servers(|s| &s.reads)),
            (Resource::Cores, servers(|s| &s.cores)),
            (Resource::ServerOut, servers(|s| &s.sends)),
            (
                Resource::TrainerIn,
                self.trainers.iter().map(|queue| queue.busy).collect(),
            ),
        ];
        let mut uses: Vec<Use> = busy
            .into_iter()
            .map(|(resource, busy)| Use {
                resource,
                mean: busy.iter().map(|&b| b as f64).sum::<f64>() / busy.len() as f64 / span,
                most: busy.iter().copied().max().unwrap_or(0) as f64 / span,
            })
            .collect();
        let least = stalls.iter().copied().min().unwrap_or(0) as f64;
        uses.push(Use {
            resource: Resource::Gpus,
            mean: 1.0 - stalled / span,
            most: 1.0 - least / span,
        });
        let streams = || self.servers.iter().map(|server| server.streams);
        Outcome {
            images_per_s,
            of_demand: images_per_s / plan.demand(),
            stall_p50: part(&mut stalls, 0.5) / span,
            stall_p99: part(&mut stalls, 0.99) / span,
            wait_ms_p50: part(&mut self.waits, 0.5) / 1e6,
            wait_ms_p99: part(&mut self.waits, 0.99) / 1e6,
            batch_ms_p50: part(&mut self.latencies, 0.5) / 1e6,
            batch_ms_p99: part(&mut self.latencies, 0.99) / 1e6,
            most_streams: streams().max().unwrap_or(0),
            fewest_streams: streams().min().unwrap_or(0),
            uses,
            limits: plan.limits().into(),
            first_limit: plan.first_limit(),
        }
    }
}

/// Returns the quantile `part` of the values; 0 without values.
fn part(values: &mut [Time], part: f64) -> f64 {
    values.sort_unstable();
    let at = (values.len().saturating_sub(1) as f64 * part).round() as usize;
    values.get(at).map_or(0.0, |&value| value as f64)
}

/// The effect of one more of a resource.
#[derive(Debug, Clone, Serialize)]
pub struct OneMore {
    /// The resource, in words.
    pub what: String,
    /// Images per second with it.
    pub images_per_s: f64,
    /// Gain over the images per second without it, as a fraction.
    pub gain: f64,
    /// Median fraction of time that a GPU waits for data, with it.
    pub stall_p50: f64,
}

/// A resource, and how the plan gets one more of it.
type Change = (&'static str, fn(&mut ClusterPlan));

/// Runs the plan again with one more of each resource in turn. `base` is the outcome without.
///
/// # Errors
/// The same as [`run`].
pub fn one_more(plan: &ClusterPlan, base: &Outcome) -> Result<Vec<OneMore>, PlanError> {
    let changes: [Change; 6] = [
        ("server", |plan| plan.servers += 1),
        ("core in each server", |plan| plan.cores += 1),
        ("Gbit/s for each server", |plan| plan.server_gbit += 1.0),
        ("Gbit/s for each trainer", |plan| plan.trainer_gbit += 1.0),
        ("GB/s of storage", |plan| plan.storage_gb_s += 1.0),
        ("batch ahead for each GPU", |plan| plan.ahead += 1),
    ];
    changes
        .into_iter()
        .map(|(what, change)| {
            let mut plan = plan.clone();
            change(&mut plan);
            let outcome = run(&plan)?;
            Ok(OneMore {
                what: format!("one more {what}"),
                images_per_s: outcome.images_per_s,
                gain: outcome.images_per_s / base.images_per_s.max(f64::MIN_POSITIVE) - 1.0,
                stall_p50: outcome.stall_p50,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests;
