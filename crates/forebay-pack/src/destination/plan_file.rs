//! The plan that parts share: what is packed, and all of the manifest but the shards, so that the parts can be joined
//! without another look at the source.
//!
//! Lines as in the journal. The first one is that of a journal, the second one the [`Outline`], then come the census's findings, and the last
//! one counts them. The part that begins first publishes it; the others compare.

use super::journal::{Header, line, parse};
use crate::error::{Error, Result};
use forebay_formats::Finding;
use forebay_formats::FindingList;
use forebay_shard::Manifest;
use forebay_shard::manifest::RoleAccount;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// Parts of the census and the plan that the manifest and the summary need.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outline {
    /// The manifest with splits that have no shards yet.
    pub(crate) manifest: Manifest,
    /// The splits with the number of their shards, in the order in which the plan names those.
    pub(crate) splits: Vec<(String, u64)>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// The files that the plan packs.
    pub(crate) files: u64,
    /// The sources of images and labels.
    pub(crate) roles: BTreeMap<String, RoleAccount>,
    /// Further columns of the samples.
    pub(crate) columns: Vec<String>,
}

/// A plan as it was found.
#[derive(Debug)]
pub(crate) struct PlanFile {
    pub(crate) header: Header,
    pub(crate) outline: Outline,
    pub(crate) findings: FindingList,
}

#[derive(Serialize, Deserialize)]
struct End {
    findings: u64,
}

/// The content of the file.
pub(super) fn encode(
    path: &Path,
    header: &Header,
    outline: &Outline,
    findings: &FindingList,
) -> Result<Vec<u8>> {
    let mut text = line(path, header)?;
    text.extend(line(path, outline)?);
    for finding in findings.iter() {
        text.extend(line(path, &finding)?);
    }
    let end = End {
        findings: findings.count() as u64,
    };
    text.extend(line(path, &end)?);
    Ok(text)
}

/// Reads a plan. None if there is none; a damaged one is an error, because it was published whole.
pub(super) fn read(path: &Path) -> Result<Option<PlanFile>> {
    let text = match forebay_shard::read_file(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, "read", error)),
    };
    let damaged = || {
        let what = "the plan of the parts is damaged: remove this file and run any part again";
        Error::destination(path, what)
    };
    let mut lines = text.split_inclusive(|b| *b == b'\n');
    let header: Header = lines.next().and_then(parse).ok_or_else(damaged)?;
    let outline: Outline = lines.next().and_then(parse).ok_or_else(damaged)?;
    let mut findings = FindingList::default();
    let mut last = lines.next().ok_or_else(damaged)?;
    for next in lines {
        findings.push(&parse::<Finding>(last).ok_or_else(damaged)?);
        last = next;
    }
    let end: End = parse(last).ok_or_else(damaged)?;
    let mut splits = outline.splits.iter();
    let shards = splits.try_fold(0u64, |sum, (_, count)| sum.checked_add(*count));
    // Names become paths, and counts divide the names among the splits.
    let is_sound = end.findings == findings.count() as u64
        && shards == Some(header.shards.len() as u64)
        && outline.splits.len() == outline.manifest.splits.len()
        && header.shards.iter().all(|name| super::is_shard_name(name));
    if !is_sound {
        return Err(damaged());
    }
    Ok(Some(PlanFile {
        header,
        outline,
        findings,
    }))
}
