//! Entropy decoding of one scan: sequential, or one pass of a progressive file.

use super::Component;
use super::huffman::{Codes, extra, signed};
use crate::baseline::bits::{Bits, Stream, Window};
use crate::baseline::entropy::ZIGZAG;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::markers::next_marker;

/// The coefficients of a block, row by row.
pub(super) type Block = [i16; 64];

/// A component of a scan, with its tables.
#[derive(Clone, Copy)]
pub(super) struct Member<'a> {
    /// Number of the component in the frame.
    pub(super) component: usize,
    pub(super) dc: Option<&'a Codes>,
    pub(super) ac: Option<&'a Codes>,
}

/// The coefficients that a progressive scan encodes: zigzag indices, and the bit positions before
/// and after the scan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Band {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) high: u8,
    pub(super) low: u8,
}

/// One scan.
pub(super) struct Scan<'a> {
    pub(super) bytes: &'a [u8],
    /// Offset of the scan's entropy-coded data.
    pub(super) start: usize,
    pub(super) members: &'a [Member<'a>],
    /// `None` in a sequential file.
    pub(super) band: Option<Band>,
    /// MCUs between restart markers, 0 for none.
    pub(super) restart_interval: usize,
    /// MCUs per row and per column of an interleaved scan.
    pub(super) mcus: (usize, usize),
}

impl Scan<'_> {
    /// Decodes the scan into the components' coefficients. Returns an offset; the scan's data have
    /// no marker before it.
    pub(super) fn read(&self, stream: &mut Stream, components: &mut [Component]) -> Result<usize> {
        match self.band {
            None => self.run::<Sequential>(stream, components),
            Some(band) => match (band.first == 0, band.high == 0) {
                (true, true) => self.run::<DcFirst>(stream, components),
                (true, false) => self.run::<DcRefine>(stream, components),
                (false, true) => self.run::<AcFirst>(stream, components),
                (false, false) => self.run::<AcRefine>(stream, components),
            },
        }
    }

    fn run<P: Pass>(&self, stream: &mut Stream, components: &mut [Component]) -> Result<usize> {
        let single = self.members.len() == 1;
        let (columns, rows) = match self.members {
            [only] => components[only.component].size,
            _ => self.mcus,
        };
        let band = self.band.unwrap_or(Band {
            first: 0,
            last: 63,
            high: 0,
            low: 0,
        });
        let mut state = State {
            predictors: [0; 4],
            run: 0,
            band,
        };
        stream.open(self.bytes, self.start, 0, usize::MAX);
        let mut left = self.restart_interval;
        let mut markers = 0;
        for row in 0..rows {
            for column in 0..columns {
                if self.restart_interval > 0 {
                    if left == 0 {
                        self.restart(stream, markers)?;
                        markers += 1;
                        left = self.restart_interval;
                        (state.predictors, state.run) = ([0; 4], 0);
                    }
                    left -= 1;
                }
                for (number, member) in self.members.iter().enumerate() {
                    let component = &mut components[member.component];
                    let (h, v) = if single { (1, 1) } else { component.factors };
                    for y in row * v..(row + 1) * v {
                        let start = y * component.padded.0 + column * h;
                        for block in &mut component.blocks[start..start + h] {
                            stream.reserve(self.bytes, 1);
                            let (window, bits) = stream.split();
                            let read = P::block(&mut state, member, number, window, bits, block);
                            if read.is_none() {
                                return Err(self.damage(stream));
                            }
                        }
                    }
                }
            }
            if stream.overrun() {
                return Err(self.damage(stream));
            }
        }
        Ok(stream.unread())
    }

    /// Reads the restart marker that is expected next.
    fn restart(&self, stream: &mut Stream, markers: usize) -> Result<()> {
        if stream.overrun() {
            return Err(self.damage(stream));
        }
        let code = 0xd0 + (markers % 8) as u8;
        let found = next_marker(self.bytes, stream.unread());
        match found {
            Some(end) if self.bytes[end - 1] == code => {
                stream.open(self.bytes, end, 0, usize::MAX);
                Ok(())
            }
            Some(_) => Err(Error::corrupt(
                Encoding::Jpeg,
                format!("restart marker {markers} of a scan is missing"),
            )),
            None => Err(self.damage(stream)),
        }
    }

    fn damage(&self, stream: &Stream) -> Error {
        if !stream.overrun() {
            return Error::corrupt(Encoding::Jpeg, "bits that are no Huffman code");
        }
        let what = if next_marker(self.bytes, stream.unread()).is_some() {
            "a scan ends before its last block"
        } else {
            "the file ends inside the image data"
        };
        Error::truncated(Encoding::Jpeg, what)
    }
}

/// State of a scan between blocks.
struct State {
    /// DC predictors, by position of the component in the scan.
    predictors: [i32; 4],
    /// Number of further blocks that have no more coefficients in the band.
    run: u32,
    band: Band,
}

/// The encoding of a scan's blocks.
trait Pass {
    /// Decodes a block. Returns `None` if the bits are invalid.
    fn block(
        state: &mut State,
        member: &Member<'_>,
        number: usize,
        window: &Window,
        bits: &mut Bits,
        block: &mut Block,
    ) -> Option<()>;
}

