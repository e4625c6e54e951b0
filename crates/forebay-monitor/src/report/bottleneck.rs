//! Detects what limits trainers, from the server's side: if a trainer's queue is never empty, the
//! trainer is slower than the server; if it has consumed everything sent, it waits for the server.

use std::collections::BTreeMap;
use std::time::Duration;

use forebay_loader::{Bound, MachineCpu, RankPace, Straggler};
use forebay_wire::wire;

use super::BottleneckReport;
use crate::history::Activity;
use forebay_server::counters;

/// Activity of a name's streams in a window.
pub(super) struct Window<'a> {
    pub(super) seconds: f64,
    pub(super) streams: u64,
    /// Whether any stream is sent over the network, rather than through shared memory.
    pub(super) over_network: bool,
    pub(super) did: Activity,
    /// Seconds during which trainers had batches, and had none.
    pub(super) trainers: [f64; 2],
    /// Busy, starved and blocked seconds, by stage.
    pub(super) stages: &'a BTreeMap<String, [f64; 3]>,
    pub(super) threads: &'a BTreeMap<String, u64>,
    /// Storage throughput, by number of concurrent reads of a stream.
    pub(super) levels: Vec<wire::ReadLevel>,
    /// Number of cores that the process may use.
    pub(super) cores: u64,
    /// CPU seconds of decode threads, and of all threads of the process; seconds that the former
    /// were ready to run and had no core.
    pub(super) cpu_s: [f64; 3],
    /// CPU time of the machine.
    pub(super) machine: MachineCpu,
    /// Activity of the ranks of a job; empty for independent streams.
    pub(super) ranks: Vec<RankPace>,
}

/// The report of a server without trainers.
pub(super) fn idle() -> BottleneckReport {
    BottleneckReport {
        bound: "idle".to_owned(),
        heading: "Idle".to_owned(),
        text: "idle: no trainer is connected".to_owned(),
    }
}

