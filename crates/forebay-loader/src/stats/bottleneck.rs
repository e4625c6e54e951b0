//! Detects the bottleneck of a loader and describes it in one sentence.
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

use std::fmt;

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

    /// Returns whether each core already has a decode thread.
    fn cores_are_taken(&self) -> bool {
        (1..=self.threads).contains(&self.cores)
    }

    /// Describes the decoders and their load: threads, or the cores that more threads share.
    fn decoders(&self) -> String {
        let threads = plural(self.threads, "thread");
        let percent = |part: f64| (part * 100.0).round();
        if self.cores == 0 || self.threads <= self.cores {
            return format!("{threads} busy {} %", percent(self.decode_busy));
        }
        let at_work = self.decode_busy * self.threads as f64 / self.cores as f64;
        let cores = plural(self.cores, "core");
        format!("{threads} on {cores} busy {} %", percent(at_work.min(1.0)))
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |part: f64| (part * 100.0).round();
        let times = |more: f64| match more {
            more if more >= 100.0 => "over 100x".to_owned(),
            more => format!("{more:.1}x"),
        };
        let storage = self
            .storage_headroom
            .map(|more| match self.at_least && more < 100.0 {
                true => format!("at least {}", times(more)),
                false => times(more),
            });
        let decoders = self.decoders();
        match self.bound {
            Bound::Unknown => write!(f, "nothing measured yet: no batch was handed out"),
            Bound::Trainer if self.is_fed() => write!(
                f,
                "the trainer waited {} % of its time for batches",
                percent(self.trainer_waits)
            ),
            // The trainer did not get what the threads could have delivered, so no factor is stated.
            Bound::Trainer => write!(
                f,
                "trainer-bound: decode threads waited for room {} % of their time; the trainer waited {} % of its time all the \
                 same, at the start of an epoch or in bursts",
                percent(self.decode_blocked),
                percent(self.trainer_waits),
            ),
            Bound::Device => write!(
                f,
                "device-bound: copying batches to the device took {} % of the time of the thread that copies, the trainer waited \
                 {} % of its time; copy bytes and normalize on the device, or use smaller images",
                percent(self.copying),
                percent(self.trainer_waits),
            ),
            Bound::Decode => write!(
                f,
                "decode-bound: {decoders}, the trainer waited {} % of its time; {}{}",
                percent(self.trainer_waits),
                storage.map_or_else(String::new, |storage| format!(
                    "storage could give {storage}; "
                )),
                match self.cores_are_taken() {
                    true =>
                        "each core has a thread: decode on more machines with forebay serve, or pack with --resize-short",
                    false => "add threads, or pack with --resize-short",
                },
            ),
            Bound::Neighbor => {
                write!(
                    f,
                    "neighbor-bound: the trainer waited {} % of its time",
                    percent(self.trainer_waits)
                )?;
                match &self.cores_elsewhere {
                    Some(cores) => write!(f, "; {cores}"),
                    None => Ok(()),
                }
            }
            Bound::Handover if !self.is_receiving() => write!(
                f,
                "handover-bound: handing batches to the training loop took {} % of the loop's time; {decoders} could give {}; \
                 another thread holds the interpreter or the processors: move its work to another process",
                percent(self.handover),
                times(self.decode_headroom),
            ),
            Bound::Handover => write!(
                f,
                "handover-bound: the thread that receives batches used {} % of a core, the trainer waited {} % of its time; \
                 decoding could give {}; use more connections, smaller images, or a server on the same host, whose batches \
                 need no copy",
                percent(self.receiving),
                percent(self.trainer_waits),
                times(self.decode_headroom),
            ),
            // Only a server compares several ranks; one loader does not see the others.
            Bound::Straggler => write!(f, "straggler-bound: one rank is slower than the others"),
            Bound::Network => {
                let network = self.network.unwrap_or_default();
                write!(
                    f,
                    "network-bound: the server spent {} % of its time sending, at {:.1} MB/s, the trainer waited {} % of its time; \
                     decoding could give {}; use a faster network, or smaller images",
                    percent(network.sending),
                    network.bytes_per_s / 1e6,
                    percent(self.trainer_waits),
                    times(self.decode_headroom),
                )
            }
            Bound::Storage => write!(
                f,
                "storage-bound: {}decode threads waited {} % of their time for records, {} busy {} % gave {:.1} MB/s; \
                 decoding could give {}; use faster storage, more readers or larger blocks",
                match &self.storage {
                    Some(storage) => format!("{storage} is slower than decoding: "),
                    None => String::new(),
                },
                percent(self.decode_starved),
                plural(self.readers, "reader"),
                percent(self.fetch_busy),
                self.bytes_per_s / 1e6,
                times(self.decode_headroom),
            ),
        }
    }
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::super::{CpuTaker, DeviceCopy, MachineCpu, ReadLevel, StageStats, Stats};
    use super::*;

    /// Returns the statistics of ten seconds of two decode threads, four readers and a trainer.
    fn stats(fetch: [f64; 3], decode: [f64; 3], transform: f64, trainer: [f64; 2]) -> Stats {
        let stage = |name, threads, [busy_s, starved_s, blocked_s]: [f64; 3]| StageStats {
            name,
            threads,
            busy_s,
            starved_s,
            blocked_s,
        };
        Stats {
            wall_s: 10.0,
            fetch: stage("fetch", 4, fetch),
            decode: stage("decode", 2, decode),
            transform: stage("transform", 2, [transform, 0.0, 0.0]),
            trainer: stage("trainer", 1, [trainer[0], trainer[1], 0.0]),
            images: 20_000,
            fast_images: 0,
            batches: 78,
            bytes_read: 2_000_000_000,
            memory_bytes: 0,
            memory_peak_bytes: 0,
            single_reads: false,
            failed: 0,
            failures: Vec::new(),
            network: None,
            device: None,
            storage: None,
            traffic: None,
            // A disk that delivers 4 GB/s to one reader, and no more than that to two.
            reads: [(0.9, 3.61e9), (0.1, 0.39e9), (0.0, 0.0), (0.0, 0.0)]
                .map(|(seconds, bytes)| ReadLevel { seconds, bytes })
                .to_vec(),
            among_others: false,
            cores: 8,
            decode_cpu_s: 0.0,
            decode_delay_s: 0.0,
            process_cpu_s: 0.0,
            machine: MachineCpu::default(),
            handover_s: 0.0,
            receive_cpu_s: 0.0,
        }
    }

    #[test]
    fn cores_used_by_other_processes_are_reported() {
        // Two threads on two cores, always busy.
        let judge = |decode_cpu_s, process_cpu_s| {
            let mut stats = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [0.5, 9.5]);
            stats.cores = 2;
            (stats.decode_cpu_s, stats.process_cpu_s) = (decode_cpu_s, process_cpu_s);
            stats.bottleneck()
        };
        let hog = judge(5.0, 6.0);
        assert_eq!(hog.bound, Bound::Neighbor);
        let got = hog.cores_elsewhere.unwrap();
        assert!((got.got - 0.5).abs() < 1e-9 && (got.wanted - 1.94).abs() < 1e-9);
        assert_eq!(
            hog.to_string(),
            "neighbor-bound: the trainer waited 95 % of its time; decode threads got 0.5 of 1.9 cores: other processes use the \
             CPU, or a CPU limit applies; stop those processes, raise the limit, or decode on another machine with forebay serve"
        );
        for (decode, process, why) in [
            (19.0, 19.8, "they had them"),
            (9.0, 19.5, "the rest of this process had them"),
            (0.0, 0.0, "it is not known"),
            (f64::NAN, 5.0, "a server may say anything"),
        ] {
            let bottleneck = judge(decode, process);
            assert_eq!(bottleneck.cores_elsewhere, None, "{why}");
            assert_eq!(bottleneck.bound, Bound::Decode, "{why}");
            assert!(
                bottleneck.to_string().contains("each core has a thread"),
                "{why}"
            );
        }
        // Decode threads that sleep during their work do not lack a core.
        for (delay_s, bound) in [(1.0, Bound::Decode), (9.0, Bound::Neighbor)] {
            let mut asleep = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [0.5, 9.5]);
            (asleep.cores, asleep.decode_cpu_s, asleep.process_cpu_s) = (2, 5.0, 6.0);
            asleep.decode_delay_s = delay_s;
            assert_eq!(asleep.bottleneck().bound, bound, "{delay_s}");
        }
        // Threads that wait for records need no cores.
        let mut starved = stats([39.0, 0.0, 1.0], [3.0, 15.0, 0.0], 2.0, [1.0, 9.0]);
        (starved.cores, starved.decode_cpu_s) = (2, 4.8);
        assert_eq!(starved.bottleneck().cores_elsewhere, None);
    }

    #[test]
    fn system_counters_identify_who_uses_the_cores() {
        let taker = |busy_s, stolen_s, throttled_s| {
            let mut stats = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [0.5, 9.5]);
            stats.cores = 2;
            (stats.decode_cpu_s, stats.process_cpu_s) = (5.0, 6.0);
            stats.machine = MachineCpu {
                busy_s,
                stolen_s,
                throttled_s,
            };
            let bottleneck = stats.bottleneck();
            assert_eq!(bottleneck.bound, Bound::Neighbor);
            (
                bottleneck.cores_elsewhere.unwrap().taker,
                bottleneck.to_string(),
            )
        };
        let (processes, text) = taker(20.0, 0.0, 0.0);
        assert_eq!(processes, Some((CpuTaker::Processes, 1.4)));
        assert!(
            text.contains("other processes of this machine used 1.4; stop them"),
            "{text}"
        );
        let (stolen, text) = taker(7.0, 13.0, 0.0);
        assert_eq!(stolen, Some((CpuTaker::Hypervisor, 1.3)));
        assert!(text.contains("the hypervisor gave 1.3"), "{text}");
        let (limit, text) = taker(7.0, 1.0, 14.0);
        assert_eq!(limit, Some((CpuTaker::Limit, 1.4)));
        assert!(
            text.contains("the CPU limit of the container took 1.4"),
            "{text}"
        );
        assert_eq!(
            taker(12.0, 1.0, 0.0).0,
            None,
            "less than half of what is missing"
        );
        assert_eq!(
            taker(f64::NAN, -1.0, f64::INFINITY).0,
            None,
            "a server may say anything"
        );
    }

    #[test]
    fn handover_that_takes_longer_than_the_steps_is_found() {
        let judge = |handover_s, waits| {
            let mut stats = stats(
                [2.0, 0.0, 38.0],
                [3.0, 0.1, 14.9],
                2.0,
                [10.0 - waits, waits],
            );
            stats.handover_s = handover_s;
            stats.bottleneck()
        };
        let slow = judge(6.0, 0.1);
        assert_eq!(slow.bound, Bound::Handover);
        assert_eq!(
            slow.to_string(),
            "handover-bound: handing batches to the training loop took 61 % of the loop's time; 2 threads busy 25 % could give 4.0x; \
             another thread holds the interpreter or the processors: move its work to another process"
        );
        assert_eq!(
            judge(4.0, 0.1).bound,
            Bound::Trainer,
            "the steps take longer"
        );
        // A training loop that is late for other reasons.
        let mut decode = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [0.5, 9.5]);
        decode.handover_s = 0.4;
        assert_eq!(decode.bottleneck().bound, Bound::Decode);
        // Handing over takes most of the time, while decode threads fill the queue.
        let mut filling = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [8.6, 1.4]);
        filling.handover_s = 6.0;
        assert_eq!(filling.bottleneck().bound, Bound::Handover);
        filling.handover_s = 3.0;
        assert_eq!(filling.bottleneck().bound, Bound::Decode);
    }

    #[test]
    fn a_slow_copy_to_the_device_is_found() {
        let judge = |busy_s, starved_s, waits| {
            // Two of three threads are busy, and the copying thread keeps up with them.
            let mut stats = stats([2.0, 0.0, 38.0], [9.0, 0.2, 6.8], 4.0, [8.0, 2.0]);
            stats.device = Some(DeviceCopy {
                busy_s,
                starved_s,
                trainer_busy_s: 10.0 - waits,
                trainer_starved_s: waits,
            });
            stats.bottleneck()
        };
        let slow = judge(8.0, 2.0, 3.0);
        assert_eq!(slow.bound, Bound::Device);
        assert_eq!(
            slow.to_string(),
            "device-bound: copying batches to the device took 80 % of the time of the thread that copies, the trainer waited \
             30 % of its time; copy bytes and normalize on the device, or use smaller images"
        );
        // The thread that copies waits for batches: decoding is slower.
        assert_eq!(judge(3.0, 7.0, 3.0).bound, Bound::Decode);
        // The trainer itself hardly waits, however long the copying thread waits.
        assert_eq!(judge(3.0, 7.0, 0.2).sentence(), None);
        let (early, late) = (judge(1.0, 1.0, 0.0), judge(8.0, 2.0, 3.0));
        assert!(early.copying < late.copying);
    }

    #[test]
    fn the_network_is_named_only_if_sending_takes_the_time() {
        let judge = |sending, waiting, decode, waits| {
            let mut stats = stats([2.0, 0.0, 38.0], decode, 2.0, [10.0 - waits, waits]);
            stats.network = Some(Network {
                sending,
                waiting,
                bytes_per_s: 1e8,
            });
            stats.bottleneck().bound
        };
        let ahead = [3.0, 0.1, 14.9];
        assert_eq!(judge(0.8, 0.1, ahead, 7.0), Bound::Network);
        // The server waits for the credit of a sleeping trainer, and at times for its storage.
        assert_eq!(judge(0.02, 0.06, ahead, 0.8), Bound::Trainer);
        // The trainer waits as long as the server does.
        assert_eq!(judge(0.4, 0.5, [13.0, 0.2, 0.4], 5.0), Bound::Decode);
    }

    #[test]
    fn a_saturated_receiving_thread_is_found() {
        let mut stats = stats([2.0, 0.0, 38.0], [3.0, 0.1, 14.9], 2.0, [2.0, 8.0]);
        stats.network = Some(Network {
            sending: 0.9,
            waiting: 0.1,
            bytes_per_s: 2e9,
        });
        assert_eq!(stats.bottleneck().bound, Bound::Network);
        stats.receive_cpu_s = 9.3;
        let bottleneck = stats.bottleneck();
        assert_eq!(bottleneck.bound, Bound::Handover);
        assert!(
            bottleneck
                .to_string()
                .contains("the thread that receives batches used 93 % of a core"),
            "{bottleneck}"
        );
    }

    #[test]
    fn each_limit_is_found() {
        let decode = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [0.5, 9.5]).bottleneck();
        assert_eq!(decode.bound, Bound::Decode);
        assert_eq!(
            decode.to_string(),
            "decode-bound: 2 threads busy 97 %, the trainer waited 95 % of its time; storage could give 20.0x; \
             add threads, or pack with --resize-short"
        );
        let mut alone = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [0.5, 9.5]);
        alone.cores = 2;
        assert_eq!(
            alone.clone().among_others().bottleneck().to_string(),
            "decode-bound: 2 threads busy 97 %, the trainer waited 95 % of its time; storage could give at least 20.0x; \
             each core has a thread: decode on more machines with forebay serve, or pack with --resize-short"
        );
        alone.cores = 8;
        alone.reads = vec![
            ReadLevel {
                seconds: 2.0,
                bytes: 2e9,
            },
            ReadLevel::default(),
        ];
        assert!(
            alone
                .bottleneck()
                .to_string()
                .contains("storage could give at least 5.0x;")
        );
        alone.reads.clear();
        assert!(
            alone
                .bottleneck()
                .to_string()
                .contains("of its time; add threads")
        );
        let storage = stats([39.0, 0.0, 1.0], [3.0, 15.0, 0.0], 2.0, [1.0, 9.0]).bottleneck();
        assert_eq!(storage.bound, Bound::Storage);
        assert!(
            storage
                .to_string()
                .contains("200.0 MB/s; decoding could give 4.0x"),
            "{storage}"
        );
        let mut far = stats([39.0, 0.0, 1.0], [3.0, 15.0, 0.0], 2.0, [1.0, 9.0]);
        far.storage = Some("s3://bucket/imagenet".to_owned());
        let far = far.bottleneck().to_string();
        assert!(
            far.starts_with("storage-bound: s3://bucket/imagenet is slower"),
            "{far}"
        );
        let mut trainer = stats([2.0, 0.0, 38.0], [3.0, 0.1, 14.9], 2.0, [9.9, 0.1]);
        assert_eq!(
            trainer.bottleneck().to_string(),
            "the trainer waited 1 % of its time for batches"
        );
        assert_eq!(trainer.bottleneck().sentence(), None);
        assert_eq!(trainer.bottleneck().bound, Bound::Trainer);
        // Two threads on one core do no more work than one.
        trainer.cores = 1;
        assert_eq!(trainer.bottleneck().decode_headroom, 2.0);
        // On a busy machine waking up takes a while, and more resources before the trainer would
        // not help.
        let late = stats([2.0, 0.0, 38.0], [1.0, 0.0, 18.5], 0.5, [9.3, 0.7]).bottleneck();
        assert_eq!(late.bound, Bound::Trainer);
        assert_eq!(
            late.sentence().unwrap(),
            "trainer-bound: decode threads waited for room 93 % of their time; the trainer waited 7 % of its time all the same, \
             at the start of an epoch or in bursts"
        );
        // Threads that are hardly busy could deliver more, but the trainer waits: no factor is stated.
        let idle = stats([2.0, 0.0, 38.0], [1.1, 7.0, 11.8], 1.1, [7.0, 3.0]).bottleneck();
        assert_eq!(idle.bound, Bound::Trainer);
        assert!(!idle.to_string().contains("could give"), "{idle}");
        let mut nothing = stats([0.0; 3], [0.0; 3], 0.0, [0.0; 2]);
        assert_eq!(nothing.bottleneck().sentence(), None);
        nothing.batches = 0;
        assert_eq!(nothing.bottleneck().bound, Bound::Unknown);
    }

    #[test]
    fn intervals_are_differences() {
        let early = stats([1.0; 3], [1.0; 3], 1.0, [1.0; 2]);
        let mut late = stats([3.0; 3], [2.0; 3], 4.0, [1.5; 2]);
        late.wall_s = 15.0;
        late.images = 20_005;
        let between = late.since(&early);
        assert_eq!((between.wall_s, between.images), (5.0, 5));
        assert_eq!((between.fetch.busy_s, between.transform.busy_s), (2.0, 3.0));
        assert_eq!(between.stages().len(), 4);
    }
}
