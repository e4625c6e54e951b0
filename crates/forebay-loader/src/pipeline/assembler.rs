//! The batches in progress and complete ones: started within a memory budget, filled in any order, handed out in order.

use std::collections::VecDeque;

use forebay_batch::Buffer;

use super::batch_buffer::{BatchBuffer, Slot};
use super::extent::ExtentBuffer;
use super::pending_batch::{Done, PendingBatch};
use super::raw::{Gather, Gathered};
use super::sizes::BatchSizes;
use crate::error::{Error, Result};

/// Minimum space in bytes reserved for columns after the pixels of a batch.
const MIN_ROOM: u64 = 4096;

/// The batches that were started and not handed out. Batches have running numbers since the last [`clear`](Assembler::clear).
pub(super) struct Assembler {
    sizes: BatchSizes,
    /// In the order of their numbers.
    batches: VecDeque<PendingBatch>,
    /// Number of the first batch in `batches`.
    front: u64,
    /// Epoch and position of the batch for which a thread allocates a buffer.
    allocating: Option<(u64, u64)>,
    /// Expected size in bytes of the encoded images and columns of a batch: the largest recent one.
    expected_bytes: u64,
}

impl Assembler {
    pub(super) fn new(sizes: BatchSizes) -> Self {
        Assembler {
            sizes,
            batches: VecDeque::new(),
            front: 0,
            allocating: None,
            expected_bytes: sizes.varying_bytes,
        }
    }

    /// Discards all batches, and numbers later ones from 0.
    pub(super) fn clear(&mut self, store: &mut ExtentBuffer) {
        for batch in self.batches.drain(..) {
            batch.discard(store);
        }
        self.front = 0;
        self.allocating = None;
    }

    /// Returns the number of the batch to hand out next.
    pub(super) fn front_number(&self) -> u64 {
        self.front
    }

    /// Returns the batch to hand out next, if it was started.
    pub(super) fn front(&self) -> Option<&PendingBatch> {
        self.batches.front()
    }

    /// Takes the batch to hand out next.
    pub(super) fn take_front(&mut self) -> Option<PendingBatch> {
        let batch = self.batches.pop_front()?;
        self.front += 1;
        Some(batch)
    }

    /// Returns the number of the batch to start next.
    pub(super) fn next_number(&self) -> u64 {
        self.front + self.batches.len() as u64
    }

    /// Returns whether there are as many batches as allowed.
    pub(super) fn is_full(&self) -> bool {
        self.batches.len() >= self.sizes.ahead
    }

    /// Returns whether another batch may be started, with `unfinished` samples in progress. If batches are larger than
    /// expected, fewer are prepared, but at least one is always in progress. The next one starts when the sizes of the
    /// earlier ones are mostly known, and there is memory to concatenate one.
    pub(super) fn has_room(&self, unfinished: usize) -> bool {
        if self.allocating.is_some() || self.is_full() {
            return false;
        }
        let Some(budget) = self.sizes.varying_budget else {
            return true;
        };
        let next = self
            .expected_bytes
            .saturating_mul(2)
            .saturating_add(self.sizes.pixel_bytes);
        let fits = self.bytes().saturating_add(next) <= budget;
        self.batches.is_empty() || (fits && unfinished <= self.sizes.samples)
    }

    /// Starts to allocate a buffer for the next batch, which begins at `(epoch, position)`. Returns the space for columns
    /// after the pixels, equal for similar batches so that buffers are reused.
    pub(super) fn allocate(&mut self, start: (u64, u64)) -> u64 {
        self.allocating = Some(start);
        if self.sizes.is_raw || !self.sizes.has_columns {
            return 0;
        }
        let aligned = self.expected_bytes.saturating_add(MIN_ROOM);
        aligned.checked_next_power_of_two().unwrap_or(0)
    }

    /// Starts the next batch with the buffer that [`Assembler::allocate`] asked for.
    pub(super) fn add_buffer(&mut self, buffer: Result<Buffer>) -> Result<()> {
        let Some(start) = self.allocating.take() else {
            return Ok(());
        };
        let slots = self.sizes.samples;
        let length = usize::try_from(self.sizes.pixel_bytes).unwrap_or(usize::MAX);
        let cut = BatchBuffer::cut(buffer?, slots, length / slots.max(1)).ok_or_else(|| {
            Error::option("batch_size", slots, "a divisor of the buffer's length")
        })?;
        let (is_raw, has_columns) = (self.sizes.is_raw, self.sizes.has_columns);
        self.batches
            .push_back(PendingBatch::new(start, cut, is_raw, has_columns));
        Ok(())
    }

