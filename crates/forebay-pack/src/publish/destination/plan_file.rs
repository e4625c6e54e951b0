//! The plan that parts share: the description of the pack, and the manifest without its shards, so that the parts can be
//! joined without reading the source again. The parts of a conversion are joined with the source, without an outline.
//!
//! Its lines have the format of the journal. The first line is that of a journal, the second one is the [`Outline`], then
//! the findings of the census follow, and the last line has their number. The first part publishes the plan; the others compare.

use super::journal::{Header, line, parse};
use crate::census::{CensusRecord, Inputs};
use crate::error::{Error, Result};
use forebay_formats::Finding;
use forebay_formats::FindingList;
use forebay_shard::Manifest;
use forebay_shard::manifest::RoleAccount;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

/// The results of the census and the plan that the manifest and the summary need.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outline {
    /// The manifest, with splits without shards.
    pub(crate) manifest: Manifest,
    /// The splits with the number of their shards, in the order of the shards in the plan.
    pub(crate) splits: Vec<(String, u64)>,
    /// Warnings for the user.
    pub(crate) warnings: Vec<String>,
    /// Number of files that the plan packs.
    pub(crate) files: u64,
    /// The sources of images and labels.
    pub(crate) roles: BTreeMap<String, RoleAccount>,
    /// Further columns of the samples.
    pub(crate) columns: Vec<String>,
    /// The name of the recorded census, and the options from which it was taken.
    #[serde(default)]
    pub(crate) census: Option<(String, Inputs)>,
}

/// A plan that is about to be published.
pub(crate) struct SharedPlan<'a> {
    pub(crate) header: &'a Header,
    /// `None` for a conversion.
    pub(crate) outline: Option<&'a Outline>,
    pub(crate) findings: &'a FindingList,
    /// The census that the outline names, which is stored first.
    pub(crate) census: Option<&'a CensusRecord>,
}

/// A plan that was read.
#[derive(Debug)]
pub(crate) struct PlanFile {
    pub(crate) header: Header,
    /// `None` for a conversion.
    pub(crate) outline: Option<Outline>,
    pub(crate) findings: FindingList,
}

#[derive(Serialize, Deserialize)]
struct End {
    findings: u64,
}

/// Encodes the content of the file.
pub(crate) fn encode(path: &Path, plan: &SharedPlan<'_>) -> Result<Vec<u8>> {
    let mut text = line(path, plan.header)?;
    text.extend(line(path, &plan.outline)?);
    for finding in plan.findings.iter() {
        text.extend(line(path, &finding)?);
    }
    let end = End {
        findings: plan.findings.count() as u64,
    };
    text.extend(line(path, &end)?);
    Ok(text)
}

/// Reads a plan. `None` if it does not exist. A damaged plan is an error, because it is published atomically.
pub(super) fn read(path: &Path) -> Result<Option<PlanFile>> {
    let text = match forebay_shard::storage::read_file(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(path, "read", error)),
    };
    parse_plan(path, &text).map(Some)
}

/// Reads the content of a plan; `path` is for errors.
pub(crate) fn parse_plan(path: &Path, text: &[u8]) -> Result<PlanFile> {
    let damaged = || {
        let what = "the plan of the parts is damaged: remove this file and run any part again";
        Error::destination(path, what)
    };
    let mut lines = text.split_inclusive(|b| *b == b'\n');
    let header: Header = lines.next().and_then(parse).ok_or_else(damaged)?;
    let outline: Option<Outline> = lines.next().and_then(parse).ok_or_else(damaged)?;
    let mut findings = FindingList::default();
    let mut last = lines.next().ok_or_else(damaged)?;
    for next in lines {
        findings.push(&parse::<Finding>(last).ok_or_else(damaged)?);
        last = next;
    }
    let end: End = parse(last).ok_or_else(damaged)?;
    // Names become paths, and the counts divide the names among the splits, so both are validated.
    let fits = |outline: &Outline| {
        let mut splits = outline.splits.iter();
        let shards = splits.try_fold(0u64, |sum, (_, count)| sum.checked_add(*count));
        shards == Some(header.shards.len() as u64)
            && outline.splits.len() == outline.manifest.splits.len()
            && header.shards.iter().all(|name| super::is_shard_name(name))
            && outline
                .census
                .as_ref()
                .is_none_or(|(name, _)| CensusRecord::is_name(name))
    };
    let is_sound = end.findings == findings.count() as u64 && outline.as_ref().is_none_or(fits);
    if !is_sound {
        return Err(damaged());
    }
    Ok(PlanFile {
        header,
        outline,
        findings,
    })
}
