//! Compact list of findings: a dataset may have a million of them, for example a text file beside each image.

use crate::finding::{Action, Finding, Reason};
use std::collections::BTreeSet;

/// Findings in the order in which they were pushed.
#[derive(Debug, Default, Clone)]
pub struct FindingList {
    /// The path and detail of each finding, concatenated.
    text: String,
    items: Vec<Item>,
}

#[derive(Debug, Clone, Copy)]
struct Item {
    start: u64,
    path_end: u64,
    detail_end: u64,
    files: u32,
    action: Action,
    reason: Reason,
}

impl FindingList {
    /// Adds a finding.
    pub fn push(&mut self, finding: &Finding) {
        let start = self.text.len() as u64;
        self.text.push_str(&finding.path);
        let path_end = self.text.len() as u64;
        self.text.push_str(&finding.detail);
        let detail_end = self.text.len() as u64;
        self.items.push(Item {
            start,
            path_end,
            detail_end,
            files: finding.files,
            action: finding.action,
            reason: finding.reason,
        });
    }

    /// Adds all findings of another list.
    pub fn append(&mut self, other: &Self) {
        let shift = self.text.len() as u64;
        self.text.push_str(&other.text);
        self.items.extend(other.items.iter().map(|item| Item {
            start: item.start + shift,
            path_end: item.path_end + shift,
            detail_end: item.detail_end + shift,
            ..*item
        }));
    }

    /// Marks images in other formats, given by their paths, as quarantined.
    pub fn quarantine(&mut self, paths: &BTreeSet<String>) {
        for item in &mut self.items {
            let path = &self.text[item.start as usize..item.path_end as usize];
            if (item.action, item.reason) == (Action::Skipped, Reason::OtherFormat)
                && paths.contains(path)
            {
                item.action = Action::Quarantined;
            }
        }
    }

    /// Replaces the findings about an ignored file by one that says it may hold labels.
    pub fn unused_labels(&mut self, path: &str, detail: &str) {
        let text = &self.text;
        let is_it = |item: &Item| &text[item.start as usize..item.path_end as usize] == path;
        self.items
            .retain(|item| item.action != Action::Ignored || !is_it(item));
        self.push(&Finding {
            action: Action::Ignored,
            reason: Reason::UnusedLabels,
            path: path.to_owned(),
            detail: detail.to_owned(),
            files: 1,
        });
    }

    /// Removes the findings about files, given by their paths, that turned out to be used.
    pub fn forget(&mut self, paths: &BTreeSet<String>) {
        let text = &self.text;
        let path = |item: &Item| &text[item.start as usize..item.path_end as usize];
        if !paths.is_empty() {
            let is_of_use = |item: &Item| item.action != Action::Kept && paths.contains(path(item));
            self.items.retain(|item| !is_of_use(item));
        }
    }

    /// Returns the number of findings.
    pub fn count(&self) -> usize {
        self.items.len()
    }

    /// Returns the action, the reason and the number of files of each finding, in order.
    pub fn kinds(&self) -> impl Iterator<Item = (Action, Reason, u64)> + '_ {
        let kind = |item: &Item| (item.action, item.reason, u64::from(item.files));
        self.items.iter().map(kind)
    }

    /// Sorts by path, then by reason.
    pub(crate) fn sort(&mut self) {
        let text = &self.text;
        let path = |item: &Item| &text[item.start as usize..item.path_end as usize];
        self.items
            .sort_by(|a, b| path(a).cmp(path(b)).then(a.reason.cmp(&b.reason)));
    }

    /// Returns the findings in order.
    pub fn iter(&self) -> impl Iterator<Item = Finding> + '_ {
        self.items.iter().map(|item| Finding {
            action: item.action,
            reason: item.reason,
            path: self.text[item.start as usize..item.path_end as usize].to_owned(),
            detail: self.text[item.path_end as usize..item.detail_end as usize].to_owned(),
            files: item.files,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushed_findings_are_returned_in_order() {
        let some = |path: &str, detail: &str| Finding {
            action: Action::Skipped,
            reason: Reason::Empty,
            path: path.into(),
            detail: detail.into(),
            files: 7,
        };
        let all = [some("a", ""), some("", "x"), some("ü/b", "d"), some("", "")];
        let (mut one, mut two) = (FindingList::default(), FindingList::default());
        all[..2].iter().for_each(|f| one.push(f));
        all[2..].iter().for_each(|f| two.push(f));
        one.append(&two);
        assert_eq!(one.count(), 4);
        assert_eq!(one.iter().collect::<Vec<_>>(), all);
        one.sort();
        let paths: Vec<_> = one.iter().map(|f| f.path).collect();
        assert_eq!(paths, ["", "", "a", "ü/b"]);
    }
}
