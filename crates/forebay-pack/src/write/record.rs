//! Builds a record from an image: TensorFlow's ImageNet features, with the bytes of the file or of an image that was made
//! from it.
//!
//! An unchanged file is read directly into the buffer of the shard. The features before the image depend on
//! the header of the image, which is known only after reading. So they are guessed: nearly every image is an RGB
//! JPEG of a few hundred pixels per side, and then the guess has the right length. In other cases the
//! image is moved. Seek points, which are computed from the image, follow it.

use super::examine::{Examined, examine};
use super::header::{GUESS, Header, check_size};
use super::quarantine::Quarantine;
use super::source::{Opened, Sources};
use super::transcode::{DecodeMemory, Transcoder};
use crate::error::Result;
use crate::options::ImageForm;
use crate::prepare::Prepared;
use crate::report::FastCount;
use forebay_formats::ClassName;
use forebay_formats::images::EntryRef;
use forebay_formats::images::Refusal;
use forebay_formats::key_path::join;
use forebay_formats::{Action, Reason};
use forebay_image::{
    FastEncoder, Format, SeekDensity, SeekPointBuilder, Transcoded, progressive_to_baseline,
};
use forebay_shard::example::{IMAGE_FAST, IMAGE_PROGRESSIVE, IMAGE_SEEK_POINTS};
use forebay_shard::{ExampleBuilder, Payload};

/// The feature that holds the image.
const ENCODED: &str = "image/encoded";

/// The state of a worker: the open source, and buffers that are reused for each record.
pub(super) struct Recorder<'a> {
    prepared: &'a Prepared,
    sources: &'a Sources,
    quarantine: Option<Quarantine<'a>>,
    transcoder: Transcoder<'a>,
    seek_points: Option<SeekDensity>,
    seek_point_builder: SeekPointBuilder,
    fast_encoder: FastEncoder,
    /// The key of the last record.
    pub(super) key: Vec<u8>,
    before: Vec<u8>,
    after: Vec<u8>,
    moved: Vec<u8>,
}

/// Outcome of packing an entry.
pub(super) struct EntryOutcome {
    /// The label of its record, which was written; `None` if the entry is left out.
    pub(super) label: Option<i64>,
    /// Size of the image in the record, in bytes.
    pub(super) image_bytes: u64,
    /// Size of the record's seek points in bytes, if it has any.
    pub(super) seek_point_bytes: Option<u64>,
    /// Whether its progressive JPEG was transcoded to baseline; `None` if this was not requested or it is not progressive.
    pub(super) is_baseline_now: Option<bool>,
    /// Counts its fast image, if it has one.
    pub(super) fast: FastCount,
    /// Findings about the entry.
    pub(super) findings: Vec<(Action, Refusal)>,
}

impl<'a> Recorder<'a> {
    pub(super) fn new(
        prepared: &'a Prepared,
        sources: &'a Sources,
        room: &'a DecodeMemory,
    ) -> Self {
        let options = &prepared.options;
        Self {
            prepared,
            sources,
            quarantine: Quarantine::of(options),
            transcoder: Transcoder::new(options, room),
            seek_points: options.seek_points,
            seek_point_builder: SeekPointBuilder::default(),
            fast_encoder: FastEncoder::default(),
            key: Vec::new(),
            before: Vec::new(),
            after: Vec::new(),
            moved: Vec::new(),
        }
    }

