//! Compares the size that an annotation declares with the one in the header of its image.

use forebay_image::{Limits, probe};

/// Result of comparing the size that an annotation declares with the size of its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SizeFit {
    /// The sizes are equal.
    Same,
    /// One factor scales both sides: the image was resized before or after the annotation was made.
    Scaled,
}

/// Returns width and height in the header of an image.
pub(crate) fn header_size(image: &[u8]) -> Result<[u32; 2], String> {
    let probed = probe(image, &Limits::default());
    let probed = probed.map_err(|error| format!("its header cannot be read: {error}"))?;
    Ok([probed.width, probed.height])
}

/// Compares the declared width and height with those of the image.
///
/// # Errors
/// No factor scales one size to the other, so the coordinates do not fit the image.
pub(crate) fn compare(declared: [f64; 2], image: [u32; 2]) -> Result<SizeFit, String> {
    let [width, height] = image.map(f64::from);
    if declared == [width, height] {
        return Ok(SizeFit::Same);
    }
    // Each side of the smaller size is rounded from the larger size: both may be off by a pixel, in the same direction.
    let error = (declared[0] * height - declared[1] * width).abs();
    let largest = declared.into_iter().fold(width.max(height), f64::max);
    match error <= largest && declared.iter().all(|side| *side >= 1.0) {
        true => Ok(SizeFit::Scaled),
        false => Err(format!(
            "its annotation is of an image of {}x{}, and the image has {width}x{height}: no factor scales one to the other, so its boxes and masks do not fit",
            declared[0], declared[1]
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_if_one_factor_scales_both_sides() {
        for (declared, image, fit) in [
            ([64.0, 48.0], [64, 48], Some(SizeFit::Same)),
            ([32.0, 24.0], [64, 48], Some(SizeFit::Scaled)),
            ([2048.0, 1536.0], [500, 375], Some(SizeFit::Scaled)),
            // 681 / 2.048 is 332.5, which tools round up or down.
            ([500.0, 332.0], [1024, 681], Some(SizeFit::Scaled)),
            ([500.0, 333.0], [1024, 681], Some(SizeFit::Scaled)),
            ([500.0, 334.0], [1024, 681], None),
            ([48.0, 64.0], [64, 48], None),
            ([63.0, 64.0], [64, 63], None),
            ([64.0, 64.0], [64, 48], None),
            ([0.0, 0.0], [64, 48], None),
            ([f64::NAN, 1.0], [64, 48], None),
        ] {
            assert_eq!(compare(declared, image).ok(), fit, "{declared:?} {image:?}");
        }
        let error = compare([48.0, 64.0], [64, 48]).unwrap_err();
        assert!(
            error.contains("48x64") && error.contains("64x48"),
            "{error}"
        );
    }
}
