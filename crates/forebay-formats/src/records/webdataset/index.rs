//! Lists the samples of a tar by its headers, and the offsets of their members.

use super::super::npy::{HEADER_MAX_BYTES, NpyColumn, NpyHeader};
use super::super::{OnBadRecord, RecordInput};
use super::names::{
    Cut, is_image_extension, is_known, is_meta, is_npy, is_refused, last, take_apart,
};
use super::{place, skipped};
use crate::archive::tar::{TarKind, TarMember, TarReader};
use crate::archive::{
    Archive, ArchiveError, ArchiveKind, FileVersion, HEAD_BYTES, Stream, read_exact, read_head,
};
use crate::error::{Error, Result};
use crate::finding::{Action, Finding, Reason, escape};
use crate::key_path::{base, normal};
use crate::option_names::{ALLOW_NO_IMAGE, IMAGE_FEATURE, ON_BAD};
use crate::system_names::part_left_aside;
use forebay_shard::MAX_RECORD_BYTES;
use forebay_shard::index::MAX_KEY_BYTES;
use std::collections::{BTreeSet, HashSet};

/// Most columns. A real dataset has a handful; in a tar of other files nearly every name is another column.
const EXTENSIONS_MAX: usize = 256;
/// Most members outside of samples that are listed by name.
const IGNORED_MAX: u64 = 1000;
/// Bytes of a member that are read to detect the type of its column.
const FIRST_MEMBER_BYTES: usize = 4096;

/// The samples of one tar.
#[derive(Debug)]
pub(super) struct TarIndex {
    pub(super) archive: Archive,
    pub(super) version: FileVersion,
    pub(super) kind: ArchiveKind,
    /// Lower-case extensions, from the first dot of names on, and the common type of the `.npy` members of each.
    pub(super) extensions: Vec<(String, NpyColumn)>,
    members: Vec<Member>,
    samples: Vec<Sample>,
    names: Vec<u8>,
    pub(super) findings: Vec<Finding>,
}

/// A member of a sample: the index of its extension, and its data in the decoded stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member {
    pub(super) extension: u16,
    pub(super) offset: u64,
    pub(super) size: u32,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// End of its name in `names`, which begins at the end of the previous name, and end of its members.
    name_end: usize,
    member_end: usize,
    /// Length of the image's own name, which follows the sample's name.
    image_len: u16,
}

/// The sample whose members are currently being listed.
struct Open {
    name: Vec<u8>,
    image: Vec<u8>,
    members: Vec<Member>,
    /// Why the sample is left out: the member and the error.
    error: Option<(Vec<u8>, ArchiveError)>,
}

impl Open {
    /// Returns the total size of its members in bytes.
    fn bytes(&self) -> u64 {
        let members = self.members.iter();
        members.map(|member| u64::from(member.size)).sum()
    }
}

impl TarIndex {
    /// Reads all headers. Under [`OnBadRecord::Skip`], invalid samples are left out and become findings.
    pub(super) fn read(archive: &Archive, input: &RecordInput, cut: Cut) -> Result<Self> {
        let (version, file) = FileVersion::open(archive)?;
        let path = &version.path;
        let head = read_head(&file, path)?;
        let kind = ArchiveKind::of_tar(&head, file.len()).ok_or_else(|| {
            let what = match head.len() < HEAD_BYTES {
                true => "this is no tar: it is too short",
                false => "this is no tar, tar.gz or tar.zst",
            };
            Error::source(path, what)
        })?;
        let mut stream = Stream::new(file, kind).map_err(|error| Error::io(path, "read", error))?;
        let index = Self {
            archive: archive.clone(),
            version,
            kind,
            extensions: Vec::new(),
            members: Vec::new(),
            samples: Vec::new(),
            names: Vec::new(),
            findings: Vec::new(),
        };
        let mut scan = Scan {
            index,
            input,
            cut,
            open: None,
            seen: HashSet::new(),
            ignored: 0,
        };
        scan.run(&mut stream)?;
        Ok(scan.index)
    }

    pub(super) fn len(&self) -> usize {
        self.samples.len()
    }