    /// Opens an entry.
    pub(super) fn open(&self, split: usize, entry: &EntryRef<'_>) -> Result<Opened<'a>, Refusal> {
        self.sources.entry(split, entry)
    }

    /// Builds the record of a file in an open payload.
    ///
    /// # Errors
    /// Errors that stop the pack. A file that cannot be packed is not an error.
    pub(super) fn put(
        &mut self,
        split: usize,
        file: Result<Opened<'_>, Refusal>,
        entry: &EntryRef<'_>,
        payload: &mut Payload<'_>,
    ) -> Result<EntryOutcome> {
        entry.key_into(&mut self.key);
        match self.put_file(file, entry, payload) {
            Ok(outcome) => Ok(outcome),
            Err((refusal, start)) => {
                let bytes = start.and_then(|start| payload.as_slice().get(start..));
                self.refuse(split, refusal, bytes)
            }
        }
    }

    /// Reads and packs a file. An error contains the offset in the payload at which the file's bytes begin, if they were read.
    fn put_file(
        &mut self,
        file: Result<Opened<'_>, Refusal>,
        entry: &EntryRef<'_>,
        payload: &mut Payload<'_>,
    ) -> Result<EntryOutcome, (Refusal, Option<usize>)> {
        if let Err(refusal) = check_size(entry.size) {
            let start = (entry.size == 0).then_some(payload.len());
            return Err((refusal, start));
        }
        let base = i64::from(self.prepared.options.label_base);
        let label = entry.class.map_or(-1, |class| i64::from(class) + base);
        let len = entry.size as usize;
        self.surround(entry, label, &GUESS, [None; 2], (ENCODED, len));
        payload.push(&self.before);
        let start = payload.len();
        let unread = |refusal| (refusal, None);
        let file = file.map_err(unread)?;
        file.append_to(entry.size, payload.buffer_mut())
            .map_err(unread)?;
        let image = payload.as_slice().get(start..).unwrap_or_default();
        let bad = |refusal| (refusal, Some(start));
        let examined = examine(image, entry.name, self.transcoder.limits()).map_err(bad)?;
        let size = [examined.probe.width, examined.probe.height];
        let remark = entry.extras.check_size(entry.name, size).map_err(bad)?;
        let mut outcome = self.put_image(examined, entry, (label, start), payload)?;
        outcome
            .findings
            .extend(remark.map(|remark| (Action::Kept, remark)));
        Ok(outcome)
    }

    /// Completes the payload, in which the bytes of the file begin at `start`.
    fn put_image(
        &mut self,
        examined: Examined,
        entry: &EntryRef<'_>,
        (label, start): (i64, usize),
        payload: &mut Payload<'_>,
    ) -> Result<EntryOutcome, (Refusal, Option<usize>)> {
        let bad = |refusal| (refusal, Some(start));
        let image = payload.as_slice().get(start..).unwrap_or_default();
        let len = image.len();
        if let Some(transcoded) = self.transcoder.transcode(image, &examined).map_err(bad)? {
            let (header, image) = (&transcoded.header, &transcoded.image);
            let fast = self.fast(header, image);
            let outcome = self.write(entry, label, header, (image, None), fast, payload);
            return Ok(EntryOutcome {
                findings: transcoded.findings,
                ..outcome
            });
        }
        let header = Header::of(&examined.probe);
        let options = &self.prepared.options;
        let is_fast_form = options.images != ImageForm::Jpeg;
        let asks_for_baseline = options.progressive_to_baseline && examined.probe.progressive;
        let to_baseline = asks_for_baseline || is_fast_form && examined.probe.progressive;
        let fast = self.fast(&header, image);
        let points = match fast {
            Some(_) => None,
            None => self.points(&header, image),
        };
        let reads_codes =
            fast.is_none() && self.seek_points.is_some() && !self.seek_point_builder.has_read_all();
        let findings = self.transcoder.keep(image, examined, reads_codes);
        let mut findings = findings.map_err(bad)?;
        if fast.is_some() {
            let outcome = self.write(entry, label, &header, (&[], None), fast, payload);
            return Ok(EntryOutcome {
                findings,
                ..outcome
            });
        }
        let mut is_baseline_now = None;
        if to_baseline {
            let new = self.baseline(&header, image, asks_for_baseline);
            is_baseline_now = asks_for_baseline.then_some(new.is_some());
            if let Some((Transcoded { jpeg, recipe }, fast)) = new {
                let stored = (&jpeg[..], Some(&recipe[..]));
                let mut outcome = self.write(entry, label, &header, stored, fast, payload);
                if !asks_for_baseline {
                    outcome.fast.progressive = 1;
                }
                return Ok(EntryOutcome {
                    is_baseline_now,
                    findings,
                    ..outcome
                });
            }
            if asks_for_baseline {
                findings.push((Action::Kept, (Reason::Progressive, String::new())));
            }
        }
        let guessed = self.before.len();
        let more = [None, points.as_deref()];
        self.surround(entry, label, &header, more, (ENCODED, len));
        if guessed == self.before.len() {
            payload.as_mut_slice()[..start].copy_from_slice(&self.before);
        } else {
            self.moved.clear();
            self.moved.extend_from_slice(image);
            payload.clear();
            payload.push(&self.before);
            payload.push(&self.moved);
        }
        payload.push(&self.after);
        let is_left = is_fast_form && header.format == Format::Jpeg.name();
        Ok(EntryOutcome {
            label: Some(label),
            image_bytes: entry.size,
            seek_point_bytes: points.map(|points| points.len() as u64),
            is_baseline_now,
            fast: FastCount::of_image(is_left.then_some(false), false),
            findings,
        })
    }

    /// Replaces the payload by a record with another image than the file's, or with its fast image.
    fn write(
        &mut self,
        entry: &EntryRef<'_>,
        label: i64,
        header: &Header,
        (image, recipe): (&[u8], Option<&[u8]>),
        fast: Option<Vec<u8>>,
        payload: &mut Payload<'_>,
    ) -> EntryOutcome {
        let is_left =
            self.prepared.options.images != ImageForm::Jpeg && header.format == Format::Jpeg.name();
        let is_fast = is_left.then_some(fast.is_some());
        let (name, stored, points) = match &fast {
            Some(fast) => (IMAGE_FAST, &fast[..], None),
            None => (ENCODED, image, self.points(header, image)),
        };
        let more = [recipe, points.as_deref()];
        self.surround(entry, label, header, more, (name, stored.len()));
        payload.clear();
        payload.push(&self.before);
        payload.push(stored);
        payload.push(&self.after);
        EntryOutcome {
            label: Some(label),
            image_bytes: stored.len() as u64,
            seek_point_bytes: points.map(|points| points.len() as u64),
            is_baseline_now: None,
            fast: FastCount::of_image(is_fast, false),
            findings: Vec::new(),
        }
    }

    /// Transcodes a progressive JPEG to baseline, with its fast image. If this was not requested, only for a fast image.
    fn baseline(
        &mut self,
        header: &Header,
        image: &[u8],
        is_asked_for: bool,
    ) -> Option<(Transcoded, Option<Vec<u8>>)> {
        let new = progressive_to_baseline(image, self.transcoder.limits())?;
        let fast = self.fast(header, &new.jpeg);
        (is_asked_for || fast.is_some()).then_some((new, fast))
    }

    /// Returns the fast image of a JPEG, if requested and possible.
    fn fast(&mut self, header: &Header, image: &[u8]) -> Option<Vec<u8>> {
        match self.prepared.options.images {
            ImageForm::Fast(coding) if header.format == Format::Jpeg.name() => self
                .fast_encoder
                .encode(image, coding, self.transcoder.limits()),
            _ => None,
        }
    }

    /// Returns the seek points of an image, if requested and possible.
    fn points(&mut self, header: &Header, image: &[u8]) -> Option<Vec<u8>> {
        let is_jpeg = header.format == Format::Jpeg.name();
        let density = self.seek_points.filter(|_| is_jpeg)?;
        self.seek_point_builder.build(image, density)
    }

    /// Leaves an entry out. `bytes` is its content, if it could be read.
    fn refuse(&self, split: usize, refusal: Refusal, bytes: Option<&[u8]>) -> Result<EntryOutcome> {
        let action = match (&self.quarantine, bytes) {
            (Some(quarantine), Some(bytes)) => {
                let dir = self.prepared.census.splits()[split].dir();
                quarantine.keep(&join(dir, &self.key), bytes)?;
                Action::Quarantined
            }
            _ => Action::Skipped,
        };
        Ok(EntryOutcome {
            label: None,
            image_bytes: 0,
            seek_point_bytes: None,
            is_baseline_now: None,
            fast: FastCount::default(),
            findings: vec![(action, refusal)],
        })
    }

    /// Encodes the features before and after an image of `len` bytes, including recipe and seek points if there are any.
    fn surround(
        &mut self,
        entry: &EntryRef<'_>,
        label: i64,
        header: &Header,
        [recipe, seek_points]: [Option<&[u8]>; 2],
        (image, len): (&'static str, usize),
    ) {
        let classes = self.prepared.census.classes();
        let class = entry.class.and_then(|class| classes.get(class));
        let mut example = example(entry, label, class, header);
        for (name, value) in [
            (IMAGE_PROGRESSIVE, recipe),
            (IMAGE_SEEK_POINTS, seek_points),
        ] {
            if let Some(value) = value {
                example.add_bytes(name, value);
            }
        }
        example.encode_around(image, len, &mut self.before, &mut self.after);
    }
}

/// Returns all features except the image.
fn example<'b>(
    entry: &EntryRef<'b>,
    label: i64,
    class: Option<&'b ClassName>,
    header: &Header,
) -> ExampleBuilder<'b> {
    let mut example = ExampleBuilder::new();
    example
        .add_int64("image/height", header.height)
        .add_int64("image/width", header.width)
        .add_int64("image/channels", header.channels)
        .add_bytes("image/colorspace", header.colorspace.as_bytes())
        .add_bytes("image/format", header.format.as_bytes())
        .add_bytes("image/filename", entry.name)
        .add_int64("image/class/label", label);
    if let Some(class) = class {
        example.add_bytes("image/class/synset", &class.name);
        if let Some(text) = &class.text {
            example.add_bytes("image/class/text", text.as_bytes());
        }
    }
    entry.extras.add_to(entry.name, label, &mut example);
    example
}
