//! The machines of a plan, and the capacity of each kind alone.

use serde::Serialize;

/// How streams find their servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// As many streams on each server as on any other.
    Even,
    /// By a hash of the stream's name: some servers have more than others.
    Hash,
}

impl std::str::FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "even" => Ok(Placement::Even),
            "hash" => Ok(Placement::Hash),
            other => Err(format!("{other:?} is not known: even, hash")),
        }
    }
}

/// A cluster. All machines of a kind are alike, apart from slow servers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ClusterPlan {
    /// GPUs that train.
    pub gpus: u64,
    /// Images a second that one GPU takes when it never waits.
    pub gpu_images_per_s: f64,
    /// Trainings that the GPUs are divided among; the GPUs of one take each step together.
    pub jobs: u64,
    /// GPUs of a host: they share its network.
    pub gpus_per_trainer: u64,
    /// Network of a trainer's host, Gbit/s.
    pub trainer_gbit: f64,
    /// Samples of a batch of one GPU.
    pub batch_size: u64,
    /// Bytes of a sample as it is sent.
    pub sample_bytes: u64,
    /// Bytes of a sample as it is stored.
    pub record_bytes: u64,
    /// Batches that each GPU has asked for ahead.
    pub ahead: u64,
    /// Servers.
    pub servers: u64,
    /// Cores of a server that decode and send.
    pub cores: u64,
    /// Images a second that a core decodes.
    pub core_images_per_s: f64,
    /// Core seconds that sending a GB takes.
    pub send_s_per_gb: f64,
    /// Network of a server, Gbit/s in each direction.
    pub server_gbit: f64,
    /// Throughput of the storage for all servers together, GB/s.
    pub storage_gb_s: f64,
    /// How long a read of storage waits for its first byte, ms.
    pub storage_latency_ms: f64,
    /// Bytes of the dataset.
    pub dataset_bytes: u64,
    /// Bytes that each server's cache holds; it is warm.
    pub cache_bytes: u64,
    /// How streams find servers.
    pub placement: Placement,
    /// Servers that are slow.
    pub slow_servers: u64,
    /// How fast their cores and networks are, as a part of the others'.
    pub slow_factor: f64,
    /// Servers that die in the first half of what counts, each once.
    pub failures: u64,
    /// Seconds until the streams of a dead server go on elsewhere.
    pub failover_s: f64,
    /// Seconds until a dead server is back.
    pub restart_s: f64,
    /// How much longer or shorter a batch may take to decode than usual, as a part.
    pub jitter: f64,
    /// Simulated seconds that count.
    pub seconds: f64,
    /// Simulated seconds before.
    pub warm_up_s: f64,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for ClusterPlan {
    /// A thousand GPUs, a hundred servers.
    fn default() -> Self {
        ClusterPlan {
            gpus: 1000,
            gpu_images_per_s: 2500.0,
            jobs: 1,
            gpus_per_trainer: 8,
            trainer_gbit: 100.0,
            batch_size: 256,
            sample_bytes: 224 * 224 * 3,
            record_bytes: 110_000,
            ahead: 4,
            servers: 100,
            cores: 32,
            core_images_per_s: 1000.0,
            send_s_per_gb: 0.21,
            server_gbit: 100.0,
            storage_gb_s: 100.0,
            storage_latency_ms: 20.0,
            dataset_bytes: 150_000_000_000,
            cache_bytes: 100_000_000_000,
            placement: Placement::Even,
            slow_servers: 0,
            slow_factor: 0.5,
            failures: 0,
            failover_s: 2.0,
            restart_s: 30.0,
            jitter: 0.1,
            seconds: 20.0,
            warm_up_s: 5.0,
            seed: 0,
        }
    }
}

/// An invalid plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {found}: expected {expected}")]
pub struct PlanError {
    /// The option, as the command line has it.
    pub name: &'static str,
    /// The invalid option and its value.
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
    /// For people.
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

/// The capacity of a resource alone.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Limit {
    /// Which.
    pub resource: Resource,
    /// Images per second; infinite where the plan does not use the resource.
    pub images_per_s: f64,
}

const GBIT: f64 = 1e9 / 8.0;

impl ClusterPlan {
    /// Whether the plan can be.
    ///
    /// # Errors
    /// The first option that cannot.
    pub fn check(&self) -> Result<(), PlanError> {
        let wrong = |name, found: &dyn std::fmt::Display, expected| PlanError {
            name,
            found: found.to_string(),
            expected,
        };
        let counts: [(&'static str, u64, u64); 8] = [
            ("gpus", self.gpus, 1_000_000),
            ("jobs", self.jobs, self.gpus),
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
                    "jobs" => "1 to as many as there are GPUs",
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

    /// Images a second that the GPUs would take.
    #[must_use]
    pub fn demand(&self) -> f64 {
        self.gpus as f64 * self.gpu_images_per_s
    }

    /// Bytes of a batch as it is sent.
    #[must_use]
    pub fn batch_bytes(&self) -> f64 {
        self.batch_size as f64 * self.sample_bytes as f64
    }

    /// The part of reads that the caches do not have. Each server reads its own part of the dataset, again in every epoch.
    #[must_use]
    pub fn misses(&self) -> f64 {
        let cached = self.servers as f64 * self.cache_bytes as f64;
        (1.0 - cached / (self.dataset_bytes as f64).max(1.0)).max(0.0)
    }

    /// Servers, counted by how fast they are.
    pub(crate) fn whole_servers(&self) -> f64 {
        let slow = self.slow_servers as f64;
        self.servers as f64 - slow + slow * self.slow_factor
    }

    /// Core seconds of an image: decoding, and sending it.
    pub(crate) fn core_s_per_image(&self) -> f64 {
        1.0 / self.core_images_per_s + self.sample_bytes as f64 / 1e9 * self.send_s_per_gb
    }

    pub(crate) fn trainers(&self) -> u64 {
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

    /// The resource that gives out first.
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