    /// Returns the total size of all members in bytes.
    pub(super) fn data_bytes(&self) -> u64 {
        self.members
            .iter()
            .map(|member| u64::from(member.size))
            .sum()
    }

    /// Returns the members of a sample.
    pub(super) fn members(&self, sample: usize) -> &[Member] {
        let start = match sample.checked_sub(1) {
            Some(before) => self
                .samples
                .get(before)
                .map_or(0, |sample| sample.member_end),
            None => 0,
        };
        let end = self
            .samples
            .get(sample)
            .map_or(start, |sample| sample.member_end);
        self.members.get(start..end).unwrap_or_default()
    }

    /// Returns the key of a sample: the name of its image, or else its own name.
    pub(super) fn key(&self, sample: usize) -> &[u8] {
        let start = match sample.checked_sub(1) {
            Some(before) => self.samples.get(before).map_or(0, |sample| sample.name_end),
            None => 0,
        };
        let Some(Sample {
            name_end,
            image_len,
            ..
        }) = self.samples.get(sample).copied()
        else {
            return b"";
        };
        let all = self.names.get(start..name_end).unwrap_or_default();
        let own = all.len() - usize::from(image_len).min(all.len());
        match image_len {
            0 => all,
            _ => all.get(own..).unwrap_or_default(),
        }
    }

    /// Reads the beginning of the first member with an extension.
    pub(super) fn first_member(&self, extension: &str) -> Result<Option<Vec<u8>>> {
        let known = self
            .extensions
            .iter()
            .position(|(name, _)| name == extension);
        let member = self
            .members
            .iter()
            .find(|member| Some(usize::from(member.extension)) == known);
        let Some(member) = member else {
            return Ok(None);
        };
        let file = self.version.reopen(&self.archive)?;
        let stream = Stream::new(file, self.kind);
        let mut stream = stream.map_err(|error| Error::io(&self.version.path, "read", error))?;
        let mut bytes = vec![0; (member.size as usize).min(FIRST_MEMBER_BYTES)];
        read_exact(&mut stream, member.offset, &mut bytes)
            .map_err(|error| error.of(&self.version.path))?;
        Ok(Some(bytes))
    }

    /// Returns the name of the first sample that has a member with this extension.
    fn sample_with(&self, extension: &str) -> Option<Vec<u8>> {
        let mut known = self.extensions.iter();
        let number = known.position(|(name, _)| name == extension)?;
        let has = |sample: &usize| {
            let mut members = self.members(*sample).iter();
            members.any(|member| usize::from(member.extension) == number)
        };
        let sample = (0..self.len()).find(has)?;
        Some(self.key(sample).to_vec())
    }

    /// Checks that no sample lacks an image, which is a member with one of the extensions that `is_image` accepts.
    pub(super) fn check_images(
        &mut self,
        is_image: impl Fn(&str) -> bool,
        policy: OnBadRecord,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let extensions = self.extensions.iter();
        let is_image: Vec<bool> = extensions
            .map(|(extension, _)| is_image(extension))
            .collect();
        let mut bad = Vec::new();
        for sample in 0..self.samples.len() {
            let mut members = self.members(sample).iter();
            let image =
                |member: &Member| is_image.get(usize::from(member.extension)) == Some(&true);
            if members.any(image) {
                continue;
            }
            let offset = self
                .members(sample)
                .first()
                .map_or(0, |member| member.offset);
            let what = "it has no image, and other samples have one".to_owned();
            if policy == OnBadRecord::Fail {
                let key = escape(self.key(sample));
                let what = format!(
                    "offset {offset}: sample {key:?}: {what}; {ON_BAD} skip leaves it out, {ALLOW_NO_IMAGE} keeps it"
                );
                return Err(Error::source(&self.version.path, what));
            }
            findings.push(skipped(
                &self.version.path,
                self.key(sample),
                format!("offset {offset}: {what}"),
            ));
            bad.push(sample);
        }
        self.leave_out(&bad);
        Ok(())
    }

