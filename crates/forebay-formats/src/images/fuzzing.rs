//! Invariants of the parsers of sources for arbitrary bytes.

use super::layout::{ArchiveFacts, academic, mat as matlab};
use super::source::OpenArchive;
use super::walk::{self, Members};
use super::{BoxIndex, LabelTable, RowClass, boxes as annotations};
use crate::archive::{Archive, ArchiveKind};
use crate::key_path::{join, normal};
use crate::sniff::ContentKind;
use forebay_shard::{ExampleBuilder, ExampleView};
use forebay_store::Cancel;
use std::path::Path;

/// Larger members are not read: the sizes in a zip's directory are untrusted.
const READ_MAX_BYTES: u64 = 1 << 20;

/// Reads a tar archive, as it is and with corrected header checksums. Bytes that do not begin like a tar are read as the
/// archive that they look like.
pub fn tar(bytes: &[u8], scratch: &Path) {
    read_archive(bytes, scratch);
    let mut sealed = bytes.to_vec();
    seal_tar(&mut sealed);
    read_archive(&sealed, scratch);
    // Also reads the file, which still exists, as the development kit: by the names of its members.
    let mut kit = ArchiveFacts::default();
    if let Err(error) = academic::read_kit(&Archive::Local(scratch.join("archive")), &mut kit) {
        assert!(!error.to_string().is_empty());
    }
}

/// Reads a zip archive, or another one.
pub fn zip(bytes: &[u8], scratch: &Path) {
    read_archive(bytes, scratch);
}

fn read_archive(bytes: &[u8], scratch: &Path) {
    let path = scratch.join("archive");
    std::fs::write(&path, bytes).unwrap();
    let collected = match walk::collect(&Archive::Local(path), &(), &Cancel::new()) {
        Ok(collected) => collected,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    for finding in &collected.findings {
        assert!(!finding.to_string().is_empty());
    }
    let [archive] = &collected.archives[..] else {
        panic!("one archive was read");
    };
    let open = OpenArchive::open(archive).unwrap();
    let is_zip = matches!(archive.kind, ArchiveKind::Zip { .. });
    let members = &collected.members;
    let (mut before, mut files, mut images) = (None, 0, Vec::new());
    for member in members.below(b"") {
        assert!(before < Some(member.path), "in order, and each once");
        before = Some(member.path);
        // Paths of members in inner archives may be longer than the limit for a name, so parts are checked.
        for part in member.path.split(|byte| *byte == b'/') {
            assert_eq!(normal(part).as_deref(), Ok(part));
            assert!(!part.is_empty());
        }
        if member.kind == ContentKind::Directory {
            continue;
        }
        files += 1;
        if let Some(text) = members.texts.get(member.path) {
            assert_eq!(text.len() as u64, member.size);
        }
        if archive.is_compressed_stream() {
            images.push((member.place.offset, member.size));
        } else if member.size <= READ_MAX_BYTES {
            let mut out = b"before".to_vec();
            let read = open.append_to(member.place, member.size, &mut out);
            assert!(is_zip || read.is_ok(), "{read:?}");
            if read.is_ok() {
                assert_eq!(out.len() as u64, 6 + member.size);
            }
            assert!(out.starts_with(b"before"));
        }
    }
    assert_eq!(count_files(members), files);
    images.sort_unstable();
    let mut decoded = 0;
    let mut take = |_: u64, piece: &[u8]| {
        decoded += piece.len() as u64;
        Ok(())
    };
    if archive.is_compressed_stream() {
        let whole = open.decode(&images, &(), &|| false, &mut take).unwrap();
        assert!(whole);
        assert_eq!(decoded, images.iter().map(|(_, size)| size).sum::<u64>());
    }
}

/// Counts the files that are found level by level.
fn count_files(members: &Members) -> usize {
    let (mut count, mut open) = (0, vec![Vec::new()]);
    while let Some(dir) = open.pop() {
        let (dirs, files) = members.list(&dir);
        count += files.len();
        open.extend(dirs.iter().map(|name| join(&dir, name)));
    }
    count
}

/// Corrects the checksums of all blocks that may be headers.
pub(crate) fn seal_tar(bytes: &mut [u8]) {
    let mut at = 0;
    while let Some(block) = bytes.get_mut(at..at + 512) {
        at += 512;
        if block.iter().all(|byte| *byte == 0) {
            continue;
        }
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        let name = block[..100].split(|byte| *byte == 0).next();
        if name.is_some_and(|name| name.ends_with(b".tar")) {
            // The member is an archive, so headers follow instead of data.
            continue;
        }
        let digits = block[124..136]
            .iter()
            .take_while(|byte| byte.is_ascii_digit());
        let size = digits.fold(0usize, |size, digit| {
            (size * 8 + usize::from(digit - b'0')).min(1 << 30)
        });
        at += size.next_multiple_of(512);
    }
}

/// Reads `meta.mat` of the development kit.
pub fn mat(bytes: &[u8]) {
    match matlab::synsets(bytes) {
        Ok(synsets) => assert!(synsets.iter().all(|synset| synset.id.abs() < 1_000_000_000)),
        Err(what) => assert!(!what.is_empty()),
    }
}

/// Reads a file of labels; its first line decides between CSV, TSV and JSON lines.
pub fn labels(bytes: &[u8], scratch: &Path) {
    let file = scratch.join("labels");
    std::fs::write(&file, bytes).unwrap();
    let labels = match LabelTable::read(&file, false) {
        Ok(labels) => labels,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let images = labels.images();
    assert!(images as usize <= bytes.len());
    for row in 0..images {
        let path = labels.path(row);
        assert_eq!(normal(path).as_deref(), Ok(path));
        assert_eq!(labels.image_of(path), Some(row));
        match (labels.class(row), labels.names()) {
            (RowClass::Name(name), Some(names)) => {
                assert!(names.binary_search_by(|known| known[..].cmp(name)).is_ok());
            }
            (RowClass::Number(_), None) | (RowClass::Unlabelled, _) => {}
            (class, names) => panic!("{class:?} of {names:?}"),
        }
    }
    let columns = labels.into_columns(|_, _, _| Ok(0)).unwrap();
    let features = columns.features().count();
    assert!(features <= 257);
    for row in 0..images {
        let mut example = ExampleBuilder::new();
        columns.add_to(row, &mut example);
        let record = example.to_vec();
        let view = ExampleView::parse(&record).unwrap();
        assert_eq!(view.iter().count(), features);
        for feature in view.iter() {
            if let Ok(values) = feature.floats() {
                assert!(values.iter().all(|value| value.is_finite()));
            }
        }
    }
}

/// Reads an annotation.
pub fn boxes(bytes: &[u8]) {
    let mut index = BoxIndex::default();
    if let Err(what) = index.add_xml(b"image", bytes) {
        return assert!(!what.is_empty());
    }
    index.finish().unwrap();
    let found = index.get(b"image");
    let parsed = annotations::parse(bytes).map(|annotation| annotation.boxes);
    assert_eq!(parsed.as_deref(), Ok(found));
    for found in found {
        assert!(0.0 <= found.xmin && found.xmin < found.xmax && found.xmax <= 1.0);
        assert!(0.0 <= found.ymin && found.ymin < found.ymax && found.ymax <= 1.0);
    }
    assert!(index.get(b"another").is_empty());
}
