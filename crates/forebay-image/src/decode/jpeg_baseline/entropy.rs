//! Huffman codes: tables that give a code's whole meaning in one lookup, and a reader of 64 bits at a time.

use super::Declined;
use super::header::{Header, ZIGZAG};
use crate::probe::jpeg::EOI;

/// Bits that index the lookup table.
const LOOKUP: u32 = 10;
/// Most bits that one lookup may consume: three lookups are made after a refill, which leaves at least 56.
const MOST: u32 = 18;
/// Position steps that are none: end of block, and "not in the table".
const END: u32 = 128;
const SLOW_STEP: u32 = 64;
/// The entry of codes that the lookup cannot resolve: nothing is consumed.
const SLOW: u32 = Entry {
    total: 0,
    step: SLOW_STEP,
    rest: 0,
    base: 0,
}
.pack();

/// What a code means. `total` bits are consumed (code and the value's own bits); the position moves by `step`;
/// the value is `base` plus the `rest` bits that follow the looked-up ones.
#[derive(Debug, Clone, Copy)]
struct Entry {
    total: u32,
    step: u32,
    rest: u32,
    base: i32,
}

impl Entry {
    /// Bits 0-4 total, 5-12 step, 13-18 how far the rest is from the bottom of the 64 bits, 19-31 base.
    const fn pack(self) -> u32 {
        self.total | self.step << 5 | (64 - LOOKUP - self.rest) << 13 | (self.base as u32) << 19
    }
}

const fn total(entry: u32) -> u32 {
    entry & 31
}

const fn step(entry: u32) -> usize {
    (entry >> 5 & 0xff) as usize
}

/// Codes of one kind (DC or AC).
#[derive(Debug)]
pub(super) struct Table {
    lookup: [u32; 1 << LOOKUP],
    /// For each length: one past the last code, left-aligned to 16 bits, and what to add to a code (right-aligned)
    /// for its symbol's number.
    limits: [u32; 17],
    offsets: [i32; 17],
    symbols: [u8; 256],
    dc: bool,
}

/// Run of zeros and size of the value, from a symbol.
fn meaning(symbol: u8, dc: bool) -> (u32, u32) {
    let size = u32::from(symbol & 15);
    let step = match symbol {
        _ if dc => 0,
        0xf0 => 16,
        _ if size == 0 => END, // other runs without a value occur in progressive files only
        _ => u32::from(symbol >> 4) + 1,
    };
    (step, size)
}

impl Table {
    /// From a definition: 16 counts of codes by length, then the symbols.
    pub(super) fn build(definition: &[u8], dc: bool) -> Result<Self, Declined> {
        let (counts, symbols) = definition.split_at_checked(16).ok_or(Declined)?;
        let mut table = Self {
            lookup: [SLOW; 1 << LOOKUP],
            limits: [0; 17],
            offsets: [0; 17],
            symbols: [0; 256],
            dc,
        };
        table
            .symbols
            .get_mut(..symbols.len())
            .ok_or(Declined)?
            .copy_from_slice(symbols);
        let (mut code, mut number) = (0u32, 0usize);
        for (length, &count) in (1u32..).zip(counts) {
            table.offsets[length as usize] = number as i32 - code as i32;
            for _ in 0..count {
                let &symbol = symbols.get(number).ok_or(Declined)?;
                if dc && symbol > 11 || !dc && symbol & 15 == 0 && !matches!(symbol, 0 | 0xf0) {
                    return Err(Declined);
                }
                if code >> length != 0 {
                    return Err(Declined); // more codes than this length has
                }
                table.enter(code, length, symbol);
                (code, number) = (code + 1, number + 1);
            }
            table.limits[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Ok(table)
    }

    /// Fills the lookups that begin with a code, where code and value fit.
    fn enter(&mut self, code: u32, length: u32, symbol: u8) {
        let (step, size) = meaning(symbol, self.dc);
        let total = length + size;
        // A value's sign is its first bit, so that one at least must be among the looked-up bits.
        if length > LOOKUP || total > MOST || size > 12 || (size > 0 && length == LOOKUP) {
            return;
        }
        let free = LOOKUP - length;
        let known = size.min(free);
        let rest = size - known;
        for low in 0..1u32 << free {
            let bits = low >> (free - known);
            let mut base = (bits << rest) as i32;
            if size > 0 && bits >> (known - 1) == 0 {
                base -= (1 << size) - 1;
            }
            self.lookup[(code << free | low) as usize] = Entry {
                total,
                step,
                rest,
                base,
            }
            .pack();
        }
    }

    /// A code bit by bit: bits consumed, step, value.
    #[cold]
    #[inline(never)]
    fn slow(&self, bits: u64) -> Result<(u32, usize, i32), Declined> {
        let top = (bits >> 48) as u32;
        let length = (1..=16)
            .find(|&l| top < self.limits[l as usize])
            .ok_or(Declined)?;
        let number = (top >> (16 - length)) as i32 + self.offsets[length as usize];
        let symbol = usize::try_from(number)
            .ok()
            .and_then(|n| self.symbols.get(n))
            .ok_or(Declined)?;
        let (step, size) = meaning(*symbol, self.dc);
        let mut value = 0;
        if size > 0 {
            value = (bits << length >> (64 - size)) as i32;
            if value >> (size - 1) == 0 {
                value -= (1 << size) - 1;
            }
        }
        Ok((length + size, step as usize, value))
    }
}

/// The scan's data without stuffing, cut at restart markers.
#[derive(Debug, Default)]
pub(super) struct Entropy {
    data: Vec<u8>,
    /// End of each restart interval in `data`.
    ends: Vec<usize>,
}

impl Entropy {
    /// Copies the scan of an image; declines unless it ends with the end-of-image marker and has the restart
    /// markers it should.
    pub(super) fn load(&mut self, bytes: &[u8], header: &Header) -> Result<(), Declined> {
        let mut source = bytes.get(header.scan..).ok_or(Declined)?;
        self.data.clear();
        self.data.reserve(source.len() + 16);
        self.ends.clear();
        loop {
            let ff = memchr::memchr(0xff, source).ok_or(Declined)?;
            let (plain, rest) = source.split_at(ff);
            self.data.extend_from_slice(plain);
            let &second = rest.get(1).ok_or(Declined)?;
            match second {
                0 => self.data.push(0xff),
                0xd0..=0xd7 if usize::from(second & 7) == self.ends.len() % 8 => {
                    self.ends.push(self.data.len())
                }
                EOI => break,
                _ => return Err(Declined),
            }
            source = &rest[2..];
        }
        self.ends.push(self.data.len());
        self.data.extend_from_slice(&[0; 16]);
        let (across, down) = header.mcus();
        let intervals = match header.restart {
            0 => 1,
            restart => (across * down).div_ceil(restart),
        };
        if self.ends.len() == intervals {
            Ok(())
        } else {
            Err(Declined)
        }
    }

    /// A reader at the start of a restart interval.
    pub(super) fn interval(&self, number: usize) -> Result<Bits<'_>, Declined> {
        let start = if number == 0 {
            0
        } else {
            *self.ends.get(number - 1).ok_or(Declined)?
        };
        let end = *self.ends.get(number).ok_or(Declined)?;
        Ok(Bits {
            data: &self.data,
            at: start,
            end,
            bits: 0,
            count: 0,
        })
    }
}

/// A reader of bits, most significant first.
#[derive(Debug, Clone)]
pub(super) struct Bits<'a> {
    data: &'a [u8],
    at: usize,
    end: usize,
    /// The next bits, from the top.
    bits: u64,
    /// How many of them count, at most 63; those below are right, too, or zero.
    count: u32,
}

