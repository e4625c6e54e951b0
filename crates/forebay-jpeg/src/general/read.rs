//! Reads a file into components: walks over markers, tables, and the scans that they describe.

use super::Component;
use super::huffman::Codes;
use super::scan::{Band, Member, Scan};
use crate::baseline::bits::Stream;
use crate::baseline::canonical::Canonical;
use crate::baseline::header::{Steps, quantization_tables};
use crate::baseline::symbol::Kind;
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::limits::Limits;
use crate::markers::{
    self as jpeg, ColorModel, DHT, DQT, DRI, EOI, HuffmanTable, SOF2, SOS, Segment,
};

/// Maximum number of blocks per MCU of an interleaved scan.
const MCU_BLOCKS: usize = 10;
/// Largest bit shift of a progressive scan's coefficients.
const MAX_SHIFT: u8 = 13;
/// Bytes per block: its coefficients and its samples.
const BLOCK_BYTES: u64 = 64 * 3;
/// Bytes per pixel of the output.
const RGB_BYTES: u64 = 3;

/// The part of a file to read.
#[derive(Debug)]
pub(super) enum Depth<'a> {
    /// Markers and tables.
    Structure,
    /// All coefficients, which are decoded with this stream.
    Coefficients(&'a mut Stream),
}

/// The result of reading a file.
#[derive(Debug)]
pub(super) struct ParsedJpeg {
    pub(super) size: (usize, usize),
    pub(super) components: Vec<Component>,
    /// The largest sampling factors of all components, horizontally and vertically.
    pub(super) most: (usize, usize),
    pub(super) color: ColorModel,
    /// Whether missing coefficients are estimated by block smoothing.
    pub(super) smooth: bool,
}