    fn get_mut(&mut self, batch: u64) -> Option<&mut PendingBatch> {
        let at = usize::try_from(batch.wrapping_sub(self.front)).ok()?;
        self.batches.get_mut(at)
    }

    /// Gives the next slot of a batch to a sample, and returns its index; `None` if the batch was not started.
    pub(super) fn place(
        &mut self,
        batch: u64,
        sample: u64,
        padding: bool,
    ) -> Option<(usize, Slot)> {
        self.get_mut(batch)?.place(sample, padding)
    }

    /// Records that a sample is done; `None` if it failed. Returns the samples to concatenate if this was the last one of a
    /// batch that varies in size.
    pub(super) fn finish(
        &mut self,
        (generation, batch, index): (u64, u64, usize),
        done: Option<Done>,
    ) -> Option<Gather> {
        let pending = self.get_mut(batch)?;
        pending.finish(index, done);
        let bytes = pending.varying_bytes(0);
        let gather = pending.gather(generation, batch)?;
        // The expectation rises at once, and falls slowly.
        let bytes = bytes.max(self.sizes.varying_bytes);
        let fading = self.expected_bytes - self.expected_bytes / 8 + bytes / 8;
        self.expected_bytes = bytes.max(fading);
        Some(gather)
    }

    /// Stores the payload of a batch that varies in size.
    pub(super) fn finish_gathering(&mut self, batch: u64, payload: Result<Gathered>) -> Result<()> {
        let pixel_bytes = self.sizes.pixel_bytes;
        match self.get_mut(batch) {
            Some(pending) => pending.finish_gathering(payload, pixel_bytes),
            None => Ok(()),
        }
    }

    /// Returns whether an encoded image may reference its record until it is concatenated. That takes free memory for the
    /// records of later samples; otherwise reads would stall.
    pub(super) fn may_hold_records(&self, store: &ExtentBuffer) -> bool {
        self.sizes.is_raw && store.has_room(self.expected_bytes.saturating_mul(2))
    }

