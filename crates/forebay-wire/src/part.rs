//! Parts of a rank's batches: the streams that several servers make of one rank's.
//!
//! Part `j` of `k` has the samples `j, j + k, ...` of each batch. Those are the samples of rank `rank + j * world_size` of
//! `world_size * k` with batches of a `k`-th of the size: a set of lanes of its own, so no server reads what another reads, and
//! order, steps and ends of epochs are those of the whole.

use forebay_proto::wire::{OnError, StreamSpec};

use crate::batch::is_raw;

/// Most parts of a rank's batches.
pub const MOST_PARTS: u64 = 64;

/// Which part, of how many: `(0, 1)` is the whole.
pub type Part = (u64, u64);

/// Makes the spec of whole batches that of a part.
///
/// # Errors
///
/// What the number of parts should be, in words.
pub fn split(spec: &mut StreamSpec, (part, parts): Part) -> Result<(), String> {
    if parts <= 1 {
        return Ok(());
    }
    if part >= parts || parts > MOST_PARTS {
        return Err(format!("at most {MOST_PARTS}, numbered from 0"));
    }
    if !spec.batch_size.is_multiple_of(parts) {
        let size = spec.batch_size;
        return Err(format!("a number that divides batches of {size} samples"));
    }
    let what = if spec.batch_transform.is_some() {
        "samples of a batch are mixed with each other"
    } else if spec.on_error() == OnError::Skip {
        "on_error \"skip\" takes samples from the whole batch"
    } else if is_raw(Some(spec)) {
        "batches of encoded images vary in size"
    } else {
        ""
    };
    if !what.is_empty() {
        return Err(format!("1, as {what}"));
    }
    let world_size = spec.world_size.max(1);
    let most = || format!("a number that {world_size} ranks can have");
    spec.batch_size /= parts;
    spec.rank = part
        .checked_mul(world_size)
        .and_then(|rank| rank.checked_add(spec.rank))
        .ok_or_else(most)?;
    spec.world_size = world_size.checked_mul(parts).ok_or_else(most)?;
    Ok(())
}

/// Makes the spec of a part that of whole batches again.
pub fn whole(spec: &mut StreamSpec, (part, parts): Part) {
    if parts > 1 {
        spec.world_size /= parts;
        spec.batch_size = spec.batch_size.saturating_mul(parts);
        let before = part.saturating_mul(spec.world_size);
        spec.rank = spec.rank.saturating_sub(before);
    }
}

#[cfg(test)]
mod tests {
    use forebay_proto::wire;

    use super::*;

    fn spec() -> StreamSpec {
        StreamSpec {
            batch_size: 12,
            rank: 2,
            world_size: 4,
            ..StreamSpec::default()
        }
    }

    #[test]
    fn parts_together_are_the_batch() {
        for parts in [1, 2, 3, 4, 6, 12] {
            let mut places = Vec::new();
            for part in 0..parts {
                let mut of = spec();
                split(&mut of, (part, parts)).unwrap();
                assert_eq!(of.batch_size * of.world_size, 48);
                places.extend((0..of.batch_size).map(|i| of.rank + i * of.world_size));
                whole(&mut of, (part, parts));
                assert_eq!(of, spec());
            }
            places.sort_unstable();
            let expected: Vec<u64> = (0..12).map(|i| 2 + i * 4).collect();
            assert_eq!(places, expected);
        }
    }

    #[test]
    fn what_needs_whole_batches_is_refused() {
        let refused = |change: fn(&mut StreamSpec), part: Part, words: &str| {
            let mut spec = spec();
            change(&mut spec);
            let e = split(&mut spec, part).unwrap_err();
            assert!(e.contains(words), "{e}");
        };
        refused(|_| (), (2, 2), "numbered from 0");
        refused(|_| (), (0, 65), "at most 64");
        refused(|_| (), (0, 5), "divides batches of 12");
        refused(|s| s.set_on_error(OnError::Skip), (0, 2), "on_error");
        refused(
            |s| s.batch_transform = Some(Default::default()),
            (0, 2),
            "mixed",
        );
        let raw = |s: &mut StreamSpec| {
            let kind = Some(wire::transform::Kind::Raw(wire::Raw {}));
            s.transform = Some(wire::Transform { kind });
        };
        refused(raw, (0, 2), "encoded");
        refused(|s| s.world_size = u64::MAX, (1, 2), "ranks can have");
    }
}
