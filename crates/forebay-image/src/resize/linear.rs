//! Bilinear resize from the two nearest pixels in each direction, the default of OpenCV and
//! TensorFlow.
//!
//! Both put the center of output pixel `x` at `(x + 1/2) * scale - 1/2` of the input and
//! interpolate between the pixels at either side. They differ in arithmetic, which is reproduced
//! bit for bit:
//!
//! - OpenCV (`cv2.resize(..., INTER_LINEAR)` on bytes): positions in single precision from a scale
//!   in double precision, weights of 11 bits; the vertical pass drops 4 bits of each sum before the
//!   multiplication and 16 after it. Halving both sides is a special case: the mean of four pixels.
//! - TensorFlow (`tf.image.resize` with `antialias=False`): all in single precision. Its outputs
//!   are floats; here they are rounded to the nearest byte, halves to even.
//!
//! Fused multiply-add would change bits, so it is not used. On x86-64 the same loops are compiled
//! twice, once for AVX2.
#![cfg_attr(target_arch = "x86_64", expect(unsafe_code))] // calls of the loops that are compiled for AVX2

use super::{ResizePlan, Source};
use crate::options::ResizeLike;
use crate::output::Layout;
use std::ops::Range;

/// A weight of one in OpenCV's fixed-point numbers.
const ONE: f32 = 2048.0;

/// The two inputs of an output position.
#[derive(Debug, Clone, Copy)]
struct Tap {
    /// Absolute positions of both inputs.
    inputs: [u32; 2],
    /// Weight of the second input, in single precision.
    part: f32,
    /// Weights of both inputs in OpenCV's fixed-point numbers.
    fixed: [i32; 2],
}

/// The arithmetic to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    #[default]
    Fixed,
    /// OpenCV's special case of halving both sides.
    Mean,
    Float,
}

/// The plan of a resize, and the intermediate rows.
#[derive(Debug, Default)]
pub(super) struct Linear {
    kind: Kind,
    columns: Vec<Tap>,
    rows: Vec<Tap>,
    span: [Range<u32>; 2],
    /// For each input row of the span, whether an output row depends on it.
    wanted: Vec<bool>,
    integers: [Vec<i32>; 2],
    floats: [Vec<f32>; 2],
    row: Vec<u8>,
    /// Index of the next output row.
    next: usize,
}

/// The arithmetic of one library. `across` computes intermediate values of the horizontal pass.
trait Arithmetic {
    type Sum: Copy + Default;

    fn across(a: u8, b: u8, tap: &Tap) -> Self::Sum;
    fn down(a: Self::Sum, b: Self::Sum, tap: &Tap) -> u8;
}

struct Fixed;

impl Arithmetic for Fixed {
    type Sum = i32;

    #[inline(always)]
    fn across(a: u8, b: u8, tap: &Tap) -> i32 {
        i32::from(a) * tap.fixed[0] + i32::from(b) * tap.fixed[1]
    }

    #[inline(always)]
    fn down(a: i32, b: i32, tap: &Tap) -> u8 {
        let part = |sum: i32, weight: i32| ((sum >> 4) * weight) >> 16;
        ((part(a, tap.fixed[0]) + part(b, tap.fixed[1]) + 2) >> 2).clamp(0, 255) as u8
    }
}

struct Mean;

impl Arithmetic for Mean {
    type Sum = i32;

    #[inline(always)]
    fn across(a: u8, b: u8, _: &Tap) -> i32 {
        i32::from(a) + i32::from(b)
    }

    #[inline(always)]
    fn down(a: i32, b: i32, _: &Tap) -> u8 {
        ((a + b + 2) >> 2) as u8
    }
}

struct Float;

impl Arithmetic for Float {
    type Sum = f32;

    #[inline(always)]
    fn across(a: u8, b: u8, tap: &Tap) -> f32 {
        let (a, b) = (f32::from(a), f32::from(b));
        a + (b - a) * tap.part
    }