    /// Removes samples, given in ascending order.
    fn leave_out(&mut self, bad: &[usize]) {
        if bad.is_empty() {
            return;
        }
        let old = std::mem::take(&mut self.samples);
        let (old_names, old_members) = (
            std::mem::take(&mut self.names),
            std::mem::take(&mut self.members),
        );
        let mut start = (0, 0);
        for (number, sample) in old.into_iter().enumerate() {
            let end = (sample.name_end, sample.member_end);
            if bad.binary_search(&number).is_err() {
                self.names
                    .extend_from_slice(old_names.get(start.0..end.0).unwrap_or_default());
                self.members
                    .extend_from_slice(old_members.get(start.1..end.1).unwrap_or_default());
                self.samples.push(Sample {
                    name_end: self.names.len(),
                    member_end: self.members.len(),
                    ..sample
                });
            }
            start = end;
        }
    }
}

struct Scan<'a> {
    index: TarIndex,
    input: &'a RecordInput,
    cut: Cut,
    open: Option<Open>,
    /// Hashes of the names of complete samples.
    seen: HashSet<u128>,
    /// Number of members that belong to no sample.
    ignored: u64,
}

impl Scan<'_> {
    fn run(&mut self, stream: &mut Stream) -> Result<()> {
        let mut reader = TarReader::new(0, None);
        loop {
            match reader.next(stream) {
                Ok(Some(member)) => self.member(&member, stream)?,
                Ok(None) => break,
                Err(error) => {
                    // The current sample may be incomplete, because the damage is inside or after it.
                    if let Some(open) = &mut self.open {
                        open.error.get_or_insert((Vec::new(), error.clone()));
                    }
                    self.close()?;
                    return self.refuse(b"", error);
                }
            }
        }
        self.close()?;
        let unlisted = self.ignored.saturating_sub(IGNORED_MAX);
        if unlisted > 0 {
            let path = place(&self.index.version.path, b"");
            let found = Finding::new(
                Action::Ignored,
                Reason::NoSample,
                &path,
                "not listed by name",
            );
            self.index.findings.push(found.of_files(unlisted));
        }
        if !reader.ended {
            let what = "the tar has no end mark: it is cut short";
            return self.refuse(b"", ArchiveError::at(stream.position(), what));
        }
        if let Some(offset) = reader.behind_end {
            let path = &self.index.version.path;
            let name = path.file_name().unwrap_or(path.as_os_str());
            let found = Finding::behind_end(name.as_encoded_bytes(), offset);
            self.index.findings.push(found);
        }
        Ok(())
    }

    /// Returns an error, or adds a finding, by policy.
    fn refuse(&mut self, member: &[u8], error: ArchiveError) -> Result<()> {
        if self.input.on_bad_record == OnBadRecord::Skip {
            let found = skipped(&self.index.version.path, member, error.to_string());
            self.index.findings.push(found);
            return Ok(());
        }
        let ArchiveError { offset, what } = error;
        let what = match member {
            [] => format!("offset {offset}: {what}"),
            name => format!("offset {offset}: member {:?}: {what}", escape(name)),
        };
        Err(Error::source(&self.index.version.path, what))
    }

    fn member(&mut self, member: &TarMember, stream: &mut Stream) -> Result<()> {
        let at = member.header;
        match member.kind {
            TarKind::Directory => return Ok(()),
            TarKind::File => {}
            TarKind::Link => {
                return self.refuse(&member.name, ArchiveError::at(at, "it is a link"));
            }
            TarKind::Special | TarKind::Sparse => {
                return self.refuse(&member.name, ArchiveError::at(at, "it is no plain file"));
            }
        }
        let name = match normal(&member.name) {
            Ok(name) => name,
            Err(why) => return self.refuse(&member.name, ArchiveError::at(at, why)),
        };
        if let Some((_, Reason::System)) = part_left_aside(&name, 0) {
            self.ignore(&name, Reason::System);
            return Ok(());
        }
        let Some((sample, extension)) = take_apart(&name, self.cut) else {
            return self.outside_of_samples(&name, member, stream);
        };
        self.begin(sample, &name, at)?;
        let Ok(extension) = std::str::from_utf8(extension) else {
            self.mark_bad(&name, ArchiveError::at(at, "the extension is not UTF-8"));
            return Ok(());
        };
        self.column(&name, &extension.to_lowercase(), member, stream)
    }

    /// Ignores a member that belongs to no sample. It is an error if it looks like an image or like a column of a sample.
    fn outside_of_samples(
        &mut self,
        name: &[u8],
        member: &TarMember,
        stream: &mut Stream,
    ) -> Result<()> {
        if base(name).strip_prefix(b".").is_some_and(is_known) {
            let what = "it has an extension and no name, so it belongs to no sample";
            return self.refuse(name, ArchiveError::at(member.header, what));
        }
        let mut head = vec![0; member.size.min(HEAD_BYTES as u64) as usize];
        // If the tar is truncated here, reading the next header reports it.
        let is_read = read_exact(stream, member.data, &mut head).is_ok();
        if is_read && !is_meta(name) && forebay_image::sniff(&head).is_some() {
            let what = "it is an image without an extension, so it belongs to no sample";
            return self.refuse(name, ArchiveError::at(member.header, what));
        }
        self.ignore(name, Reason::NoSample);
        Ok(())
    }

    /// Adds a finding about a member that belongs to no sample. After the first [`IGNORED_MAX`] of a tar, all others become one
    /// finding.
    fn ignore(&mut self, name: &[u8], reason: Reason) {
        self.ignored += 1;
        let path = &self.index.version.path;
        if self.ignored <= IGNORED_MAX {
            let found = Finding::new(Action::Ignored, reason, &place(path, name), "");
            self.index.findings.push(found);
        }
    }

    /// Begins a new sample if the member does not belong to the current one.
    fn begin(&mut self, sample: &[u8], member: &[u8], at: u64) -> Result<()> {
        if self.open.as_ref().is_some_and(|open| open.name == sample) {
            return Ok(());
        }
        self.close()?;
        self.open = Some(Open {
            name: sample.to_vec(),
            image: Vec::new(),
            members: Vec::new(),
            error: None,
        });
        if self.seen.contains(&hash(sample)) {
            let what = "a sample of this name is there already: the members of a sample lie together, and each has a name of its own";
            self.mark_bad(member, ArchiveError::at(at, what));
        }
        Ok(())
    }

    /// Adds a member to the current sample.
    fn column(
        &mut self,
        name: &[u8],
        extension: &str,
        member: &TarMember,
        stream: &mut Stream,
    ) -> Result<()> {
        let at = member.header;
        let Some(number) = self.extension(extension) else {
            let mut what = format!(
                "more than {EXTENSIONS_MAX} different extensions: these are no columns of samples"
            );
            if let Some(advice) = dots_advice(std::iter::once(&self.index)) {
                what = format!("{what}; {advice}");
            }
            return Err(Error::source(
                &self.index.version.path,
                format!("offset {at}: {what}"),
            ));
        };
        if self
            .input
            .drop_features
            .iter()
            .any(|dropped| dropped == extension)
        {
            return Ok(());
        }
        let is_image = match &self.input.features.image_feature {
            Some(chosen) => chosen == extension,
            None => is_image_extension(extension),
        };
        if let Some(what) = self.misfit(name, extension, number, is_image, member.size) {
            self.mark_bad(name, ArchiveError::at(at, what));
        } else if is_npy(extension) {
            self.array(number, member, stream)?;
        }
        if let Some(open) = &mut self.open {
            if is_image {
                open.image = name.to_vec();
            }
            open.members.push(Member {
                extension: number,
                offset: member.data,
                size: u32::try_from(member.size).unwrap_or(u32::MAX),
            });
        }
        Ok(())
    }

    /// Returns the reason why a member cannot be added to the current sample, if there is one.
    fn misfit(
        &self,
        name: &[u8],
        extension: &str,
        number: u16,
        is_image: bool,
        size: u64,
    ) -> Option<String> {
        let open = self.open.as_ref()?;
        if open.members.iter().any(|old| old.extension == number) {
            Some(format!("the sample has a member {extension:?} already"))
        } else if is_image && !open.image.is_empty() {
            Some(format!(
                "the sample has another image, {:?}: {IMAGE_FEATURE} EXTENSION says which one it is",
                escape(&open.image)
            ))
        } else if open.bytes().saturating_add(size) > MAX_RECORD_BYTES {
            Some(format!(
                "{size} bytes, with those of the sample's other members, are more than a record may have"
            ))
        } else {
            (name.len() > MAX_KEY_BYTES).then(|| "the name is too long for a key".to_owned())
        }
    }

    /// Returns the index of an extension; `None` if there are too many.
    fn extension(&mut self, extension: &str) -> Option<u16> {
        let known = &mut self.index.extensions;
        let at = known.iter().position(|(name, _)| name == extension);
        let at = match at {
            Some(at) => at,
            None if known.len() < EXTENSIONS_MAX => {
                known.push((extension.to_owned(), NpyColumn::default()));
                known.len() - 1
            }
            None => return None,
        };
        u16::try_from(at).ok()
    }

    /// Reads the header of an array.
    fn array(&mut self, extension: u16, member: &TarMember, stream: &mut Stream) -> Result<()> {
        let mut head = vec![0; member.size.min(HEADER_MAX_BYTES as u64) as usize];
        if let Err(error) = read_exact(stream, member.data, &mut head) {
            // The tar is truncated, so reading the next header also fails and reports it.
            self.mark_bad(&member.name, error);
            return Ok(());
        }
        if let Some((_, column)) = self.index.extensions.get_mut(usize::from(extension)) {
            column.add(NpyHeader::parse(&head, member.size));
        }
        Ok(())
    }

    /// Marks the current sample as invalid; the first reason is kept.
    fn mark_bad(&mut self, member: &[u8], error: ArchiveError) {
        if let Some(open) = &mut self.open {
            open.error.get_or_insert((member.to_vec(), error));
        }
    }

    /// Ends the current sample.
    fn close(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        self.seen.insert(hash(&open.name));
        if let Some((member, error)) = open.error {
            let member = if member.is_empty() { open.name } else { member };
            return self.refuse(&member, error);
        }
        let index = &mut self.index;
        index.names.extend_from_slice(&open.name);
        index.names.extend_from_slice(&open.image);
        index.members.extend(open.members);
        index.samples.push(Sample {
            name_end: index.names.len(),
            member_end: index.members.len(),
            image_len: u16::try_from(open.image.len()).unwrap_or(0),
        });
        Ok(())
    }
}

