//! Images that look alike: a hash of 64 bits for each image, and groups of images whose hashes differ in few bits.
//!
//! The hash is dHash (N. Krawetz, "Kind of Like That", 2013): the image is reduced to 9 x 8 gray pixels, and each bit says
//! whether a pixel is brighter than the next one of its row. It survives scaling, compression and small changes of tone.

use std::collections::HashMap;

use super::table::Snapshot;

/// Width of the image that is hashed, in pixels.
pub(super) const HASH_WIDTH: u32 = 9;
/// Height of the image that is hashed, in pixels.
pub(super) const HASH_HEIGHT: u32 = 8;
/// Hashes of images that look alike differ in at most this many bits.
const MAX_BITS: u32 = 3;
/// Hashes that agree in one of four parts are compared with at most this many neighbors.
const NEIGHBORS: usize = 64;
/// Images with fewer edges than this are too plain to be compared.
const MIN_EDGES: u32 = 6;

/// Returns the hash of 9 x 8 RGB pixels; 0 for an image that is too plain.
pub(super) fn hash(pixels: &[u8]) -> u64 {
    let gray = |pixel: &[u8]| {
        299 * u32::from(pixel[0]) + 587 * u32::from(pixel[1]) + 114 * u32::from(pixel[2])
    };
    let mut bits = 0u64;
    for row in pixels.chunks_exact(3 * HASH_WIDTH as usize) {
        let row: Vec<u32> = row.chunks_exact(3).map(gray).collect();
        for pair in row.windows(2) {
            // A difference of less than a gray level is noise.
            bits = bits << 1 | u64::from(pair[1] > pair[0] + 1000);
        }
    }
    let is_plain = !(MIN_EDGES..=64 - MIN_EDGES).contains(&bits.count_ones());
    if is_plain { 0 } else { bits }
}

/// Returns the groups of records that look alike: for each record of a group, the first one.
///
/// Hashes that differ in at most three bits agree in one of four parts of 16 bits. So they are sorted four times, each time by
/// another part, and compared with their neighbors. The work is bounded also if all images are similar.
pub(super) fn find(snapshot: &Snapshot) -> HashMap<u32, u32> {
    let mut first_with: HashMap<u64, u32> = HashMap::new();
    let mut groups = Groups::default();
    for row in snapshot.rows().filter(|row| row.facts.hash != 0) {
        let first = *first_with.entry(row.facts.hash).or_insert(row.number);
        groups.join(first, row.number);
    }
    let mut hashes: Vec<(u64, u32)> = first_with.into_iter().collect();
    for part in 0..4 {
        hashes.sort_unstable_by_key(|(hash, number)| (hash.rotate_left(16 * part), *number));
        let key = |hash: u64| hash.rotate_left(16 * part) >> 48;
        for (at, (hash, number)) in hashes.iter().enumerate() {
            let after = &hashes[at + 1..];
            let neighbors = after.iter().take(NEIGHBORS);
            for (other, twin) in neighbors.take_while(|(other, _)| key(*other) == key(*hash)) {
                if (hash ^ other).count_ones() <= MAX_BITS {
                    groups.join(*number, *twin);
                }
            }
        }
    }
    groups.finish()
}

/// Disjoint sets of records, by the smallest number in each.
#[derive(Debug, Default)]
struct Groups(HashMap<u32, u32>);

impl Groups {
    fn root(&mut self, mut number: u32) -> u32 {
        while let Some(&parent) = self.0.get(&number).filter(|parent| **parent != number) {
            let above = self.0.get(&parent).copied().unwrap_or(parent);
            self.0.insert(number, above);
            number = above;
        }
        number
    }

    fn join(&mut self, one: u32, other: u32) {
        if one == other {
            return;
        }
        let (one, other) = (self.root(one), self.root(other));
        let (first, second) = (one.min(other), one.max(other));
        self.0.insert(first, first);
        self.0.insert(second, first);
    }

    fn finish(mut self) -> HashMap<u32, u32> {
        let members: Vec<u32> = self.0.keys().copied().collect();
        let roots = members.into_iter();
        roots.map(|member| (member, self.root(member))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::table::{Chunk, Facts};
    use std::sync::Arc;

    fn groups(hashes: &[u64]) -> Vec<(u32, u32)> {
        let facts = hashes.iter().map(|hash| Facts {
            hash: *hash,
            ..Facts::default()
        });
        let chunk = Chunk {
            facts: facts.collect(),
            ..Chunk::default()
        };
        let snapshot = Snapshot {
            chunks: Arc::new(vec![Arc::new(chunk)]),
            ..Snapshot::default()
        };
        let mut found: Vec<_> = find(&snapshot).into_iter().collect();
        found.sort_unstable();
        found
    }

    #[test]
    fn hashes_within_three_bits_are_alike() {
        let a = 0x0123_4567_89ab_cdef;
        let near = a ^ (1 << 63 | 1 << 40 | 1);
        let far = a ^ 0b1111;
        assert_eq!(groups(&[far, a, 0, near, 0]), [(1, 1), (3, 1)]);
    }

    #[test]
    fn groups_are_named_by_their_first_record() {
        let a = 0x0f0f_1234_5678_9abc;
        // Each is three bits from the one before, so they form a chain.
        let chain = [a ^ 0x3f, a ^ 7, a];
        assert_eq!(groups(&chain), [(0, 0), (1, 0), (2, 0)]);
    }

    #[test]
    fn plain_images_have_no_hash() {
        assert_eq!(hash(&[90; 3 * 9 * 8]), 0);
        let mut edges = [0; 3 * 9 * 8];
        for (at, pixel) in edges.chunks_exact_mut(3).enumerate() {
            pixel.fill(if at % 9 == 8 { 200 } else { 10 });
        }
        assert_eq!(hash(&edges), 0x0101_0101_0101_0101);
    }
}
