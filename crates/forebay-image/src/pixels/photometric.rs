//! Color operations with Pillow's arithmetic on 8-bit RGB, bit for bit.
//!
//! Functions of a single value are tables here; Pillow's floating-point arithmetic is repeated in
//! the same order and precision. `transform/tests.rs` compares with results of torchvision on PIL
//! images.

use super::PixelBuffer;

/// A table of 256 values for each channel.
type Tables = [[u8; 256]; 3];

/// Luma, rounded as in Pillow's conversion to "L" (ITU-R 601-2 with 16 fractional bits).
fn luma([r, g, b]: [u8; 3]) -> u8 {
    ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8
}

/// `Image.blend`: factor 0 gives `from`, 1 gives `to`, others inter- or extrapolate; truncates and saturates.
fn blend(from: u8, to: u8, factor: f32) -> u8 {
    let difference = i32::from(to) - i32::from(from);
    // The cast truncates and saturates.
    (f32::from(from) + factor * difference as f32) as u8
}

impl PixelBuffer {
    fn map(&mut self, tables: &Tables) {
        for pixel in self.pixels_mut() {
            for (v, table) in pixel.iter_mut().zip(tables) {
                *v = table[usize::from(*v)];
            }
        }
    }

    fn map_all(&mut self, table: impl Fn(u8) -> u8) {
        let table: [u8; 256] = std::array::from_fn(|v| table(v as u8));
        self.map(&[table; 3]);
    }

    fn histograms(&self) -> [[u32; 256]; 3] {
        let mut all = [[0; 256]; 3];
        for pixel in self.pixels() {
            for (&v, histogram) in pixel.iter().zip(&mut all) {
                histogram[usize::from(v)] += 1;
            }
        }
        all
    }

    /// Puts channel `order[i]` into channel `i`.
    pub(crate) fn permute_channels(&mut self, order: [usize; 3]) {
        for pixel in self.pixels_mut() {
            *pixel = order.map(|channel| pixel[channel]);
        }
    }

    /// `ImageEnhance.Brightness`: factor 0 gives black, 1 the original.
    pub(crate) fn brightness(&mut self, factor: f64) {
        let factor = factor as f32;
        self.map_all(|v| blend(0, v, factor));
    }

    /// `ImageEnhance.Contrast`: factor 0 gives the mean luma everywhere, 1 the original.
    pub(crate) fn contrast(&mut self, factor: f64) {
        let factor = factor as f32;
        let sum: u64 = self.pixels().iter().map(|&p| u64::from(luma(p))).sum();
        let mean = (sum as f64 / self.pixels().len() as f64 + 0.5) as u8;
        self.map_all(|v| blend(mean, v, factor));
    }

    /// `ImageEnhance.Color`: factor 0 gives gray, 1 the original.
    pub(crate) fn saturation(&mut self, factor: f64) {
        let factor = factor as f32;
        for pixel in self.pixels_mut() {
            let gray = luma(*pixel);
            *pixel = pixel.map(|v| blend(gray, v, factor));
        }
    }

    /// torchvision's `adjust_hue`: shifts Pillow's 8-bit hue by `turn` of a full turn, -0.5 to 0.5.
    pub(crate) fn hue(&mut self, turn: f64) {
        let shift = (turn * 255.0) as i32 as u8; // modulo 256, as numpy's
        for pixel in self.pixels_mut() {
            let [h, s, v] = to_hsv(*pixel);
            *pixel = from_hsv([h.wrapping_add(shift), s, v]);
        }
    }

    /// Stores the luma in all three channels.
    pub(crate) fn grayscale(&mut self) {
        for pixel in self.pixels_mut() {
            *pixel = [luma(*pixel); 3];
        }
    }

    /// `ImageEnhance.Sharpness`: factor 0 gives `ImageFilter.SMOOTH`, 1 the original. The border is
    /// unchanged.
    pub(crate) fn sharpness(&mut self, factor: f64) {
        let (width, height) = (self.width, self.height);
        if width < 3 || height < 3 {
            return;
        }
        let factor = factor as f32;
        let stride = width * 3;
        let (data, before) = self.with_copy();
        for y in 1..height - 1 {
            let [above, here, below] = [y - 1, y, y + 1].map(|y| &before[y * stride..][..stride]);
            let out = &mut data[y * stride + 3..][..stride - 6];
            for (i, out) in out.iter_mut().enumerate() {
                let three =
                    |row: &[u8]| u32::from(row[i]) + u32::from(row[i + 3]) + u32::from(row[i + 6]);
                let center = here[i + 3];
                let sum = three(above) + three(here) + three(below) + 4 * u32::from(center);
                // Pillow adds thirteenths in binary32; a thirteenth is never near a half, so this
                // rounds equally.
                let smooth = ((2 * sum + 13) / 26) as u8;
                *out = blend(smooth, center, factor);
            }
        }
    }

