//! Estimates coefficients that an incomplete progressive file lacks from the DC coefficients of
//! neighboring blocks: libjpeg-turbo's block smoothing, bit for bit.
//!
//! Each of the first nine AC coefficients of a block is estimated as a weighted sum of the DC
//! coefficients of the 5x5 blocks around it, if it is zero and its lowest bit is not known. If no
//! AC coefficient is known at all, other weights apply, and the DC coefficient is smoothed as well.

use super::Component;
use super::scan::Block;
use crate::baseline::entropy::ZIGZAG;

/// Weights of the DC coefficients around a block.
type Kernel = [[i16; 5]; 5];

/// The largest zigzag index that is estimated.
const ESTIMATED: usize = 9;
const NONE: [i16; 5] = [0; 5];

/// Weights for zigzag indices 0 to 9 if only DC coefficients are known.
static FROM_DC_ALONE: [Kernel; ESTIMATED + 1] = [
    [
        [-2, -6, -8, -6, -2],
        [-6, 6, 42, 6, -6],
        [-8, 42, 152, 42, -8],
        [-6, 6, 42, 6, -6],
        [-2, -6, -8, -6, -2],
    ],
    [
        [-1, -1, 0, 1, 1],
        [-3, 13, 0, -13, 3],
        [-3, 38, 0, -38, 3],
        [-3, 13, 0, -13, 3],
        [-1, -1, 0, 1, 1],
    ],
    [
        [-1, -3, -3, -3, -1],
        [-1, 13, 38, 13, -1],
        NONE,
        [1, -13, -38, -13, 1],
        [1, 3, 3, 3, 1],
    ],
    [
        [0, 0, 1, 0, 0],
        [0, 2, 7, 2, 0],
        [0, -5, -14, -5, 0],
        [0, 2, 7, 2, 0],
        [0, 0, 1, 0, 0],
    ],
    [
        [-1, 0, 0, 0, 1],
        [0, 9, 0, -9, 0],
        NONE,
        [0, -9, 0, 9, 0],
        [1, 0, 0, 0, -1],
    ],
    [
        NONE,
        [0, 2, -5, 2, 0],
        [1, 7, -14, 7, 1],
        [0, 2, -5, 2, 0],
        NONE,
    ],
    [
        NONE,
        [0, 1, 0, -1, 0],
        [0, 2, 0, -2, 0],
        [0, 1, 0, -1, 0],
        NONE,
    ],
    [NONE, [0, 1, -3, 1, 0], NONE, [0, -1, 3, -1, 0], NONE],
    [
        NONE,
        [0, 1, 0, -1, 0],
        [0, -3, 0, 3, 0],
        [0, 1, 0, -1, 0],
        NONE,
    ],
    [NONE, [0, 1, 2, 1, 0], NONE, [0, -1, -2, -1, 0], NONE],
];

/// Weights for zigzag indices 1 to 5 if some AC coefficients are known.
static BESIDE_AC: [Kernel; 5] = [
    [NONE, NONE, [-7, 50, 0, -50, 7], NONE, NONE],
    [
        [0, 0, -7, 0, 0],
        [0, 0, 50, 0, 0],
        NONE,
        [0, 0, -50, 0, 0],
        [0, 0, 7, 0, 0],
    ],
    [
        [0, 0, -1, 0, 0],
        [0, 0, 13, 0, 0],
        [0, 0, -24, 0, 0],
        [0, 0, 13, 0, 0],
        [0, 0, -1, 0, 0],
    ],
    [
        [0, -1, 0, 1, 0],
        [-1, 10, 0, -10, 1],
        NONE,
        [1, -10, 0, 10, -1],
        [0, 1, 0, -1, 0],
    ],
    [NONE, NONE, [-1, 13, -24, 13, -1], NONE, NONE],
];

