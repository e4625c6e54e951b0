//! Masks: images of one channel whose pixels are numbers of classes or instances.

use super::{SpatialMap, SpatialStep};
/// Marks a position outside of the image.
const OUTSIDE: u32 = u32::MAX;

/// A decoded mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mask {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The number of each pixel's class or instance, row by row.
    pub ids: MaskIds,
}

/// The numbers of a mask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaskIds {
    /// Numbers up to 255.
    Uint8(Vec<u8>),
    /// Numbers up to 2^24.
    Int32(Vec<i32>),
}

impl Mask {
    /// Returns the mask after all steps; its size has to be that of the map's input.
    pub(super) fn moved(&self, map: &SpatialMap) -> Self {
        let ids = match &self.ids {
            MaskIds::Uint8(ids) => MaskIds::Uint8(moved(ids, map)),
            MaskIds::Int32(ids) => MaskIds::Int32(moved(ids, map)),
        };
        let (height, width) = map.output_size();
        Self { width, height, ids }
    }
}

fn moved<T: Copy + Default>(ids: &[T], map: &SpatialMap) -> Vec<T> {
    let mut axes = Axes::whole(map.input);
    let mut warped: Option<Vec<T>> = None;
    for (step, size) in map.sized_steps() {
        if let SpatialStep::Warp { inverse } = step {
            let upright = axes.gather(warped.as_deref().unwrap_or(ids));
            warped = Some(warp(&upright, size, inverse.0));
            axes = Axes::whole(size);
        } else {
            axes.follow(step);
        }
    }
    axes.gather(warped.as_deref().unwrap_or(ids))
}

/// The source column of each output column and the source row of each output row, for steps that keep rows and columns.
struct Axes {
    /// Width of the source.
    stride: usize,
    columns: Vec<u32>,
    rows: Vec<u32>,
    /// Whether columns of the output are rows of the source.
    swapped: bool,
}

impl Axes {
    fn whole((width, height): (u32, u32)) -> Self {
        Self {
            stride: width as usize,
            columns: (0..width).collect(),
            rows: (0..height).collect(),
            swapped: false,
        }
    }

    fn follow(&mut self, step: SpatialStep) {
        match step {
            SpatialStep::FlipHorizontal => self.columns.reverse(),
            SpatialStep::FlipVertical => self.rows.reverse(),
            SpatialStep::Transpose => {
                std::mem::swap(&mut self.columns, &mut self.rows);
                self.swapped = !self.swapped;
            }
            SpatialStep::Crop {
                x,
                y,
                width,
                height,
                ..
            } => {
                self.columns = crop(&self.columns, x, width);
                self.rows = crop(&self.rows, y, height);
            }
            SpatialStep::Resize { width, height } => {
                self.columns = nearest(&self.columns, width);
                self.rows = nearest(&self.rows, height);
            }
            // A warp does not keep columns and rows.
            SpatialStep::Warp { .. } => {}
        }
    }

    fn gather<T: Copy + Default>(&self, ids: &[T]) -> Vec<T> {
        let mut out = Vec::with_capacity(self.columns.len() * self.rows.len());
        for &row in &self.rows {
            if row == OUTSIDE {
                out.resize(out.len() + self.columns.len(), T::default());
                continue;
            }
            let row = row as usize;
            let line = self.columns.iter().map(|&column| match column {
                OUTSIDE => T::default(),
                column if self.swapped => ids[column as usize * self.stride + row],
                column => ids[row * self.stride + column as usize],
            });
            out.extend(line);
        }
        out
    }
}

fn crop(axis: &[u32], start: i64, length: u32) -> Vec<u32> {
    let at = |i: i64| usize::try_from(i).ok().and_then(|i| axis.get(i));
    let cropped = (start..start + i64::from(length)).map(|i| at(i).copied().unwrap_or(OUTSIDE));
    cropped.collect()
}

/// The interpolation "nearest" of torch, in binary32 as there.
fn nearest(axis: &[u32], length: u32) -> Vec<u32> {
    let scale = axis.len() as f32 / length as f32;
    let source = |i: u32| axis.get((i as f32 * scale) as usize).or(axis.last());
    (0..length)
        .map(|i| source(i).copied().unwrap_or(OUTSIDE))
        .collect()
}

/// torchvision's affine map of a tensor with the interpolation "nearest", in binary32 with the
/// order of operations of its grid and of torch's `grid_sample`.
fn warp<T: Copy + Default>(
    ids: &[T],
    (width, height): (u32, u32),
    [a, b, c, d, e, f]: [f64; 6],
) -> Vec<T> {
    let half = (f64::from(width) * 0.5, f64::from(height) * 0.5);
    // The origin of torchvision's map is the center.
    let c = c + a * half.0 + b * half.1 - half.0;
    let f = f + d * half.0 + e * half.1 - half.1;
    let half = (half.0 as f32, half.1 as f32);
    let [a, b, c] = [a, b, c].map(|number| number as f32 / half.0);
    let [d, e, f] = [d, e, f].map(|number| number as f32 / half.1);
    let centered = |i: u32, side: u32| i as f32 - (side - 1) as f32 * 0.5;
    let pixel = |at: f32, half: f32, side: u32| {
        let at = ((at + 1.0) * half - 0.5).round_ties_even();
        // Also false for NaN.
        (at >= 0.0 && at < side as f32).then_some(at as usize)
    };
    let mut out = Vec::with_capacity(ids.len());
    for row in 0..height {
        let y = centered(row, height);
        out.extend((0..width).map(|column| {
            let x = centered(column, width);
            let column = pixel(x * a + y * b + c, half.0, width);
            let row = pixel(x * d + y * e + f, half.1, height);
            match (column, row) {
                (Some(column), Some(row)) => ids[row * width as usize + column],
                _ => T::default(),
            }
        }));
    }
    out
}
