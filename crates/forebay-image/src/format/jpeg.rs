//! JPEG in the table of formats.

use super::decoding::{self, FormatDecoder};
use super::{Ending, ImageFormat, Probe, Sniff, ends_with};
use crate::error::Result;
use crate::jpeg::limits::Limits;
use crate::jpeg::{baseline, fast, general, markers};

/// JPEG in the table of formats.
pub(super) struct Jpeg;

/// Memory that the decoders reuse from image to image.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) baseline: baseline::Baseline,
    pub(crate) fast: fast::Reader,
    pub(crate) general: general::General,
}

impl ImageFormat for Jpeg {
    fn name(&self) -> &'static str {
        "JPEG"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["jpg", "jpeg", "jpe", "jfif"]
    }

    fn sniff(&self, head: &[u8]) -> Sniff {
        Sniff::magic(head, &markers::MAGIC, 24)
    }

    fn probe(&self, bytes: &[u8]) -> Result<Probe> {
        markers::probe(bytes)
    }

    fn decoded_bytes_per_pixel(&self, probe: &Probe) -> u64 {
        let channels = u64::from(probe.channels);
        // RGB output and planes of samples; for progressive files also 16-bit coefficients of every channel.
        3 + if probe.progressive {
            channels * 3
        } else {
            channels
        }
    }

    fn decoders(&self) -> &'static [FormatDecoder] {
        &[
            FormatDecoder {
                decode: baseline::decode,
                stream: Some(baseline::stream),
            },
            FormatDecoder {
                decode: general::decode,
                stream: None,
            },
        ]
    }

    fn end(&self, bytes: &[u8]) -> Option<usize> {
        markers::end(bytes)
    }

    fn ending(&self, bytes: &[u8], probe: &Probe) -> Ending {
        let end = [0xff, markers::EOI];
        if ends_with(bytes, probe, &end) {
            return Ending::Whole;
        }
        let header = usize::try_from(probe.header_bytes).unwrap_or(usize::MAX);
        let rest = bytes.get(header..).unwrap_or_default();
        // Entropy-coded data cannot contain the marker; if it is missing, the slower walk finds none either.
        match memchr::memmem::find(rest, &end) {
            None => Ending::Cut,
            Some(_) => Ending::at(self.end(bytes), bytes),
        }
    }

    fn exif<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        markers::exif(bytes)
    }

    fn check_structure(&self, bytes: &[u8], limits: &Limits) -> Result<()> {
        general::check_structure(bytes, limits)
    }

    fn check_codes(
        &self,
        bytes: &[u8],
        limits: &Limits,
        scratch: &mut decoding::Scratch,
    ) -> Result<()> {
        general::check_codes(&mut scratch.jpeg.general, bytes, limits)
    }

    fn scales(&self) -> bool {
        true
    }
}
