//! Batches through queues: each resource serves one batch after the other, in the order in which they come.
//!
//! A GPU has `ahead` batches asked for or at hand. A batch is read from storage as far as no cache has it, decoded by all cores
//! of its server, sent, received; a step begins once every GPU of its training has a batch, and asks for the next ones.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::plan::{ClusterPlan, Limit, Placement, PlanError, Resource};
use crate::random::Random;

const GBIT: f64 = 1e9 / 8.0;

/// Nanoseconds since the beginning.
type Time = u64;

/// Seconds as time.
fn seconds(s: f64) -> Time {
    // Casting saturates, and no plan lasts centuries.
    (s * 1e9).round() as Time
}

/// How much of its time a resource works.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Use {
    /// Which.
    pub resource: Resource,
    /// Busy share over all machines that have the resource.
    pub mean: f64,
    /// Busy share of the busiest machine.
    pub most: f64,
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Images a second that the GPUs took.
    pub images_per_s: f64,
    /// The same as a part of what they would take.
    pub of_demand: f64,
    /// The part of its time that a GPU waits for data: the one in the middle.
    pub stall_p50: f64,
    /// The one that waits more than 99 of 100.
    pub stall_p99: f64,
    /// How long a step waits for its last batch, ms: the one in the middle.
    pub wait_ms_p50: f64,
    /// The one that waits longer than 99 of 100.
    pub wait_ms_p99: f64,
    /// From asking for a batch to having it, ms: the one in the middle.
    pub batch_ms_p50: f64,
    /// The one that takes longer than 99 of 100.
    pub batch_ms_p99: f64,
    /// Most streams of one server.
    pub most_streams: u64,
    /// Fewest streams of one server.
    pub fewest_streams: u64,
    /// How busy each resource was.
    pub uses: Vec<Use>,
    /// Capacity of each resource alone.
    pub limits: Vec<Limit>,
    /// The resource with the least capacity.
    pub first_limit: Limit,
}

/// Something that works at one batch at a time.
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
    /// Counts its deaths; what was asked of it before is gone.
    life: u32,
    is_up: bool,
    streams: u64,
}

struct Gpu {
    job: usize,
    trainer: usize,
    home: usize,
    server: usize,
    /// Batches at hand.
    ready: u64,
    /// Batches to be asked for again, once its server is another one.
    lost: u64,
}

struct Job {
    gpus: Vec<usize>,
    /// GPUs without a batch.
    missing: usize,
    /// Since when it waits; none while it computes.
    waits_since: Option<Time>,
    stalled: Time,
    /// A step that is partly within the window counts by that part.
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
    /// A batch comes to the next of its stages.
    At(Request, Stage),
    /// A training has computed a step.
    Computed(usize),
    Dies(usize),
    /// The streams of a dead server go on elsewhere.
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
    /// Events to come with their times, and numbers that order those of equal times.
    events: BinaryHeap<Reverse<(Time, u64, Event)>>,
    pushed: u64,
    random: Random,
    /// The measured window, from and to.
    window: (Time, Time),
    storage: Queue,
    servers: Vec<Server>,
    trainers: Vec<Queue>,
    gpus: Vec<Gpu>,
    jobs: Vec<Job>,
    /// Nanoseconds, of what ended within the window.
    waits: Vec<Time>,
    latencies: Vec<Time>,
}

/// Runs a plan.
///
/// # Errors
/// Returns an error for an invalid plan.
pub fn run(plan: &ClusterPlan) -> Result<Outcome, PlanError> {
    plan.check()?;
    let mut world = World::new(plan);
    world.run();
    Ok(world.outcome())
}

impl Queue {
    /// Serves a batch that comes now, after those before it. Gives when it is done.
    fn serve(&mut self, now: Time, takes: Time, window: (Time, Time)) -> Time {
        let begins = self.free.max(now);
        let ends = begins.saturating_add(takes);
        self.busy += within(begins, ends, window);
        self.free = ends;
        ends
    }
}

/// How much of a span is in the window.
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
                // A training has hosts of its own, as far as that goes.
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

    /// The part of a GPU's records that its server has to fetch. A server that stands in for another has none of them.
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
        // What has left the server arrives, whatever becomes of that.
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

    /// Begins the next step of a training, if all is there and it has computed the last one.
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
            // It was back before anybody left.
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

/// The value that this part of all is not above.
fn part(values: &mut [Time], part: f64) -> f64 {
    values.sort_unstable();
    let at = (values.len().saturating_sub(1) as f64 * part).round() as usize;
    values.get(at).map_or(0.0, |&value| value as f64)
}
