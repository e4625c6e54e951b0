//! The decode threads: take the sample that is needed first, and write its pixels into the batch.

use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use forebay_image::geometry::Tracking;
use forebay_image::{
    Decoder, Encoded, Format, ImageError, Learning, SampleSeed, SeekPoints, Timing, Transform,
    sniff, standard_image,
};
use forebay_shard::{ColumnValue, RecordBlock};

use super::cores::CpuPermit;
use super::extent::Extent;
use super::pending_batch::Done;
use super::raw::{Gather, RawImage};
use super::shared::Shared;
use super::state::{Job, Outcome};
use super::task::Task;
use crate::columns::{Columns, Placement, RecordContext};
use crate::error::{Error, Result};
use crate::labels::NO_LABEL;
use crate::learned::LearnedSeekPoints;
use crate::stats::{Activity, ThreadTime};
use forebay_options::OnError;

/// Decodes until the pipeline is stopped, as decode thread number `me`.
pub(super) fn run(shared: &Shared, me: usize) {
    let mut decoder = Decoder::with_options(shared.options.decode);
    let mut permit = CpuPermit::new(shared.cores.as_ref());
    let mut cpu_noted = ThreadTime::of_this_thread();
    while let Some(job) = take(shared, me, &mut permit) {
        // Waiting for a core that another loader uses counts as busy time, because more cores would
        // shorten it.
        shared.telemetry.decoders[me].switch(Activity::Busy);
        permit.take();
        match job {
            Job::Sample(task, holds) => sample(shared, me, &mut decoder, task, holds),
            Job::Buffer { generation, room } => buffer(shared, generation, room),
        }
        shared.telemetry.note_cpu(&mut cpu_noted);
    }
}

/// Takes the next job; `None` if the pipeline is stopped.
fn take(shared: &Shared, me: usize, permit: &mut CpuPermit<'_>) -> Option<Job> {
    let mut state = shared.lock();
    loop {
        if state.failures.is_stopped() {
            return None;
        }
        if let Some(job) = state.next_job(me) {
            shared.wake(&state);
            return Some(job);
        }
        shared.advance(&mut state);
        if state.has_job() {
            continue;
        }
        let (reason, changed) = state.idle();
        shared.telemetry.decoders[me].switch(reason);
        if changed {
            // Wakes the other waiting threads, so that they record the new reason.
            shared.signals.decoders.wake_all();
        }
        permit.leave();
        state = shared.signals.decoders.wait(state);
    }
}

fn buffer(shared: &Shared, generation: u64, room: u64) {
    let room = usize::try_from(room).unwrap_or(0);
    let buffer = shared
        .pool
        .try_take(shared.options.pixel_bytes().saturating_add(room))
        .map_err(|error| Error::System {
            what: "allocate a batch",
            source: Arc::new(error),
        });
    let mut state = shared.lock();
    state.add_buffer(generation, buffer);
    shared.advance(&mut state);
}

fn sample(shared: &Shared, me: usize, decoder: &mut Decoder, mut task: Task, holds: bool) {
    let result = catch_unwind(AssertUnwindSafe(|| {
        decode(shared, decoder, &mut task, holds)
    }));
    let result = result.unwrap_or_else(|panic| {
        // After a panic the scratch memory of the decoder may be in any state.
        *decoder = Decoder::with_options(shared.options.decode);
        let message = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Error::Record {
            place: Box::new(shared.source.place(task.sample)),
            what: format!("decoding panicked: {message}"),
        })
    });
    let outcome = match result {
        Ok(sample) => {
            let (timing, is_fast) = (sample.timing, sample.is_fast);
            shared.telemetry.decoded(timing.transform_ns, is_fast);
            Outcome::Done(sample.done)
        }
        Err(error) if shared.options.on_error == OnError::Raise || !error.is_of_one_sample() => {
            Outcome::Failed(error)
        }
        Err(error) => {
            task.slot.bytes().fill(0);
            Outcome::Replaced(match error {
                Error::Shard(error) => format!("{}: {error}", shared.source.place(task.sample)),
                error => error.to_string(),
            })
        }
    };
    let Task {
        generation,
        batch,
        index,
        extent,
        slot,
        ..
    } = task;
    // The slot is dropped before the sample counts as done: the buffer can be taken only when no slots are left.
    drop(slot);
    let mut state = shared.lock();
    let last = state.finish_sample(me, (generation, batch, index), extent, outcome);
    shared.advance(&mut state);
    drop(state);
    if let Some(last) = last {
        gather(shared, last);
    }
}