struct Sequential;
struct DcFirst;
struct DcRefine;
struct AcFirst;
struct AcRefine;

/// Reads a DC difference, and returns its sum with the predictor.
#[inline(always)]
fn predicted(
    state: &mut State,
    member: &Member<'_>,
    number: usize,
    window: &Window,
    bits: &mut Bits,
) -> Option<i32> {
    bits.refill(window);
    let size = member.dc?.read(bits)?;
    let difference = signed(bits, size.into());
    let predictor = state.predictors.get_mut(number)?;
    *predictor = predictor.wrapping_add(difference);
    Some(*predictor)
}

impl Pass for Sequential {
    #[inline(always)]
    fn block(
        state: &mut State,
        member: &Member<'_>,
        number: usize,
        window: &Window,
        bits: &mut Bits,
        block: &mut Block,
    ) -> Option<()> {
        block[0] = predicted(state, member, number, window, bits)? as i16;
        let codes = member.ac?;
        let mut k = 1;
        while k < 64 {
            bits.refill(window);
            let symbol = codes.read(bits)?;
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 {
                if run < 15 {
                    return Some(());
                }
                k += 16;
                continue;
            }
            k += run;
            let value = signed(bits, size);
            block[usize::from(*ZIGZAG.get(k)?)] = value as i16;
            k += 1;
        }
        Some(())
    }
}

impl Pass for DcFirst {
    #[inline(always)]
    fn block(
        state: &mut State,
        member: &Member<'_>,
        number: usize,
        window: &Window,
        bits: &mut Bits,
        block: &mut Block,
    ) -> Option<()> {
        let value = predicted(state, member, number, window, bits)?;
        block[0] = (value << state.band.low) as i16;
        Some(())
    }
}

impl Pass for DcRefine {
    #[inline(always)]
    fn block(
        state: &mut State,
        _: &Member<'_>,
        _: usize,
        window: &Window,
        bits: &mut Bits,
        block: &mut Block,
    ) -> Option<()> {
        bits.refill(window);
        block[0] |= (extra(bits, 1) << state.band.low) as i16;
        Some(())
    }
}

impl Pass for AcFirst {
    #[inline(always)]
    fn block(
        state: &mut State,
        member: &Member<'_>,
        _: usize,
        window: &Window,
        bits: &mut Bits,
        block: &mut Block,
    ) -> Option<()> {
        if state.run > 0 {
            state.run -= 1;
            return Some(());
        }
        let codes = member.ac?;
        let Band {
            first, last, low, ..
        } = state.band;
        let mut k = first;
        while k <= last {
            bits.refill(window);
            let symbol = codes.read(bits)?;
            let (run, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 {
                if run < 15 {
                    state.run = (1 << run) - 1 + extra(bits, run) as u32;
                    return Some(());
                }
                k += 16;
                continue;
            }
            k += run as usize;
            let value = signed(bits, size) << low;
            block[usize::from(*ZIGZAG.get(k)?)] = value as i16;
            k += 1;
        }
        Some(())
    }
}

impl Pass for AcRefine {
    #[inline(always)]
    fn block(
        state: &mut State,
        member: &Member<'_>,
        _: usize,
        window: &Window,
        bits: &mut Bits,
        block: &mut Block,
    ) -> Option<()> {
        let Band {
            first, last, low, ..
        } = state.band;
        let bit = 1i16 << low;
        let mut k = first;
        if state.run == 0 {
            let codes = member.ac?;
            while k <= last {
                bits.refill(window);
                let symbol = codes.read(bits)?;
                let (mut zeros, size) = (u32::from(symbol >> 4), symbol & 15);
                let mut new = 0;
                if size > 0 {
                    // Like libjpeg, treats any other size as 1.
                    new = if extra(bits, 1) > 0 { bit } else { -bit };
                } else if zeros < 15 {
                    state.run = (1 << zeros) + extra(bits, zeros) as u32;
                    break;
                }
                // Refines nonzero coefficients until the run of zeros has been skipped.
                loop {
                    let coefficient = &mut block[usize::from(ZIGZAG[k])];
                    if *coefficient != 0 {
                        correct(coefficient, bit, window, bits);
                    } else if zeros == 0 {
                        break;
                    } else {
                        zeros -= 1;
                    }
                    k += 1;
                    if k > last {
                        break;
                    }
                }
                if new != 0 {
                    // A coefficient past the band is invalid.
                    if k > last {
                        return None;
                    }
                    block[usize::from(ZIGZAG[k])] = new;
                }
                k += 1;
            }
        }
        if state.run > 0 {
            while k <= last {
                let coefficient = &mut block[usize::from(ZIGZAG[k])];
                if *coefficient != 0 {
                    correct(coefficient, bit, window, bits);
                }
                k += 1;
            }
            state.run -= 1;
        }
        Some(())
    }
}

/// Reads one correction bit of a nonzero coefficient.
#[inline(always)]
fn correct(coefficient: &mut i16, bit: i16, window: &Window, bits: &mut Bits) {
    if bits.valid() == 0 {
        bits.refill(window);
    }
    if extra(bits, 1) > 0 && *coefficient & bit == 0 {
        let step = if *coefficient >= 0 { bit } else { -bit };
        *coefficient = coefficient.wrapping_add(step);
    }
}
