//! Fills the table: first with what indexes and listings say, then by reading all records, in the background.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;

use forebay_image::ops::{Resize, ResizeTo};
use forebay_image::{
    Compose, DecodeOptions, Decoder, Limits, Op, Output, SampleSeed, Transform, probe,
};
use forebay_shard::{Column, ColumnType, ColumnValue, ExampleView};
use serde_json::{Value, json};

use super::lookalikes::{self, HASH_HEIGHT, HASH_WIDTH};
use super::record::Record;
use super::source::ViewSource;
use super::table::{
    BAD_BOX, BROKEN, CHUNK_RECORDS, Chunk, Facts, MAX_TEXT_BYTES, TEXT_BUDGET_BYTES, Table, Texts,
};
use super::values;

/// A box may exceed the image by this fraction, since annotations are rounded.
const BOX_SLACK: f32 = 1e-3;
/// Classes with fewer records than this fraction of the median class count as small.
const RARE_FRACTION: u64 = 10;

/// The table of a source and the state of its scan.
#[derive(Debug)]
pub(super) struct Catalog {
    pub(super) source: ViewSource,
    pub(super) table: Table,
    /// The columns whose values are kept, in the order of [`Chunk::columns`].
    pub(super) columns: Vec<Column>,
    /// The bytes that texts may still take.
    text_bytes: AtomicUsize,
    is_indexed: AtomicBool,
    /// Whether threads are to read records.
    wanted: AtomicBool,
    /// The next chunk to look at.
    next: AtomicUsize,
    records_read: AtomicU64,
    /// Number of threads that read; the last one that ends compares the images.
    readers: Mutex<usize>,
    error: OnceLock<String>,
}

impl Catalog {
    pub(super) fn new(source: ViewSource) -> Self {
        let columns = source.schema.columns().iter();
        let columns = columns.filter(|column| is_searchable(column)).cloned();
        Self {
            columns: columns.collect(),
            source,
            table: Table::default(),
            text_bytes: AtomicUsize::new(TEXT_BUDGET_BYTES),
            is_indexed: AtomicBool::new(false),
            wanted: AtomicBool::new(true),
            next: AtomicUsize::new(0),
            records_read: AtomicU64::new(0),
            readers: Mutex::new(0),
            error: OnceLock::new(),
        }
    }

    pub(super) fn progress(&self) -> Value {
        json!({
            "indexed": self.is_indexed.load(Ordering::Acquire),
            "running": *self.readers() > 0,
            "read": self.records_read.load(Ordering::Relaxed),
            "records": self.source.len(),
            // There is no room for further texts, so that filters miss values.
            "texts_full": self.text_bytes.load(Ordering::Relaxed) < MAX_TEXT_BYTES,
            "error": self.error.get(),
        })
    }

    fn readers(&self) -> MutexGuard<'_, usize> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fills the table with what is known without reading records.
    pub(super) fn index(&self) {
        let mut chunks: Vec<Arc<Chunk>> = Vec::new();
        for part in &self.source.parts {
            let (mut facts, mut keys) = (Vec::new(), Texts::default());
            let mut first = part.records.start as u32;
            let mut end = |facts: &mut Vec<Facts>, keys: &mut Texts| {
                let chunk = Chunk {
                    first,
                    facts: std::mem::take(facts),
                    keys: Arc::new(std::mem::take(keys)),
                    ..Chunk::default()
                };
                first += chunk.facts.len() as u32;
                chunks.push(Arc::new(chunk));
            };
            let known = part.known(&mut |bytes, label, key| {
                facts.push(Facts {
                    bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
                    label: label.and_then(|label| i32::try_from(label).ok()),
                    ..Facts::default()
                });
                keys.push(key, &self.text_bytes);
                if facts.len() == CHUNK_RECORDS {
                    end(&mut facts, &mut keys);
                }
            });
            if !facts.is_empty() {
                end(&mut facts, &mut keys);
            }
            if let Err(what) = known {
                self.error.get_or_init(|| what);
            }
        }
        let chunks = Arc::new(chunks);
        self.table.change(|snapshot| snapshot.chunks = chunks);
        self.find_rare();
        self.is_indexed.store(true, Ordering::Release);
    }

    /// Reads the records that were not read yet, with some threads, until [`stop`](Self::stop).
    pub(super) fn start(self: &Arc<Self>, threads: usize) {
        let mut readers = self.readers();
        if !self.is_indexed.load(Ordering::Acquire) || *readers > 0 {
            return;
        }
        self.wanted.store(true, Ordering::Relaxed);
        self.next.store(0, Ordering::Relaxed);
        for _ in 0..threads {
            let catalog = Arc::clone(self);
            let thread = thread::Builder::new().name("forebay-view".to_owned());
            let spawned = thread.spawn(move || catalog.work());
            *readers += usize::from(spawned.is_ok());
        }
    }

    pub(super) fn stop(&self) {
        self.wanted.store(false, Ordering::Relaxed);
    }

    fn work(&self) {
        // Requests for pictures come first. On Linux the priority is that of the thread.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(None, 19);
        let mut examiner = Examiner::new();
        while self.wanted.load(Ordering::Relaxed) {
            let at = self.next.fetch_add(1, Ordering::Relaxed);
            let snapshot = self.table.snapshot();
            let Some(chunk) = snapshot.chunks.get(at) else {
                break;
            };
            if !chunk.is_read
                && let Some(read) = self.read(chunk, &mut examiner)
            {
                drop(snapshot);
                self.table.change(|snapshot| {
                    Arc::make_mut(&mut snapshot.chunks)[at] = Arc::new(read);
                });
            }
        }
        let mut readers = self.readers();
        if *readers > 1 {
            *readers -= 1;
            return;
        }
        // Requests ask for the number meanwhile.
        drop(readers);
        let twins = Arc::new(lookalikes::find(&self.table.snapshot()));
        self.table.change(|snapshot| snapshot.twins = twins);
        self.find_rare();
        *self.readers() = 0;
    }