    /// `ImageOps.posterize`: keeps the upper `bits` (0 to 8) of each value.
    pub(crate) fn posterize(&mut self, bits: u32) {
        let mask = !(0xff_u32 >> bits.min(8)) as u8;
        self.map_all(|v| v & mask);
    }

    /// `ImageOps.solarize`: inverts values at or above `threshold`.
    pub(crate) fn solarize(&mut self, threshold: f64) {
        self.map_all(|v| if f64::from(v) < threshold { v } else { 255 - v });
    }

    /// `ImageOps.invert`.
    pub(crate) fn invert(&mut self) {
        self.map_all(|v| 255 - v);
    }

    /// `ImageOps.autocontrast`: stretches each channel to the range 0 to 255.
    pub(crate) fn autocontrast(&mut self) {
        let tables = self.histograms().map(|histogram| {
            let used = |&v: &usize| histogram[v] > 0;
            let low = (0..256).find(used).unwrap_or(0);
            let high = (0..256).rfind(used).unwrap_or(0);
            let scale = 255.0 / (high.saturating_sub(low)) as f64;
            let offset = -(low as f64) * scale;
            std::array::from_fn(|v| {
                if high <= low {
                    v as u8
                } else {
                    (v as f64 * scale + offset) as u8
                }
            })
        });
        self.map(&tables);
    }

    /// `ImageOps.equalize`: equalizes the histogram of each channel.
    pub(crate) fn equalize(&mut self) {
        let tables = self.histograms().map(|histogram| {
            let total: u32 = histogram.iter().sum();
            let last = histogram.iter().rfind(|&&n| n > 0).copied().unwrap_or(0);
            let step = (total - last) / 255;
            let mut seen = step / 2;
            std::array::from_fn(|v| {
                let Some(value) = seen.checked_div(step) else {
                    return v as u8;
                };
                seen += histogram[v];
                value.min(255) as u8
            })
        });
        self.map(&tables);
    }
}

/// Pillow's conversion to HSV, with its precision (binary32 or binary64) in each step.
fn to_hsv([r, g, b]: [u8; 3]) -> [u8; 3] {
    let (high, low) = (r.max(g).max(b), r.min(g).min(b));
    if high == low {
        return [0, 0, high];
    }
    let range = f32::from(high - low);
    let saturation = range / f32::from(high);
    let [rc, gc, bc] = [r, g, b].map(|v| f32::from(high - v) / range);
    let hue = if r == high {
        bc - gc
    } else if g == high {
        (2.0 + f64::from(rc) - f64::from(bc)) as f32
    } else {
        (4.0 + f64::from(gc) - f64::from(rc)) as f32
    };
    let hue = ((f64::from(hue) / 6.0 + 1.0) % 1.0) as f32;
    // The casts truncate and saturate.
    let byte = |part: f32| (f64::from(part) * 255.0) as u8;
    [byte(hue), byte(saturation), high]
}

/// Pillow's conversion from HSV.
fn from_hsv([h, s, v]: [u8; 3]) -> [u8; 3] {
    if s == 0 {
        return [v; 3];
    }
    let turned = f64::from(h) * 6.0 / 255.0;
    let sector = turned.floor();
    let part = (turned - sector) as f32;
    let saturation = (f64::from(s) / 255.0) as f32;
    let byte = |kept: f64| (f64::from(v) * kept).round() as u8;
    let p = byte(1.0 - f64::from(saturation));
    let q = byte(1.0 - f64::from(saturation * part));
    let t = byte(1.0 - f64::from(saturation) * (1.0 - f64::from(part)));
    match sector as u32 % 6 {
        0 => [v, t, p],
        1 => [q, v, p],
        2 => [p, v, t],
        3 => [p, q, v],
        4 => [t, p, v],
        _ => [v, p, q],
    }
}
