//! Tests of the bottleneck and its sentence, on measured times.

use super::*;
use crate::stats::{CpuTaker, DeviceCopy, MachineCpu, ReadLevel, StageStats, Stats};

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
        learned: None,
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
         add threads, or pack smaller images: `forebay pack --resize-short`"
    );
    let mut alone = stats([2.0, 0.0, 38.0], [13.0, 0.2, 0.4], 6.4, [0.5, 9.5]);
    alone.cores = 2;
    assert_eq!(
        alone.clone().among_others().bottleneck().to_string(),
        "decode-bound: 2 threads busy 97 %, the trainer waited 95 % of its time; storage could give at least 20.0x; \
         each core has a thread: decode on more machines with `forebay serve`, or pack smaller images: `forebay pack --resize-short`"
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
