//! The results of quickstart, as tables and as the summary event.

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;

use crate::console::Console;
use crate::histogram::bar;
use crate::input::show;
use crate::quantity;
use crate::table::{Align, Table};

/// Rates of an epoch shorter than this are dominated by startup time.
const STEADY: Duration = Duration::from_secs(2);

/// Width of a stage's bar, in characters.
const STAGE_BAR_WIDTH: usize = 16;

/// Figures of packing the images into one format, and of verifying the result.
#[derive(Debug, Clone)]
pub(super) struct PackFigures {
    pub(super) format: &'static str,
    pub(super) root: PathBuf,
    pub(super) shards: u64,
    pub(super) bytes: u64,
    pub(super) image_bytes: u64,
    pub(super) files: u64,
    pub(super) elapsed: Duration,
    pub(super) verified_in: Duration,
}

/// Times of one stage of the server's pipeline, in seconds, summed over its threads.
#[derive(Debug, Clone, Serialize)]
pub(super) struct StageFigures {
    pub(super) name: String,
    /// Time that the stage worked.
    pub(super) busy_s: f64,
    /// Time that the stage waited for input.
    pub(super) starved_s: f64,
    /// Time that the stage waited for space in its output queue.
    pub(super) blocked_s: f64,
}

/// Figures of the epoch that the client received from the server.
#[derive(Debug, Clone)]
pub(super) struct StreamFigures {
    pub(super) url: String,
    pub(super) split: String,
    pub(super) batch_size: u64,
    pub(super) side: u32,
    pub(super) batches: u64,
    pub(super) images: u64,
    pub(super) padding: u64,
    pub(super) payload_bytes: u64,
    pub(super) elapsed: Duration,
    pub(super) first_batch_after: Duration,
    pub(super) threads: usize,
    /// Number of images that the server decoded, including prefetched images of the next epoch.
    pub(super) decoded: u64,
    pub(super) stages: Vec<StageFigures>,
}

/// The results that are printed at the end.
#[derive(Debug, Clone)]
pub(super) struct Report {
    pub(super) records: u64,
    pub(super) skipped: u64,
    pub(super) classes: u64,
    pub(super) packs: Vec<PackFigures>,
    pub(super) stream: StreamFigures,
    pub(super) contact_sheet: PathBuf,
    pub(super) next: [String; 3],
}

impl Report {
    /// Prints the tables on stdout, and the summary event.
    pub(super) fn print(&self, console: &Console) {
        let paint = console.paint();
        console.heading("Shards");
        self.print_packs(console);
        console.blank();
        console.heading("One epoch through the server");
        console.table(&self.stream_table());
        console.blank();
        console.heading("Where the time went");
        console.table(&self.stage_table());
        console.line(format!("  {}", paint.dim(self.bottleneck())));
        if self.stream.elapsed < STEADY {
            console.line(format!(
                "  {}",
                paint.dim(
                    "An epoch this short is mostly start-up: a real set streams at a steadier rate."
                )
            ));
        }
        console.blank();
        console.line(format!(
            "{} {}",
            paint.bold("The first batch as a picture:"),
            show(&self.contact_sheet)
        ));
        console.blank();
        console.heading("Next");
        for command in &self.next {
            console.line(format!("  {}", paint.cyan(command)));
        }
        self.event(console);
    }

    fn print_packs(&self, console: &Console) {
        let mut table = Table::new(&[
            ("format", Align::Left),
            ("records", Align::Right),
            ("shards", Align::Right),
            ("size", Align::Right),
            ("packed in", Align::Right),
            ("", Align::Right),
            ("verified in", Align::Right),
            ("written to", Align::Left),
        ]);
        for pack in &self.packs {
            table.row([
                pack.format.to_owned(),
                quantity::count(self.records),
                quantity::count(pack.shards),
                quantity::bytes(pack.bytes),
                quantity::duration(pack.elapsed),
                quantity::byte_rate(pack.image_bytes, pack.elapsed),
                quantity::duration(pack.verified_in),
                show(&pack.root),
            ]);
        }
        console.table(&table);
    }

