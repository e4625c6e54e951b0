use clap::Parser;

use super::*;

#[derive(Parser)]
struct Flags {
    #[command(flatten)]
    plan: ClusterPlan,
}

fn parsed(flags: &[&str]) -> Result<ClusterPlan, clap::Error> {
    Flags::try_parse_from(std::iter::once(&"x").chain(flags)).map(|flags| flags.plan)
}

/// Returns the plan without flags: a thousand GPUs, a hundred servers.
fn usual() -> ClusterPlan {
    parsed(&[]).unwrap()
}

#[test]
fn flags_make_a_plan() {
    let plan = parsed(&["--cache", "0", "--placement", "hash", "--storage", "50GB"]).unwrap();
    assert_eq!((plan.cache_bytes, plan.placement), (0, Placement::Hash));
    assert_eq!((plan.storage_gb_s, plan.storage_latency_ms), (50.0, 20.0));
    assert_eq!((plan.send_s_per_gb, plan.failover_s), (0.21, 2.0));
    assert!(parsed(&["--placement", "random"]).is_err());
}

/// Returns a plan of one server and one GPU that nothing limits; each test limits one resource.
fn free() -> ClusterPlan {
    ClusterPlan {
        gpus: 1,
        gpus_per_trainer: 1,
        servers: 1,
        cores: 100,
        gpu_images_per_s: 1000.0,
        batch_size: 10,
        sample_bytes: 100_000,
        send_s_per_gb: 0.0,
        storage_latency_ms: 0.0,
        jitter: 0.0,
        ahead: 8,
        seconds: 20.0,
        warm_up_s: 2.0,
        cache_bytes: 0,
        ..usual()
    }
}

fn near(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.02,
        "found {found}, expected {expected}"
    );
}

fn used(outcome: &Outcome, resource: Resource) -> f64 {
    let found = outcome.uses.iter().find(|used| used.resource == resource);
    found.unwrap().mean
}

#[test]
fn unlimited_training_does_not_wait() {
    let outcome = run(&free()).unwrap();
    near(outcome.images_per_s, 1000.0);
    assert_eq!((outcome.stall_p50, outcome.wait_ms_p99), (0.0, 0.0));
    assert_eq!(outcome.first_limit.resource, Resource::Gpus);
    // Utilization is work over capacity: 1,000 images/s of 100 cores at 1,000; 100 MB/s of 12.5 GB/s; 110 MB/s of 100 GB/s.
    near(used(&outcome, Resource::Cores), 0.01);
    near(used(&outcome, Resource::ServerOut), 0.008);
    near(used(&outcome, Resource::TrainerIn), 0.008);
    near(used(&outcome, Resource::ServerIn), 0.0088);
    near(used(&outcome, Resource::Storage), 0.0011);
    near(used(&outcome, Resource::Gpus), 1.0);
    // Time of one batch through empty queues: the sum of all stages.
    let batch = 10.0 * (110e3 / 100e9 + 110e3 / 12.5e9 + 1e-3 / 100.0 + 2.0 * 100e3 / 12.5e9);
    near(outcome.batch_ms_p50, batch * 1e3);
}

#[test]
fn simulated_limits_equal_the_computed_ones() {
    for (resource, expected, change) in [
        (
            Resource::Cores,
            250.0,
            (|plan| (plan.cores, plan.core_images_per_s) = (5, 50.0)) as fn(&mut ClusterPlan),
        ),
        // Decoding an image takes 1 ms; sending its 0.1 MB at 10 s per GB takes another 1 ms.
        (Resource::Cores, 500.0, |plan| {
            (plan.cores, plan.send_s_per_gb) = (1, 10.0);
        }),
        // 50 MB/s for samples of 100 KB.
        (Resource::ServerOut, 500.0, |plan| {
            plan.record_bytes = 10_000;
            plan.server_gbit = 0.4;
        }),
        (Resource::TrainerIn, 500.0, |plan| plan.trainer_gbit = 0.4),
        (Resource::Storage, 400.0, |plan| plan.storage_gb_s = 0.044),
        // Half of the dataset is in the cache.
        (Resource::Storage, 800.0, |plan| {
            plan.storage_gb_s = 0.044;
            (plan.dataset_bytes, plan.cache_bytes) = (1000, 500);
        }),
        (Resource::ServerIn, 500.0, |plan| {
            plan.record_bytes = 100_000;
            plan.sample_bytes = 10_000;
            plan.server_gbit = 0.4;
        }),
        // A server at a quarter of the speed counts as a quarter of a server.
        (Resource::Cores, 250.0, |plan| {
            (plan.cores, plan.core_images_per_s) = (1, 1000.0);
            (plan.slow_servers, plan.slow_factor) = (1, 0.25);
        }),
    ] {
        let mut plan = free();
        change(&mut plan);
        let limit = plan.first_limit();
        assert_eq!(limit.resource, resource, "{plan:?}");
        near(limit.images_per_s, expected);
        let outcome = run(&plan).unwrap();
        near(outcome.images_per_s, expected);
        near(used(&outcome, resource), 1.0);
        // The GPU waits for the rest of the time.
        near(outcome.stall_p50, 1.0 - expected / 1000.0);
        near(outcome.of_demand, expected / 1000.0);
    }
}