    /// Reads the records of a chunk; `None` if the scan was stopped.
    fn read(&self, known: &Chunk, examiner: &mut Examiner) -> Option<Chunk> {
        let part = self.source.part(u64::from(known.first)).ok()?;
        let (mut facts, mut keys) = (Vec::new(), Texts::default());
        let mut columns: Vec<Texts> = self.columns.iter().map(|_| Texts::default()).collect();
        let mut boxes = BTreeMap::new();
        let start = u64::from(known.first) - part.records.start;
        part.scan(start..start + known.facts.len() as u64, &mut |record| {
            if known.keys.bytes.is_empty() {
                keys.push(record.map_or(b"", |record| &record.key), &self.text_bytes);
            }
            let of = known.facts[facts.len()];
            facts.push(examiner.examine(self, record.ok(), of, &mut columns, &mut boxes));
            self.records_read.fetch_add(1, Ordering::Relaxed);
            self.wanted.load(Ordering::Relaxed)
        });
        if facts.len() < known.facts.len() {
            let read = facts.len() as u64;
            self.records_read.fetch_sub(read, Ordering::Relaxed);
            return None;
        }
        Some(Chunk {
            first: known.first,
            facts,
            keys: match known.keys.bytes.is_empty() {
                true => Arc::new(keys),
                false => Arc::clone(&known.keys),
            },
            columns,
            boxes,
            is_read: true,
        })
    }

    fn find_rare(&self) {
        let mut counts = self.table.snapshot().class_counts();
        let mut sizes: Vec<u64> = counts.values().copied().collect();
        sizes.sort_unstable();
        let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
        counts.retain(|_, count| *count <= median / RARE_FRACTION);
        let rare = Arc::new(counts);
        self.table.change(|snapshot| snapshot.rare = rare);
    }
}

/// Examines records, with buffers that are reused.
struct Examiner {
    decoder: Decoder,
    small: Transform,
    pixels: Vec<u8>,
}

impl Examiner {
    fn new() -> Self {
        let size = ResizeTo::Exact((HASH_HEIGHT, HASH_WIDTH));
        let small = Compose::new(vec![Op::Resize(Resize { size })]);
        let small = Transform::List(small.expect("a resize to a fixed size is a list"));
        let mut options = DecodeOptions::new(Limits::default());
        options.scaled = true;
        Self {
            decoder: Decoder::with_options(options),
            pixels: vec![0; small.output_values()],
            small,
        }
    }

    /// Adds to `facts` what a record says, appends the values of its columns, and counts its boxes by label. `None` is a record
    /// that cannot be read.
    fn examine(
        &mut self,
        catalog: &Catalog,
        record: Option<&Record>,
        mut facts: Facts,
        columns: &mut [Texts],
        counts: &mut BTreeMap<i64, u64>,
    ) -> Facts {
        let example = record.and_then(|record| ExampleView::parse(&record.bytes).ok());
        for (column, texts) in catalog.columns.iter().zip(columns) {
            let value = example.and_then(|example| column.read(example).ok().flatten());
            if let Some(ColumnValue::Boxes { labels, .. }) = &value {
                labels
                    .iter()
                    .for_each(|label| *counts.entry(*label).or_default() += 1);
            }
            let title = |label| catalog.source.class_title(label);
            let text = value.map(|value| values::text(&value, title));
            texts.push(text.unwrap_or_default().as_bytes(), &catalog.text_bytes);
        }
        facts.flags = BROKEN;
        let Some(record) = record else {
            return facts;
        };
        let label = record.label.and_then(|label| i32::try_from(label).ok());
        facts.label = facts.label.or(label);
        if let Ok(image) = catalog.source.features.image_record(&record.bytes)
            && let Ok(found) = probe(image.image, self.decoder.limits())
        {
            facts.size = (found.width, found.height);
            let (seed, output) = (SampleSeed::default(), Output::default());
            let (decoder, pixels) = (&mut self.decoder, &mut self.pixels);
            let decoded = self
                .small
                .apply(decoder, image.image, seed, &output, pixels);
            if decoded.is_ok() {
                facts.flags = 0;
                facts.hash = lookalikes::hash(pixels);
            }
        }
        let mut columns = catalog.source.schema.columns().iter();
        let has_bad_box = columns.any(|column| {
            column.column_type == ColumnType::Boxes
                && match example.map(|example| column.read(example)) {
                    Some(Ok(Some(ColumnValue::Boxes { boxes, .. }))) => {
                        boxes.iter().any(is_bad_box)
                    }
                    _ => false,
                }
        });
        facts.flags |= u8::from(has_bad_box) * BAD_BOX;
        facts
    }
}

fn is_bad_box(sides: &[f32; 4]) -> bool {
    let [xmin, ymin, xmax, ymax] = *sides;
    let within = -BOX_SLACK..=1.0 + BOX_SLACK;
    // A comparison with NaN is false.
    !(sides.iter().all(|side| within.contains(side)) && xmin < xmax && ymin < ymax)
}

/// Returns whether filters can search the values of a column.
fn is_searchable(column: &Column) -> bool {
    use ColumnType::{Boxes, Bytes, Float, Int, Labels, Text};
    matches!(
        column.column_type,
        Text | Bytes | Int | Float | Labels | Boxes
    )
}