    #[inline(always)]
    fn down(a: f32, b: f32, tap: &Tap) -> u8 {
        // Adding and subtracting 2^23 rounds to an integer, halves to even; the cast is then exact.
        const ROUND: f32 = 8_388_608.0;
        (a + (b - a) * tap.part + ROUND - ROUND) as i32 as u8
    }
}

/// A tap of OpenCV's resize of an axis.
fn opencv(input: Source, output: u32, x: u32, clamp: bool) -> Tap {
    let scale = 1.0 / (f64::from(output) / input.length);
    let place = (input.start + (f64::from(x) + 0.5) * scale - 0.5) as f32;
    let floor = place.floor();
    let (mut first, mut part) = (floor as i64, place - floor);
    let last = i64::from(input.limit) - 1;
    if clamp && (first < 0 || first >= last) {
        (first, part) = (first.clamp(0, last), 0.0);
    }
    let inside = |at: i64| at.clamp(0, last) as u32;
    let fixed = |part: f32| (part * ONE).round_ties_even() as i32;
    Tap {
        inputs: [inside(first), inside(first + 1)],
        part,
        fixed: [fixed(1.0 - part), fixed(part)],
    }
}

/// A tap of TensorFlow's resize of an axis.
fn tensorflow(input: Source, output: u32, x: u32) -> Tap {
    let scale = input.length as f32 / output as f32;
    let place = input.start as f32 + (x as f32 + 0.5) * scale - 0.5;
    let floor = place.floor();
    let last = input.limit - 1;
    Tap {
        // The casts saturate at 0.
        inputs: [(floor as u32).min(last), (place.ceil() as u32).min(last)],
        part: place - floor,
        fixed: [0; 2],
    }
}

/// Taps of a halved axis.
fn half(x: u32) -> Tap {
    Tap {
        inputs: [2 * x, 2 * x + 1],
        part: 0.5,
        fixed: [0; 2],
    }
}

impl Linear {
    /// As [`Resizer::plan_part`](super::Resizer::plan_part): returns the required columns and rows.
    pub(super) fn plan(
        &mut self,
        resize_like: ResizeLike,
        [across, down]: [Source; 2],
        resize: &ResizePlan,
    ) -> [Range<u32>; 2] {
        let (output, window) = (resize.output, resize.window);
        let halved = across == Source::whole(output.0.saturating_mul(2))
            && down == Source::whole(output.1.saturating_mul(2));
        self.kind = match resize_like {
            ResizeLike::TensorFlow => Kind::Float,
            _ if halved => Kind::Mean,
            _ => Kind::Fixed,
        };
        let tap = |input, output, x, clamp| match self.kind {
            Kind::Float => tensorflow(input, output, x),
            Kind::Mean => half(x),
            Kind::Fixed => opencv(input, output, x, clamp),
        };
        let columns = window.x..window.x + window.width;
        let rows = window.y..window.y + window.height;
        self.columns.clear();
        self.columns
            .extend(columns.map(|x| tap(across, output.0, x, true)));
        if resize.flip {
            self.columns.reverse();
        }
        self.rows.clear();
        self.rows
            .extend(rows.map(|y| tap(down, output.1, y, false)));
        self.span = [span(&self.columns), span(&self.rows)];
        let [_, down] = self.span.clone();
        self.wanted.clear();
        self.wanted.resize(down.len(), false);
        for at in self.rows.iter().flat_map(|tap| tap.inputs) {
            self.wanted[(at - down.start) as usize] = true;
        }
        self.span.clone()
    }

    /// Resets the state before the first row of an image.
    pub(super) fn begin(&mut self) {
        self.next = 0;
    }

    /// Returns columns and rows of the input, and of the output.
    pub(super) fn size(&self) -> ((usize, usize), (usize, usize)) {
        let [columns, rows] = &self.span;
        (
            (columns.len(), rows.len()),
            (self.columns.len(), self.rows.len()),
        )
    }

    /// Returns whether the output depends on a row of the span.
    pub(super) fn wants(&self, row: usize) -> bool {
        self.wanted.get(row) == Some(&true)
    }

