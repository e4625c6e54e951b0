//! The texts of advice, with their arithmetic.

use std::fs;

use super::{
    Advice, AdviceReport, AdviseOptions, ENOUGH, FILES_DEPTH, Found, SHARD_BYTES, SHARDS_PER_GPU,
};
use crate::price::cost::size;
use crate::price::remedy::{of_storing, prices};
use crate::price::sample::{Storing, StoringCost};

impl Found {
    fn storage_rate(&self) -> f64 {
        let rates = self.situation.rounds.iter();
        let rates: Vec<f64> = rates.map(|times| 1.0 / times.storage_s).collect();
        crate::measure::median(&rates)
    }

    /// Returns the CPU seconds per image as it is stored.
    fn core_s(&self) -> f64 {
        let stored = self.situation.ways.first();
        stored.map_or(0.0, StoringCost::median).max(1e-9)
    }

    /// Returns the costs of other ways to store the images.
    fn ways(&self) -> impl Iterator<Item = &StoringCost> {
        self.situation.ways.iter().skip(1)
    }

    pub(super) fn report(&self, options: &AdviseOptions) -> AdviceReport {
        let demand = options
            .gpu_images_per_s
            .map(|each| each * options.gpus as f64);
        let mut advice = Vec::new();
        advice.extend(self.storage(demand, options));
        advice.extend(self.cores(demand, options.gpus));
        advice.extend(self.images(demand));
        advice.extend(self.packing(demand));
        advice.extend(self.copy(demand));
        advice.extend(self.memory());
        advice.extend(self.shards(options.gpus));
        advice.extend(self.cost.iter().map(|cost| Advice {
            topic: "cost",
            text: cost.text.clone(),
        }));
        AdviceReport {
            images: self.images,
            image_bytes: self.situation.image_bytes,
            demand,
            storage_images_per_s: self.storage_rate(),
            cache: self.proof.word(),
            proof: self.proof.line(),
            core_images_per_s: 1.0 / self.core_s(),
            cores: self.situation.cores.cores as u64,
            advice,
            cost: self.cost.clone(),
            prices: prices(&self.situation),
        }
    }

    fn storage(&self, demand: Option<f64>, options: &AdviseOptions) -> Option<Advice> {
        let (given, bytes) = (self.storage_rate(), self.situation.image_bytes);
        let measured = format!(
            "this storage gave {} images/s x {:.1} kB = {} ({})",
            round(given),
            bytes / 1e3,
            rate(given * bytes),
            self.proof.word()
        );
        let text = match demand {
            None => format!(
                "{measured}; name the GPUs with --gpus and --model, or --images-per-second, to compare it with their demand"
            ),
            Some(demand) => format!(
                "{} x {} images/s = {} images/s x {:.1} kB = {} for the storage; {measured}: {}",
                counted(options.gpus as f64, "GPU"),
                round(demand / options.gpus.max(1) as f64),
                round(demand),
                bytes / 1e3,
                rate(demand * bytes),
                match given / demand {
                    times if times >= ENOUGH => format!("enough, {times:.1} times the demand"),
                    times if times >= 1.0 => format!("just enough, {times:.2} times the demand"),
                    times => format!(
                        "not enough, {times:.2} times the demand; a cache, a copy or faster storage must give the rest"
                    ),
                },
            ),
        };
        Some(Advice {
            topic: "storage",
            text,
        })
    }

    fn cores(&self, demand: Option<f64>, gpus: u64) -> Option<Advice> {
        let (each, cores) = (self.core_s(), self.situation.cores.cores);
        let measured = format!("{:.2} ms of a core for an image", each * 1e3);
        let text = match demand {
            None => format!(
                "{measured}: {} / {:.2} ms = {} images/s",
                counted(cores, "core"),
                each * 1e3,
                round(cores / each)
            ),
            Some(demand) => {
                let needed = demand * each;
                let machines = (needed / cores).ceil();
                format!(
                    "{measured} x {} images/s = {needed:.1} cores, {:.1} for each GPU; this machine has {cores:.0}: {}",
                    round(demand),
                    needed / gpus.max(1) as f64,
                    match machines <= 1.0 {
                        true => "enough".to_owned(),
                        false => format!(
                            "{machines:.0} machines of this kind with forebay serve, or images that decode faster"
                        ),
                    }
                )
            }
        };
        Some(Advice {
            topic: "cores",
            text,
        })
    }

    fn images(&self, demand: Option<f64>) -> Vec<Advice> {
        let now = self.core_s();
        let stored = self.situation.ways.first().map_or(1.0, |way| way.bytes);
        let ways = self.ways().filter(|way| way.median() < 0.98 * now);
        let advice = ways.map(|way| {
            let (name, how) = words(way.storing);
            let cores = demand.map_or_else(String::new, |demand| {
                format!(
                    ", {:.1} cores instead of {:.1}",
                    demand * way.median(),
                    demand * now
                )
            });
            Advice {
                topic: "images",
                text: format!(
                    "{name}: {:.2} ms instead of {:.2} ms for an image = {:.2}x{cores}, for {:.1} kB instead of {:.1} kB ({:+.1} % bytes): {how}",
                    way.median() * 1e3,
                    now * 1e3,
                    now / way.median(),
                    way.bytes / 1e3,
                    stored / 1e3,
                    (way.bytes / stored - 1.0) * 100.0,
                ),
            }
        });
        advice.collect()
    }

