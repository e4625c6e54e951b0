//! Tables and geometry from the segments before the scan.

use super::Declined;
use super::entropy::Table;
use crate::decode::Region;
use crate::probe::jpeg::{SOS, is_frame, segment};

/// From the order of the codes to rows and columns.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Quantisation and Huffman tables. Huffman tables are kept with the bytes they were built from: files of one
/// encoder share them.
#[derive(Debug, Default)]
pub(super) struct Tables {
    quant: Vec<[u16; 64]>,
    huffman: [Slot; 8],
}

#[derive(Debug, Default)]
struct Slot {
    definition: Vec<u8>,
    table: Option<Box<Table>>,
}

impl Tables {
    /// The tables of a component: quantisation in rows and columns, DC codes, AC codes.
    pub(super) fn of(&self, c: &Component) -> Result<(&[u16; 64], &Table, &Table), Declined> {
        let quant = self.quant.get(c.quant).ok_or(Declined)?;
        let dc = self.huffman[c.dc].table.as_deref().ok_or(Declined)?;
        let ac = self.huffman[4 + c.ac].table.as_deref().ok_or(Declined)?;
        Ok((quant, dc, ac))
    }
}

/// One colour component.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Component {
    id: u8,
    /// Blocks of an MCU, across and down.
    pub(super) h: usize,
    pub(super) v: usize,
    quant: usize,
    dc: usize,
    ac: usize,
}

/// What the scan needs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Header {
    pub(super) width: usize,
    pub(super) height: usize,
    components: [Component; 3],
    count: usize,
    /// MCUs between restart markers, 0 for none.
    pub(super) restart: usize,
    /// Where the entropy-coded data begin.
    pub(super) scan: usize,
}

/// A part of the image in whole MCUs: columns and rows, ends excluded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) c0: usize,
    pub(super) c1: usize,
    pub(super) r0: usize,
    pub(super) r1: usize,
}

impl Header {
    pub(super) fn parse(bytes: &[u8], tables: &mut Tables) -> Result<Self, Declined> {
        let mut header = Self::default();
        let mut quant = [None; 4];
        let mut huffman: [Option<&[u8]>; 8] = [None; 8];
        let mut at = 2;
        loop {
            let segment = segment(bytes, at).map_err(|_| Declined)?;
            at = segment.end;
            match segment.marker {
                0xdb => quantisation(segment.payload, &mut quant)?,
                0xc4 => definitions(segment.payload, &mut huffman)?,
                0xc0 | 0xc1 => header.frame(segment.payload)?,
                marker if is_frame(marker) => return Err(Declined),
                0xdd => match segment.payload {
                    &[high, low] => header.restart = usize::from(u16::from_be_bytes([high, low])),
                    _ => return Err(Declined),
                },
                SOS => {
                    header.scan = at;
                    header.start_of_scan(segment.payload)?;
                    break;
                }
                _ => {}
            }
        }
        tables.quant.clear();
        for table in quant {
            tables.quant.push(table.unwrap_or([0; 64]));
        }
        for c in header.components() {
            if quant[c.quant].is_none() {
                return Err(Declined);
            }
            for slot in [c.dc, 4 + c.ac] {
                let definition = huffman[slot].ok_or(Declined)?;
                let kept = &mut tables.huffman[slot];
                if kept.table.is_none() || kept.definition != definition {
                    kept.table = None;
                    kept.definition.clear();
                    kept.definition.extend_from_slice(definition);
                    kept.table = Some(Box::new(Table::build(definition, slot < 4)?));
                }
            }
        }
        Ok(header)
    }

