//! Sources that are archives: tar, tar.gz, tar.zst and zip. They are read without extracting them to disk.
//!
//! Listing reads the headers once and stores the offset of each member. Members of a plain tar and of a zip are later read at
//! these offsets. A compressed tar has no random access, so its images are decoded again into an unnamed file. Links, devices,
//! absolute names, `..` and names with NUL bytes are refused and reported.

use super::members::{MemberLocation, Members};
use super::source_archive::SourceArchive;
use crate::archive::tar::{self, TarKind, TarReader};
use crate::archive::{Archive, ArchiveError, ArchiveFile, ArchiveKind, Stream, read_exact, zip};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason};
use crate::images::boxes::BoxIndex;
use crate::key_path::{self, base, join, stem};
use crate::progress::Progress;
use crate::sniff::{self, ContentKind};
use crate::system_names::part_left_aside;
use forebay_store::{Cancel, try_map_parallel};
use std::path::Path;

/// Largest list or annotation that is read.
const TEXT_MAX_BYTES: u64 = 64 << 20;
/// Most files whose content is kept.
const TEXTS_MAX: usize = 64;
/// Most bytes of these files together, since they stay in memory.
const TEXTS_MAX_BYTES: u64 = 256 << 20;
/// Largest annotation; a real one has a few lines for each object.
const ANNOTATION_MAX_BYTES: u64 = 1 << 20;
/// Number of members between two progress reports and checks for cancellation.
const STEP_MEMBERS: u64 = 256;

/// Result of listing archives.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) archives: Vec<SourceArchive>,
    pub(crate) members: Members,
    pub(crate) boxes: BoxIndex,
    pub(crate) findings: Vec<Finding>,
    pub(crate) warnings: Vec<String>,
}

/// Lists the members of archives, one archive after the other.
pub(crate) struct Collector<'a> {
    pub(crate) collected: Collected,
    progress: &'a dyn Progress,
    cancel: &'a Cancel,
    members: u64,
    images: (u64, u64),
    /// Bytes of the texts that were kept.
    text_bytes: u64,
    /// The directory of the annotation that was added last.
    annotations: Vec<u8>,
}

