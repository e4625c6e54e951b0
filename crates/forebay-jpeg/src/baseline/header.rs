//! Reads markers and tables before the entropy-coded data, and detects files that this decoder
//! supports. Other files are declined with a reason and left to the general decoder, which
//! returns precise errors for damaged files.

use super::entropy::{Tables, ZIGZAG};
use super::huffman::Table;
use super::multi_symbol::MultiSymbolTable;
use super::symbol::Kind;
use crate::markers::{self as jpeg, ColorModel, DHT, DQT, DRI, HuffmanTable, SOS, Segment};

/// Reason why the decoder declines a file.
pub(super) type Foreign = &'static str;

/// Markers of baseline and extended sequential frames with Huffman codes.
const SOF0: u8 = 0xc0;
const SOF1: u8 = 0xc1;

/// Color of the decoded planes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Output {
    /// One plane, repeated in three channels.
    #[default]
    Gray,
    /// Three planes to be converted to RGB.
    YCbCr,
    /// Three planes that are RGB.
    Rgb,
}

/// Number of luma samples per chroma sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sampling {
    /// Horizontally: 1, 2 or 4.
    pub(super) h: usize,
    /// Vertically: 1 or 2.
    pub(super) v: usize,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { h: 1, v: 1 }
    }
}

/// Maximum number of blocks per MCU: four of luma and two of chroma.
pub(super) const MCU_BLOCKS: usize = 6;

/// A component of the scan.
#[derive(Debug, Clone, Copy, Default)]
struct Component {
    id: u8,
    quantisation: usize,
}

/// The shape of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Frame {
    /// Width and height in pixels.
    pub(crate) size: (usize, usize),
    /// MCUs per row and per column.
    pub(crate) mcus: (usize, usize),
    /// Number of components: one or three.
    pub(crate) components: usize,
    /// Blocks of each component per MCU: horizontally and vertically.
    pub(crate) factors: [(usize, usize); 3],
    /// Numbers of the DC and AC Huffman tables of each component.
    pub(crate) selectors: [(usize, usize); 3],
    /// MCUs between restart markers; 0 without restart markers.
    pub(crate) restart_interval: usize,
    /// Offset of the entropy-coded data.
    pub(crate) scan: usize,
}

/// Quantization steps of the coefficients, row by row. They are unsigned; products are taken modulo
/// 2^16, as in libjpeg-turbo's SIMD code, so the sign does not matter.
pub(crate) type Steps = [i16; 64];

/// The header of the current file; tables are kept from file to file.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) frame: Frame,
    pub(super) sampling: Sampling,
    pub(super) output: Output,
    component: [Component; 3],
    steps: [Steps; 4],
    dc: [Table; 4],
    ac: [Table; 4],
}

impl Default for Header {
    fn default() -> Self {
        Self {
            frame: Frame::default(),
            sampling: Sampling::default(),
            output: Output::default(),
            component: Default::default(),
            steps: [[0; 64]; 4],
            dc: std::array::from_fn(|_| Table::new(Kind::Dc)),
            ac: std::array::from_fn(|_| Table::new(Kind::Ac)),
        }
    }
}

/// The tables defined so far in this file; the tables of an earlier file must not be used.
#[derive(Default)]
struct Seen {
    steps: [bool; 4],
    dc: [bool; 4],
    ac: [bool; 4],
    frame: bool,
    jfif: bool,
    adobe: Option<u8>,
}

/// Reads the payload of a DQT segment; calls `define` with the number and the steps of each table.
/// Returns `None` if the payload is damaged, or if `define` does.
pub(crate) fn quantization_tables(
    mut payload: &[u8],
    mut define: impl FnMut(usize, Steps) -> Option<()>,
) -> Option<()> {
    while let Some((&target, rest)) = payload.split_first() {
        let wide = match target >> 4 {
            0 => false,
            1 => true,
            _ => return None,
        };
        let (values, rest) = rest.split_at_checked(if wide { 128 } else { 64 })?;
        let mut steps = [0; 64];
        for (i, &natural) in ZIGZAG.iter().enumerate() {
            let step = if wide {
                u16::from_be_bytes([values[2 * i], values[2 * i + 1]])
            } else {
                u16::from(values[i])
            };
            steps[usize::from(natural)] = step as i16;
        }
        define(usize::from(target & 15), steps)?;
        payload = rest;
    }
    Some(())
}

