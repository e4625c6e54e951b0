//! The geometry of an image before it is decoded: its header, orientation, and decode scale.

use super::Decoder;
use crate::error::Result;
use crate::format::{Canvas, Probe, probe};
use crate::geometry::SpatialMap;
use crate::orientation::Orientation;
use crate::output::Layout;
use crate::resize::{ResizePlan, Source};
use forebay_jpeg::{Region, SeekPoints};
use std::time::{Duration, Instant};

/// Decode scales (denominators) of formats with scaled decoding, the smallest result first.
const SCALES: [u32; 3] = [8, 4, 2];

/// An image before it is decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ImageGeometry {
    pub(crate) probe: Probe,
    orientation: Orientation,
    /// Width and height are divided by this number when decoding.
    scale: u32,
}

impl ImageGeometry {
    /// Returns the image as stored, at full size.
    pub(crate) fn stored(probe: Probe) -> Self {
        Self {
            probe,
            orientation: Orientation::default(),
            scale: 1,
        }
    }

    /// Width and height after orientation.
    pub(crate) fn size(&self) -> (u32, u32) {
        let Probe { width, height, .. } = self.probe;
        self.orientation.size(width, height)
    }

    /// Resets the map to the stored image and adds the steps of its orientation.
    pub(crate) fn track(&self, map: &mut SpatialMap) {
        map.reset(self.probe.width, self.probe.height);
        for step in self.orientation.steps() {
            map.push(step);
        }
    }

    /// Width and height of the decoded image before orientation.
    fn decoded(&self) -> (u32, u32) {
        let Probe { width, height, .. } = self.probe;
        (width.div_ceil(self.scale), height.div_ceil(self.scale))
    }

    /// Maps `length` pixels from `start`, on an axis with `whole` pixels, to the decoded image.
    fn source(&self, start: u32, length: u32, whole: u32, mirrored: bool) -> Source {
        let scaled = |x: u32| f64::from(x) / f64::from(self.scale);
        let limit = whole.div_ceil(self.scale);
        // The last decoded pixel may cover fewer stored pixels; if mirrored, it comes first.
        let shift = if mirrored {
            f64::from(limit) - scaled(whole)
        } else {
            0.0
        };
        Source {
            start: scaled(start) + shift,
            length: scaled(length),
            limit,
        }
    }
}

impl Decoder {
    /// Reads the properties of an image that are needed to plan a crop.
    pub(crate) fn open(&self, bytes: &[u8]) -> Result<ImageGeometry> {
        let probe = probe(bytes, &self.options.limits)?;
        let orientation = if self.options.exif {
            Orientation::of(bytes, probe.format)
        } else {
            Orientation::default()
        };
        Ok(ImageGeometry {
            probe,
            orientation,
            scale: 1,
        })
    }

    /// Plans the resize of a crop that begins at `origin`, and the decode scale; returns the region
    /// to decode.
    pub(crate) fn plan(
        &mut self,
        picture: &mut ImageGeometry,
        origin: (u32, u32),
        resize: &ResizePlan,
    ) -> Region {
        let (input, output) = (resize.input, resize.output);
        if self.options.scaled && picture.probe.format.imp().scales() {
            let fits = |scale: u32| {
                u64::from(output.0) * u64::from(scale) <= input.0.into()
                    && u64::from(output.1) * u64::from(scale) <= input.1.into()
            };
            picture.scale = SCALES.into_iter().find(|&scale| fits(scale)).unwrap_or(1);
        }
        if picture.scale == 1 {
            let mut region = self.resizer.plan(resize);
            region.x += origin.0;
            region.y += origin.1;
            return region;
        }
        let (width, height) = picture.size();
        let (mirrored_x, mirrored_y) = picture.orientation.mirrored();
        let columns = picture.source(origin.0, input.0, width, mirrored_x);
        let rows = picture.source(origin.1, input.1, height, mirrored_y);
        self.resizer.plan_part(columns, rows, resize)
    }

    /// Decodes the region returned by [`Decoder::plan`] and resizes it into `out`, three bytes per
    /// pixel of the window. Returns the time spent on resizing.
    pub(crate) fn resize(
        &mut self,
        bytes: &[u8],
        picture: &ImageGeometry,
        region: Region,
        seek_points: SeekPoints<'_>,
        layout: Layout,
        out: &mut [u8],
    ) -> Result<Duration> {
        let ImageGeometry {
            probe,
            orientation,
            scale,
        } = picture;
        if orientation.is_none() {
            let to = (layout, &mut *out);
            if let Some(spent) = self.stream(bytes, probe, *scale, region, seek_points, to)? {
                return Ok(spent);
            }
        }
        self.fill(bytes, picture, region, seek_points, orientation.is_none())?;
        let begun = Instant::now();
        let (rows, stride) = (self.canvas.rows_from(), self.canvas.stride);
        self.resizer.run(rows, stride, layout, out);
        Ok(begun.elapsed())
    }

    /// Decodes the region returned by [`Decoder::plan`] into the beginning of `self.canvas`, oriented.
    pub(super) fn fill(
        &mut self,
        bytes: &[u8],
        picture: &ImageGeometry,
        region: Region,
        seek_points: SeekPoints<'_>,
        declined: bool,
    ) -> Result<()> {
        let ImageGeometry {
            probe,
            orientation,
            scale,
        } = picture;
        let (width, height) = picture.decoded();
        if orientation.is_none() {
            return self.fill_scaled(bytes, probe, *scale, region, seek_points, declined);
        }
        let stored = orientation.stored(region, width, height);
        self.fill_scaled(bytes, probe, *scale, stored, seek_points, declined)?;
        let size = (stored.width as usize, stored.height as usize);
        let canvas = &mut self.canvas;
        let bytes = size.0 * size.1 * 3 + Canvas::TAIL;
        if canvas.turned.len() < bytes {
            canvas.turned.resize(bytes, 0);
        }
        orientation.turn(
            &canvas.data[canvas.start..],
            canvas.stride,
            size,
            &mut canvas.turned,
        );
        std::mem::swap(&mut canvas.data, &mut canvas.turned);
        canvas.start = 0;
        canvas.stride = region.width as usize * 3;
        Ok(())
    }
}
