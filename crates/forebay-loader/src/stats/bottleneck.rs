//! Detects the bottleneck of a loader; `sentence` describes it.
//!
//! Waits are examined from the end of the pipeline; the first rule that applies determines the bottleneck:
//!
//! 1. The trainer hardly waits, or handing over batches takes longer than both its steps and its waits: the trainer, or
//!    the handover if it takes longer than the steps.
//! 2. The thread that copies batches to a device copies most of the time: this copy.
//! 3. A server sends during most of the trainer's waits and rarely waits for batches: the network, or the receiving
//!    thread if it keeps a core busy.
//! 4. The decode threads mostly wait for room: as in rule 1, since the trainer's waits are wake-up times.
//! 5. The decode threads wait for records: storage.
//! 6. Otherwise: decoding, or the processes that use the cores that the decode threads lack.

mod sentence;
#[cfg(test)]
mod tests;

use super::levels::{self, Best};
use super::{Bound, CoresElsewhere, Network, Stats};

/// The bottleneck with measurements. Its `Display` form is a sentence.
#[derive(Debug, Clone, PartialEq)]
pub struct Bottleneck {
    /// The bottleneck.
    pub bound: Bound,
    /// Images decoded per second.
    pub images_per_s: f64,
    /// Fraction of its time during which the trainer waited for batches.
    pub trainer_waits: f64,
    /// Fraction of their time during which the decode threads worked.
    pub decode_busy: f64,
    /// Fraction of their time during which the decode threads waited for records.
    pub decode_starved: f64,
    /// Fraction of their time during which the readers read.
    pub fetch_busy: f64,
    /// Possible throughput of the decode threads relative to the current one, if nothing else
    /// limited them. At most as many threads as there are cores work concurrently.
    pub decode_headroom: f64,
    /// Possible throughput of storage relative to the current demand: the best observed throughput,
    /// with any observed number of concurrent reads. `None` without any demand.
    pub storage_headroom: Option<f64>,
    /// Fraction of the trainer's own time that handing batches over took: waiting for an interpreter,
    /// wrapping, copying.
    pub handover: f64,
    /// Fraction of the time, without waits for room, during which the thread that copies batches to the trainer's
    /// device copied; 0 without a device.
    pub copying: f64,
    /// Fraction of the time during which the thread that receives batches from a server used a core.
    pub receiving: f64,
    /// The cores that decode threads got, if they could have used many more and the
    /// rest of this process did not use those: other processes did, or a CPU limit applies.
    pub cores_elsewhere: Option<CoresElsewhere>,
    /// Fraction of their time during which the decode threads waited for room.
    decode_blocked: f64,
    /// Whether `storage_headroom` is a lower bound.
    at_least: bool,
    threads: usize,
    /// Number of usable cores; 0 if unknown.
    cores: usize,
    readers: usize,
    bytes_per_s: f64,
    network: Option<Network>,
    storage: Option<String>,
}

/// If handing over batches takes more than this fraction of the trainer's own time, it takes longer
/// than the training steps.
const HANDOVER: f64 = 0.5;
/// A thread that copies to a device for more than this fraction of its time is slower than the stages before it.
const COPYING: f64 = 0.5;
/// A thread that uses a core for more than this fraction cannot receive much faster.
const RECEIVING: f64 = 0.7;
/// A trainer that waits for less than this fraction is fed well enough.
const TRAINER_WAITS: f64 = 0.05;
/// Decode threads that wait for room for more than this fraction are ahead of the trainer, whose
/// own waits are wake-up times.
const DECODE_BLOCKED: f64 = 0.5;
/// Decode threads that wait for records for more than this fraction are limited by storage.
const DECODE_STARVED: f64 = 0.15;

