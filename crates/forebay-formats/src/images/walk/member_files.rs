//! Lists the images of a directory from the members of archives.

use super::file_list::{FileList, FileListBuilder, too_large};
use super::members::Members;
use super::source_archive::SourceArchive;
use crate::class_list::is_list_path;
use crate::finding::{Action, Finding, Reason};
use crate::finding_list::FindingList;
use crate::key_path::join;
use crate::sniff::ContentKind;
use crate::system_names::part_left_aside;

/// Collects the images of a directory of a split, with or without its subdirectories, in byte order of their keys.
pub(crate) fn collect(
    members: &Members,
    archives: &[SourceArchive],
    split_dir: &[u8],
    (name, deep): (&[u8], bool),
) -> (FileList, FindingList) {
    let mut chunk = FileListBuilder::new(name);
    let mut findings = FindingList::default();
    // The layout reports ignored entries at the top of a split.
    let top_is_reported = name.is_empty();
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
    let mut aside: Option<(&[u8], Reason, u64)> = None;
    let mut own_archives: Vec<u16> = Vec::new();
    for member in members.below(&below) {
        let key = &member.path[prefix..];
        let (dir, file) = match key.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&key[..slash], &key[slash + 1..]),
            None => (b"".as_slice(), key),
        };
        if member.kind == ContentKind::Directory || (!deep && !dir.is_empty()) {
            continue;
        }
        if let Some((top, reason)) = part_left_aside(key, name.len()) {
            // An ignored directory is one finding with the number of its files.
            match &mut aside {
                Some((known, _, files)) if *known == top => *files += 1,
                other => {
                    let done = other.replace((top, reason, 1));
                    note_aside(done, split_dir, top_is_reported, &mut findings);
                }
            }
            continue;
        }
        match member.kind {
            ContentKind::Image => {
                if let Some(detail) = too_large(member.size) {
                    let (action, reason) = (Action::Skipped, Reason::TooLarge);
                    findings.push(&Finding::new(action, reason, member.path, detail));
                    continue;
                }
                if entered != Some(dir) {
                    chunk.enter(dir);
                    entered = Some(dir);
                }
                chunk.push_at(file, member.size, member.place);
                if own_archives.last() != Some(&member.place.archive) {
                    own_archives.push(member.place.archive);
                }
            }
            ContentKind::OtherImage(format) => {
                chunk.leave_out(key.to_vec(), member.size, Some(member.place));
                let (action, reason) = (Action::Skipped, Reason::OtherFormat);
                findings.push(&Finding::new(action, reason, member.path, format));
            }
            _ if is_list_path(member.path) => {}
            _ => {
                let (action, reason) = (Action::Ignored, Reason::NotAnImage);
                findings.push(&Finding::new(action, reason, member.path, ""));
            }
        }
    }
    note_aside(aside, split_dir, top_is_reported, &mut findings);
    for archive in own_archives {
        chunk.changed_at(archives[usize::from(archive)].modified);
    }
    findings.sort();
    (chunk.finish(), findings)
}

/// Adds the finding about the ignored files at or below a path.
fn note_aside(
    aside: Option<(&[u8], Reason, u64)>,
    split_dir: &[u8],
    top_is_reported: bool,
    findings: &mut FindingList,
) {
    if let Some((top, reason, files)) = aside
        && (!top_is_reported || top.contains(&b'/'))
    {
        let found = Finding::new(Action::Ignored, reason, &join(split_dir, top), "");
        findings.push(&found.of_files(files));
    }
}