impl Bits<'_> {
    /// At least 56 bits; zeros past the end of the data.
    #[inline(always)]
    fn refill(&mut self) {
        let word = match self.data.get(self.at..).and_then(|rest| rest.first_chunk()) {
            Some(word) => u64::from_be_bytes(*word),
            None => 0,
        };
        self.bits |= word >> self.count;
        self.at += ((63 - self.count) >> 3) as usize;
        self.count |= 56;
    }

    #[inline(always)]
    fn eat(&mut self, count: u32) {
        self.bits <<= count;
        self.count -= count;
    }

    #[inline(always)]
    fn lookup(&self, table: &Table) -> u32 {
        table.lookup[(self.bits >> (64 - LOOKUP)) as usize]
    }

    #[inline(always)]
    fn value(&self, entry: u32) -> i32 {
        let rest = (self.bits & (u64::MAX >> LOOKUP)) >> (entry >> 13 & 63);
        (entry as i32 >> 19) + rest as i32
    }

    /// Declines if more bits were read than there are.
    pub(super) fn check(&self) -> Result<(), Declined> {
        if self.at * 8 - self.count as usize > self.end * 8 {
            Err(Declined)
        } else {
            Ok(())
        }
    }

    /// One block; `previous` is the DC of the block before it and the return value this one's. With `KEEP` the
    /// coefficients are put into `block`, which must be zero, and `alone` tells whether DC is the only one.
    #[inline(always)]
    pub(super) fn block<const KEEP: bool>(
        &mut self,
        dc: &Table,
        ac: &Table,
        previous: i32,
        block: &mut [i16; 64],
        alone: &mut bool,
    ) -> Result<i32, Declined> {
        self.refill();
        let entry = self.lookup(dc);
        let mut difference = self.value(entry);
        self.eat(total(entry));
        if entry == SLOW {
            let (total, _, value) = dc.slow(self.bits)?;
            self.eat(total);
            self.refill();
            difference = value;
        }
        let level = previous.wrapping_add(difference);
        if KEEP {
            block[0] = level as i16;
            *alone = true;
        }
        let mut k = 0;
        let mut ready = 2; // lookups until the next refill: one was made for DC
        'block: loop {
            while ready > 0 {
                ready -= 1;
                let entry = self.lookup(ac);
                k += step(entry);
                if k < 63 {
                    if KEEP {
                        block[usize::from(ZIGZAG[k] & 63)] = self.value(entry) as i16;
                        *alone = false;
                    }
                    self.eat(total(entry));
                    continue;
                }
                // Rare: the block ends, or the code is not in the table.
                let (bits, step, value) = if entry == SLOW {
                    k -= SLOW_STEP as usize;
                    self.refill();
                    let found = ac.slow(self.bits)?;
                    k += found.1;
                    found
                } else {
                    (total(entry), step(entry), self.value(entry))
                };
                self.eat(bits);
                if step == END as usize {
                    break 'block;
                }
                let &position = ZIGZAG.get(k).ok_or(Declined)?;
                if KEEP {
                    block[usize::from(position & 63)] = value as i16;
                    *alone = false;
                }
                if k == 63 {
                    break 'block;
                }
                ready = 0;
            }
            self.refill();
            ready = 3;
        }
        Ok(level)
    }
}
