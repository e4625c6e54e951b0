//! Processors and limits of this process.

use rustix::process::{Resource, getrlimit};

use super::{Context, Finding, read};
use crate::quantity;

/// Shards, connections and clients together stay below this.
const ENOUGH_FILES: u64 = 4096;
/// Below this a loader of a few shards from a store may fail.
const LEAST_FILES: u64 = 128;

pub(super) fn processors(_: &Context<'_>) -> Vec<Finding> {
    // The affinity of this process and the quota of its control group are counted.
    let usable = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let machine = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let machine = machine
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    let text = format!("{usable} usable");
    vec![match machine > usable {
        true => Finding::warning(
            format!("{text} of {machine}: affinity or the control group's quota limits them"),
            "raise the CPU limit of the container if the GPU waits for images",
        ),
        false => Finding::ok(text),
    }]
}

pub(super) fn governor(_: &Context<'_>) -> Vec<Finding> {
    let governor = read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
    let governor = governor.map(|name| match name.as_str() {
        "powersave" | "conservative" => Finding::warning(
            format!("the governor is \"{name}\""),
            "cpupower frequency-set -g performance",
        ),
        name => Finding::ok(format!("the governor is \"{name}\"")),
    });
    governor.into_iter().collect()
}

pub(super) fn open_files(_: &Context<'_>) -> Vec<Finding> {
    let limit = getrlimit(Resource::Nofile);
    vec![judge_files(limit.current, limit.maximum)]
}

fn judge_files(current: Option<u64>, maximum: Option<u64>) -> Finding {
    let Some(current) = current else {
        return Finding::ok("no limit");
    };
    let text = format!("{} may be open at once", quantity::count(current));
    // A hard limit is raised by the administrator.
    let remedy = match maximum {
        Some(most) if most < ENOUGH_FILES => {
            format!(
                "raise the hard limit of {most}: nofile in /etc/security/limits.conf, or the container's ulimits"
            )
        }
        _ => "ulimit -n 65536".to_owned(),
    };
    match current {
        ..LEAST_FILES => Finding::problem(text, remedy),
        LEAST_FILES..ENOUGH_FILES => Finding::warning(text, remedy),
        _ => Finding::ok(text),
    }
}

/// Forebay locks none: pinned memory of CUDA and RDMA may.
pub(super) fn locked_memory(_: &Context<'_>) -> Vec<Finding> {
    let limit = getrlimit(Resource::Memlock).current;
    vec![match limit {
        Some(bytes) if bytes < 64 << 10 => Finding::warning(
            format!("{} may be locked", quantity::bytes(bytes)),
            "ulimit -l unlimited, if the trainer uses RDMA",
        ),
        Some(bytes) => Finding::ok(format!("{} may be locked", quantity::bytes(bytes))),
        None => Finding::ok("no limit"),
    }]
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn few_open_files_are_a_problem() {
        let level = |current| judge_files(current, None).level;
        assert_eq!(level(Some(64)), Level::Problem);
        assert_eq!(level(Some(1024)), Level::Warning);
        assert_eq!(level(Some(1 << 20)), Level::Ok);
        assert_eq!(level(None), Level::Ok);
        let remedy = |maximum| judge_files(Some(1024), maximum).remedy.unwrap();
        assert_eq!(remedy(Some(1 << 20)), "ulimit -n 65536");
        assert!(remedy(Some(1024)).contains("hard limit of 1024"));
    }
}