/// How the members of an archive are added to the tree.
pub(crate) struct Mount<'a> {
    /// Directory of the tree in which they are placed.
    pub(crate) dir: &'a [u8],
    /// Whether directories are dropped and only base names kept.
    pub(crate) flat: bool,
    /// Whether every `.xml` file is an annotation.
    pub(crate) annotations: bool,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(progress: &'a dyn Progress, cancel: &'a Cancel) -> Self {
        Self {
            collected: Collected::default(),
            progress,
            cancel,
            members: 0,
            images: (0, 0),
            text_bytes: 0,
            annotations: Vec::new(),
        }
    }

    /// Lists one archive.
    pub(crate) fn read(&mut self, location: &Archive, mount: &Mount<'_>) -> Result<()> {
        let (archive, file) = SourceArchive::open(location)?;
        let path = archive.path.as_path();
        let number = self.collected.archives.len() as u16;
        let mut stream = archive.stream(file.clone())?;
        let known = self.collected.warnings.len();
        let done = match archive.kind {
            ArchiveKind::Zip { .. } => self.zip(&archive, &file, number, &mut stream, mount),
            _ => self.tar(
                &mut stream,
                TarReader::new(0, None),
                number,
                mount,
                b"",
                path.file_name().unwrap_or_default().as_encoded_bytes(),
            ),
        };
        done.map_err(|error| error.of(path))?;
        for warning in self.collected.warnings.iter_mut().skip(known) {
            *warning = format!("{}: {warning}", path.display());
        }
        self.tell();
        if self.cancel.is_cancelled() {
            return Err(Error::Interrupted);
        }
        self.collected.archives.push(archive);
        Ok(())
    }

    /// Lists many archives with `jobs` threads and adds each below its directory. Their order does not depend on `jobs`.
    pub(crate) fn read_all(&mut self, archives: &[(Vec<u8>, Archive)], jobs: usize) -> Result<()> {
        if self.collected.archives.len() + archives.len() > usize::from(u16::MAX) {
            let what = format!(
                "{} archives are more than can be read at once",
                archives.len()
            );
            let shown = archives.first().map(|(_, archive)| archive.shown());
            return Err(Error::source(shown.unwrap_or_default(), what));
        }
        let (progress, cancel) = (self.progress, self.cancel);
        let stopped = || cancel.is_cancelled();
        let all = try_map_parallel(archives, jobs, &stopped, |(dir, archive)| -> Result<_> {
            let mut collector = Collector::new(progress, cancel);
            let mount = Mount {
                dir,
                flat: false,
                annotations: false,
            };
            collector.read(archive, &mount)?;
            Ok(collector.collected)
        })?;
        for (one, (dir, _)) in all.into_iter().zip(archives) {
            self.absorb(dir, one.ok_or(Error::Interrupted)?);
        }
        Ok(())
    }

    /// Adds the result of one archive. Its class lists are dropped, as they do not apply to other archives.
    fn absorb(&mut self, dir: &[u8], one: Collected) {
        let all = &mut self.collected;
        let first = all.archives.len() as u16;
        // Keeps the directory in the tree even if the archive has no members.
        let place = MemberLocation {
            archive: first,
            offset: 0,
        };
        all.members.push(dir, 0, place, ContentKind::Directory);
        all.members.append(&one.members, first);
        all.boxes.append(&one.boxes);
        all.archives.extend(one.archives);
        all.findings.extend(one.findings);
        all.warnings.extend(one.warnings);
    }

    /// Returns the tree of all archives.
    pub(crate) fn finish(mut self) -> Result<Collected> {
        let archives = &self.collected.archives;
        let of = |(archive, error): (u16, ArchiveError)| match archives.get(usize::from(archive)) {
            Some(archive) => error.of(&archive.path),
            None => error.of(Path::new("")),
        };
        self.collected.members.finish().map_err(of)?;
        let first = archives
            .first()
            .map(|archive| archive.path.clone())
            .unwrap_or_default();
        self.collected
            .boxes
            .finish()
            .map_err(|what| Error::source(first, what))?;
        Ok(self.collected)
    }

    fn tar(
        &mut self,
        stream: &mut Stream,
        mut reader: TarReader,
        archive: u16,
        mount: &Mount<'_>,
        inside: &[u8],
        name: &[u8],
    ) -> Result<(), ArchiveError> {
        let inner = !inside.is_empty();
        while let Some(member) = reader.next(stream)? {
            if self.step(stream) {
                return Ok(());
            }
            let Some(path) = self.path(&member.name, mount, inside) else {
                continue;
            };
            match member.kind {
                TarKind::Directory if mount.flat => {}
                TarKind::Directory => {
                    self.push(&path, 0, (archive, member.data), ContentKind::Directory)
                }
                TarKind::Link => self.refuse(&path, Reason::Link, ""),
                TarKind::Special => self.refuse(&path, Reason::SpecialFile, ""),
                TarKind::Sparse => self.refuse(&path, Reason::Unreadable, "a sparse member"),
                TarKind::File
                    if !inner
                        && inner_dir(&path).is_some()
                        && part_left_aside(&path, 0).is_none() =>
                {
                    let mut head = [0; 512];
                    let there = (member.size.min(512)) as usize;
                    read_exact(stream, member.data, &mut head[..there])?;
                    if !tar::is_header(&head[..there]) {
                        self.refuse(&path, Reason::Unreadable, "this is no tar archive");
                        continue;
                    }
                    // The inner reader gets the header that was read here, because a decoder cannot go back.
                    let dir = inner_dir(&path).unwrap_or_default();
                    self.push(dir, 0, (archive, member.data), ContentKind::Directory);
                    let end = Some(member.data + member.size);
                    let reader = TarReader::with_first(member.data, end, head);
                    self.tar(stream, reader, archive, mount, dir, &path)?;
                }
                TarKind::File => {
                    let read = |stream: &mut Stream, out: &mut [u8]| {
                        read_exact(stream, member.data, out).map_err(|error| error.what)
                    };
                    let place = (archive, member.data);
                    self.file(path, member.size, place, mount, |len, out| {
                        out.resize(len, 0);
                        read(stream, out)
                    });
                }
            }
        }
        if !reader.ended {
            self.collected.warnings.push(format!(
                "the archive{} has no end mark: it may be cut short",
                if inner {
                    format!(" in it, {},", crate::finding::escape(inside))
                } else {
                    String::new()
                }
            ));
        }
        if let Some(offset) = reader.behind_end {
            let found = Finding::behind_end(name, offset);
            self.collected.findings.push(found);
        }
        if !inner {
            drain(stream, self.cancel)?;
        }
        Ok(())
    }

    fn zip(
        &mut self,
        archive: &SourceArchive,
        file: &ArchiveFile,
        number: u16,
        stream: &mut Stream,
        mount: &Mount<'_>,
    ) -> Result<(), ArchiveError> {
        let mut directory = zip::Directory::find(file, archive.len)?;
        let base = directory.base;
        while let Some(member) = directory.next(stream)? {
            if self.step(stream) {
                return Ok(());
            }
            let Some(path) = self.path(&member.name, mount, b"") else {
                continue;
            };
            let place = (number, member.record);
            if member.is_link {
                self.refuse(&path, Reason::Link, "");
            } else if member.is_directory {
                if !mount.flat {
                    self.push(&path, 0, place, ContentKind::Directory);
                }
            } else if let Some(refusal) = member.refusal_in(archive.len) {
                self.refuse(&path, Reason::Unreadable, &refusal);
            } else {
                self.file(path, member.size, place, mount, |len, out| {
                    member.append_to(file, base, len as u64, out)
                });
            }
        }
        Ok(())
    }

    /// Adds a regular file. `read` reads its first bytes.
    fn file(
        &mut self,
        path: Vec<u8>,
        size: u64,
        place: (u16, u64),
        mount: &Mount<'_>,
        read: impl FnOnce(usize, &mut Vec<u8>) -> Result<(), String>,
    ) {
        let mut content = Vec::new();
        if part_left_aside(&path, 0).is_some() {
            return self.push(&path, size, place, ContentKind::NotAnImage);
        }
        if has_ending(&path, b".xml") && (mount.annotations || is_annotation(&path)) {
            if size > ANNOTATION_MAX_BYTES {
                return self.note(
                    Action::Ignored,
                    Reason::BadAnnotation,
                    &path,
                    format!("{size} bytes"),
                );
            }
            let parsed = read(size as usize, &mut content)
                .and_then(|()| self.collected.boxes.add_xml(stem(base(&path)), &content));
            if let Err(what) = parsed {
                self.note(Action::Ignored, Reason::BadAnnotation, &path, what);
            }
            // Keeps the directory in the tree, so that the layout sees that there are annotations.
            let dir = &path[..path.len() - base(&path).len()];
            if let Some(dir) = dir.strip_suffix(b"/")
                && self.annotations != dir
            {
                self.annotations = dir.to_vec();
                self.push(dir, 0, place, ContentKind::Directory);
            }
            return;
        }
        if Members::keeps_text(&path)
            && size <= TEXT_MAX_BYTES
            && self.collected.members.texts.len() < TEXTS_MAX
            && self.text_bytes.saturating_add(size) <= TEXTS_MAX_BYTES
        {
            self.text_bytes += size;
            match read(size as usize, &mut content) {
                Ok(()) => {
                    self.push(&path, size, place, ContentKind::NotAnImage);
                    self.collected.members.texts.insert(path, content);
                }
                Err(what) => self.note(Action::Ignored, Reason::Unreadable, &path, what),
            }
            return;
        }
        let kind = if sniff::has_image_name(&path) {
            ContentKind::Image
        } else {
            let head = size.min(sniff::SNIFF_BYTES as u64) as usize;
            if let Err(what) = read(head, &mut content) {
                return self.note(Action::Ignored, Reason::Unreadable, &path, what);
            }
            sniff::kind(&content)
        };
        if kind == ContentKind::Image {
            self.images.0 += 1;
            self.images.1 = self.images.1.saturating_add(size);
        }
        self.push(&path, size, place, kind);
    }

    /// Returns the path in the tree; `None` for a name that is refused or stands for the root.
    fn path(&mut self, name: &[u8], mount: &Mount<'_>, inside: &[u8]) -> Option<Vec<u8>> {
        let normal = match key_path::normal(name) {
            Ok(normal) => normal,
            Err(why) => {
                let end = name.len().min(256);
                self.refuse(&name[..end], Reason::UnsafeName, why);
                return None;
            }
        };
        if normal.is_empty() {
            return None;
        }
        let own = if mount.flat { base(&normal) } else { &normal };
        let below = if inside.is_empty() { mount.dir } else { inside };
        let path = join(below, own);
        if path.len() > usize::from(u16::MAX) {
            self.refuse(&path[..256], Reason::UnsafeName, "the path is too long");
            return None;
        }
        Some(path)
    }

    fn push(&mut self, path: &[u8], size: u64, (archive, offset): (u16, u64), kind: ContentKind) {
        let place = MemberLocation { archive, offset };
        self.collected.members.push(path, size, place, kind);
    }

    fn refuse(&mut self, path: &[u8], reason: Reason, detail: &str) {
        let action = if sniff::has_image_name(path) || has_ending(path, b".tar") {
            Action::Skipped
        } else {
            Action::Ignored
        };
        self.note(action, reason, path, detail);
    }

    fn note(&mut self, action: Action, reason: Reason, path: &[u8], detail: impl Into<String>) {
        self.collected
            .findings
            .push(Finding::new(action, reason, path, detail));
    }

    /// Counts a member. Returns true if the operation was cancelled.
    fn step(&mut self, stream: &Stream) -> bool {
        self.members += 1;
        if self.members.is_multiple_of(STEP_MEMBERS) {
            self.tell();
            let (done, len) = stream.progress();
            // Only the central directory of a zip is read, so it has no progress.
            if done > 0 {
                self.progress.archive_read(done, len);
            }
        }
        self.cancel.is_cancelled()
    }

    fn tell(&mut self) {
        let (files, bytes) = std::mem::take(&mut self.images);
        self.progress.counted(files, bytes);
    }
}

