//! A dataset that is served under a name, and its description.

use std::fmt;
use std::net::SocketAddr;

use forebay_batch::Layout;
use forebay_options::StreamInfo;
use serde::Serialize;

use crate::quantity;

/// One name in a URL, and what it stands for.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dataset: String,
    pub(super) splits: Vec<SplitEvent>,
    /// The job's options, in a line.
    pub(super) job: Option<String>,
    /// The description of their consequences.
    pub(super) more: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct SplitEvent {
    pub(super) name: String,
    pub(super) records: u64,
}

impl Entry {
    pub(super) fn url(&self, scheme: &str, address: SocketAddr) -> String {
        format!("{scheme}://{address}/{}", self.name)
    }

    /// A description for people.
    pub(super) fn describe(&self) -> Vec<String> {
        match &self.job {
            Some(job) => [std::slice::from_ref(job), &self.more].concat(),
            None => self.splits.iter().map(ToString::to_string).collect(),
        }
    }

    /// A line that works.
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

/// Lines that describe a job's options.
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
