//! Checks of the CPUs, and of the resource limits of this process.

use forebay_shard::LocalFiles;
use forebay_store::StoreOptions;
use rustix::process::{Resource, getrlimit};

use super::{Context, Finding, Target, dataset, read};
use crate::quantity;

/// File descriptors that a training process needs in addition to those of its dataset: standard streams, Python libraries,
/// batches in memory files, and the async runtime of store requests. 33 were measured with PyTorch and a loader.
const BESIDE_FILES: u64 = 48;
/// Maximum number of connections to batch servers that a loader is expected to open.
const SERVER_SOCKETS: u64 = 16;

pub(super) fn processors(_: &Context<'_>) -> Vec<Finding> {
    // `available_parallelism` respects the CPU affinity of this process and the CPU quota of its cgroup.
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

/// Minimum number of connections with which a loader works, although slowly.
const FEW_SOCKETS: u64 = 8;

/// File descriptors that a loader opens for its dataset.
#[derive(Debug, Clone, Copy)]
enum Opens {
    /// Number of files, of which the loader keeps some open; `None` without a local dataset.
    Files(Option<u64>),
    /// Maximum number of connections.
    Sockets(u64),
}

pub(super) fn open_files(context: &Context<'_>) -> Vec<Finding> {
    let limit = getrlimit(Resource::Nofile);
    let opens = match &context.target {
        Some(Target::Server(_)) => Opens::Sockets(SERVER_SOCKETS),
        Some(Target::Dataset(location)) if location.is_remote() => {
            Opens::Sockets(StoreOptions::new().max_requests as u64)
        }
        _ => Opens::Files(dataset::files(context)),
    };
    let kept = LocalFiles::within_limits().most_files() as u64;
    vec![judge_files(limit.current, limit.maximum, opens, kept)]
}

/// Compares the descriptor limits with the need. `kept` is the maximum number of files that a loader keeps open under the limit.
fn judge_files(current: Option<u64>, maximum: Option<u64>, opens: Opens, kept: u64) -> Finding {
    let Some(current) = current else {
        return Finding::ok("no limit");
    };
    let (own, what) = match opens {
        Opens::Files(Some(files)) => (files.min(kept), "files of the dataset"),
        Opens::Files(None) => (kept, "files of a large dataset"),
        Opens::Sockets(sockets) => (sockets, "connections"),
    };
    let needed = own + BESIDE_FILES;
    let text = format!(
        "{} may be open at once, and training needs about {}: {} {what}, and {} beside them",
        quantity::count(current),
        quantity::count(needed),
        quantity::count(own),
        quantity::count(BESIDE_FILES),
    );
    let remedy = |wanted: u64| match maximum {
        // Only an administrator can raise the hard limit.
        Some(most) if most < wanted => format!(
            "raise the hard limit of {most}: nofile in /etc/security/limits.conf, or the container's ulimits"
        ),
        _ => format!("ulimit -n {}", wanted.next_power_of_two()),
    };
    let least = match opens {
        Opens::Files(_) => needed,
        Opens::Sockets(sockets) => sockets.min(FEW_SOCKETS) + BESIDE_FILES,
    };
    if current < least {
        return Finding::problem(text, remedy(needed));
    }
    match opens {
        Opens::Sockets(_) if current < needed => Finding::warning(
            format!("{text}; connections beyond the limit fail and are tried again"),
            remedy(needed),
        ),
        // A loader keeps files open up to a fraction of the limit, so a higher limit lets it keep more files open.
        Opens::Files(Some(files)) if files.min(LocalFiles::MOST_FILES as u64) > kept => {
            Finding::warning(
                format!(
                    "{text}; of {files} files, those that are not kept open are opened for each read"
                ),
                remedy(4 * files.min(LocalFiles::MOST_FILES as u64)),
            )
        }
        _ => Finding::ok(text),
    }
}

/// Checks the limit of locked memory. Forebay locks no memory, but CUDA's pinned memory and RDMA may.
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
    fn descriptor_limits_are_compared_with_the_need() {
        // A loader keeps up to a quarter of the limit open, and at most 256 files.
        let judged =
            |limit: u64, opens| judge_files(Some(limit), None, opens, (limit / 4).min(256));
        let files = |files| Opens::Files(Some(files));
        for (limit, opens, level) in [
            (100, files(4), Level::Ok),
            (100, files(2000), Level::Warning),
            (1024, files(2000), Level::Ok),
            (60, files(2000), Level::Problem),
            (50, files(1), Level::Ok),
            (1024, Opens::Files(None), Level::Ok),
            (100, Opens::Files(None), Level::Ok),
            (100, Opens::Sockets(64), Level::Warning),
            (50, Opens::Sockets(64), Level::Problem),
            (256, Opens::Sockets(64), Level::Ok),
        ] {
            let finding = judged(limit, opens);
            assert_eq!(finding.level, level, "{limit} {opens:?}: {finding:?}");
        }
        let text = judged(100, files(4)).message;
        assert!(
            text.contains("needs about 52: 4 files of the dataset"),
            "{text}"
        );
        assert_eq!(judge_files(None, None, files(9), 256).level, Level::Ok);
        let remedy = |maximum| {
            let opens = Opens::Sockets(64);
            judge_files(Some(100), Some(maximum), opens, 25)
                .remedy
                .unwrap()
        };
        assert_eq!(remedy(1 << 20), "ulimit -n 128");
        assert!(remedy(100).contains("hard limit of 100"));
    }
}
