//! Shows a running pack: a progress bar on a terminal, and events such as `progress` and `finding` for `--json`.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forebay_pack::{Action, Census, Finding, Observer, Plan, ShardDone, Stage, Uploaded};
use serde_json::json;

use crate::console::Console;
use crate::paint::printable;
use crate::progress::Bar;
use crate::quantity;

/// The observer of a pack, which prints its progress.
pub(crate) struct Watch<'a> {
    console: &'a Console,
    /// Whether to print events and notes in addition to the bar.
    tells: bool,
    files: AtomicU64,
    bytes: AtomicU64,
    view: Mutex<View>,
}

struct View {
    bar: Option<Bar>,
    stage: &'static str,
    total_files: u64,
    total_bytes: u64,
    last_event: Option<Instant>,
    /// Bytes read of the current archive and its length in bytes; `None` unless an archive is being read.
    archive: Option<(u64, u64)>,
    /// Progress of the upload; `None` without an upload.
    uploaded: Option<Uploaded>,
}

impl<'a> Watch<'a> {
    /// Prints the bar, events and notes.
    pub(crate) fn new(console: &'a Console) -> Self {
        Self {
            tells: true,
            ..Self::quiet(console)
        }
    }

    /// Prints only the bar, for a pack as a step of another command.
    pub(crate) fn quiet(console: &'a Console) -> Self {
        Self {
            console,
            tells: false,
            files: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            view: Mutex::new(View {
                bar: Some(console.bar("census", None)),
                stage: Stage::Census.name(),
                total_files: 0,
                total_bytes: 0,
                last_event: None,
                archive: None,
                uploaded: None,
            }),
        }
    }

    fn add(&self, files: u64, bytes: u64) {
        let files = self.files.fetch_add(files, Ordering::Relaxed) + files;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        // A worker does not wait for another worker that draws the bar.
        if let Ok(mut view) = self.view.try_lock() {
            if let Some(bar) = &view.bar {
                // Percentage and remaining time refer to the bytes read of the archive, or of the images without an archive.
                let (position, read) = view
                    .archive
                    .map_or((bytes, bytes), |(done, _)| (done, done));
                bar.update(position, files, "files", read);
                bar.also(view.uploaded.as_ref().map(upload_in_words));
            }
            let due = view
                .last_event
                .is_none_or(|last| last.elapsed() >= Console::EVENT_INTERVAL);
            if due && self.tells && self.console.is_json() {
                view.last_event = Some(Instant::now());
                let known = |total: u64| (view.total_files > 0).then_some(total);
                let mut event = json!({
                    "stage": view.stage,
                    "files": files,
                    "bytes": bytes,
                    "total_files": known(view.total_files),
                    "total_bytes": known(view.total_bytes),
                });
                if let Some((done, len)) = view.archive {
                    event["archive_bytes"] = json!(done);
                    event["archive_total_bytes"] = json!(len);
                }
                if let Some(uploaded) = &view.uploaded {
                    event["uploaded_bytes"] = json!(uploaded.bytes);
                }
                self.console.event("progress", &event);
            }
        }
    }
}

impl Observer for Watch<'_> {
    fn stage(&self, stage: Stage) {
        let Ok(mut view) = self.view.lock() else {
            return;
        };
        view.stage = stage.name();
        view.archive = None;
        if stage == Stage::Census {
            return;
        }
        // The old bar is dropped first, since there must be only one at a time.
        view.bar = None;
        let total = match stage {
            Stage::Publishing => None,
            Stage::Uploading => view
                .uploaded
                .as_ref()
                .map(|uploaded| uploaded.submitted_bytes),
            _ => (view.total_bytes > 0).then_some(view.total_bytes),
        };
        view.bar = Some(self.console.bar(stage.name(), total));
    }

    fn counted(&self, files: u64, bytes: u64) {
        self.add(files, bytes);
    }

    fn archive_read(&self, bytes: u64, len: u64) {
        if let Ok(mut view) = self.view.lock() {
            // A new archive needs a bar with its own length.
            if view.archive.is_none_or(|(_, before)| before != len) {
                let stage = view.stage;
                view.bar = None;
                view.bar = Some(self.console.bar(stage, Some(len)));
            }
            view.archive = Some((bytes, len));
        }
        self.add(0, 0);
    }

    fn planned(&self, census: &Census, plan: &Plan) {
        self.files.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        if let Ok(mut view) = self.view.lock() {
            view.total_files = census.files();
            view.total_bytes = census.bytes();
            view.last_event = None;
            view.archive = None;
        }
        if !self.tells {
            return;
        }
        self.console.detail(format!(
            "census: {} of {}, {}; plan: {}",
            quantity::counted(census.files(), "image", "images"),
            quantity::counted(census.classes().len() as u64, "class", "classes"),
            quantity::bytes(census.bytes()),
            quantity::counted(plan.shard_count(), "shard", "shards"),
        ));
    }

    fn assigned(&self, files: u64, bytes: u64) {
        if let Ok(mut view) = self.view.lock() {
            view.total_files = files;
            view.total_bytes = bytes;
        }
    }

    fn uploaded(&self, uploaded: &Uploaded) {
        let Ok(mut view) = self.view.lock() else {
            return;
        };
        let trouble = |uploaded: &Uploaded| uploaded.trouble.clone();
        let is_new = view.uploaded.as_ref().and_then(trouble) != trouble(uploaded);
        view.uploaded = Some(uploaded.clone());
        let is_uploading = view.stage == Stage::Uploading.name();
        if is_uploading && let Some(bar) = &view.bar {
            bar.update(
                uploaded.bytes,
                uploaded.files,
                "files uploaded",
                uploaded.bytes,
            );
        }
        drop(view);
        if !is_uploading {
            self.add(0, 0);
        }
        if let Some(trouble) = &uploaded.trouble
            && is_new
            && self.tells
        {
            let trouble = printable(trouble);
            self.console
                .note(format!("the upload is tried again: {trouble}"));
        }
    }

    fn begins_anew(&self, differences: &[String]) {
        let differences = printable(&differences.join("; "));
        self.console.warning(format!(
            "the source has changed since this pack started, so it starts again: {differences}"
        ));
    }

    fn advanced(&self, files: u64, bytes: u64) {
        self.add(files, bytes);
    }

    fn shard_done(&self, shard: &ShardDone) {
        if !self.tells {
            return;
        }
        self.console.event(
            "shard",
            &json!({
                "name": &shard.name,
                "records": shard.records,
                "bytes": shard.bytes,
                "resumed": shard.resumed,
            }),
        );
        self.console.detail(format!(
            "{} {}: {}, {}",
            if shard.resumed { "found" } else { "wrote" },
            shard.name,
            quantity::counted(shard.records, "record", "records"),
            quantity::bytes(shard.bytes),
        ));
    }

    fn finding(&self, finding: &Finding) {
        // Resized images were requested by an option and may be millions, so only the report lists them.
        if !self.tells || finding.action == Action::Resized {
            return;
        }
        self.console.event("finding", finding);
        let line = printable(&finding.to_string());
        self.console
            .detail(format!("{} {line}", super::fate(finding.action)));
    }
}

/// Formats the progress of the upload, which the bar shows in addition to that of packing.
fn upload_in_words(uploaded: &Uploaded) -> String {
    let done = quantity::bytes(uploaded.bytes);
    match &uploaded.trouble {
        None => format!("{done} uploaded"),
        Some(_) => format!("{done} uploaded, trying again"),
    }
}
