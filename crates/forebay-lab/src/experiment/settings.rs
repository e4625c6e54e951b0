//! The settings of the machine and of each medium that a figure depends on.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::CharacterizeOptions;
use crate::cold::{Mount, Way};

/// Settings of a block device that change its speed, below `/sys/dev/block/MAJOR:MINOR/queue`.
const OF_QUEUES: [&str; 5] = [
    "scheduler",
    "read_ahead_kb",
    "max_sectors_kb",
    "nr_requests",
    "rotational",
];

pub(super) fn settings(options: &CharacterizeOptions, way: Way) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut set = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.is_empty()) {
            all.insert(name.to_owned(), value);
        }
    };
    let system = rustix::system::uname();
    set("forebay", Some(env!("CARGO_PKG_VERSION").to_owned()));
    set(
        "build",
        Some(
            if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            }
            .to_owned(),
        ),
    );
    set(
        "kernel",
        Some(system.release().to_string_lossy().into_owned()),
    );
    set("cpu", line_of("/proc/cpuinfo", "model name"));
    let cores = std::thread::available_parallelism().ok();
    set("cores", cores.map(|cores| cores.to_string()));
    set("memory", line_of("/proc/meminfo", "MemTotal"));
    set(
        "dirty pages",
        Some(format!(
            "vm.dirty_background_ratio {}, vm.dirty_ratio {}",
            text("/proc/sys/vm/dirty_background_ratio"),
            text("/proc/sys/vm/dirty_ratio"),
        )),
    );
    set("caches before each run", Some(way.describe().to_owned()));
    set("counted runs", Some(options.runs.to_string()));
    set(
        "longest run",
        Some(format!("{} s", options.limit.as_secs_f64())),
    );
    let of = options
        .data
        .as_ref()
        .map(|data| format!("of {}", data.display()));
    let of = of.as_deref().unwrap_or("generated JPEGs");
    set("images", Some(format!("{} {of}", options.files)));
    set("limit", options.limits.map(|limits| limits.to_string()));
    set("large file", Some(format!("{} bytes", options.size)));
    set("batch size", Some(options.batch_size.to_string()));
    set("consumer", Some(options.consumer.name().to_owned()));
    for medium in &options.media {
        let name = medium.display().to_string();
        let Some(mount) = Mount::of(medium) else {
            continue;
        };
        set(
            &format!("{name}: file system"),
            Some(format!("{} on {}", mount.kind, mount.source)),
        );
        set(
            &format!("{name}: mount options"),
            Some(mount.options.clone()),
        );
        for (setting, value) in of_device(mount.device) {
            set(&format!("{name}: {setting}"), Some(value));
        }
    }
    all
}

/// Returns settings of a block device; none for file systems without one.
fn of_device(device: (u32, u32)) -> Vec<(String, String)> {
    let link = format!("/sys/dev/block/{}:{}", device.0, device.1);
    let Ok(place) = fs::canonicalize(link) else {
        return Vec::new();
    };
    // A partition has no queue; its disk has.
    let disk = match place.join("queue").is_dir() {
        true => place.as_path(),
        false => place.parent().unwrap_or(&place),
    };
    let of_disk = |file: &str| read(&disk.join(file));
    let mut found: Vec<(String, String)> = OF_QUEUES
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), of_disk(&format!("queue/{name}"))?)))
        .collect();
    found.extend(of_disk("device/model").map(|model| ("device".to_owned(), model)));
    found
}

/// Returns the memory that is available without swapping, according to the kernel.
pub(super) fn available_memory() -> Option<String> {
    line_of("/proc/meminfo", "MemAvailable")
}

fn read(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn text(path: &str) -> String {
    read(Path::new(path)).unwrap_or_else(|| "unknown".to_owned())
}

/// Returns the value of the first line `name: value`.
fn line_of(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}
