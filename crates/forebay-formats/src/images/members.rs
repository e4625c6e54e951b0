//! The entries of one unit of a split whose source is archives.

use super::archive::{Members, Volume};
use super::layout::LayoutUnit;
use super::list::{FileList, FileListBuilder};
use crate::class_list::is_list_path;
use crate::finding::{Action, Finding, Reason};
use crate::finding_list::FindingList;
use crate::key_path::join;
use crate::sniff::ContentKind;

/// Collects the images of a unit, in the byte order of their keys.
pub(super) fn collect(
    members: &Members,
    volumes: &[Volume],
    split_dir: &[u8],
    unit: &LayoutUnit,
) -> (FileList, FindingList) {
    let (name, deep) = match unit {
        LayoutUnit::Class(name) => (name.as_slice(), true),
        LayoutUnit::Flat => (b"".as_slice(), false),
        LayoutUnit::All => (b"".as_slice(), true),
    };
    let mut chunk = FileListBuilder::new(name);
    let mut findings = FindingList::default();
    let mut note = |action, reason, path: &[u8], detail: &str| {
        findings.push(&Finding::new(action, reason, path, detail));
    };
    let prefix = if split_dir.is_empty() {
        0
    } else {
        split_dir.len() + 1
    };
    let below = match name {
        b"" => split_dir.to_vec(),
        name => join(split_dir, name),
    };
    let mut entered: Option<&[u8]> = None;
    let mut hidden: &[u8] = b"";
    let mut own_volumes: Vec<u16> = Vec::new();
    for member in members.below(&below) {
        let key = &member.path[prefix..];
        let (dir, file) = match key.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&key[..slash], &key[slash + 1..]),
            None => (b"".as_slice(), key),
        };
        if member.kind == ContentKind::Directory || (!deep && !dir.is_empty()) {
            continue;
        }
        if let Some(top) = hidden_part(key, name.len()) {
            // The whole of a hidden directory is one finding.
            if hidden != top {
                hidden = top;
                note(Action::Ignored, Reason::Hidden, &join(split_dir, top), "");
            }
            continue;
        }
        match member.kind {
            ContentKind::Image => {
                if let Some(detail) = super::list::too_large(member.size) {
                    note(Action::Skipped, Reason::TooLarge, member.path, &detail);
                    continue;
                }
                if entered != Some(dir) {
                    chunk.enter(dir);
                    entered = Some(dir);
                }
                chunk.push_at(file, member.size, member.place);
                if own_volumes.last() != Some(&member.place.volume) {
                    own_volumes.push(member.place.volume);
                }
            }
            ContentKind::OtherImage(format) => {
                chunk.leave_out(key.to_vec(), member.size, Some(member.place));
                note(Action::Skipped, Reason::OtherFormat, member.path, format)
            }
            _ if is_list_path(member.path) => {}
            _ => note(Action::Ignored, Reason::NotAnImage, member.path, ""),
        }
    }
    for volume in own_volumes {
        chunk.changed_at(volumes[usize::from(volume)].modified);
    }
    findings.sort();
    (chunk.finish(), findings)
}

/// The path as far as its first hidden part after `from`.
fn hidden_part(key: &[u8], from: usize) -> Option<&[u8]> {
    let mut start = from;
    while start < key.len() {
        if key[start] == b'/' {
            start += 1;
            continue;
        }
        let end = key[start..]
            .iter()
            .position(|byte| *byte == b'/')
            .map_or(key.len(), |at| start + at);
        if key[start] == b'.' {
            return Some(&key[..end]);
        }
        start = end;
    }
    None
}