pub(super) fn judge(stats: &Stats) -> Bottleneck {
    let part = |some: f64, all: f64| {
        if all > 0.0 {
            (some / all).clamp(0.0, 1.0)
        } else {
            0.0
        }
    };
    let (fetch, decode, trainer) = (&stats.fetch, &stats.decode, &stats.trainer);
    let work = decode.busy_s + stats.transform.busy_s;
    let decode_time = work + decode.starved_s + decode.blocked_s;
    let rate = |count: u64| {
        if stats.wall_s > 0.0 {
            count as f64 / stats.wall_s
        } else {
            0.0
        }
    };
    let decode_busy = part(work, decode_time);
    let cores = match stats.cores {
        0 => 1.0,
        cores => part(cores as f64, decode.threads as f64),
    };
    let bytes_per_s = rate(stats.bytes_read);
    let best = levels::best(&stats.reads).filter(|_| bytes_per_s > 0.0);
    let mut bottleneck = Bottleneck {
        bound: Bound::Unknown,
        images_per_s: rate(stats.images),
        trainer_waits: match stats.device {
            Some(device) => {
                let waits = device.trainer_starved_s;
                part(waits, device.trainer_busy_s + waits)
            }
            None => part(trainer.starved_s, trainer.busy_s + trainer.starved_s),
        },
        decode_busy,
        decode_starved: part(decode.starved_s, decode_time),
        fetch_busy: part(
            fetch.busy_s,
            fetch.busy_s + fetch.starved_s + fetch.blocked_s,
        ),
        decode_headroom: (cores / decode_busy.max(1e-3)).max(1.0),
        storage_headroom: best.map(|best: Best| (best.bytes_per_s / bytes_per_s).max(1.0)),
        handover: part(stats.handover_s, trainer.busy_s),
        copying: stats.device.map_or(0.0, |device| {
            part(device.busy_s, device.busy_s + device.starved_s)
        }),
        decode_blocked: part(decode.blocked_s, decode_time),
        receiving: part(stats.receive_cpu_s, trainer.busy_s + trainer.starved_s),
        cores_elsewhere: CoresElsewhere::of(stats, work),
        at_least: best.is_some_and(|best| best.is_least || stats.among_others),
        threads: decode.threads,
        cores: stats.cores,
        readers: fetch.threads,
        bytes_per_s,
        network: stats.network,
        storage: stats.storage.clone(),
    };
    bottleneck.bound = match stats.batches == 0 || stats.images == 0 {
        true => Bound::Unknown,
        false => bottleneck.find(),
    };
    bottleneck
}

impl Bottleneck {
    /// Returns the limiting stage.
    fn find(&self) -> Bound {
        let blocked = self.decode_blocked;
        let trainer = match self.handover > HANDOVER {
            true => Bound::Handover,
            false => Bound::Trainer,
        };
        let handing_over = self.handover * (1.0 - self.trainer_waits);
        let is_longest = self.handover > HANDOVER && handing_over > self.trainer_waits;
        if self.trainer_waits < TRAINER_WAITS || is_longest {
            trainer
        } else if self.copying > COPYING {
            Bound::Device
        } else if self.is_receiving() {
            Bound::Handover
        } else if self.is_sending() {
            Bound::Network
        } else if blocked > DECODE_BLOCKED {
            trainer
        } else if self.decode_starved > DECODE_STARVED && self.decode_starved > blocked {
            Bound::Storage
        } else if self.cores_elsewhere.is_some() {
            Bound::Neighbor
        } else {
            Bound::Decode
        }
    }

    /// Returns whether the server sends for most of the time that the trainer waits, and had batches
    /// to send.
    fn is_sending(&self) -> bool {
        let most = self.trainer_waits / 2.0;
        self.network
            .is_some_and(|network| network.sending >= most && network.waiting < most)
    }

    /// Returns whether batches are sent faster than the trainer's process receives them.
    fn is_receiving(&self) -> bool {
        self.trainer_waits >= TRAINER_WAITS && self.is_sending() && self.receiving > RECEIVING
    }

    /// Returns the sentence, unless there is nothing to say: the trainer hardly waits for batches.
    #[must_use]
    pub fn sentence(&self) -> Option<String> {
        (!self.is_fed()).then(|| self.to_string())
    }

    /// Returns whether the trainer gets batches as fast as it takes them.
    fn is_fed(&self) -> bool {
        self.bound == Bound::Trainer && self.trainer_waits < TRAINER_WAITS
    }
}
