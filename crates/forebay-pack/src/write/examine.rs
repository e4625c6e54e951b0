//! What an image file turns out to be: its header, and what is odd about it.
//!
//! Headers and endings tell it, and of an ordinary file the last few bytes are all that is looked at beyond the header.
//! Pixels are decoded only where there is reason to doubt that they can be.

use super::read::Refusal;
use crate::report::Reason;
use crate::sniff::{self, Content};
use forebay_image::{Color, Ending, Format, ImageError, Limits, Probe};

/// What was found out about a file that has an image's header.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) probe: Probe,
    pub(super) oddities: Vec<Oddity>,
    /// Whether the pixels may be missing or of a kind that no decoder here reads.
    pub(super) is_doubtful: bool,
}

/// Something odd about an image that may be in order for all that.
#[derive(Debug)]
pub(super) struct Oddity {
    pub(super) reason: Reason,
    pub(super) detail: String,
    /// Whether other readers are known to stumble over it, so that `--convert-odd` writes the image anew.
    pub(super) is_convertible: bool,
    /// Whether it is gone when the image is written anew as JPEG.
    pub(super) ends_with_conversion: bool,
}

/// Examines a whole file, or says why it is no image that can be packed.
pub(super) fn examine(image: &[u8], name: &[u8], limits: &Limits) -> Result<Examined, Refusal> {
    let content = sniff::identify(image);
    if let Content::OtherImage(format) = content {
        return Err((Reason::OtherFormat, format.into()));
    }
    let probe = forebay_image::probe(image, limits).map_err(bad_header)?;
    let mut oddities = Vec::new();
    if let Some(claimed) = sniff::claimed(name).filter(|claimed| *claimed != content) {
        let is_now_right = claimed == Content::Jpeg;
        oddities.push(Oddity {
            reason: Reason::NameMismatch,
            detail: format!("it is a {}", probe.format.name()),
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
    match ending {
        Ending::Whole => {}
        Ending::Trailing(bytes) => odd(Reason::TrailingBytes, format!("{bytes} bytes"), false),
        Ending::Cut => odd(Reason::NoEnd, String::new(), true),
    }
    let unusual = probe.format == Format::Jpeg && probe.bits != 8;
    Ok(Examined {
        probe,
        oddities,
        is_doubtful: unusual || inks.is_some() || ending == Ending::Cut,
    })
}

/// Why an image that has a header cannot be packed: its pixels cannot be decoded.
pub(super) fn bad_data(examined: &Examined, error: &ImageError) -> Refusal {
    let is_cut = |oddity: &Oddity| oddity.reason == Reason::NoEnd;
    let reason = if examined.oddities.iter().any(is_cut) {
        Reason::NoEnd
    } else {
        Reason::BadData
    };
    (reason, error.to_string())
}

fn bad_header(error: ImageError) -> Refusal {
    let reason = match error {
        ImageError::UnknownFormat { .. } => Reason::NotAnImage,
        _ => Reason::BadHeader,
    };
    (reason, error.to_string())
}
