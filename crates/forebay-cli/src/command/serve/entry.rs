//! A dataset or job that the server offers, and its description.

use std::fmt;
use std::net::SocketAddr;

use forebay_batch::Layout;
use forebay_options::StreamInfo;
use serde::Serialize;

use crate::quantity;

/// A dataset or job, and its name in URLs.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dataset: String,
    pub(super) splits: Vec<SplitEvent>,
    /// Line with the options of the job; `None` for a dataset.
    pub(super) job: Option<String>,
    /// Further lines about the job: epoch, batches, columns and weight.
    pub(super) more: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct SplitEvent {
    pub(super) name: String,
    pub(super) records: u64,
}

impl Entry {
    /// Returns a dataset or mix with these splits and their numbers of records.
    pub(super) fn of<N: Into<String>>(
        name: &str,
        splits: impl IntoIterator<Item = (N, u64)>,
    ) -> Self {
        let splits = splits.into_iter().map(|(name, records)| SplitEvent {
            name: name.into(),
            records,
        });
        Entry {
            name: name.to_owned(),
            dataset: name.to_owned(),
            splits: splits.collect(),
            job: None,
            more: Vec::new(),
        }
    }

    pub(super) fn url(&self, scheme: &str, address: SocketAddr) -> String {
        format!("{scheme}://{address}/{}", self.name)
    }

    /// Returns lines that describe the job, or the splits of the dataset.
    pub(super) fn describe(&self) -> Vec<String> {
        match &self.job {
            Some(job) => [std::slice::from_ref(job), &self.more].concat(),
            None => self.splits.iter().map(ToString::to_string).collect(),
        }
    }

    /// Returns a line of Python that opens a loader for this name.
    pub(super) fn example(&self, scheme: &str, address: SocketAddr) -> String {
        let url = self.url(scheme, address);
        match (&self.job, self.splits.first()) {
            (None, Some(split)) => {
                format!(
                    "forebay.Loader({url:?}, split={:?}, batch_size=256)",
                    split.name
                )
            }
            _ => format!("forebay.Loader({url:?})"),
        }
    }
}

impl fmt::Display for SplitEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = quantity::counted(self.records, "record", "records");
        write!(f, "{}: {records}", self.name)
    }
}

/// Returns lines about a job: batches per epoch, batch size in bytes, columns and weight.
pub(super) fn facts(info: &StreamInfo, weight: Option<f64>) -> Vec<String> {
    let options = &info.options;
    let numbers = match options.keeps_encoded() {
        true => "images as they are stored, that much on average".to_owned(),
        false => {
            let layout = match options.layout.unwrap_or_default() {
                Layout::Nhwc => "nhwc",
                Layout::Nchw => "nchw",
            };
            format!("{}, {layout}", options.dtype.unwrap_or_default().name())
        }
    };
    let mut lines = vec![format!(
        "an epoch of {}: {} of {} ({numbers})",
        quantity::counted(info.samples, "sample", "samples"),
        quantity::counted(info.batches_per_epoch, "batch", "batches"),
        quantity::bytes(info.batch_bytes),
    )];
    if let Some(columns) = options.columns.as_ref().filter(|names| !names.is_empty()) {
        lines.push(format!("with columns {}, in addition", columns.join(", ")));
    }
    if let Some(weight) = weight {
        lines.push(format!("weight {weight}"));
    }
    lines
}
