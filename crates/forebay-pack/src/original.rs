//! The image that a record was made of.

use forebay_image::{Limits, restore_progressive};
use forebay_shard::example::{IMAGE_PROGRESSIVE, RecordFeatures};
use forebay_shard::{ExampleError, ExampleView};
use std::borrow::Cow;

/// The bytes of the file that a record was made of: its image, or, if that was a progressive JPEG that is stored as a
/// baseline one, the original. None if the record has no image.
///
/// # Errors
/// The error, where image and recipe do not give the original.
pub fn original_image<'a>(
    example: &ExampleView<'a>,
    features: &RecordFeatures,
) -> Result<Option<Cow<'a, [u8]>>, String> {
    let words = |error: ExampleError| error.to_string();
    let Some(image) = features.image(*example).map_err(words)? else {
        return Ok(None);
    };
    match example.bytes(IMAGE_PROGRESSIVE).map_err(words)? {
        None => Ok(Some(image.into())),
        Some(recipe) => restore_progressive(image, recipe, &Limits::default())
            .map(|original| Some(original.into()))
            .map_err(|error| format!("{IMAGE_PROGRESSIVE}: {error}")),
    }
}