    fn frame(&mut self, payload: &[u8]) -> Result<(), Declined> {
        let &[8, h1, h0, w1, w0, count, ref rest @ ..] = payload else {
            return Err(Declined);
        };
        let count = usize::from(count);
        if self.count != 0 || !matches!(count, 1 | 3) || rest.len() != 3 * count {
            return Err(Declined);
        }
        self.width = usize::from(u16::from_be_bytes([w1, w0]));
        self.height = usize::from(u16::from_be_bytes([h1, h0]));
        self.count = count;
        for (component, bytes) in self.components.iter_mut().zip(rest.chunks_exact(3)) {
            let &[id, sampling, quant] = bytes else {
                return Err(Declined);
            };
            let quant = usize::from(quant);
            if quant > 3 {
                return Err(Declined);
            }
            *component = Component {
                id,
                h: usize::from(sampling >> 4),
                v: usize::from(sampling & 15),
                quant,
                ..Component::default()
            };
        }
        let sampling = self.components.map(|c| (c.h, c.v));
        match sampling {
            // A scan of one component is in single blocks, whatever its sampling says.
            [(1 | 2, 1 | 2), ..] if count == 1 => {
                (self.components[0].h, self.components[0].v) = (1, 1)
            }
            [(1, 1) | (2, 1) | (2, 2), (1, 1), (1, 1)] => {}
            _ => return Err(Declined),
        }
        // libjpeg replicates instead of interpolating where a row has fewer than three samples.
        if self.width == 0 || self.height == 0 || self.width.div_ceil(self.components[0].h) < 3 {
            return Err(Declined);
        }
        Ok(())
    }

    fn start_of_scan(&mut self, payload: &[u8]) -> Result<(), Declined> {
        let count = self.count;
        if count == 0 || payload.len() != 4 + 2 * count || usize::from(payload[0]) != count {
            return Err(Declined);
        }
        if payload[1 + 2 * count..] != [0, 63, 0] {
            return Err(Declined);
        }
        for (component, bytes) in self.components[..count]
            .iter_mut()
            .zip(payload[1..].chunks_exact(2))
        {
            component.dc = usize::from(bytes[1] >> 4);
            component.ac = usize::from(bytes[1] & 15);
            if component.id != bytes[0] || component.dc > 3 || component.ac > 3 {
                return Err(Declined);
            }
        }
        Ok(())
    }

    pub(super) fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// Luma samples of an MCU, across and down.
    pub(super) fn mcu(&self) -> (usize, usize) {
        (8 * self.components[0].h, 8 * self.components[0].v)
    }

    /// MCUs across and down.
    pub(super) fn mcus(&self) -> (usize, usize) {
        let (w, h) = self.mcu();
        (self.width.div_ceil(w), self.height.div_ceil(h))
    }

    /// The MCUs that a region needs, with the samples next to it where upsampling looks at them.
    pub(super) fn window(&self, region: &Region) -> Window {
        let (w, h) = self.mcu();
        let (mx, my) = (if w > 8 { 2 } else { 0 }, if h > 8 { 2 } else { 0 });
        let (x0, y0) = (region.x as usize, region.y as usize);
        let (x1, y1) = (x0 + region.width as usize, y0 + region.height as usize);
        let mut c0 = x0.saturating_sub(mx) / w;
        let c1 = (x1 + mx).min(self.width).div_ceil(w);
        if w > 8 && self.width.div_ceil(2) - c0 * 8 < 3 {
            c0 -= 1; // at least three samples in a row: see `frame`
        }
        let r0 = y0.saturating_sub(my) / h;
        let r1 = (y1 + my).min(self.height).div_ceil(h);
        Window { c0, c1, r0, r1 }
    }
}

fn quantisation(mut payload: &[u8], tables: &mut [Option<[u16; 64]>; 4]) -> Result<(), Declined> {
    while let Some((&head, rest)) = payload.split_first() {
        // 16-bit tables (head >> 4 is 1) belong to 12-bit files.
        let (true, Some((values, rest))) = (head <= 3, rest.split_at_checked(64)) else {
            return Err(Declined);
        };
        let mut table = [0; 64];
        for (&position, &value) in ZIGZAG.iter().zip(values) {
            table[usize::from(position)] = u16::from(value);
        }
        tables[usize::from(head)] = Some(table);
        payload = rest;
    }
    Ok(())
}

fn definitions<'a>(
    mut payload: &'a [u8],
    tables: &mut [Option<&'a [u8]>; 8],
) -> Result<(), Declined> {
    while let Some((&head, rest)) = payload.split_first() {
        let (class, slot) = (usize::from(head >> 4), usize::from(head & 15));
        let counts = rest.get(..16).ok_or(Declined)?;
        let symbols: usize = counts.iter().map(|&n| usize::from(n)).sum();
        if class > 1 || slot > 3 || symbols > 256 {
            return Err(Declined);
        }
        let (definition, rest) = rest.split_at_checked(16 + symbols).ok_or(Declined)?;
        tables[class * 4 + slot] = Some(definition);
        payload = rest;
    }
    Ok(())
}
