//! A dataset that is served under a name, and its description.

use std::fmt;
use std::net::SocketAddr;

use forebay_wire::batch::{dtype_from_wire, layout_from_wire};
use forebay_wire::{Layout, wire};
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
pub(super) fn facts(opened: &wire::Opened, weight: Option<f64>) -> Vec<String> {
    let spec = opened.spec.clone().unwrap_or_default();
    let raw = forebay_wire::batch::is_raw(Some(&spec));
    let numbers = match spec
        .output
        .as_ref()
        .and_then(|output| dtype_from_wire(output.dtype))
    {
        _ if raw => "images as they are stored, that much on average".to_owned(),
        dtype => {
            let layout = match layout_from_wire(spec.layout) {
                Some(Layout::Nchw) => "nchw",
                _ => "nhwc",
            };
            format!("{}, {layout}", dtype.unwrap_or_default().name())
        }
    };
    let samples = match opened.samples {
        0 => opened.records,
        samples => samples,
    };
    let mut lines = vec![format!(
        "an epoch of {}: {} of {} ({numbers})",
        quantity::counted(samples, "sample", "samples"),
        quantity::counted(opened.batches_per_epoch, "batch", "batches"),
        quantity::bytes(opened.batch_bytes),
    )];
    if let Some(weight) = weight {
        lines.push(format!("weight {weight}"));
    }
    lines
}
