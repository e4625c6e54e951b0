//! Finds bytes of a source file in the record that was encoded from them.

use forebay_shard::ExampleView;
use forebay_shard::mapped::{Extent, ExtentStart, MIN_EXTENT_BYTES};
use memchr::memmem;

/// Searches `record` for bytes that are at `start` in the file and adds their extent. Returns whether they were found.
pub(super) fn find(
    record: &[u8],
    bytes: &[u8],
    start: ExtentStart,
    extents: &mut Vec<Extent>,
) -> bool {
    if bytes.len() < MIN_EXTENT_BYTES {
        return false;
    }
    let found = memmem::find(record, bytes);
    extents.extend(found.map(|at| Extent {
        record: at..at + bytes.len(),
        start,
    }));
    found.is_some()
}

/// Maps the extents of `record` to `changed`, an edited version of it; extents of removed values are dropped.
pub fn find_again(changed: &[u8], record: &[u8], extents: &mut Vec<Extent>) {
    let old = std::mem::take(extents);
    let Ok(example) = ExampleView::parse(changed) else {
        return;
    };
    for feature in example.iter() {
        for value in feature.bytes_list().unwrap_or_default() {
            let place = (value.len() >= MIN_EXTENT_BYTES)
                .then(|| memmem::find(record, value))
                .flatten();
            let Some(at) = place else {
                continue;
            };
            let end = at + value.len();
            // Several extents may cover parts of one value, for instance if the file stores it in blocks with headers.
            for known in &old {
                let first = known.record.start.max(at);
                let last = known.record.end.min(end);
                if last.saturating_sub(first) < MIN_EXTENT_BYTES {
                    continue;
                }
                let further = (first - known.record.start) as u64;
                let start = value.as_ptr().addr() - changed.as_ptr().addr() + (first - at);
                extents.push(Extent {
                    record: start..start + (last - first),
                    start: match known.start {
                        ExtentStart::File(offset) => ExtentStart::File(offset + further),
                        ExtentStart::Block(block, offset) => {
                            ExtentStart::Block(block, offset + further)
                        }
                    },
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_shard::ExampleBuilder;

    #[test]
    fn values_are_found_again_in_a_changed_record() {
        let (image, text) = ([7u8; 100], [b'x'; 40]);
        let encode = |points: Option<&[u8]>| {
            let mut builder = ExampleBuilder::new();
            builder.add_bytes("a", &text).add_bytes("z", &image);
            if let Some(points) = points {
                builder.add_bytes("b", points);
            }
            let mut record = Vec::new();
            builder.encode_into(&mut record);
            record
        };
        let (old, new) = (encode(None), encode(Some(&[1; 50])));
        // Two extents cover the record, and their boundary is inside the image.
        let middle = memmem::find(&old, &image).unwrap() + 45;
        let piece = |record: std::ops::Range<usize>| Extent {
            start: ExtentStart::File(1000 + record.start as u64),
            record,
        };
        let mut extents = vec![piece(0..middle), piece(middle..old.len())];
        find_again(&new, &old, &mut extents);
        let found: Vec<(&[u8], &[u8])> = extents
            .iter()
            .map(|extent| {
                let ExtentStart::File(offset) = extent.start else {
                    panic!("no block was given");
                };
                let at = (offset - 1000) as usize;
                (
                    &new[extent.record.clone()],
                    &old[at..at + extent.record.len()],
                )
            })
            .collect();
        assert_eq!(found.iter().map(|(new, _)| new.len()).sum::<usize>(), 140);
        assert!(found.iter().all(|(new, old)| new == old));
    }
}
