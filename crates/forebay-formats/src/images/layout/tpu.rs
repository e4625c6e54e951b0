//! The layout of TensorFlow's tool for TPUs: `train/<synset>/*.JPEG`, validation images with or without directories, and
//! `synset_labels.txt` with one line for each validation image in the order of their names.

use super::splits::Splits;
use super::{Arrangement, Layout, LayoutContext};
use crate::error::{Error, Result};
use crate::images::walk::Top;
use crate::key_path::split_name;

#[derive(Debug)]
pub(super) struct Tpu;

const LABELS: &str = "synset_labels.txt";

const EXAMPLE: &str = "\
SRC/
  train/n01440764/n01440764_10026.JPEG
  validation/ILSVRC2012_val_00000293.JPEG     or in class directories; or val/
  synset_labels.txt                           a line for each validation image, by name";

impl Layout for Tpu {
    fn name(&self) -> &'static str {
        "tpu"
    }

    fn summary(&self) -> &'static str {
        "what TensorFlow's tool for TPUs reads"
    }

    fn example(&self) -> &'static str {
        EXAMPLE
    }

    fn recognizes(&self, top: &Top<'_>, context: &LayoutContext<'_>) -> Result<bool> {
        let has = |split| top.dirs.iter().any(|dir| split_name(dir) == Some(split));
        Ok(top.files.iter().any(|file| file == LABELS.as_bytes())
            && has("train")
            && has("validation")
            && Splits.recognizes(top, context)?)
    }

    fn arrange(&self, top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
        if !top.files.iter().any(|file| file == LABELS.as_bytes()) {
            return Err(Error::source(
                &top.path,
                format!("there is no {LABELS} in it"),
            ));
        }
        Splits.arrange(top, context)
    }
}
