//! Finds files beside images that may hold labels.

use crate::class_list::is_list;
use crate::error::Result;
use crate::images::layout::SplitSource;
use crate::images::walk::{Top, Tree};
use crate::key_path::{base, join};
use crate::labels;
use crate::option_names::LABELS;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// A file that may hold labels but is not used.
#[derive(Debug)]
pub struct LabelFile {
    /// Path relative to the source.
    pub relative: Vec<u8>,
    /// Which option reads it.
    pub advice: String,
}

/// Returns files that may hold labels at the top of the source and in the directories of splits.
pub(super) fn unused(top: &Top<'_>, splits: &[SplitSource]) -> Result<Vec<LabelFile>> {
    let mut found = label_files(top);
    for split in splits {
        if let Some(below) = split.dir.strip_prefix(top.relative.as_slice())
            && !below.is_empty()
        {
            let dir = below.strip_prefix(b"/").unwrap_or(below);
            found.extend(label_files(&top.below(dir)?));
        }
    }
    Ok(found)
}

/// Returns the files in a directory that may hold labels.
fn label_files(top: &Top<'_>) -> Vec<LabelFile> {
    let mut found = Vec::new();
    for name in &top.files {
        let Ok(text) = std::str::from_utf8(name) else {
            continue;
        };
        let lower = text.to_ascii_lowercase();
        let Some((stem, ending)) = lower.rsplit_once('.') else {
            continue;
        };
        let is_table = matches!(ending, "csv" | "tsv" | "jsonl" | "ndjson");
        let is_named = ["annotation", "label", "metadata", "caption"]
            .iter()
            .any(|word| stem.contains(word));
        let is_other = is_named && matches!(ending, "json" | "xml" | "txt" | "parquet" | "mat");
        if is_list(text) || !(is_table || is_other) {
            continue;
        }
        let path = top.path.join(OsStr::from_bytes(name));
        let advice = match top.tree {
            Tree::Directory if is_table => labels::advice(&path),
            Tree::Directory => {
                format!("{LABELS} reads CSV, TSV and JSON lines with the columns path and label")
            }
            _ => format!(
                "{LABELS} {} reads a local copy of it",
                String::from_utf8_lossy(base(name))
            ),
        };
        found.push(LabelFile {
            relative: join(&top.relative, name),
            advice,
        });
    }
    found
}