/// Makes the payload of a batch that varies in size.
fn gather(shared: &Shared, mut samples: Gather) {
    let place = (samples.generation, samples.batch);
    let gathered = samples.run(&shared.options, shared.columns.as_ref(), &shared.pool);
    let mut state = shared.lock();
    state.finish_gathering(place, samples.images, gathered);
    shared.advance(&mut state);
}

/// Returns the record of a sample. If a read of several records failed, the record is read again alone, into `alone`.
fn read_record<'a>(
    shared: &Shared,
    extent: &'a Extent,
    sample: u64,
    alone: &'a mut RecordBlock,
) -> Result<&'a [u8]> {
    match extent.record(sample) {
        // A read of several records fails as a whole, so another record may be the damaged one.
        Some(Err(_)) if shared.options.on_error != OnError::Raise && !extent.is_of_one_record() => {
            shared.source.read(&(sample..sample + 1), alone)?;
            Ok(alone.get(0))
        }
        Some(record) => record,
        None => Err(Error::Record {
            place: Box::new(shared.source.place(sample)),
            what: "the record was not read".to_owned(),
        }),
    }
}

/// A decoded sample.
struct Decoded {
    done: Done,
    timing: Timing,
    /// Whether its record holds a fast image.
    is_fast: bool,
}

/// Decodes a sample into its slot. An image that stays encoded references its extent if `holds` is set,
/// and is copied otherwise.
fn decode(shared: &Shared, decoder: &mut Decoder, task: &mut Task, holds: bool) -> Result<Decoded> {
    let mut alone = RecordBlock::default();
    let whole = read_record(shared, &task.extent, task.sample, &mut alone)?;
    let features = shared.source.record_features(task.sample);
    let place = || Box::new(shared.source.place(task.sample));
    let bad_record = |what| Error::Record {
        place: place(),
        what,
    };
    let record = features
        .image_record(whole)
        .map_err(|error| bad_record(format!("not an Example with an image: {error}")))?;
    let format = sniff(record.image);
    let is_fast = format == Some(Format::Fast);
    let label = match record.label {
        Some(stored) => shared.source.label(task.sample, stored)?,
        None => NO_LABEL,
    };
    let (columns, sample) = (shared.columns.as_ref(), task.sample);
    let relabel = |stored| shared.source.relabel(sample, stored);
    let options = &shared.options;
    let bad_image = |source| Error::Image {
        place: place(),
        source,
    };
    let part = shared.source.part_of(task.sample);
    let keeps_encoded = matches!(options.transform, Transform::KeepEncoded);
    let gives_encoded =
        keeps_encoded || columns.is_some_and(|columns| columns.have_image(part, features));
    let image = if gives_encoded {
        standard_image(record.image, &options.decode.limits).map_err(bad_image)?
    } else {
        Cow::Borrowed(record.image)
    };
    let values = match columns {
        None => Vec::new(),
        Some(columns) => {
            let context = RecordContext {
                part,
                features,
                image: &image,
                label,
                relabel: &relabel,
            };
            columns.values(whole, &context).map_err(bad_record)?
        }
    };
    let convert = |placement| {
        let convert = |columns: &Columns| columns.convert(&values, placement);
        columns.map(convert).transpose().map_err(bad_record)
    };
    if keeps_encoded {
        // A record that was read again alone is not in the extent.
        let extent = Some(&task.extent).filter(|extent| holds && extent.has_records());
        let record = (task.sample, whole);
        let image = RawImage::new(&image, record, extent, &options.decode.limits);
        let image = image.map_err(bad_image)?;
        let (width, height) = image.size();
        let done = Done {
            label,
            columns: convert(Placement::Stored(width, height))?,
            image: Some(image),
        };
        return Ok(Decoded {
            done,
            timing: Timing::default(),
            is_fast,
        });
    }
    let encoded = Encoded {
        bytes: record.image,
        seek_points: record.seek_points.into(),
    };
    let seed = SampleSeed {
        seed: options.seed,
        epoch: task.epoch,
        sample: task.sample,
        occurrence: task.occurrence,
    };
    let (out, checksum) = (task.slot.bytes(), task.extent.checksum(task.sample));
    let transformed = match (&shared.learned, record.seek_points, format) {
        (Some(learned), None, Some(Format::Jpeg)) => {
            let learned = (&**learned, checksum);
            learn(shared, learned, decoder, encoded, seed, out, &values)
        }
        _ => transform(shared, decoder, encoded, seed, out, &values),
    };
    let (timing, tracking) = transformed.map_err(bad_image)?;
    let columns = convert(Placement::Moved {
        map: &tracking.map,
        keep_empty_boxes: options.keep_empty_boxes,
        limits: &options.decode.limits,
    })?;
    let done = Done {
        label,
        image: None,
        columns,
    };
    Ok(Decoded {
        done,
        timing,
        is_fast,
    })
}