fn is_annotation(path: &[u8]) -> bool {
    path.windows(b"Annotations/".len())
        .any(|part| part == b"Annotations/")
}

fn has_ending(path: &[u8], ending: &[u8]) -> bool {
    path.len() > ending.len() && path[path.len() - ending.len()..].eq_ignore_ascii_case(ending)
}

/// Returns the directory that stands for an archive inside an archive: its path without `.tar`. `None` if no valid name is
/// left: `...tar` would become `..`.
pub(crate) fn inner_dir(path: &[u8]) -> Option<&[u8]> {
    if !has_ending(path, b".tar") {
        return None;
    }
    let dir = &path[..path.len() - b".tar".len()];
    (!matches!(base(dir), b"" | b"." | b"..")).then_some(dir)
}

/// Reads to the end, which verifies the checksum of a compressed stream.
pub(crate) fn drain(stream: &mut Stream, cancel: &Cancel) -> Result<(), ArchiveError> {
    let mut block = vec![0; 64 << 10];
    loop {
        let at = stream.position();
        match stream.fill(&mut block) {
            _ if cancel.is_cancelled() => return Ok(()),
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(ArchiveError::io(at, &error)),
        }
    }
}

/// Lists the members of an archive file, including those of tars inside it.
pub(crate) fn collect(
    location: &Archive,
    progress: &dyn Progress,
    cancel: &Cancel,
) -> Result<Collected> {
    let mut collector = Collector::new(progress, cancel);
    let mount = Mount {
        dir: b"",
        flat: false,
        annotations: false,
    };
    collector.read(location, &mount)?;
    collector.finish()
}

/// Reads files whose paths end with `endings` from a small tar of any compression.
pub(crate) fn read_files<const N: usize>(
    location: &Archive,
    endings: [&[u8]; N],
    max_bytes: u64,
) -> Result<[Option<Vec<u8>>; N]> {
    let (archive, file) = SourceArchive::open(location)?;
    let path = archive.path.as_path();
    if matches!(archive.kind, ArchiveKind::Zip { .. }) {
        return Err(Error::source(
            path,
            "this should be a tar archive, and is a zip archive",
        ));
    }
    let mut stream = archive.stream(file)?;
    let mut reader = TarReader::new(0, None);
    let mut found = [const { None }; N];
    while let Some(member) = reader.next(&mut stream).map_err(|error| error.of(path))? {
        if member.kind != TarKind::File || member.size > max_bytes {
            continue;
        }
        let wanted = endings.iter().position(|ending| {
            member.name == *ending || member.name.ends_with(&[b"/", *ending].concat())
        });
        if let Some(slot) = wanted.and_then(|at| found.get_mut(at)) {
            let mut content = vec![0; member.size as usize];
            read_exact(&mut stream, member.data, &mut content).map_err(|error| error.of(path))?;
            *slot = Some(content);
        }
    }
    Ok(found)
}
