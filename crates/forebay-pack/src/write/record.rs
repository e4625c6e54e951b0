//! One image becomes one record: TensorFlow's ImageNet keys around the untouched bytes of the file.
//!
//! The image goes from its file straight into its place in the shard's buffer. What comes before it depends on
//! what its header says, which is known only when it is there; so it is guessed (nearly every image is an RGB
//! JPEG of a few hundred pixels a side): nearly always the guess has the right length, and in the rare other case the
//! image is moved. Seek points, which are made of the image, stand behind it.

use super::read::Refusal;
use super::source::{Opened, Sources};
use crate::census::{ClassList, ClassName, EntryRef};
use crate::prepare::Prepared;
use crate::report::Reason;
use crate::sniff::{self, Content};
use forebay_image::{Color, Format, ImageError, Limits, Probe, SeekDensity, SeekPointBuilder};
use forebay_shard::example::IMAGE_SEEK_POINTS;
use forebay_shard::{ExampleBuilder, MAX_RECORD_BYTES, Payload};

/// Largest image file: what a record may have, less room for the other features.
const MAX_IMAGE_BYTES: u64 = MAX_RECORD_BYTES - (1 << 20);

/// The feature that holds the image.
const ENCODED: &str = "image/encoded";

/// A worker's tools: the open source, and buffers that are used again for each record.
pub(super) struct Recorder<'a> {
    sources: &'a Sources,
    classes: &'a ClassList,
    label_base: i64,
    limits: Limits,
    seek_points: Option<SeekDensity>,
    seek_point_builder: SeekPointBuilder,
    /// The key of the record last put.
    pub(super) key: Vec<u8>,
    before: Vec<u8>,
    after: Vec<u8>,
    moved: Vec<u8>,
}

/// A record in its place.
pub(super) struct Put {
    pub(super) label: i64,
    /// Bytes of the seek points, if the record has any.
    pub(super) seek_point_bytes: Option<u64>,
    /// Set where the content is not what the name says.
    pub(super) remark: Option<Refusal>,
}

/// What the header says, in the words of the features.
#[derive(Clone, Copy, PartialEq)]
struct Header {
    format: &'static str,
    colorspace: &'static str,
    channels: i64,
    width: i64,
    height: i64,
}

/// Any sizes of two varint bytes give the same lengths.
const GUESS: Header = Header {
    format: "JPEG",
    colorspace: "RGB",
    channels: 3,
    width: 500,
    height: 375,
};

impl<'a> Recorder<'a> {
    pub(super) fn new(prepared: &'a Prepared, sources: &'a Sources) -> Self {
        Self {
            sources,
            classes: prepared.census.classes(),
            label_base: i64::from(prepared.options.label_base),
            limits: Limits::default(),
            seek_points: prepared.options.seek_points,
            seek_point_builder: SeekPointBuilder::default(),
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

    /// Puts the record of a file into an open payload, or says why the file cannot be packed.
    pub(super) fn put(
        &mut self,
        file: Result<Opened<'_>, Refusal>,
        entry: &EntryRef<'_>,
        payload: &mut Payload<'_>,
    ) -> Result<Put, Refusal> {
        entry.key_into(&mut self.key);
        if entry.size > MAX_IMAGE_BYTES {
            return Err((
                Reason::TooLarge,
                format!(
                    "{} bytes, at most {MAX_IMAGE_BYTES} fit a record",
                    entry.size
                ),
            ));
        }
        if entry.size == 0 {
            return Err((Reason::Empty, String::new()));
        }
        let label = entry
            .class
            .map_or(-1, |class| i64::from(class) + self.label_base);
        let class = entry.class.and_then(|class| self.classes.get(class));
        let len = entry.size as usize;
        example(entry, label, class, &GUESS).encode_around(
            ENCODED,
            len,
            &mut self.before,
            &mut self.after,
        );
        payload.push(&self.before);
        let start = payload.len();
        file?.append_to(entry.size, payload.buffer_mut())?;
        let image = &payload.as_slice()[start..];
        let content = sniff::identify(image);
        if let Content::OtherImage(format) = content {
            return Err((Reason::OtherFormat, format.into()));
        }
        let probe = forebay_image::probe(image, &self.limits).map_err(refusal)?;
        let header = Header::of(&probe);
        let points = self
            .seek_points
            .filter(|_| probe.format == Format::Jpeg)
            .and_then(|density| self.seek_point_builder.build(image, density));
        let guessed = std::mem::take(&mut self.before);
        let mut example = example(entry, label, class, &header);
        if let Some(points) = &points {
            example.add_bytes(IMAGE_SEEK_POINTS, points);
        }
        example.encode_around(ENCODED, len, &mut self.before, &mut self.after);
        if guessed.len() == self.before.len() {
            payload.as_mut_slice()[..start].copy_from_slice(&self.before);
        } else {
            self.moved.clear();
            self.moved.extend_from_slice(image);
            payload.clear();
            payload.push(&self.before);
            payload.push(&self.moved);
        }
        payload.push(&self.after);
        let claimed = sniff::claimed(entry.name);
        let mismatch = claimed.is_some_and(|claimed| claimed != content);
        let remark = mismatch.then(|| (Reason::NameMismatch, format!("it is a {}", header.format)));
        Ok(Put {
            label,
            seek_point_bytes: points.map(|points| points.len() as u64),
            remark,
        })
    }
}

impl Header {
    fn of(probe: &Probe) -> Self {
        let (channels, colorspace) = match probe.color {
            Color::Grey => (1, "Grayscale"),
            Color::GreyAlpha => (2, "GrayscaleAlpha"),
            Color::Rgba => (4, "RGBA"),
            Color::Cmyk | Color::Ycck => (4, "CMYK"),
            // A palette is of RGB colours, and YCbCr is how JPEG stores RGB.
            _ => (3, "RGB"),
        };
        let format = match probe.format {
            Format::Jpeg => "JPEG",
            Format::Png => "PNG",
            Format::WebP => "WEBP",
            _ => probe.format.name(),
        };
        Self {
            format,
            colorspace,
            channels,
            width: i64::from(probe.width),
            height: i64::from(probe.height),
        }
    }
}

/// All features but the image.
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

fn refusal(error: ImageError) -> Refusal {
    let reason = match error {
        ImageError::UnknownFormat { .. } => Reason::NotAnImage,
        _ => Reason::BadHeader,
    };
    (reason, error.to_string())
}