/// Returns whether the blocks of a progressive file are smoothed: all DC coefficients are known at
/// least in part, and the lowest bits of some of the first AC coefficients are not known.
pub(super) fn is_useful(components: &[Component]) -> bool {
    let can = components.iter().all(|component| {
        let first = &ZIGZAG[..=ESTIMATED];
        component.known[0] >= 0
            && component.steps.is_some_and(|steps| {
                first
                    .iter()
                    .all(|&natural| steps[usize::from(natural)] != 0)
            })
    });
    let inexact = |component: &Component| component.known[1..=ESTIMATED].iter().any(|&k| k != 0);
    can && components.iter().any(inexact)
}

/// A row of blocks of a component, with the rows around it.
pub(super) struct Row<'a> {
    component: &'a Component,
    /// Indices of the block rows from which DC coefficients are taken: two above, this one, two below.
    rows: [usize; 5],
    /// Whether only DC coefficients are known.
    dc_alone: bool,
}

impl<'a> Row<'a> {
    pub(super) fn new(component: &'a Component, row: usize) -> Self {
        // libjpeg computes the number of block rows as if every MCU row had as many as this one.
        let (factor, height) = (component.factors.1, component.size.1);
        let mcu_rows = height.div_ceil(factor);
        let mcu = row / factor;
        let in_mcu = if mcu + 1 < mcu_rows || height.is_multiple_of(factor) {
            factor
        } else {
            height % factor
        };
        let (counted, count) = (mcu * in_mcu + row % factor, in_mcu * mcu_rows);
        let above = if counted > 0 { row - 1 } else { row };
        let below = if counted + 1 < count { row + 1 } else { row };
        Self {
            component,
            rows: [
                if counted > 1 { row - 2 } else { above },
                above,
                row,
                below,
                if counted + 2 < count { row + 2 } else { below },
            ],
            dc_alone: component.known[1..=ESTIMATED].iter().all(|&k| k == -1),
        }
    }

    /// Returns a block of the row, with estimated coefficients.
    pub(super) fn block(&self, column: usize) -> Block {
        let component = self.component;
        let mut block = component.blocks[self.rows[2] * component.padded.0 + column];
        let Some(steps) = &component.steps else {
            return block;
        };
        let last = component.size.0 - 1;
        let columns: [usize; 5] = std::array::from_fn(|i| (column + i).saturating_sub(2).min(last));
        let around = self.rows.map(|row| {
            columns.map(|column| i32::from(component.blocks[row * component.padded.0 + column][0]))
        });
        let step = |natural: usize| i64::from(steps[natural] as u16);
        let kernels = if self.dc_alone {
            &FROM_DC_ALONE[1..]
        } else {
            &BESIDE_AC[..]
        };
        for ((&natural, &known), kernel) in
            ZIGZAG[1..].iter().zip(&component.known[1..]).zip(kernels)
        {
            let natural = usize::from(natural);
            if known != 0 && block[natural] == 0 {
                let sum = step(0) * weighted(kernel, &around);
                let mut size = rounded(sum.abs(), step(natural));
                if known > 0 {
                    size = size.min((1 << known) - 1);
                }
                block[natural] = if sum < 0 { -size } else { size } as i16;
            }
        }
        if self.dc_alone {
            let sum = step(0) * weighted(&FROM_DC_ALONE[0], &around);
            let size = rounded(sum.abs(), step(0));
            block[0] = if sum < 0 { -size } else { size } as i16;
        }
        block
    }
}

/// Divides a sum by 256 quantization steps, rounded, in the width of libjpeg's `int`.
fn rounded(sum: i64, step: i64) -> i32 {
    (((step << 7) + sum) / (step << 8)) as i32
}

fn weighted(kernel: &Kernel, around: &[[i32; 5]; 5]) -> i64 {
    let pairs = kernel.iter().flatten().zip(around.iter().flatten());
    pairs
        .map(|(&weight, &dc)| i64::from(i32::from(weight) * dc))
        .sum()
}
