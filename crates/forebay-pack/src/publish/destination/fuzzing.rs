//! Invariants of the parsers for unfinished destinations, for arbitrary bytes.
//!
//! A fuzzer cannot guess checksums, so each input is tried twice: unchanged, and with corrected checksums of its
//! lines.

use super::journal::{Journal, line};
use super::plan_file::{self, PlanFile, SharedPlan};
use crate::report::{FastCount, ProgressiveCount, SeekPointCount};
use forebay_shard::checksum::crc32c;
use forebay_store::Durability;
use std::collections::BTreeSet;
use std::path::Path;

/// The journal of an interrupted pack.
pub fn journal(bytes: &[u8], scratch: &Path) {
    read_journal(bytes, scratch);
    read_journal(&seal(bytes), scratch);
}

fn read_journal(bytes: &[u8], scratch: &Path) {
    let path = scratch.join("journal");
    std::fs::write(&path, bytes).unwrap();
    let Some(found) = Journal::read(&path).unwrap() else {
        return;
    };
    let names: BTreeSet<_> = found.shards.iter().map(|shard| &shard.name).collect();
    assert_eq!(names.len(), found.shards.len(), "each shard once");
    let _ = found.header.difference(&found.header).into_words();
    let _: ProgressiveCount = found.shards.iter().map(|shard| shard.progressive).sum();
    let _: FastCount = found.shards.iter().map(|shard| shard.fast).sum();
    let _: SeekPointCount = found.shards.iter().map(|shard| shard.seek_points).sum();
    // A journal that is written from the parsed lines is parsed to the same lines.
    let mut text = line(&path, &found.header).unwrap();
    for shard in &found.shards {
        text.extend(line(&path, shard).unwrap());
    }
    Journal::begin(
        &path,
        &found.header,
        found.shards.iter(),
        Durability::Cached,
    )
    .unwrap();
    assert!(std::fs::read(&path).unwrap() == text);
    let again = Journal::read(&path).unwrap().unwrap();
    assert_eq!(again.header, found.header);
    assert_eq!(again.shards, found.shards);
}

/// The plan that parts share.
pub fn plan(bytes: &[u8], scratch: &Path) {
    read_plan(bytes, scratch);
    read_plan(&seal(bytes), scratch);
}

fn read_plan(bytes: &[u8], scratch: &Path) {
    let path = scratch.join("plan");
    std::fs::write(&path, bytes).unwrap();
    let plan = match plan_file::read(&path) {
        Ok(plan) => plan.unwrap(),
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let (header, outline) = (&plan.header, &plan.outline);
    if let Some(outline) = outline {
        let shards: u64 = outline.splits.iter().map(|(_, count)| count).sum();
        assert_eq!(shards, header.shards.len() as u64);
    }
    let text = encode(&path, &plan);
    std::fs::write(&path, &text).unwrap();
    let again = plan_file::read(&path).unwrap().unwrap();
    assert_eq!(again.header, plan.header);
    assert!(encode(&path, &again) == text);
}

fn encode(path: &Path, plan: &PlanFile) -> Vec<u8> {
    let shared = SharedPlan {
        header: &plan.header,
        outline: plan.outline.as_ref(),
        findings: &plan.findings,
        census: None,
    };
    plan_file::encode(path, &shared).unwrap()
}

/// Corrects the checksums of lines.
fn seal(bytes: &[u8]) -> Vec<u8> {
    let mut sealed = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let (text, end) = match line.strip_suffix(b"\n") {
            Some(text) => (text, "\n"),
            None => (line, ""),
        };
        let start = text.iter().position(|byte| *byte == b' ');
        let text = &text[start.map_or(0, |space| space + 1)..];
        sealed.extend(format!("{:08x} ", crc32c(text)).bytes());
        sealed.extend_from_slice(text);
        sealed.extend(end.bytes());
    }
    sealed
}
