//! Restores the image file from which a record was made.

use forebay_image::{Limits, restore_progressive, standard_image};
use forebay_shard::example::{IMAGE_FAST, IMAGE_PROGRESSIVE, RecordFeatures};
use forebay_shard::{ExampleError, ExampleView};
use std::borrow::Cow;

/// Returns the bytes of the file from which a record was made: its image, or restored from it the JPEG of a fast image or
/// the original of a progressive JPEG that is stored as baseline. `None` if the record has no image.
///
/// # Errors
/// If image and recipe do not give the original.
pub fn original_image<'a>(
    example: &ExampleView<'a>,
    features: &RecordFeatures,
) -> Result<Option<Cow<'a, [u8]>>, String> {
    let words = |error: ExampleError| error.to_string();
    let Some(image) = features.image(*example).map_err(words)? else {
        return Ok(None);
    };
    let limits = Limits::default();
    let image = standard_image(image, &limits).map_err(|error| format!("{IMAGE_FAST}: {error}"))?;
    match example.bytes(IMAGE_PROGRESSIVE).map_err(words)? {
        None => Ok(Some(image)),
        Some(recipe) => restore_progressive(&image, recipe, &limits)
            .map(|original| Some(original.into()))
            .map_err(|error| format!("{IMAGE_PROGRESSIVE}: {error}")),
    }
}