/// The state of a walk over markers.
struct Reader<'a> {
    bytes: &'a [u8],
    limits: &'a Limits,
    depth: Depth<'a>,
    frame: Option<ParsedJpeg>,
    progressive: bool,
    steps: [Option<Steps>; 4],
    dc: [Option<HuffmanTable<'a>>; 4],
    ac: [Option<HuffmanTable<'a>>; 4],
    restart_interval: usize,
    jfif: bool,
    adobe: Option<u8>,
    scans: u32,
}

/// A component of a scan: its number, and the slots of its tables.
#[derive(Clone, Copy, Default)]
struct Selector {
    component: usize,
    dc: usize,
    ac: usize,
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt(Encoding::Jpeg, what)
}

fn unsupported(what: impl Into<String>) -> Error {
    Error::unsupported(Encoding::Jpeg, what)
}

impl ParsedJpeg {
    pub(super) fn read(bytes: &[u8], limits: &Limits, depth: Depth<'_>) -> Result<Self> {
        let reader = Reader {
            bytes,
            limits,
            depth,
            frame: None,
            progressive: false,
            steps: [None; 4],
            dc: [None; 4],
            ac: [None; 4],
            restart_interval: 0,
            jfif: false,
            adobe: None,
            scans: 0,
        };
        reader.run()
    }

    /// Returns whether the baseline decoder supports these sampling factors.
    fn is_ordinary(&self) -> bool {
        let factors = |i: usize| self.components[i].factors;
        match self.components.len() {
            1 => true,
            3 => {
                factors(1) == (1, 1)
                    && factors(2) == (1, 1)
                    && matches!(factors(0), (1 | 2, 1 | 2) | (4, 1))
            }
            _ => false,
        }
    }
}

impl Reader<'_> {
    fn run(mut self) -> Result<ParsedJpeg> {
        let mut at = 2;
        loop {
            let segment = match jpeg::segment(self.bytes, at) {
                // After a scan, the end marker may be missing if the image is complete otherwise.
                Err(Error::Incomplete { .. }) if self.scans > 0 => {
                    return self.finish(false);
                }
                other => other?,
            };
            at = segment.end;
            match segment.marker {
                SOS => match self.scan(&segment)? {
                    Some(next) => at = next,
                    None => return self.finish(true),
                },
                EOI => return self.finish(true),
                _ => self.segment(&segment)?,
            }
        }
    }

    /// Returns the image; an error if the end marker is missing and coefficients are not complete.
    fn finish(self, ended: bool) -> Result<ParsedJpeg> {
        let mut picture = self
            .frame
            .filter(|_| self.scans > 0)
            .ok_or_else(|| corrupt("the image ends before its first scan"))?;
        let missing = |component: &Component| {
            component.steps.is_none() || self.progressive && component.known.iter().any(|&k| k != 0)
        };
        if !ended && picture.components.iter().any(missing) {
            let what = "the file ends inside the image data";
            return Err(Error::truncated(Encoding::Jpeg, what));
        }
        picture.smooth = self.progressive && super::smooth::is_useful(&picture.components);
        Ok(picture)
    }

    /// Processes a marker segment that is neither a scan nor the end.
    fn segment(&mut self, segment: &Segment<'_>) -> Result<()> {
        if self.scans == 0 {
            self.jfif |= jpeg::is_jfif(segment);
            self.adobe = jpeg::adobe_transform(segment).or(self.adobe);
        }
        // The payload is sliced from the file, so that tables outlive `segment`.
        let payload = &self.bytes[segment.end - segment.payload.len()..segment.end];
        match segment.marker {
            marker if jpeg::is_frame(marker) => self.frame(marker, payload),
            DHT => self
                .huffman_tables(payload)
                .ok_or_else(|| corrupt("damaged Huffman table")),
            DQT => {
                let define = |number: usize, steps| {
                    *self.steps.get_mut(number)? = Some(steps);
                    Some(())
                };
                quantization_tables(payload, define)
                    .ok_or_else(|| corrupt("damaged quantization table"))
            }
            DRI => {
                self.restart_interval = jpeg::restart_interval(payload)
                    .ok_or_else(|| corrupt("damaged restart interval"))?;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn frame(&mut self, marker: u8, payload: &[u8]) -> Result<()> {
        if self.frame.is_some() {
            return Err(corrupt("two frame headers"));
        }
        let frame = jpeg::frame(marker, payload)?;
        let (width, height) = (usize::from(frame.width), usize::from(frame.height));
        self.progressive = marker == SOF2;
        let descriptions = frame.descriptions;
        let factors = |description: &[u8; 3]| {
            let [_, factors, _] = *description;
            (usize::from(factors >> 4), usize::from(factors & 15))
        };
        let (mut h, mut v) = (1, 1);
        for description in descriptions {
            let found = factors(description);
            if !(1..=4).contains(&found.0) || !(1..=4).contains(&found.1) {
                return Err(corrupt(format!(
                    "sampling factors of {}x{}, 1 to 4 are possible",
                    found.0, found.1
                )));
            }
            (h, v) = (h.max(found.0), v.max(found.1));
        }
        let mcus = (width.div_ceil(8 * h), height.div_ceil(8 * v));
        let mut components = Vec::with_capacity(descriptions.len());
        for description in descriptions {
            let (own_h, own_v) = factors(description);
            if h % own_h != 0 || v % own_v != 0 {
                return Err(unsupported(format!(
                    "sampling factors of {own_h}x{own_v} beside {h}x{v}, which they do not divide"
                )));
            }
            components.push(Component {
                id: description[0],
                factors: (own_h, own_v),
                slot: usize::from(description[2]),
                size: (
                    (width * own_h).div_ceil(8 * h),
                    (height * own_v).div_ceil(8 * v),
                ),
                padded: (mcus.0 * own_h, mcus.1 * own_v),
                blocks: Vec::new(),
                steps: None,
                known: [-1; 64],
            });
        }
        self.frame = Some(ParsedJpeg {
            size: (width, height),
            components,
            most: (h, v),
            color: ColorModel::Gray,
            smooth: false,
        });
        Ok(())
    }
}

impl<'a> Reader<'a> {
    fn huffman_tables(&mut self, mut payload: &'a [u8]) -> Option<()> {
        while !payload.is_empty() {
            let table = HuffmanTable::take(&mut payload)?;
            if table.symbols.len() > 256 {
                return None;
            }
            *table.slot(&mut self.dc, &mut self.ac)? = Some(table);
        }
        Some(())
    }

    /// Evaluates the properties that are known when the first scan begins: the color model, and
    /// whether the image is within the limits.
    fn begin(&mut self, all_in_one: bool) -> Result<()> {
        let Some(frame) = &mut self.frame else {
            return Err(corrupt("a scan without a frame header"));
        };
        let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
        frame.color = jpeg::color(&ids, self.jfif, self.adobe)
            .ok_or_else(|| unsupported(format!("{} color components", ids.len())))?;
        if !all_in_one {
            // Each scan is a pass over the image: files with too many scans are refused before the
            // first one is read.
            self.limits.check_scans(jpeg::scans(self.bytes))?;
        }
        // The baseline decoder decodes the common kinds with less memory than is counted here.
        if !(all_in_one && frame.is_ordinary()) {
            let blocks: usize = frame
                .components
                .iter()
                .map(|component| component.padded.0 * component.padded.1)
                .sum();
            let pixels = frame.size.0 as u64 * frame.size.1 as u64;
            self.limits
                .check_bytes(blocks as u64 * BLOCK_BYTES + pixels * RGB_BYTES)?;
        }
        if matches!(self.depth, Depth::Coefficients(_)) {
            for component in &mut frame.components {
                component.blocks = vec![[0; 64]; component.padded.0 * component.padded.1];
            }
        }
        Ok(())
    }

    /// Reads a scan, or skips its data. Returns the offset of the next marker; `None` if there is
    /// none, or the rest of the file is not needed.
    fn scan(&mut self, segment: &Segment<'_>) -> Result<Option<usize>> {
        self.scans += 1;
        self.limits.check_scans(self.scans)?;
        let Some(frame) = &self.frame else {
            return Err(corrupt("a scan without a frame header"));
        };
        let (selectors, count, band) = scan_header(segment.payload, &frame.components)?;
        let selectors = &selectors[..count];
        let band = self.progressive.then_some(band);
        if let Some(band) = band {
            check_band(band, count)?;
        }
        let blocks = |selector: &Selector| {
            let (h, v) = frame.components[selector.component].factors;
            h * v
        };
        if count > 1 && selectors.iter().map(blocks).sum::<usize>() > MCU_BLOCKS {
            return Err(unsupported("more than 10 blocks in an MCU"));
        }
        let all_in_one = !self.progressive && count == frame.components.len();
        if self.scans == 1 {
            self.begin(all_in_one)?;
        }
        let Some(frame) = &mut self.frame else {
            return Err(corrupt("a scan without a frame header"));
        };
        let mut tables = Vec::with_capacity(count);
        for selector in selectors {
            let component = &mut frame.components[selector.component];
            if component.steps.is_none() {
                component.steps = self.steps.get(component.slot).copied().flatten();
            }
            if component.steps.is_none() {
                return Err(unsupported(format!(
                    "quantization table {} is not in the file",
                    component.slot
                )));
            }
            if let Some(band) = band {
                component.known[band.first..=band.last].fill(band.low as i8);
            }
            let needs_dc = band.is_none_or(|band| band.first == 0 && band.high == 0);
            let needs_ac = band.is_none_or(|band| band.first > 0);
            let builds = matches!(self.depth, Depth::Coefficients(_));
            let codes = |kind, tables: &[Option<HuffmanTable<'_>>; 4], slot: usize| {
                let table = tables.get(slot).copied().flatten().ok_or_else(|| {
                    unsupported(format!("Huffman table {slot} is not in the file"))
                })?;
                let (counts, symbols) = (table.counts, table.symbols);
                let codes = if builds {
                    Codes::new(kind, counts, symbols).map(Some)
                } else {
                    let checked = Canonical::new().define(kind, counts, symbols, |_, _, _| ());
                    checked.map(|()| None)
                };
                codes.ok_or_else(|| corrupt("damaged Huffman table"))
            };
            let dc = if needs_dc {
                codes(Kind::Dc, &self.dc, selector.dc)?
            } else {
                None
            };
            let ac = if needs_ac {
                codes(Kind::Ac, &self.ac, selector.ac)?
            } else {
                None
            };
            tables.push((selector.component, dc, ac));
        }
        let from = match &mut self.depth {
            Depth::Structure => segment.end,
            Depth::Coefficients(stream) => {
                let members: Vec<Member<'_>> = tables
                    .iter()
                    .map(|(component, dc, ac)| Member {
                        component: *component,
                        dc: dc.as_deref(),
                        ac: ac.as_deref(),
                    })
                    .collect();
                let (h, v) = frame.most;
                let scan = Scan {
                    bytes: self.bytes,
                    start: segment.end,
                    members: &members,
                    band,
                    restart_interval: self.restart_interval,
                    mcus: (frame.size.0.div_ceil(8 * h), frame.size.1.div_ceil(8 * v)),
                };
                scan.read(stream, &mut frame.components)?
            }
        };
        if all_in_one {
            return Ok(None);
        }
        Ok(Some(jpeg::marker_after(self.bytes, from)))
    }
}

/// Returns the components of a scan, their number, and the band of a progressive scan.
fn scan_header(payload: &[u8], components: &[Component]) -> Result<([Selector; 4], usize, Band)> {
    let damaged = || corrupt("damaged scan header");
    let (&count, rest) = payload.split_first().ok_or_else(damaged)?;
    let count = usize::from(count);
    let (chosen, rest) = rest.split_at_checked(2 * count).ok_or_else(damaged)?;
    let &[first, last, bits] = rest else {
        return Err(damaged());
    };
    if !(1..=4).contains(&count) {
        return Err(damaged());
    }
    let mut selectors = [Selector::default(); 4];
    for i in 0..count {
        let (id, tables) = (chosen[2 * i], chosen[2 * i + 1]);
        let is_taken = |number: usize| selectors[..i].iter().any(|s| s.component == number);
        let component = (0..components.len())
            .find(|&number| components[number].id == id && !is_taken(number))
            .ok_or_else(|| corrupt(format!("a scan of component {id}, which the frame lacks")))?;
        selectors[i] = Selector {
            component,
            dc: usize::from(tables >> 4),
            ac: usize::from(tables & 15),
        };
    }
    let band = Band {
        first: usize::from(first),
        last: usize::from(last),
        high: bits >> 4,
        low: bits & 15,
    };
    Ok((selectors, count, band))
}

/// Checks a progressive scan as libjpeg does.
fn check_band(band: Band, components: usize) -> Result<()> {
    let Band {
        first,
        last,
        high,
        low,
    } = band;
    let is_sound = if first == 0 {
        last == 0
    } else {
        first <= last && last < 64 && components == 1
    };
    if is_sound && (high == 0 || low + 1 == high) && low <= MAX_SHIFT {
        return Ok(());
    }
    Err(corrupt(format!(
        "a progressive scan of coefficients {first} to {last} from bit {high} to {low}"
    )))
}
