//! What TensorFlow's tool for TPUs reads: `train/<synset>/*.JPEG`, validation images with or without directories, and
//! `synset_labels.txt`, which has one line for each validation image in the order of their names.

use super::splits::Splits;
use super::{Arrangement, Ask, Layout, LayoutKind, Top, split_name};
use crate::error::{Error, Result};

pub(super) struct Tpu;

const LABELS: &str = "synset_labels.txt";

impl Layout for Tpu {
    fn kind(&self) -> LayoutKind {
        LayoutKind::Tpu
    }

    fn recognises(&self, top: &Top<'_>, ask: &Ask<'_>) -> Result<bool> {
        let has = |split| top.dirs.iter().any(|dir| split_name(dir) == Some(split));
        Ok(top.files.iter().any(|file| file == LABELS.as_bytes())
            && has("train")
            && has("validation")
            && Splits.recognises(top, ask)?)
    }

    fn arrange(&self, top: &Top<'_>, ask: &Ask<'_>) -> Result<Arrangement> {
        if !top.files.iter().any(|file| file == LABELS.as_bytes()) {
            return Err(Error::source(
                &top.path,
                format!("there is no {LABELS} in it"),
            ));
        }
        Splits.arrange(top, ask)
    }
}
