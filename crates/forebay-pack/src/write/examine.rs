//! Examines an image file: its header, and its oddities.
//!
//! For ordinary files, only the header and the last few bytes are read.
//! Pixels are decoded only if these leave doubts about whether they can be decoded.

use forebay_formats::Reason;
use forebay_formats::images::Refusal;
use forebay_formats::sniff::{self, ContentKind};
use forebay_image::{Color, DecodeError, Ending, Format, ImageError, Limits, Probe};

/// Results for a file that has an image's header.
#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) probe: Probe,
    pub(super) oddities: Vec<Oddity>,
    /// Whether pixels may be missing, or have an encoding that the decoders do not support.
    pub(crate) is_doubtful: bool,
}

/// Something unusual about an image, which may still be usable.
#[derive(Debug)]
pub(crate) struct Oddity {
    pub(super) reason: Reason,
    pub(super) detail: String,
    /// Whether other readers are known to fail on it, so that `--transcode-nonstandard` transcodes the image.
    pub(super) is_convertible: bool,
    /// Whether transcoding to JPEG removes the oddity.
    pub(super) ends_with_conversion: bool,
}

/// Examines a whole file, or returns the reason why it is not an image that can be packed.
pub(crate) fn examine(image: &[u8], name: &[u8], limits: &Limits) -> Result<Examined, Refusal> {
    if let ContentKind::OtherImage(format) = sniff::kind(image) {
        return Err((Reason::OtherFormat, format.into()));
    }
    let probe = forebay_image::probe(image, limits).map_err(bad_header)?;
    if probe.format == Format::Fast {
        // Only records may contain fast images, together with the features that describe them.
        return Err((Reason::OtherFormat, "fast image of a record".into()));
    }
    let mut oddities = Vec::new();
    let found = probe.format.name();
    if let Some(claimed) = sniff::claimed(name).filter(|claimed| *claimed != found) {
        let is_now_right = claimed == Format::Jpeg.name();
        oddities.push(Oddity {
            reason: Reason::NameMismatch,
            detail: format!("it is a {found}"),
            is_convertible: is_now_right,
            ends_with_conversion: is_now_right,
        });
    }
    let mut odd = |reason, detail: String, is_convertible| {
        oddities.push(Oddity {
            reason,
            detail,
            is_convertible,
            ends_with_conversion: true,
        });
    };
    let inks = match probe.color {
        Color::Cmyk => Some("CMYK"),
        Color::Ycck => Some("YCCK"),
        _ => None,
    };
    if let Some(inks) = inks {
        odd(Reason::Cmyk, inks.into(), true);
    }
    let ending = forebay_image::ending(image, &probe);
    forebay_image::check_structure(image, limits).map_err(|error| match error {
        ImageError::Image(DecodeError::Truncated { .. }) => (Reason::NoEnd, error.to_string()),
        error => bad_header(error),
    })?;
    match ending {
        Ending::Whole => {}
        Ending::Trailing(bytes) => odd(Reason::TrailingBytes, format!("{bytes} bytes"), false),
        Ending::Cut => odd(Reason::NoEnd, String::new(), true),
    }
    Ok(Examined {
        probe,
        oddities,
        is_doubtful: inks.is_some() || ending == Ending::Cut,
    })
}

/// Returns the reason why an image with a valid header cannot be packed: its pixels cannot be decoded.
pub(super) fn bad_data(examined: &Examined, error: &ImageError) -> Refusal {
    let is_cut = |oddity: &Oddity| oddity.reason == Reason::NoEnd;
    let reason = if matches!(error, ImageError::Image(DecodeError::Unsupported { .. })) {
        Reason::Unsupported
    } else if examined.oddities.iter().any(is_cut) {
        Reason::NoEnd
    } else {
        Reason::BadData
    };
    (reason, error.to_string())
}

fn bad_header(error: ImageError) -> Refusal {
    let reason = match error {
        ImageError::UnknownFormat { .. } => Reason::NotAnImage,
        ImageError::Image(DecodeError::Unsupported { .. }) => Reason::Unsupported,
        _ => Reason::BadHeader,
    };
    (reason, error.to_string())
}
