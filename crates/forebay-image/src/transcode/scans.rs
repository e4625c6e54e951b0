//! Encodes the scans of a progressive JPEG (ITU-T T.81, annex G) with given Huffman tables, as
//! libjpeg does where the standard leaves a choice.

use super::{DHT, DRI, SOF2, SOS};
use forebay_jpeg::internals::{BitWriter, CodeTables, Codes};
use libjpeg_turbo_rs::JpegCoefficients;

/// Maximum number of blocks without a further coefficient that one code can represent.
const MAX_RUN: u32 = 0x7fff;
/// Maximum number of pending correction bits: a run ends before a block could exceed it.
const MAX_HELD: usize = 1000 - 64 + 1;

/// A component of the frame.
#[derive(Debug, Clone, Copy)]
struct Component {
    id: u8,
    /// Blocks per MCU: horizontally and vertically.
    factors: (usize, usize),
    /// Number of blocks that the image needs, without padding of MCUs.
    size: (usize, usize),
}

/// The coefficients that one scan encodes.
#[derive(Debug, Default)]
struct Scan {
    /// Component numbers, with their tables for DC and AC.
    components: Vec<(usize, usize, usize)>,
    /// First and last coefficient, in zigzag order.
    band: (usize, usize),
    /// The bit position down to which earlier scans have encoded, followed by that of this scan.
    high: u8,
    low: u8,
}

/// State that carries over from scan to scan.
pub(super) struct Scans<'a> {
    coefficients: &'a JpegCoefficients,
    components: Vec<Component>,
    /// MCUs of an interleaved scan.
    mcus: (usize, usize),
    tables: CodeTables,
    restart: usize,
    scan: Scan,
}

impl<'a> Scans<'a> {
    pub(super) fn new(coefficients: &'a JpegCoefficients) -> Self {
        Self {
            coefficients,
            components: Vec::new(),
            mcus: (0, 0),
            tables: CodeTables::default(),
            restart: 0,
            scan: Scan::default(),
        }
    }

    /// Processes a marker segment.
    pub(super) fn segment(&mut self, marker: u8, payload: &[u8]) -> Option<()> {
        match marker {
            DHT => self.tables.read(payload),
            DRI => {
                let &[high, low] = payload else { return None };
                self.restart = usize::from(u16::from_be_bytes([high, low]));
                Some(())
            }
            SOF2 => self.frame(payload),
            SOS => self.header(payload),
            _ => Some(()),
        }
    }

    fn frame(&mut self, payload: &[u8]) -> Option<()> {
        let &[8, h1, h0, w1, w0, count, ref rest @ ..] = payload else {
            return None;
        };
        let width = usize::from(u16::from_be_bytes([w1, w0]));
        let height = usize::from(u16::from_be_bytes([h1, h0]));
        let found = self.coefficients;
        if (width, height) != (usize::from(found.width), usize::from(found.height))
            || usize::from(count) != found.components.len()
            || rest.len() != 3 * found.components.len()
        {
            return None;
        }
        let factors: Vec<(usize, usize)> = rest
            .chunks_exact(3)
            .map(|c| (usize::from(c[1] >> 4), usize::from(c[1] & 15)))
            .collect();
        let most = (
            factors.iter().map(|f| f.0).max()?,
            factors.iter().map(|f| f.1).max()?,
        );
        if factors.iter().any(|&(h, v)| h == 0 || v == 0) {
            return None;
        }
        self.mcus = (width.div_ceil(8 * most.0), height.div_ceil(8 * most.1));
        self.components.clear();
        for ((c, &(h, v)), blocks) in rest.chunks_exact(3).zip(&factors).zip(&found.components) {
            let (wide, high) = (self.mcus.0 * h, self.mcus.1 * v);
            // The coefficients were read from the same file, so the shapes agree.
            if (blocks.blocks_x, blocks.blocks_y) != (wide, high)
                || blocks.blocks.len() != wide * high
            {
                return None;
            }
            self.components.push(Component {
                id: c[0],
                factors: (h, v),
                size: (
                    (width * h).div_ceil(8 * most.0),
                    (height * v).div_ceil(8 * most.1),
                ),
            });
        }
        Some(())
    }

    fn header(&mut self, payload: &[u8]) -> Option<()> {
        let (&count, rest) = payload.split_first()?;
        let (selectors, rest) = rest.split_at_checked(2 * usize::from(count))?;
        let &[first, last, bits] = rest else {
            return None;
        };
        let scan = &mut self.scan;
        scan.components.clear();
        for selector in selectors.chunks_exact(2) {
            let number = self.components.iter().position(|c| c.id == selector[0])?;
            let tables = (usize::from(selector[1] >> 4), usize::from(selector[1] & 15));
            scan.components.push((number, tables.0, tables.1));
        }
        scan.band = (usize::from(first), usize::from(last));
        (scan.high, scan.low) = (bits >> 4, bits & 15);
        let sound = if first == 0 {
            last == 0 && !scan.components.is_empty()
        } else {
            first <= last && last < 64 && scan.components.len() == 1
        };
        (sound && scan.low <= 13).then_some(())
    }