/// Returns advice about samples with dots in their names, if images have more distinct extensions than there are samples.
pub(super) fn dots_advice<'a>(
    indexes: impl Iterator<Item = &'a TarIndex> + Clone,
) -> Option<String> {
    let extensions = indexes.clone().flat_map(|index| &index.extensions);
    let names = extensions.map(|(extension, _)| extension.as_str());
    let images = names.filter(|name| name.contains('.') && is_image_extension(last(name)));
    let images: BTreeSet<&str> = images.collect();
    let samples: usize = indexes.clone().map(TarIndex::len).sum();
    let image = images.first().filter(|_| images.len() > samples)?;
    let end = last(image);
    let shown = indexes.flat_map(|index| index.sample_with(image)).next();
    let shown = shown.map_or_else(String::new, |sample| {
        let sample = escape(&sample);
        format!(", and {sample}.{image} is a member {image:?} of the sample {sample:?}")
    });
    Some(format!(
        "WebDataset cuts a name at its first dot{shown}; {IMAGE_FEATURE} {end} cuts the names at their last dots"
    ))
}

fn hash(name: &[u8]) -> u128 {
    let hash = blake3::hash(name);
    let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
    u128::from_le_bytes(first)
}

/// Returns an extension that is refused, if there is one.
pub(super) fn refuses(index: &TarIndex) -> Option<&str> {
    let mut all = index
        .extensions
        .iter()
        .map(|(extension, _)| extension.as_str());
    all.find(|extension| is_refused(extension))
}
