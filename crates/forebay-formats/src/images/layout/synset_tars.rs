//! ImageNet-21k as published: a directory with one uncompressed tar for each synset, which need not be extracted.
//!
//! A tar stands for the directory that it would be extracted into, so the dataset equals that of the extracted tree.

use super::archive_set::{ArchiveFacts, ArchiveSet, FoundArchives, TopFiles, outside};
use super::{Arrangement, Layout, LayoutContext, classes};
use crate::archive::ArchiveKind;
use crate::class_list::{is_list_path, is_wordnet_id};
use crate::error::{Error, Result};
use crate::images::Archive;
use crate::images::walk::{Collector, Top, inner_dir};

struct SynsetTars;

pub(super) static LAYOUT: Layout = Layout {
    name: "synset-tars",
    summary: "ImageNet-21k, one tar for each synset",
    example: "\
SRC/
  n01440764.tar                     images of one synset, at any depth
  n01443537.tar
  classes.txt                       optional: one class a line, in label order",
    names_splits: false,
    labels_by_directories: false,
    archive_set: Some(&SynsetTars),
    recognizes: |_, _| Ok(false),
    arrange,
};

fn arrange(top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
    Ok(Arrangement {
        list_dirs: vec![top.path.clone()],
        ..classes::arrange(top, context)?
    })
}

/// The tars with the names of their classes, and the files beside them.
struct Found {
    tars: Vec<(Vec<u8>, Archive)>,
    others: Vec<Vec<u8>>,
}

impl ArchiveSet for SynsetTars {
    fn expected(&self) -> String {
        "tar of a synset, such as n01440764.tar".to_owned()
    }

    /// Tars beside directories were probably extracted into them, and tars with other names may contain anything. In these
    /// cases the layout is used only if the user names it.
    fn find(
        &self,
        top: &TopFiles<'_>,
        forced: bool,
        _split: Option<&str>,
    ) -> Option<Box<dyn FoundArchives>> {
        let mut found = Found {
            tars: Vec::new(),
            others: Vec::new(),
        };
        for name in &top.files {
            match inner_dir(name) {
                Some(class) => found.tars.push((class.to_vec(), top.archive(name))),
                None if is_list_path(name) => {}
                None => found.others.push(name.clone()),
            }
        }
        let are_synsets = || found.tars.iter().all(|(class, _)| is_wordnet_id(class));
        let is_found = !found.tars.is_empty() && (forced || (top.dirs.is_empty() && are_synsets()));
        is_found.then(|| Box::new(found) as Box<dyn FoundArchives>)
    }
}

impl FoundArchives for Found {
    fn read(&self, collector: &mut Collector<'_>, jobs: usize) -> Result<ArchiveFacts> {
        collector.read_all(&self.tars, jobs)?;
        for archive in &collector.collected.archives {
            if archive.kind != ArchiveKind::Tar {
                let what = "the tars of synsets are read where they are: decompress it";
                return Err(Error::source(&archive.path, what));
            }
        }
        for name in &self.others {
            collector.collected.findings.push(outside(name));
        }
        Ok(ArchiveFacts::default())
    }
}