    /// Appends the entropy-coded data of the scan whose header was processed last. Returns `None`
    /// if it cannot be encoded, or `out` would exceed `limit`.
    pub(super) fn encode(&self, out: &mut Vec<u8>, limit: usize) -> Option<()> {
        let scan = &self.scan;
        let &(only, ..) = scan.components.first()?;
        let single = scan.components.len() == 1;
        let (columns, rows) = if single {
            self.components[only].size
        } else {
            self.mcus
        };
        let mut writer = BitWriter::new(out);
        let mut run = Run::default();
        let mut predictors = [0i32; 4];
        let mut restarts = 0usize;
        for mcu in 0..columns * rows {
            if self.restart > 0 && mcu > 0 && mcu % self.restart == 0 {
                self.end_run(&mut run, &mut writer)?;
                writer.pad();
                writer.out.extend([0xff, 0xd0 + (restarts % 8) as u8]);
                restarts += 1;
                predictors = [0; 4];
            }
            let (x, y) = (mcu % columns, mcu / columns);
            if scan.band.0 > 0 {
                let block = self.block(only, x, y)?;
                if scan.high == 0 {
                    self.first(block, &mut run, &mut writer)?;
                } else {
                    self.refine(block, &mut run, &mut writer)?;
                }
            } else {
                for &(number, dc, _) in &scan.components {
                    let (h, v) = if single {
                        (1, 1)
                    } else {
                        self.components[number].factors
                    };
                    for i in 0..h * v {
                        let block = self.block(number, x * h + i % h, y * v + i / h)?;
                        let value = i32::from(block[0]) >> scan.low;
                        if scan.high > 0 {
                            writer.put(value as u32 & 1, 1);
                            continue;
                        }
                        let predictor = predictors.get_mut(number)?;
                        let difference = value - *predictor;
                        *predictor = value;
                        let size = 32 - difference.unsigned_abs().leading_zeros();
                        writer.code(self.tables.dc.get(dc)?.as_deref()?, size)?;
                        writer.value(difference, size);
                    }
                }
            }
            if writer.out.len() > limit {
                return None;
            }
        }
        self.end_run(&mut run, &mut writer)?;
        writer.pad();
        Some(())
    }

    fn block(&self, component: usize, x: usize, y: usize) -> Option<&[i16; 64]> {
        let component = self.coefficients.components.get(component)?;
        component.blocks.get(y * component.blocks_x + x)
    }

    fn ac(&self) -> Option<&Codes> {
        let &(_, _, table) = self.scan.components.first()?;
        self.tables.ac.get(table)?.as_deref()
    }

    /// Encodes a block in the first scan of a band.
    fn first(&self, block: &[i16; 64], run: &mut Run, writer: &mut BitWriter<'_>) -> Option<()> {
        let mut zeros = 0;
        for &coefficient in &block[self.scan.band.0..=self.scan.band.1] {
            // Magnitudes are shifted, so that values near zero become zero on both sides.
            let magnitude = i32::from(coefficient.unsigned_abs()) >> self.scan.low;
            if magnitude == 0 {
                zeros += 1;
                continue;
            }
            self.end_run(run, writer)?;
            while zeros > 15 {
                writer.code(self.ac()?, 0xf0)?;
                zeros -= 16;
            }
            let value = if coefficient < 0 {
                -magnitude
            } else {
                magnitude
            };
            let size = 32 - magnitude.leading_zeros();
            writer.code(self.ac()?, zeros << 4 | size)?;
            writer.value(value, size);
            zeros = 0;
        }
        if zeros > 0 {
            run.blocks += 1;
            if run.blocks == MAX_RUN {
                self.end_run(run, writer)?;
            }
        }
        Some(())
    }

    /// Encodes a block in a later scan of a band, which adds one bit of each coefficient.
    fn refine(&self, block: &[i16; 64], run: &mut Run, writer: &mut BitWriter<'_>) -> Option<()> {
        let (from, to) = self.scan.band;
        let magnitude = |coefficient: i16| coefficient.unsigned_abs() >> self.scan.low;
        let band = &block[from..=to];
        // The index after the last coefficient that becomes nonzero in this scan.
        let new = band
            .iter()
            .rposition(|c| magnitude(*c) == 1)
            .map_or(0, |k| k + 1);
        let mut zeros = 0;
        let mut bits: Vec<bool> = Vec::new();
        for (k, &coefficient) in band.iter().enumerate() {
            let value = magnitude(coefficient);
            if value == 0 {
                zeros += 1;
                continue;
            }
            while zeros > 15 && k < new {
                self.end_run(run, writer)?;
                writer.code(self.ac()?, 0xf0)?;
                zeros -= 16;
                writer.bits(&bits);
                bits.clear();
            }
            if value > 1 {
                bits.push(value & 1 == 1);
                continue;
            }
            self.end_run(run, writer)?;
            writer.code(self.ac()?, zeros << 4 | 1)?;
            writer.put(u32::from(coefficient >= 0), 1);
            writer.bits(&bits);
            bits.clear();
            zeros = 0;
        }
        if zeros > 0 || !bits.is_empty() {
            run.blocks += 1;
            run.held.extend_from_slice(&bits);
            if run.blocks == MAX_RUN || run.held.len() > MAX_HELD {
                self.end_run(run, writer)?;
            }
        }
        Some(())
    }

    /// Writes the code of a run of finished blocks, and the pending bits.
    fn end_run(&self, run: &mut Run, writer: &mut BitWriter<'_>) -> Option<()> {
        if run.blocks > 0 {
            let size = 31 - run.blocks.leading_zeros();
            writer.code(self.ac()?, size << 4)?;
            writer.put(run.blocks & ((1 << size) - 1), size);
            run.blocks = 0;
            writer.bits(&run.held);
            run.held.clear();
        }
        Some(())
    }
}

/// Blocks without further coefficients, and the correction bits in them.
#[derive(Debug, Default)]
struct Run {
    blocks: u32,
    held: Vec<bool>,
}
