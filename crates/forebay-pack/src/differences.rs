//! Differences between the arguments of two runs.

use std::collections::{BTreeMap, BTreeSet};

/// Returns a text for each argument that differs, with `words` for the run that it names first and for the other.
pub(crate) fn differences(runs: [&BTreeMap<String, String>; 2], words: [&str; 2]) -> Vec<String> {
    let names: BTreeSet<&String> = runs.iter().flat_map(|run| run.keys()).collect();
    let differing = names.into_iter().filter(|name| {
        let [one, other] = runs.map(|run| run.get(*name));
        one != other
    });
    differing
        .map(|name| {
            let [one, other] = runs.map(|run| run.get(name).map_or("not given", String::as_str));
            format!("{name}: {} {one}, {} {other}", words[0], words[1])
        })
        .collect()
}