    fn packing(&self, demand: Option<f64>) -> Option<Advice> {
        if self.is_packed {
            return None;
        }
        let (given, cores) = (
            self.storage_rate(),
            self.situation.cores.cores / self.core_s(),
        );
        let (needed, whose) = match demand {
            Some(demand) => (demand, "the training takes"),
            None => (cores, "this machine decodes"),
        };
        let measured = format!(
            "single files in random order gave {} files/s with {FILES_DEPTH} in flight ({}), {whose} {} images/s",
            round(given),
            self.proof.word(),
            round(needed)
        );
        let text = match given / needed.max(f64::MIN_POSITIVE) {
            times if times >= 2.0 => format!(
                "{measured}: {times:.1} times as many, so packing gains little speed here; it gains checksums, resuming and seek points"
            ),
            times => format!(
                "{measured}: {times:.2} times as many, so pack: forebay pack --format indexed, whose reads are of up to 4 MiB, \
                 {:.0} images each",
                (4u64 << 20) as f64 / self.situation.image_bytes
            ),
        };
        Some(Advice {
            topic: "packing",
            text,
        })
    }

    fn copy(&self, demand: Option<f64>) -> Option<Advice> {
        let cores = self.situation.cores.cores / self.core_s();
        let (needed, whose) = match demand {
            Some(demand) => (demand, "the training takes"),
            None => (cores, "this machine decodes"),
        };
        let given = self.storage_rate();
        let epoch = |rate: f64| self.images as f64 / rate.max(f64::MIN_POSITIVE);
        let (read, least) = (epoch(given), epoch(needed));
        let text = if given >= ENOUGH * needed {
            format!(
                "read it where it is: the storage gives {} images/s, {whose} {}, so a copy saves nothing",
                round(given),
                round(needed)
            )
        } else if self.proof.word() == "warm" && self.is_local {
            return None;
        } else {
            format!(
                "copy it to a local disk, or use --cache-dir, for more than one epoch: a copy takes {} / {} = {} once; an epoch from here takes \
                 {} images / {} = {}, from a disk that is fast enough {} images / {} = {}",
                size(self.bytes),
                rate(given * self.situation.image_bytes),
                time(read),
                self.images,
                round(given),
                time(read),
                self.images,
                round(needed),
                time(least),
            )
        };
        Some(Advice {
            topic: "copy",
            text,
        })
    }

    fn memory(&self) -> Option<Advice> {
        let memory = memory_bytes()?;
        let text = match self.bytes < 0.8 * memory {
            true => format!(
                "{} images x {:.1} kB = {} are less than 80 % of the memory of {}: from the second epoch on, reads come from the page cache",
                self.images,
                self.situation.image_bytes / 1e3,
                size(self.bytes),
                size(memory)
            ),
            false => format!(
                "{} images x {:.1} kB = {} do not fit into 80 % of the memory of {}: every epoch reads the storage",
                self.images,
                self.situation.image_bytes / 1e3,
                size(self.bytes),
                size(memory)
            ),
        };
        Some(Advice {
            topic: "memory",
            text,
        })
    }

    fn shards(&self, gpus: u64) -> Option<Advice> {
        let ranks = gpus.max(1);
        let least = (SHARDS_PER_GPU * ranks) as f64;
        let of_default = (self.bytes / SHARD_BYTES).ceil();
        let text = match of_default >= least {
            true => format!(
                "{} / 256 MiB = {}, at least {SHARDS_PER_GPU} for each of {}: the default size is right",
                size(self.bytes),
                counted(of_default, "shard"),
                counted(ranks as f64, "rank")
            ),
            false => {
                let mib = (self.bytes / least / f64::from(1 << 20)).ceil().max(1.0);
                format!(
                    "{} / 256 MiB = {}, fewer than {SHARDS_PER_GPU} for each of {}: --shard-size {mib:.0}MiB gives {:.0}",
                    size(self.bytes),
                    counted(of_default, "shard"),
                    counted(ranks as f64, "rank"),
                    (self.bytes / (mib * f64::from(1 << 20))).ceil()
                )
            }
        };
        Some(Advice {
            topic: "shards",
            text,
        })
    }
}

/// Returns the name of a way to store images in the table of remedies, and its command.
fn words(storing: Storing) -> (&'static str, &'static str) {
    of_storing(storing).unwrap_or(("as they are", ""))
}

/// Returns the physical memory of this machine in bytes.
fn memory_bytes() -> Option<f64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

/// Formats a number without decimals from 100 on, otherwise with one.
fn round(value: f64) -> String {
    match value {
        value if value >= 100.0 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

fn rate(bytes: f64) -> String {
    format!("{}/s", size(bytes))
}

fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds >= 5400.0 => format!("{:.1} h", seconds / 3600.0),
        seconds if seconds >= 90.0 => format!("{:.1} min", seconds / 60.0),
        seconds => format!("{seconds:.1} s"),
    }
}

/// Formats a count with its noun: `1 GPU`, `2 GPUs`.
fn counted(count: f64, noun: &str) -> String {
    let plural = if count.round() == 1.0 { "" } else { "s" };
    format!("{count:.0} {noun}{plural}")
}