    /// Returns the numbers of batches in progress and of complete ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        let ready = self.batches.iter().filter(|batch| batch.is_whole()).count();
        ((self.batches.len() - ready) as u64, ready as u64)
    }

    /// Returns the bytes in batches. The encoded images and columns of an incomplete batch count with at least their
    /// expected size.
    pub(super) fn bytes(&self) -> u64 {
        let pixels = self.sizes.pixel_bytes * self.batches.len() as u64;
        if self.sizes.varying_budget.is_none() {
            return pixels;
        }
        let varying = |batch: &PendingBatch| batch.varying_bytes(self.expected_bytes);
        pixels + self.batches.iter().map(varying).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::super::raw::RawImage;
    use super::super::tests::{BATCH, batch_sizes, buffer, done};
    use super::*;

    /// Starts a batch that begins at `start` of epoch 0, and gives its slots to samples.
    fn start(assembler: &mut Assembler, start: u64) -> u64 {
        let number = assembler.next_number();
        assert!(assembler.has_room(0), "{start}");
        let pixels = 3 * BATCH + assembler.allocate((0, start)) as usize;
        assert!(!assembler.has_room(0), "one buffer at a time");
        assembler.add_buffer(Ok(buffer(pixels))).unwrap();
        for i in 0..BATCH {
            let (index, slot) = assembler.place(number, start + i as u64, false).unwrap();
            assert_eq!(index, i);
            drop(slot);
        }
        assert!(
            assembler.place(number, 0, false).is_none(),
            "all slots are taken"
        );
        number
    }

    /// Returns an encoded image that is copied into `bytes` bytes.
    fn image(bytes: usize) -> Done {
        let bytes = vec![0; bytes];
        let image = RawImage::new(&bytes, (0, &[]), None, &forebay_image::Limits::default());
        Done {
            image: Some(image.unwrap()),
            ..done(0)
        }
    }

    /// Finishes the samples of a batch of encoded images of these sizes.
    fn fill(assembler: &mut Assembler, batch: u64, sizes: [usize; BATCH]) -> Gather {
        let samples = sizes.into_iter().enumerate();
        let gathers = samples.map(|(i, bytes)| assembler.finish((0, batch, i), Some(image(bytes))));
        gathers.last().flatten().unwrap()
    }

    #[test]
    fn batches_are_numbered_and_limited() {
        let mut assembler = Assembler::new(batch_sizes(None));
        assert!(assembler.place(0, 0, false).is_none(), "it was not started");
        assert_eq!(
            (0..3)
                .map(|i| start(&mut assembler, i * 4))
                .collect::<Vec<_>>(),
            [0, 1, 2]
        );
        assert!(assembler.is_full() && !assembler.has_room(0));
        assert_eq!(assembler.bytes(), 3 * 3 * BATCH as u64);
        for i in 0..BATCH {
            assert_eq!(assembler.counts(), (3, 0));
            assert!(
                assembler.finish((0, 1, i), Some(done(7))).is_none(),
                "nothing varies"
            );
        }
        assert_eq!(assembler.counts(), (2, 1));
        assert!(!assembler.front().unwrap().is_whole());
        assert_eq!((assembler.front_number(), assembler.next_number()), (0, 3));
        assembler.take_front().unwrap();
        let batch = assembler.take_front().unwrap().into_finished().unwrap();
        assert_eq!((batch.start, &batch.labels[..]), (4, &[7; BATCH][..]));
        assert_eq!((assembler.front_number(), assembler.next_number()), (2, 3));
    }

    #[test]
    fn a_cleared_assembler_ignores_earlier_buffers() {
        let mut assembler = Assembler::new(batch_sizes(None));
        start(&mut assembler, 0);
        assembler.allocate((0, 4));
        assembler.clear(&mut ExtentBuffer::default());
        assembler.add_buffer(Ok(buffer(3 * BATCH))).unwrap();
        assert_eq!((assembler.next_number(), assembler.bytes()), (0, 0));
        assert_eq!(start(&mut assembler, 8), 0);
        assert!(
            assembler.add_buffer(Err(Error::Interrupted)).is_ok(),
            "none was requested"
        );
    }

    #[test]
    fn a_buffer_that_is_too_small_is_an_error() {
        let mut assembler = Assembler::new(batch_sizes(None));
        assembler.allocate((0, 0));
        assert!(assembler.add_buffer(Ok(buffer(3 * BATCH - 1))).is_err());
        assembler.allocate((0, 0));
        assert!(matches!(
            assembler.add_buffer(Err(Error::Interrupted)),
            Err(Error::Interrupted)
        ));
        assert_eq!(start(&mut assembler, 0), 0, "the next buffer is used");
    }

    #[test]
    fn an_incomplete_batch_cannot_be_finished() {
        let mut assembler = Assembler::new(batch_sizes(None));
        assembler.allocate((0, 0));
        assembler.add_buffer(Ok(buffer(3 * BATCH))).unwrap();
        let slot = assembler.place(0, 0, false);
        assert!(assembler.take_front().unwrap().into_finished().is_err());
        drop(slot);
    }

    #[test]
    fn encoded_images_are_due_with_the_last_sample() {
        let mut assembler = Assembler::new(batch_sizes(Some(1000)));
        let batch = start(&mut assembler, 0);
        assert_eq!(assembler.bytes(), 50, "the expected size");
        for i in 0..BATCH - 1 {
            assert!(assembler.finish((0, batch, i), Some(image(30))).is_none());
        }
        assert_eq!(assembler.bytes(), 90);
        let gather = assembler.finish((0, batch, BATCH - 1), None).unwrap();
        assert_eq!(
            gather
                .flags
                .iter()
                .filter(|&&flag| flag & forebay_batch::FLAG_FAILED != 0)
                .count(),
            1
        );
        assert_eq!(assembler.bytes(), 180, "in the samples and in the payload");
        assert_eq!(assembler.counts(), (1, 0), "its payload is missing");
        let payload = Gathered {
            payload: buffer(90),
            encoded: None,
            columns: Vec::new(),
        };
        assembler.finish_gathering(batch, Ok(payload)).unwrap();
        assert_eq!((assembler.bytes(), assembler.counts()), (90, (0, 1)));
        assert_eq!(
            assembler
                .take_front()
                .unwrap()
                .into_finished()
                .unwrap()
                .payload
                .len(),
            90
        );
    }

    #[test]
    fn larger_batches_are_fewer() {
        let mut assembler = Assembler::new(batch_sizes(Some(400)));
        let first = start(&mut assembler, 0);
        assert!(
            assembler.has_room(BATCH) && !assembler.has_room(BATCH + 1),
            "sizes are unknown"
        );
        fill(&mut assembler, first, [40; BATCH]);
        // The next one is expected to be as large, and exists twice for a while.
        assert!(!assembler.has_room(0));
        assembler.take_front();
        assert!(assembler.has_room(0), "one batch is always made");
        // The expectation falls slowly: from 160 by an eighth of the difference to 50.
        let second = start(&mut assembler, 4);
        assert_eq!(assembler.bytes(), 160);
        fill(&mut assembler, second, [1; BATCH]);
        assembler.take_front();
        start(&mut assembler, 8);
        assert_eq!(assembler.bytes(), 160 - 160 / 8 + 50 / 8);
    }
}