#[test]
fn a_cache_that_holds_all_needs_no_storage() {
    let mut plan = free();
    (plan.dataset_bytes, plan.cache_bytes) = (1000, 1000);
    plan.storage_gb_s = 1e-6;
    let outcome = run(&plan).unwrap();
    near(outcome.images_per_s, 1000.0);
    assert_eq!(used(&outcome, Resource::Storage), 0.0);
}

#[test]
fn a_training_is_as_fast_as_its_fullest_server() {
    let mut plan = ClusterPlan {
        gpus: 60,
        gpus_per_trainer: 60,
        servers: 10,
        cores: 4,
        trainer_gbit: 1000.0,
        placement: Placement::Hash,
        ..free()
    };
    let outcome = run(&plan).unwrap();
    assert!(
        outcome.most_streams > 6 && outcome.fewest_streams < 6,
        "{outcome:?}"
    );
    // The fullest server gives 4,000 images/s to its streams, and all other GPUs wait for these.
    near(
        outcome.images_per_s,
        60.0 * 4000.0 / outcome.most_streams as f64,
    );
    // With even placement, the servers give two thirds of the demand.
    plan.placement = Placement::Even;
    near(run(&plan).unwrap().images_per_s, 40_000.0);
    // Separate trainings do not wait for each other.
    plan.placement = Placement::Hash;
    plan.jobs = 60;
    let apart = run(&plan).unwrap();
    assert!(apart.images_per_s > outcome.images_per_s * 1.1);
    assert!(apart.stall_p99 > apart.stall_p50);
}

#[test]
fn a_dead_server_costs_the_wait_for_its_streams() {
    let mut plan = ClusterPlan {
        gpus: 8,
        gpus_per_trainer: 8,
        servers: 4,
        failures: 1,
        failover_s: 2.0,
        restart_s: 5.0,
        ahead: 2,
        ..free()
    };
    let outcome = run(&plan).unwrap();
    // All GPUs wait for two seconds of twenty, less two ready batches of 10 ms each.
    near(outcome.stall_p50, (2.0 - 0.02) / 20.0);
    assert_eq!(outcome.wait_ms_p99, 0.0, "all in one step");
    assert_eq!(
        (outcome.most_streams, outcome.fewest_streams),
        (2, 2),
        "all are back"
    );
    // Enough ready batches bridge the failover.
    plan.ahead = 250;
    let bridged = run(&plan).unwrap();
    assert!(bridged.stall_p50 < 0.01, "{bridged:?}");
    // All but one server may die.
    plan.failures = 3;
    assert!(run(&plan).unwrap().images_per_s > 0.0);
}

#[test]
fn the_same_plan_gives_the_same_figures() {
    let mut plan = ClusterPlan {
        gpus: 40,
        servers: 7,
        placement: Placement::Hash,
        cores: 8,
        jitter: 0.3,
        failures: 2,
        slow_servers: 1,
        seconds: 5.0,
        ..usual()
    };
    let first = run(&plan).unwrap();
    assert_eq!(run(&plan).unwrap(), first);
    plan.seed = 1;
    assert_ne!(run(&plan).unwrap(), first);
}

#[test]
fn one_more_helps_only_for_the_scarce_resource() {
    let plan = ClusterPlan {
        gpus: 10,
        servers: 2,
        cores: 4,
        trainer_gbit: 100.0,
        ..free()
    };
    let base = run(&plan).unwrap();
    near(base.images_per_s, 8000.0);
    let more = one_more(&plan, &base).unwrap();
    let gain = |what: &str| more.iter().find(|m| m.what.contains(what)).unwrap().gain;
    near(gain("core"), 0.25);
    assert!(gain("server").abs() < 0.3 && gain("server") > 0.1);
    for nothing in ["storage", "Gbit/s for each server", "for each trainer"] {
        assert!(gain(nothing).abs() < 0.01, "{nothing}");
    }
}

#[test]
fn invalid_plans_are_refused_with_a_reason() {
    for (name, change) in [
        ("gpus", (|plan| plan.gpus = 0) as fn(&mut ClusterPlan)),
        ("servers", |plan| plan.servers = 0),
        ("trainings", |plan| plan.jobs = plan.gpus + 1),
        ("gpu-images", |plan| plan.gpu_images_per_s = f64::NAN),
        ("storage", |plan| plan.storage_gb_s = 0.0),
        ("jitter", |plan| plan.jitter = 1.0),
        ("failures", |plan| plan.failures = plan.servers),
        ("slow-servers", |plan| plan.slow_servers = 1000),
        ("duration", |plan| plan.seconds = 1e6),
    ] {
        let mut plan = usual();
        change(&mut plan);
        assert_eq!(run(&plan).unwrap_err().name, name);
    }
}
