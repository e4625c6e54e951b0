//! Spatial steps from the stored image to the output, and affine maps.

use super::Corners;

/// An affine map of the plane: the six numbers a to f take (x, y) to (a x + b y + c, d x + e y + f).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AffineMap(pub [f64; 6]);

impl AffineMap {
    /// The map that moves nothing.
    pub const IDENTITY: Self = Self([1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);

    /// Maps a point.
    pub fn apply(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let [a, b, c, d, e, f] = self.0;
        [a * x + b * y + c, d * x + e * y + f]
    }

    /// Returns the composition of the two maps: `self` first, then `next`.
    #[must_use]
    pub fn then(&self, next: Self) -> Self {
        let [a, b, c, d, e, f] = self.0;
        let [na, nb, _, nd, ne, _] = next.0;
        let [nc, nf] = next.apply([c, f]);
        Self([
            na * a + nb * d,
            na * b + nb * e,
            nc,
            nd * a + ne * d,
            nd * b + ne * e,
            nf,
        ])
    }

    /// Returns the inverse map. Its numbers are not finite if the map is not invertible.
    #[must_use]
    pub fn inverse(&self) -> Self {
        let [a, b, c, d, e, f] = self.0;
        let determinant = a * e - b * d;
        let [a, b, d, e] = [e, -b, -d, a].map(|number| number / determinant);
        Self([a, b, -(a * c + b * f), d, e, -(d * c + e * f)])
    }
}

/// A step that moves the pixels of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum SpatialStep {
    /// Mirrors left to right.
    FlipHorizontal,
    /// Mirrors top to bottom.
    FlipVertical,
    /// Exchanges rows and columns, for an EXIF orientation.
    Transpose,
    /// Keeps a rectangle, which may reach over the border of the image.
    Crop {
        /// Left column.
        x: i64,
        /// Top row.
        y: i64,
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// Whether boxes whose center is outside of the rectangle become empty.
        centers: bool,
    },
    /// Resizes the image.
    Resize {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// Moves the content; the size is unchanged.
    Warp {
        /// The map from the output to the input, as it is applied to pixels.
        inverse: AffineMap,
    },
}

impl SpatialStep {
    /// Width and height after the step.
    pub(super) fn output(self, (width, height): (u32, u32)) -> (u32, u32) {
        match self {
            Self::FlipHorizontal | Self::FlipVertical | Self::Warp { .. } => (width, height),
            Self::Transpose => (height, width),
            Self::Crop { width, height, .. } | Self::Resize { width, height } => (width, height),
        }
    }

    /// Returns the affine map of the step, for an image of this width and height in pixels, where
    /// the first pixel reaches from 0 to 1.
    pub fn affine(self, (width, height): (u32, u32)) -> AffineMap {
        let (width, height) = (f64::from(width), f64::from(height));
        AffineMap(match self {
            Self::FlipHorizontal => [-1.0, 0.0, width, 0.0, 1.0, 0.0],
            Self::FlipVertical => [1.0, 0.0, 0.0, 0.0, -1.0, height],
            Self::Transpose => [0.0, 1.0, 0.0, 1.0, 0.0, 0.0],
            Self::Crop { x, y, .. } => [1.0, 0.0, -(x as f64), 0.0, 1.0, -(y as f64)],
            Self::Resize {
                width: new_width,
                height: new_height,
            } => {
                let (x, y) = (f64::from(new_width) / width, f64::from(new_height) / height);
                [x, 0.0, 0.0, 0.0, y, 0.0]
            }
            Self::Warp { inverse } => return inverse.inverse(),
        })
    }

    /// Returns a box after the step: the axis-aligned bounding box of its moved corners, clipped at
    /// the border where torchvision does so.
    pub(super) fn corners(self, size: (u32, u32), corners: Corners) -> Corners {
        let map = self.affine(size);
        let [x0, y0, x1, y1] = corners;
        let (width, height) = self.output(size);
        let (width, height) = (f64::from(width), f64::from(height));
        let cut = |[x0, y0, x1, y1]: Corners| {
            [
                x0.clamp(0.0, width),
                y0.clamp(0.0, height),
                x1.clamp(0.0, width),
                y1.clamp(0.0, height),
            ]
        };
        let diagonal = || {
            let ([x0, y0], [x1, y1]) = (map.apply([x0, y0]), map.apply([x1, y1]));
            [x0, y0, x1, y1]
        };
        match self {
            Self::FlipHorizontal => {
                let [x0, y0, x1, y1] = diagonal();
                [x1, y0, x0, y1]
            }
            Self::FlipVertical => {
                let [x0, y0, x1, y1] = diagonal();
                [x0, y1, x1, y0]
            }
            Self::Transpose | Self::Resize { .. } => diagonal(),
            Self::Crop { centers, .. } => {
                let moved = diagonal();
                let [x0, y0, x1, y1] = moved;
                let (x, y) = (0.5 * (x0 + x1), 0.5 * (y0 + y1));
                let inside = 0.0 < x && x < width && 0.0 < y && y < height;
                match inside || !centers {
                    true => cut(moved),
                    false => [0.0; 4],
                }
            }
            Self::Warp { .. } => {
                let corners = [[x0, y0], [x1, y0], [x1, y1], [x0, y1]].map(|at| map.apply(at));
                let least = |axis| corners.iter().map(|c| c[axis]).fold(f64::MAX, f64::min);
                let most = |axis| corners.iter().map(|c| c[axis]).fold(f64::MIN, f64::max);
                cut([least(0), least(1), most(0), most(1)])
            }
        }
    }

    /// Returns a keypoint after the step. torchvision flips keypoints in the range from 0 to the
    /// size minus one, but boxes in the range from border to border.
    pub(super) fn point(self, size: (u32, u32), point: [f64; 2]) -> [f64; 2] {
        let [x, y] = self.affine(size).apply(point);
        match self {
            Self::FlipHorizontal => [x - 1.0, y],
            Self::FlipVertical => [x, y - 1.0],
            _ => [x, y],
        }
    }
}
