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