    /// Processes the next wanted row of the span, and produces the output rows that are then
    /// complete.
    pub(super) fn take(
        &mut self,
        row: usize,
        source: &[u8],
        layout: Layout,
        out: &mut [u8],
        portable: bool,
    ) {
        let Self {
            kind,
            columns,
            rows,
            span,
            integers,
            floats,
            row: line,
            next,
            ..
        } = self;
        let job = Job {
            columns,
            rows,
            first: span[0].start,
            at: span[1].start + row as u32,
            source,
            layout,
        };
        match kind {
            Kind::Fixed => job.run::<Fixed>(integers, next, line, out, portable),
            Kind::Mean => job.run::<Mean>(integers, next, line, out, portable),
            Kind::Float => job.run::<Float>(floats, next, line, out, portable),
        }
    }
}

fn span(taps: &[Tap]) -> Range<u32> {
    let inputs = taps.iter().flat_map(|tap| tap.inputs);
    let (low, high) = inputs.fold((u32::MAX, 0), |(low, high), at| (low.min(at), high.max(at)));
    low.min(high)..high + 1
}

/// An input row to process.
#[derive(Clone, Copy)]
struct Job<'a> {
    columns: &'a [Tap],
    rows: &'a [Tap],
    /// Index of the first column in `source`.
    first: u32,
    /// Index of the row.
    at: u32,
    source: &'a [u8],
    layout: Layout,
}

impl Job<'_> {
    fn run<A: Arithmetic>(
        self,
        lines: &mut [Vec<A::Sum>; 2],
        next: &mut usize,
        row: &mut Vec<u8>,
        out: &mut [u8],
        portable: bool,
    ) {
        #[cfg(target_arch = "x86_64")]
        if !portable && is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { self.avx2::<A>(lines, next, row, out) };
        }
        let _ = portable;
        self.passes::<A>(lines, next, row, out);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn avx2<A: Arithmetic>(
        self,
        lines: &mut [Vec<A::Sum>; 2],
        next: &mut usize,
        row: &mut Vec<u8>,
        out: &mut [u8],
    ) {
        self.passes::<A>(lines, next, row, out);
    }

    #[inline(always)]
    fn passes<A: Arithmetic>(
        self,
        lines: &mut [Vec<A::Sum>; 2],
        next: &mut usize,
        row: &mut Vec<u8>,
        out: &mut [u8],
    ) {
        let (width, height) = (self.columns.len(), self.rows.len());
        lines.swap(0, 1);
        lines[1].resize(width * 3, A::Sum::default());
        self.across::<A>(&mut lines[1]);
        // The two inputs of an output are adjacent wanted rows, so they are the last two in `lines`.
        while let Some(tap) = self.rows.get(*next)
            && tap.inputs[1] <= self.at
        {
            let [a, b] = tap
                .inputs
                .map(|input| &lines[usize::from(input == self.at)][..]);
            let y = *next;
            *next += 1;
            match self.layout {
                Layout::Nhwc => down::<A>(a, b, tap, &mut out[y * width * 3..][..width * 3]),
                Layout::Nchw => {
                    row.resize(width * 3, 0);
                    down::<A>(a, b, tap, row);
                    for channel in 0..3 {
                        let to = &mut out[(channel * height + y) * width..][..width];
                        for (to, pixel) in to.iter_mut().zip(row.chunks_exact(3)) {
                            *to = pixel[channel];
                        }
                    }
                }
            }
        }
    }

    /// Interpolates the row horizontally.
    #[inline(always)]
    fn across<A: Arithmetic>(self, line: &mut [A::Sum]) {
        for (tap, sums) in self.columns.iter().zip(line.chunks_exact_mut(3)) {
            let [a, b] = tap.inputs.map(|at| (at - self.first) as usize * 3);
            let (a, b) = (&self.source[a..a + 3], &self.source[b..b + 3]);
            for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
                *sum = A::across(a, b, tap);
            }
        }
    }
}

#[inline(always)]
fn down<A: Arithmetic>(a: &[A::Sum], b: &[A::Sum], tap: &Tap, out: &mut [u8]) {
    for (to, (&a, &b)) in out.iter_mut().zip(a.iter().zip(b)) {
        *to = A::down(a, b, tap);
    }
}