/// Does the work of [`transform`] with the seek points that earlier epochs learned, and keeps those of this one. They
/// belong to a record with this checksum.
fn learn<'v>(
    shared: &Shared,
    (learned, checksum): (&LearnedSeekPoints, Option<u32>),
    decoder: &mut Decoder,
    encoded: Encoded<'_>,
    seed: SampleSeed,
    out: &mut [u8],
    values: &'v [Option<ColumnValue<'_>>],
) -> std::result::Result<(Timing, Tracking<'v>), ImageError> {
    let limit = shared.options.learn_seek_points;
    let known = learned.get(seed.sample, seed.epoch, limit);
    if known.is_none() && learned.is_full() {
        return transform(shared, decoder, encoded, seed, out, values);
    }
    // The checksum of the record was computed already, and changes with the image.
    let learning = Learning::new(known.as_ref(), checksum);
    let encoded = Encoded {
        seek_points: SeekPoints::Learning(&learning),
        ..encoded
    };
    let transformed = transform(shared, decoder, encoded, seed, out, values)?;
    if learning.has_used() {
        shared.telemetry.used_learned();
    }
    if let Some(points) = learning.into_learned() {
        learned.keep(seed.sample, points, limit);
    }
    Ok(transformed)
}

/// Decodes and transforms an image into `out`, and returns how its pixels moved, for the boxes among `values`.
fn transform<'v>(
    shared: &Shared,
    decoder: &mut Decoder,
    encoded: Encoded<'_>,
    seed: SampleSeed,
    out: &mut [u8],
    values: &'v [Option<ColumnValue<'_>>],
) -> std::result::Result<(Timing, Tracking<'v>), ImageError> {
    let (transform, output) = (&shared.options.transform, &shared.options.output);
    let mut tracking = Tracking::default();
    let timing = if shared.columns.as_ref().is_some_and(Columns::moves) {
        let boxes = values.iter().find_map(|value| match value {
            Some(ColumnValue::Boxes { boxes, .. }) => Some(boxes.as_slice()),
            _ => None,
        });
        tracking.boxes = Some(boxes.unwrap_or_default());
        transform.apply_tracked(decoder, encoded, seed, output, out, &mut tracking)?
    } else {
        transform.apply(decoder, encoded, seed, output, out)?
    };
    Ok((timing, tracking))
}
