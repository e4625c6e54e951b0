//! The account of a dataset: the number of items that were read, and the outcome of each.
//!
//! The counts come from two independent places: the source counts the items that it reads, and the writers count the
//! samples in the files that they write. [`Account::check_sum`] compares both before anything is published.

use crate::error::{Error, Result};
use crate::publish::destination::ShardLine;
use forebay_formats::records::SourceFacts;
use forebay_formats::{Action, Finding, FindingList, Reason};
use forebay_shard::manifest::{Account, Manifest, RoleAccount, SplitAccount};
use forebay_shard::schema::{ColumnType, IMAGE, LABEL, Schema};
use std::collections::BTreeMap;
use std::path::Path;

/// Prefix of features that describe the image or the label of a record; they do not become separate columns.
const OF_ROLES: &str = "image/";

/// Counts findings by reason.
#[derive(Debug, Default)]
pub(crate) struct FindingCounts {
    left_out: BTreeMap<String, u64>,
    ignored: BTreeMap<String, u64>,
    problems: BTreeMap<String, u64>,
    outside: u64,
}

impl FindingCounts {
    pub(crate) fn add(&mut self, action: Action, reason: Reason, count: u64) {
        let text = || reason.text().to_owned();
        // A finding about an empty directory concerns no file.
        if count == 0 {
            return;
        }
        if reason == Reason::NotSelected {
            self.outside += count;
            return;
        }
        // Files that the index does not list, and bytes after the end of an archive, are not items that are counted.
        let is_counted = !matches!(reason, Reason::NotIndexed | Reason::BehindEnd);
        if is_counted && action.leaves_out() {
            *self.left_out.entry(text()).or_default() += count;
        }
        if is_counted && action == Action::Ignored {
            *self.ignored.entry(text()).or_default() += count;
        }
        if action.leaves_out() || reason.is_problem() {
            *self.problems.entry(text()).or_default() += count;
        }
    }

    pub(crate) fn of_list(findings: &FindingList) -> Self {
        let mut counts = Self::default();
        findings
            .kinds()
            .for_each(|(action, reason, files)| counts.add(action, reason, files));
        counts
    }

    pub(crate) fn of<'a>(findings: impl Iterator<Item = &'a Finding>) -> Self {
        let mut counts = Self::default();
        findings.for_each(|finding| {
            counts.add(finding.action, finding.reason, u64::from(finding.files))
        });
        counts
    }

    /// Returns the number of items that did not become samples: they were left out, ignored or not selected.
    pub(crate) fn passed_over(&self) -> u64 {
        let counts = self.left_out.values().chain(self.ignored.values());
        counts.sum::<u64>() + self.outside
    }
}

/// Creates the account of the splits of a manifest, for which `read` items were read.
pub(crate) fn account<'a>(
    unit: &str,
    read: u64,
    counts: FindingCounts,
    manifest: &Manifest,
    line: impl Fn(&str) -> Option<&'a ShardLine>,
) -> Account {
    let mut account = Account::new(unit);
    account.read = read;
    account.left_out = counts.left_out;
    account.ignored = counts.ignored;
    account.outside = counts.outside;
    account.problems = counts.problems;
    for split in &manifest.splits {
        let lines = || split.shards.iter().filter_map(|shard| line(&shard.name));
        let own = SplitAccount {
            samples: lines().map(|line| line.records).sum(),
            labelled: lines().map(|line| line.samples.labelled()).sum(),
        };
        account.note_unlabelled(&split.name, own);
        account.packed.insert(split.name.clone(), own);
    }
    account
}

/// Adds the source columns of image, label and key of converted records, and the other columns.
pub(crate) fn add_columns(account: &mut Account, facts: &SourceFacts) {
    add_schema(account, &facts.columns());
    if let (Some(label), Some(role)) = (&facts.label, account.roles.get_mut("label")) {
        role.source.clone_from(&label.column);
        role.form = Some(label.form.name().to_owned());
    }
}

/// Adds the columns of records: the columns of image and label as roles, and the others.
pub(crate) fn add_schema(account: &mut Account, schema: &Schema) {
    for column in schema.columns() {
        let role = match (column.name.as_str(), &column.column_type) {
            (IMAGE, ColumnType::Image) => "image",
            (LABEL, ColumnType::Label) => "label",
            _ => {
                if !column.name.starts_with(OF_ROLES) {
                    account.columns.push(column.name.clone());
                }
                continue;
            }
        };
        let source = column.feature.clone();
        let own = RoleAccount { source, form: None };
        account.roles.insert(role.to_owned(), own);
    }
    account.columns.sort();
}

/// Checks that the counts of an account add up, and that at least one sample was packed.
pub(crate) fn check(account: &Account, root: &Path) -> Result<()> {
    let left_out = account.left_out_count();
    if left_out > 0 && account.packed_samples() == 0 {
        let unit = &account.unit;
        let reasons: Vec<String> = account
            .left_out
            .iter()
            .map(|(reason, count)| format!("{count} {reason}"))
            .collect();
        let reasons = reasons.join(", ");
        let what =
            format!("all {left_out} {unit} were left out, so nothing is published: {reasons}");
        return Err(Error::destination(root, what));
    }
    account.check_sum().map_err(|what| {
        let what =
            format!("the account of the dataset does not add up, so nothing is published: {what}");
        Error::destination(root, what)
    })
}