pub(super) fn judge(window: &Window<'_>) -> BottleneckReport {
    let says = |bound: Bound, text: String| BottleneckReport {
        bound: bound.name().to_owned(),
        heading: bound.heading().to_owned(),
        text,
    };
    if window.streams == 0 {
        return idle();
    }
    let [busy, starved, blocked] = window.stages.get("send").copied().unwrap_or_default();
    let all = busy + starved + blocked;
    if window.did.batches == 0 || all <= 0.0 {
        let seconds = window.seconds.round();
        return if seconds < 2.0 {
            says(Bound::Unknown, "nothing measured yet".to_owned())
        } else if blocked >= starved {
            let text = format!(
                "trainer-bound: no trainer asked for a batch in the last {seconds} s; each has all that it has room for"
            );
            says(Bound::Trainer, text)
        } else {
            let text = format!("no batch was finished in the last {seconds} s; trainers wait");
            says(Bound::Unknown, text)
        };
    }
    let stage = |(name, times): (&String, &[f64; 3])| wire::Stage {
        name: name.clone(),
        busy_s: times[0],
        starved_s: times[1],
        blocked_s: times[2],
        threads: u32::try_from(window.threads.get(name).copied().unwrap_or(0)).unwrap_or(u32::MAX),
    };
    let stats = wire::Stats {
        stages: window.stages.iter().map(stage).collect(),
        images: window.did.images,
        batches: window.did.batches,
        bytes_read: window.did.read_bytes,
        payload_bytes: window.did.payload_bytes,
        elapsed_s: window.seconds,
        reads: window.levels.clone(),
        cores: u32::try_from(window.cores).unwrap_or(u32::MAX),
        decode_cpu_s: window.cpu_s[0],
        process_cpu_s: window.cpu_s[1],
        decode_delay_s: window.cpu_s[2],
        machine_busy_s: window.machine.busy_s,
        machine_stolen_s: window.machine.stolen_s,
        machine_throttled_s: window.machine.throttled_s,
        ..wire::Stats::default()
    };
    let seconds = |s: f64| Duration::try_from_secs_f64(s).unwrap_or_default();
    let [fed, starved] = window.trainers;
    let mut stats = counters::from_wire(
        &stats,
        seconds(starved),
        seconds(fed + starved),
        window.over_network,
    );
    if window.streams > 1 {
        stats = stats.among_others();
    }
    let bottleneck = stats.bottleneck();
    // If this server limits all ranks, one that waits longer than the others is a symptom.
    let limits_all = matches!(
        bottleneck.bound,
        Bound::Decode | Bound::Neighbor | Bound::Storage
    );
    match Straggler::find(&window.ranks).filter(|_| !limits_all) {
        Some(straggler) => says(Bound::Straggler, straggler.to_string()),
        None => says(bottleneck.bound, bottleneck.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(batches: u64, decode: [f64; 3], send: [f64; 3], starved: f64) -> BottleneckReport {
        bound_of(1, batches, decode, send, starved, 9.8)
    }

    fn bound_of(
        streams: u64,
        batches: u64,
        decode: [f64; 3],
        send: [f64; 3],
        starved: f64,
        cpu_s: f64,
    ) -> BottleneckReport {
        let stages = [
            ("fetch", [2.0, 0.0, 38.0]),
            ("decode", decode),
            ("transform", [1.0, 0.0, 0.0]),
            ("send", send),
        ];
        let stages = stages.map(|(name, times)| (name.to_owned(), times)).into();
        let threads = [("fetch", 4), ("decode", 2), ("transform", 2)];
        judge(&Window {
            seconds: 10.0,
            streams,
            over_network: true,
            did: Activity {
                images: 256 * batches,
                batches,
                payload_bytes: 38_500_000 * batches,
                read_bytes: 1 << 20,
            },
            trainers: [10.0 - starved, starved],
            stages: &stages,
            threads: &threads.map(|(name, n)| (name.to_owned(), n)).into(),
            // A disk with fifty times the demanded throughput, with one reader or two.
            levels: [(0.5, 5 << 19), (0.5, 5 << 19), (0.0, 0)]
                .map(|(seconds, bytes)| wire::ReadLevel {
                    seconds,
                    bytes: f64::from(bytes),
                })
                .to_vec(),
            cores: 1,
            cpu_s: [cpu_s, cpu_s, 0.0],
            machine: MachineCpu {
                busy_s: 10.0,
                ..MachineCpu::default()
            },
            ranks: Vec::new(),
        })
    }

    #[test]
    fn each_limit_is_found() {
        for (batches, decode, send, starved, expected) in [
            (10, [18.5, 0.2, 0.3], [0.5, 9.5, 0.0], 9.0, "decode"),
            (10, [3.0, 16.0, 0.0], [0.5, 9.5, 0.0], 9.0, "storage"),
            (10, [3.0, 0.0, 16.0], [9.0, 1.0, 0.0], 8.0, "network"),
            (10, [3.0, 0.0, 16.0], [0.1, 0.1, 9.8], 0.1, "trainer"),
            // Sending takes long, but the trainer has another batch meanwhile.
            (10, [3.0, 0.0, 16.0], [3.0, 0.1, 6.9], 0.0, "trainer"),
            // The trainer spends half of its time in its steps and is starved nevertheless.
            (10, [18.5, 0.2, 0.3], [0.2, 4.8, 5.0], 4.0, "decode"),
            (0, [3.0, 0.0, 16.0], [0.0, 0.0, 10.0], 0.0, "trainer"),
            (0, [18.5, 0.2, 0.3], [0.0, 10.0, 0.0], 9.0, "unknown"),
        ] {
            let found = bound(batches, decode, send, starved);
            assert_eq!(found.bound, expected, "{}", found.text);
        }
        let decode = bound(10, [18.5, 0.2, 0.3], [0.5, 9.5, 0.0], 9.0).text;
        assert!(
            decode.contains("2 threads on 1 core busy 100 %")
                && decode.contains("storage could give 50.0x"),
            "{decode}"
        );
        let several = bound_of(2, 10, [18.5, 0.2, 0.3], [0.5, 9.5, 0.0], 9.0, 9.8).text;
        assert!(several.contains("at least 50.0x"), "{several}");
        let crowded = bound_of(1, 10, [18.5, 0.2, 0.3], [0.5, 9.5, 0.0], 9.0, 4.0);
        assert_eq!(crowded.bound, "neighbor");
        assert!(
            crowded.text.contains(
                "decode threads got 0.4 of 1.0 cores: other processes of this machine used 0.6"
            ),
            "{}",
            crowded.text
        );
        let none = BTreeMap::new();
        let idle = judge(&Window {
            seconds: 10.0,
            streams: 0,
            over_network: true,
            did: Activity::default(),
            trainers: [0.0; 2],
            stages: &none,
            threads: &BTreeMap::new(),
            levels: Vec::new(),
            cores: 0,
            cpu_s: [0.0; 3],
            machine: MachineCpu::default(),
            ranks: Vec::new(),
        });
        assert_eq!(idle.bound, "idle");
    }

    #[test]
    fn a_straggler_is_reported_unless_the_server_limits_all() {
        let rank = |rank, waits| RankPace {
            rank,
            seconds: 10.0,
            images: 2560,
            batches: 10,
            waits,
        };
        let judge = |decode| {
            let stages = [
                ("fetch", [2.0, 0.0, 38.0]),
                ("decode", decode),
                ("send", [0.5, 0.5, 29.0]),
            ];
            judge(&Window {
                seconds: 10.0,
                streams: 3,
                over_network: true,
                did: Activity {
                    images: 7680,
                    batches: 30,
                    payload_bytes: 1 << 20,
                    read_bytes: 1 << 20,
                },
                trainers: [25.0, 5.0],
                stages: &stages.map(|(name, times)| (name.to_owned(), times)).into(),
                threads: &BTreeMap::new(),
                levels: Vec::new(),
                cores: 0,
                cpu_s: [0.0; 3],
                machine: MachineCpu::default(),
                ranks: vec![rank(0, 0.0), rank(1, 0.5), rank(2, 0.01)],
            })
        };
        let found = judge([3.0, 0.0, 16.0]);
        assert_eq!(found.bound, "straggler");
        assert!(
            found
                .text
                .starts_with("straggler-bound: rank 1 takes 256 images/s"),
            "{}",
            found.text
        );
        assert_eq!(judge([19.0, 0.0, 0.0]).bound, "decode", "it limits all");
    }
}