impl Header {
    /// Reads everything before the first scan's data.
    pub(super) fn read(&mut self, bytes: &[u8]) -> Result<(), Foreign> {
        self.read_parts(bytes, true)
    }

    /// As [`Header::read`], but ignores Huffman tables, because the file has no scan.
    pub(super) fn read_without_codes(&mut self, bytes: &[u8]) -> Result<(), Foreign> {
        self.read_parts(bytes, false)
    }

    fn read_parts(&mut self, bytes: &[u8], with_codes: bool) -> Result<(), Foreign> {
        if !bytes.starts_with(&[0xff, 0xd8]) {
            return Err("no start of image");
        }
        let mut seen = Seen {
            dc: [!with_codes; 4],
            ac: [!with_codes; 4],
            ..Seen::default()
        };
        self.frame = Frame::default();
        let mut at = 2;
        loop {
            let segment = jpeg::segment(bytes, at).map_err(|_| "damaged markers")?;
            at = segment.end;
            seen.jfif |= jpeg::is_jfif(&segment);
            seen.adobe = jpeg::adobe_transform(&segment).or(seen.adobe);
            let payload = segment.payload;
            match segment.marker {
                SOF0 | SOF1 if seen.frame => return Err("two frames"),
                SOF0 | SOF1 => {
                    self.frame(payload)?;
                    seen.frame = true;
                }
                DHT if with_codes => self.huffman_tables(payload, &mut seen)?,
                DQT => {
                    let define = |number: usize, steps| {
                        *self.steps.get_mut(number)? = steps;
                        seen.steps[number] = true;
                        Some(())
                    };
                    quantization_tables(payload, define).ok_or("damaged quantisation table")?;
                }
                DRI => {
                    let interval = jpeg::restart_interval(payload);
                    self.frame.restart_interval = interval.ok_or("odd restart interval")?;
                }
                SOS => {
                    self.frame.scan = at;
                    return self.scan_header(&segment, &seen);
                }
                DHT | 0xe0..=0xef | 0xfe => {}
                // Progressive, lossless, hierarchical, arithmetic and other kinds.
                _ => return Err("a marker of another kind of JPEG"),
            }
        }
    }

    fn frame(&mut self, payload: &[u8]) -> Result<(), Foreign> {
        let &[8, h1, h0, w1, w0, components, ref rest @ ..] = payload else {
            return Err("not 8 bits a sample");
        };
        let width = usize::from(u16::from_be_bytes([w1, w0]));
        let height = usize::from(u16::from_be_bytes([h1, h0]));
        let components = usize::from(components);
        if width == 0 || height == 0 {
            return Err("no size");
        }
        if !matches!(components, 1 | 3) || rest.len() != 3 * components {
            return Err("not one or three components");
        }
        let mut sampling = [Sampling::default(); 3];
        for (i, description) in rest.chunks_exact(3).enumerate() {
            let &[id, factors, quantisation] = description else {
                return Err("odd frame header");
            };
            sampling[i] = Sampling {
                h: usize::from(factors >> 4),
                v: usize::from(factors & 15),
            };
            self.component[i] = Component {
                id,
                quantisation: usize::from(quantisation),
            };
        }
        self.sampling = if components == 1 {
            // The scan of a single component is not interleaved, so its sampling factors do not matter.
            if !(1..=4).contains(&sampling[0].h) || !(1..=4).contains(&sampling[0].v) {
                return Err("odd sampling factors");
            }
            Sampling::default()
        } else {
            let unit = Sampling::default();
            if sampling[1] != unit || sampling[2] != unit {
                return Err("odd sampling factors");
            }
            match (sampling[0].h, sampling[0].v) {
                (1 | 2, 1 | 2) | (4, 1) => sampling[0],
                _ => return Err("odd sampling factors"),
            }
        };
        let Sampling { h, v } = self.sampling;
        self.frame = Frame {
            size: (width, height),
            mcus: (width.div_ceil(8 * h), height.div_ceil(8 * v)),
            components,
            factors: [(h, v), (1, 1), (1, 1)],
            ..self.frame
        };
        Ok(())
    }

