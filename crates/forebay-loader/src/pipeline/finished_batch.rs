//! A batch whose samples are done, and what is left to do before it is handed out.

use forebay_batch::{BatchColumn, Buffer, EncodedImages, Mixed};
use forebay_batch::{FLAG_FAILED, FLAG_PADDING, FLAG_SAMPLE, PADDING_LABEL};
use forebay_image::BatchMix;

use super::raw;
use crate::options::Options;

/// A batch with all of its samples.
pub(crate) struct FinishedBatch {
    pub(crate) epoch: u64,
    pub(crate) start: u64,
    pub(crate) payload: Buffer,
    pub(crate) encoded: Option<Box<EncodedImages>>,
    pub(crate) labels: Vec<i64>,
    pub(crate) mixed: Option<Mixed>,
    pub(crate) samples: Vec<u64>,
    pub(crate) flags: Vec<u8>,
    pub(crate) columns: Vec<BatchColumn>,
}

impl FinishedBatch {
    /// Replaces each failed sample by the next good one, wrapping around at the end of the batch.
    pub(super) fn fill_gaps(&mut self, pixel_bytes: usize) {
        let count = self.flags.len();
        let bytes = pixel_bytes / count.max(1);
        for i in 0..count {
            if self.flags[i] & FLAG_FAILED == 0 {
                continue;
            }
            let Some(good) = raw::stand_in(&self.flags, i) else {
                return;
            };
            // Encoded images and columns were already replaced when they were concatenated.
            if self.encoded.is_none() {
                self.payload
                    .copy_within(good * bytes..(good + 1) * bytes, i * bytes);
            }
            self.labels[i] = self.labels[good];
            self.samples[i] = self.samples[good];
        }
    }

    /// Sets the label of padding to the value that losses ignore.
    pub(super) fn label_padding(&mut self) {
        for (label, flag) in self.labels.iter_mut().zip(&self.flags) {
            if flag & FLAG_PADDING != 0 {
                *label = PADDING_LABEL;
            }
        }
    }

    /// Mixes samples with each other, if the options have a batch transform. Padding and failed samples are
    /// excluded.
    pub(super) fn mix(&mut self, options: &Options) {
        let Some(transform) = &options.batch_transform else {
            return;
        };
        let size = options.transform.output_size();
        let mix = transform.draw(options.seed, self.epoch, self.start, size);
        let whole = |&i: &usize| self.flags[i] == FLAG_SAMPLE;
        let members: Vec<usize> = (0..self.flags.len()).filter(whole).collect();
        let mut mixed = Mixed {
            labels: self.labels.clone(),
            lam: vec![1.0; self.labels.len()],
        };
        if members.len() > 1 {
            let pixels = &mut self.payload[..options.pixel_bytes()];
            mix.apply(&options.output, &members, pixels);
            for (sample, partner) in BatchMix::partners(&members) {
                mixed.labels[sample] = self.labels[partner];
                mixed.lam[sample] = mix.lam();
            }
        }
        self.mixed = Some(mixed);
    }
}

#[cfg(test)]
mod tests {
    use forebay_batch::BufferPool;

    use super::*;

    /// Returns a batch of samples 10, 11 and so on, of two pixel bytes each, with these flags.
    fn batch(flags: &[u8]) -> FinishedBatch {
        let mut payload = BufferPool::new(0).take(2 * flags.len());
        for (i, byte) in payload.iter_mut().enumerate() {
            *byte = i as u8;
        }
        FinishedBatch {
            epoch: 0,
            start: 0,
            payload,
            encoded: None,
            labels: (0..flags.len() as i64).collect(),
            mixed: None,
            samples: (10..10 + flags.len() as u64).collect(),
            flags: flags.to_vec(),
            columns: Vec::new(),
        }
    }

    #[test]
    fn failed_samples_become_the_next_good_ones() {
        let (good, failed) = (FLAG_SAMPLE, FLAG_SAMPLE | FLAG_FAILED);
        let mut made = batch(&[good, failed, failed, good, failed]);
        made.fill_gaps(10);
        assert_eq!(made.samples, [10, 13, 13, 13, 10]);
        assert_eq!(made.labels, [0, 3, 3, 3, 0]);
        assert_eq!(made.payload[..], [0, 1, 6, 7, 6, 7, 6, 7, 0, 1]);
        let mut lost = batch(&[failed; 2]);
        lost.fill_gaps(4);
        assert_eq!(lost.samples, [10, 11], "there is no good one");
    }

    #[test]
    fn only_padding_loses_its_label() {
        let mut made = batch(&[FLAG_SAMPLE, FLAG_PADDING, FLAG_SAMPLE | FLAG_FAILED]);
        made.label_padding();
        assert_eq!(made.labels, [0, PADDING_LABEL, 2]);
    }
}
