//! Checks of the memory of this machine and of the limit of its cgroup.

use std::path::Path;

use forebay_loader::DEFAULT_MEMORY_BYTES;
use forebay_server::memory_of_this_machine;
use forebay_store::free_bytes;

use super::{Context, Finding, read};
use crate::quantity::bytes as size;

/// Estimated memory of a trainer and its libraries in bytes, without that of the loader.
const BESIDE: u64 = 1 << 30;

pub(super) fn memory(_: &Context<'_>) -> Vec<Finding> {
    memory_of_this_machine().map(judge).into_iter().collect()
}

fn judge(bytes: u64) -> Finding {
    let text = format!("{} usable", size(bytes));
    let budget = DEFAULT_MEMORY_BYTES;
    if bytes < budget / 4 {
        let remedy = format!(
            "raise the memory limit; a loader holds up to {} by default",
            size(budget)
        );
        return Finding::problem(text, remedy);
    }
    match bytes < budget + BESIDE {
        true => Finding::warning(
            text,
            format!(
                "lower the loader's memory budget, which is {} by default",
                size(budget)
            ),
        ),
        false => Finding::ok(text),
    }
}

/// Checks the free space of `/dev/shm`, which PyTorch worker processes use. Forebay's own batches are in memory files, to which
/// the size of `/dev/shm` does not apply.
pub(super) fn shared_memory(_: &Context<'_>) -> Vec<Finding> {
    let Ok(free) = free_bytes(Path::new("/dev/shm")) else {
        return Vec::new();
    };
    let text = format!("{} free in /dev/shm", size(free));
    vec![match free < BESIDE {
        true => Finding::warning(
            text,
            "docker run --shm-size=8g, if the trainer also uses a PyTorch DataLoader with workers",
        ),
        false => Finding::ok(text),
    }]
}

pub(super) fn huge_pages(_: &Context<'_>) -> Vec<Finding> {
    let setting = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let chosen = setting.and_then(|text| {
        let start = text.find('[')? + 1;
        let end = start + text[start..].find(']')?;
        Some(text[start..end].to_owned())
    });
    let finding = chosen.map(|chosen| match chosen.as_str() {
        "never" => Finding::warning(
            "transparent huge pages are off: large batches cost more page faults",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        chosen => Finding::ok(format!("transparent huge pages: {chosen}")),
    });
    finding.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn memory_is_compared_with_the_loader_budget() {
        assert_eq!(judge(DEFAULT_MEMORY_BYTES / 8).level, Level::Problem);
        assert_eq!(judge(DEFAULT_MEMORY_BYTES).level, Level::Warning);
        assert_eq!(judge(64 << 30).level, Level::Ok);
    }
}
