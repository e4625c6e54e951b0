//! Slices of a rank's batches, for striping them over several servers.
//!
//! Slice `j` of `k` has the samples `j, j + k, ...` of each batch. These are the samples of rank
//! `rank + j * world_size` of `world_size * k` ranks with a `k`-th of the batch size. That rank has
//! its own virtual ranks, so no server reads what another one reads, while order, steps and ends of
//! epochs are those of the whole batches.

use crate::{DEFAULT_BATCH_SIZE, LoaderOptions, OnError};

/// Most parts of a rank's batches.
pub const MOST_PARTS: u64 = 64;

/// Index of a slice and number of slices; `(0, 1)` is the whole batch.
pub type BatchPart = (u64, u64);

/// Turns the options of whole batches into those of a part.
///
/// # Errors
///
/// The expected number of parts, in words.
pub fn split(options: &mut LoaderOptions, (part, parts): BatchPart) -> Result<(), String> {
    if parts <= 1 {
        return Ok(());
    }
    if part >= parts || parts > MOST_PARTS {
        return Err(format!("at most {MOST_PARTS}, numbered from 0"));
    }
    let size = options.batch_size.unwrap_or(DEFAULT_BATCH_SIZE);
    if !size.is_multiple_of(parts) {
        return Err(format!("a number that divides batches of {size} samples"));
    }
    let what = if options.batch_transform.is_some() {
        "samples of a batch are mixed with each other"
    } else if options.on_error == Some(OnError::Skip) {
        "on_error \"skip\" takes samples from the whole batch"
    } else if options.keeps_encoded() {
        "batches of encoded images vary in size"
    } else if options.varies() {
        "batches with columns vary in size"
    } else {
        ""
    };
    if !what.is_empty() {
        return Err(format!("1, as {what}"));
    }
    let world_size = options.world_size.unwrap_or(1).max(1);
    let most = || format!("a number that {world_size} ranks can have");
    let rank = part
        .checked_mul(world_size)
        .and_then(|rank| rank.checked_add(options.rank.unwrap_or(0)));
    options.batch_size = Some(size / parts);
    options.rank = Some(rank.ok_or_else(most)?);
    options.world_size = Some(world_size.checked_mul(parts).ok_or_else(most)?);
    Ok(())
}

/// Turns the options of a part into those of whole batches again.
pub fn whole(options: &mut LoaderOptions, (part, parts): BatchPart) {
    if parts > 1 {
        let world_size = options.world_size.unwrap_or(0) / parts;
        let before = part.saturating_mul(world_size);
        options.world_size = Some(world_size);
        options.batch_size = Some(options.batch_size.unwrap_or(0).saturating_mul(parts));
        options.rank = Some(options.rank.unwrap_or(0).saturating_sub(before));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn options(value: Value) -> LoaderOptions {
        serde_json::from_value(value).unwrap()
    }

    fn of_two() -> LoaderOptions {
        options(json!({"batch_size": 12, "rank": 2, "world_size": 4}))
    }

    #[test]
    fn parts_together_are_the_batch() {
        for parts in [1, 2, 3, 4, 6, 12] {
            let mut places = Vec::new();
            for part in 0..parts {
                let mut of = of_two();
                split(&mut of, (part, parts)).unwrap();
                let [size, rank, world] =
                    [of.batch_size, of.rank, of.world_size].map(Option::unwrap);
                assert_eq!(size * world, 48);
                places.extend((0..size).map(|i| rank + i * world));
                whole(&mut of, (part, parts));
                assert_eq!(of, of_two());
            }
            places.sort_unstable();
            let expected: Vec<u64> = (0..12).map(|i| 2 + i * 4).collect();
            assert_eq!(places, expected);
        }
        let mut defaults = LoaderOptions::default();
        split(&mut defaults, (1, 4)).unwrap();
        assert_eq!(
            defaults,
            options(json!({"batch_size": 8, "rank": 1, "world_size": 4}))
        );
    }

    #[test]
    fn what_needs_whole_batches_is_refused() {
        let refused = |more: Value, part: BatchPart, words: &str| {
            let mut options = options(more).or(&of_two());
            let e = split(&mut options, part).unwrap_err();
            assert!(e.contains(words), "{e}");
        };
        refused(json!({}), (2, 2), "numbered from 0");
        refused(json!({}), (0, 65), "at most 64");
        refused(json!({}), (0, 5), "divides batches of 12");
        refused(json!({"on_error": "skip"}), (0, 2), "on_error");
        refused(json!({"batch_transform": "Mixup"}), (0, 2), "mixed");
        refused(json!({"transform": "keep_encoded"}), (0, 2), "encoded");
        refused(json!({"columns": ["caption"]}), (0, 2), "with columns");
        refused(json!({"world_size": u64::MAX}), (1, 2), "ranks can have");
    }
}
