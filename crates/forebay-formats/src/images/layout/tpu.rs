//! The layout of TensorFlow's tool for TPUs: `train/<synset>/*.JPEG`, validation images with or without directories, and
//! `synset_labels.txt` with one line for each validation image in the order of their names.

use super::{Arrangement, Layout, LayoutContext, splits};
use crate::error::{Error, Result};
use crate::images::walk::Top;
use crate::key_path::split_name;

const LABELS: &str = "synset_labels.txt";

pub(super) static LAYOUT: Layout = Layout {
    name: "tpu",
    summary: "what TensorFlow's tool for TPUs reads",
    example: "\
SRC/
  train/n01440764/n01440764_10026.JPEG
  validation/ILSVRC2012_val_00000293.JPEG     or in class directories; or val/
  synset_labels.txt                           a line for each validation image, by name",
    names_splits: true,
    labels_by_directories: false,
    archive_set: None,
    recognizes,
    arrange,
};

fn recognizes(top: &Top<'_>, context: &LayoutContext<'_>) -> Result<bool> {
    let has = |split| top.dirs.iter().any(|dir| split_name(dir) == Some(split));
    Ok(top.files.iter().any(|file| file == LABELS.as_bytes())
        && has("train")
        && has("validation")
        && splits::recognizes(top, context)?)
}

fn arrange(top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
    if !top.files.iter().any(|file| file == LABELS.as_bytes()) {
        return Err(Error::source(
            &top.path,
            format!("there is no {LABELS} in it"),
        ));
    }
    splits::arrange(top, context)
}