    fn huffman_tables(&mut self, mut payload: &[u8], seen: &mut Seen) -> Result<(), Foreign> {
        const SHORT: Foreign = "damaged Huffman table";
        while !payload.is_empty() {
            let definition = HuffmanTable::take(&mut payload).ok_or(SHORT)?;
            let table = definition.slot(&mut self.dc, &mut self.ac).ok_or(SHORT)?;
            let defined = table.define(definition.counts, definition.symbols);
            defined.ok_or(SHORT)?;
            *definition.slot(&mut seen.dc, &mut seen.ac).ok_or(SHORT)? = true;
        }
        Ok(())
    }

    fn scan_header(&mut self, segment: &Segment<'_>, seen: &Seen) -> Result<(), Foreign> {
        if !seen.frame {
            return Err("a scan without a frame");
        }
        let Some((&count, rest)) = segment.payload.split_first() else {
            return Err("damaged scan header");
        };
        if usize::from(count) != self.frame.components {
            return Err("several scans");
        }
        let (selectors, rest) = rest
            .split_at_checked(2 * self.frame.components)
            .ok_or("damaged scan header")?;
        if rest != [0, 63, 0] {
            return Err("a scan of a part of the coefficients");
        }
        for (i, selector) in selectors.chunks_exact(2).enumerate() {
            let component = self.component[i];
            if component.id != selector[0] {
                return Err("components in another order");
            }
            let (dc, ac) = (usize::from(selector[1] >> 4), usize::from(selector[1] & 15));
            self.frame.selectors[i] = (dc, ac);
            let defined = |tables: &[bool; 4], place: usize| tables.get(place) == Some(&true);
            if !defined(&seen.dc, dc)
                || !defined(&seen.ac, ac)
                || !defined(&seen.steps, component.quantisation)
            {
                return Err("a table that the file does not define");
            }
        }
        let ids: [u8; 3] = self.component.map(|component| component.id);
        let [a, b, c] = ids;
        if self.frame.components == 3 && (a == b || b == c || a == c) {
            return Err("two components of one name");
        }
        self.output = match jpeg::color(&ids[..self.frame.components], seen.jfif, seen.adobe) {
            Some(ColorModel::Gray) => Output::Gray,
            Some(ColorModel::YCbCr) => Output::YCbCr,
            Some(ColorModel::Rgb) => Output::Rgb,
            _ => return Err("other colors"),
        };
        Ok(())
    }

    /// Builds multi-symbol tables, if they are not current. This pays off if enough blocks are
    /// skipped.
    pub(super) fn make_multi_symbols(&mut self) {
        for &(_, ac) in &self.frame.selectors[..self.frame.components] {
            self.ac[ac].make_multi_symbols();
        }
    }

    /// Returns the Huffman tables by component.
    pub(super) fn tables(&self) -> Tables<'_> {
        let selectors = |i: usize| self.frame.selectors[i.min(self.frame.components - 1)];
        Tables {
            dc: std::array::from_fn(|i| &self.dc[selectors(i).0]),
            ac: std::array::from_fn(|i| &self.ac[selectors(i).1]),
            multi_symbols: self.multi_symbols(),
        }
    }

    /// Returns the multi-symbols by component, if all of them exist.
    fn multi_symbols(&self) -> Option<[&MultiSymbolTable; 4]> {
        let multi_symbols = |i: usize| {
            let (_, ac) = self.frame.selectors[i.min(self.frame.components - 1)];
            self.ac[ac].multi_symbols()
        };
        Some([
            multi_symbols(0)?,
            multi_symbols(1)?,
            multi_symbols(2)?,
            multi_symbols(3)?,
        ])
    }

    /// Returns the quantization steps of a component.
    pub(super) fn steps(&self, component: usize) -> &Steps {
        &self.steps[self.component[component].quantisation]
    }
}