    fn stream_table(&self) -> Table {
        let stream = &self.stream;
        let mut table = Table::new(&[("", Align::Left), ("", Align::Right), ("", Align::Left)]);
        let side = stream.side;
        table.row([
            "images".to_owned(),
            quantity::count(stream.images),
            format!("decoded, cropped, resized to {side}x{side}, flipped"),
        ]);
        let padding = match stream.padding {
            0 => String::new(),
            n => format!(
                ", the last one with {} of padding",
                quantity::counted(n, "image", "images")
            ),
        };
        table.row([
            "batches".to_owned(),
            quantity::count(stream.batches),
            format!(
                "of {}, {} together{padding}",
                stream.batch_size,
                quantity::bytes(stream.payload_bytes)
            ),
        ]);
        table.row([
            "time".to_owned(),
            quantity::duration(stream.elapsed),
            format!(
                "with {}, the first batch after {}",
                quantity::counted(stream.threads as u64, "decode thread", "decode threads"),
                quantity::duration(stream.first_batch_after)
            ),
        ]);
        table.row([
            "images/s".to_owned(),
            quantity::rate(stream.images, stream.elapsed),
            format!("of the split {} from {}", stream.split, stream.url),
        ]);
        table.row([
            "batches/s".to_owned(),
            quantity::rate(stream.batches, stream.elapsed),
        ]);
        table
    }

    fn stage_table(&self) -> Table {
        let mut table = Table::new(&[
            ("stage", Align::Left),
            ("work", Align::Right),
            ("an image", Align::Right),
            ("waited for input", Align::Right),
            ("waited for the next stage", Align::Right),
            ("", Align::Left),
        ]);
        let seconds = |s: f64| match Duration::try_from_secs_f64(s) {
            Ok(time) if !time.is_zero() => quantity::duration(time),
            _ => "-".to_owned(),
        };
        let most = self
            .stream
            .stages
            .iter()
            .map(|stage| stage.busy_s)
            .fold(0.0, f64::max);
        for stage in &self.stream.stages {
            let images = match stage.name.as_str() {
                "send" => self.stream.images + self.stream.padding,
                _ => self.stream.decoded,
            };
            table.row([
                stage.name.clone(),
                seconds(stage.busy_s),
                seconds(stage.busy_s / images.max(1) as f64),
                seconds(stage.starved_s),
                seconds(stage.blocked_s),
                bar(stage.busy_s / most.max(f64::MIN_POSITIVE), STAGE_BAR_WIDTH),
            ]);
        }
        table
    }

    /// Returns a line that names the busiest stage, and explains the times.
    fn bottleneck(&self) -> String {
        let stages = &self.stream.stages;
        let all: f64 = stages.iter().map(|stage| stage.busy_s).sum();
        let busiest = stages.iter().max_by(|a, b| a.busy_s.total_cmp(&b.busy_s));
        let Some(stage) = busiest.filter(|_| all > 0.0) else {
            return "The server did not say where its time went.".to_owned();
        };
        let ahead = self.stream.decoded.saturating_sub(self.stream.images);
        let ahead = match ahead {
            0 => String::new(),
            n => format!(
                "; {} of the next epoch made ahead included",
                quantity::counted(n, "image", "images")
            ),
        };
        format!(
            "{} is {:.0} % of the work. Stages run side by side; times are of all their threads{ahead}.",
            stage.name,
            stage.busy_s / all * 100.0
        )
    }

    fn event(&self, console: &Console) {
        let stream = &self.stream;
        let packs = self.packs.iter().map(|pack| {
            json!({
                "format": pack.format,
                "root": pack.root.display().to_string(),
                "shards": pack.shards,
                "bytes": pack.bytes,
                "image_bytes": pack.image_bytes,
                "files": pack.files,
                "seconds": pack.elapsed.as_secs_f64(),
                "verify_seconds": pack.verified_in.as_secs_f64(),
            })
        });
        let event = json!({
            "command": "quickstart",
            "exit_code": if self.skipped > 0 { 3 } else { 0 },
            "records": self.records,
            "skipped": self.skipped,
            "classes": self.classes,
            "packs": packs.collect::<Vec<_>>(),
            "stream": {
                "url": &stream.url,
                "split": &stream.split,
                "batch_size": stream.batch_size,
                "side": stream.side,
                "batches": stream.batches,
                "images": stream.images,
                "padding": stream.padding,
                "payload_bytes": stream.payload_bytes,
                "seconds": stream.elapsed.as_secs_f64(),
                "first_batch_seconds": stream.first_batch_after.as_secs_f64(),
                "images_per_second": quantity::per_second(stream.images, stream.elapsed),
                "batches_per_second": quantity::per_second(stream.batches, stream.elapsed),
                "threads": stream.threads,
                "decoded": stream.decoded,
                "stages": &stream.stages,
            },
            "contact_sheet": self.contact_sheet.display().to_string(),
        });
        console.event("summary", &event);
    }
}
