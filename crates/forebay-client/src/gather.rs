//! Assembles batches from slices that came from different servers.

use std::io;

use forebay_batch::digest;
use forebay_wire::{Batch, BufferPool};

/// Assembles a batch: sample `i` is in slice `i` modulo their number. Every slice was checked
/// against the sequence, so all have the same position and none is mixed, encoded or has columns.
pub(crate) fn gather(parts: &[Batch], pool: &BufferPool) -> io::Result<Option<Batch>> {
    let Some(first) = parts.first() else {
        return Ok(None);
    };
    let (count, size) = (parts.len(), first.len());
    let alike = |part: &Batch| {
        (part.epoch, part.position, part.shape, part.dtype)
            == (first.epoch, first.position, first.shape, first.dtype)
            && part.payload.len() == first.payload.len()
    };
    if size == 0 || !parts.iter().all(alike) {
        return Ok(None);
    }
    let image = first.payload.len() / size;
    let mut payload = pool.try_take(first.payload.len() * count)?;
    for (i, to) in payload.chunks_exact_mut(image.max(1)).enumerate() {
        let at = i / count * image;
        to.copy_from_slice(&parts[i % count].payload[at..at + image]);
    }
    let mut shape = first.shape;
    shape[0] *= count;
    Ok(Some(Batch {
        epoch: first.epoch,
        step: first.step,
        position: first.position,
        payload,
        encoded: None,
        dtype: first.dtype,
        mixed: None,
        columns: Vec::new(),
        shape,
        layout: first.layout,
        labels: deal(parts, |part| &part.labels),
        samples: deal(parts, |part| &part.samples),
        flags: deal(parts, |part| &part.flags),
        digest: parts
            .iter()
            .fold(0, |sum, part| digest::fold(sum, part.digest)),
    }))
}

/// Interleaves the elements of the slices.
fn deal<T: Copy>(parts: &[Batch], of: impl Fn(&Batch) -> &[T]) -> Vec<T> {
    let size = parts.first().map_or(0, Batch::len);
    let at = |i: usize| {
        parts
            .iter()
            .filter_map(|part| of(part).get(i).copied())
            .collect::<Vec<T>>()
    };
    (0..size).flat_map(at).collect()
}

#[cfg(test)]
mod tests {
    use forebay_wire::{Dtype, Layout};

    use super::*;

    fn part(samples: &[u64], pool: &BufferPool) -> Batch {
        let mut images = pool.take(samples.len() * 3);
        for (pixels, &sample) in images.chunks_exact_mut(3).zip(samples) {
            pixels.fill(sample as u8);
        }
        Batch {
            epoch: 1,
            step: 2,
            position: 24,
            payload: images,
            encoded: None,
            dtype: Dtype::Uint8,
            mixed: None,
            columns: Vec::new(),
            shape: [samples.len(), 1, 1, 3],
            layout: Layout::Nhwc,
            labels: samples.iter().map(|&s| s as i64 + 100).collect(),
            samples: samples.to_vec(),
            flags: vec![0; samples.len()],
            digest: samples.iter().sum(),
        }
    }

    #[test]
    fn samples_come_in_turn() {
        let pool = BufferPool::new(0);
        let parts = [
            part(&[0, 3], &pool),
            part(&[1, 4], &pool),
            part(&[2, 5], &pool),
        ];
        let batch = gather(&parts, &pool).unwrap().unwrap();
        assert_eq!(batch.samples, [0, 1, 2, 3, 4, 5]);
        assert_eq!(batch.labels, [100, 101, 102, 103, 104, 105]);
        assert_eq!(batch.shape, [6, 1, 1, 3]);
        assert_eq!(batch.digest, 15);
        let pixels: Vec<u8> = (0..6).flat_map(|i| [i; 3]).collect();
        assert_eq!(batch.payload[..], pixels);
        assert_eq!((batch.epoch, batch.step, batch.position), (1, 2, 24));
        assert!(gather(&[], &pool).unwrap().is_none());
        let other = Batch {
            position: 0,
            ..part(&[1, 4], &pool)
        };
        let uneven = [part(&[0, 3], &pool), other];
        assert!(gather(&uneven, &pool).unwrap().is_none());
    }
}
