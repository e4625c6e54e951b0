//! Measures several trainers of one server: each with its own batches, and all with the same batches, which are decoded once.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_cli::frontend::ColdArgs;
use forebay_cli::frontend::quantity::parse_duration;
use forebay_client::{Client, ClientOptions, Stream, Transport};
use forebay_image::{TrainTransform, Transform};
use forebay_loader::Options;

use crate::cold::Evictor;
use crate::measure::{
    Alternative, BenchReport, Delivered, Measurement, Threads, median, quantile, side_by_side,
};
use crate::read::{dataset, footprint, split_of};
use crate::stream::{NAME, SIDE, bytes_read, serve};
use crate::{Error, Result};

/// Prefixes of the names of server threads, including decode threads.
const SERVER_THREADS: &[&str] = &["forebay-conn", "forebay-send", "forebay-accept", "fb-"];
/// Prefixes of the names of client threads, without the thread that takes batches.
const CLIENT_THREADS: &[&str] = &["forebay-receive"];

/// Options of [`sharing`].
#[derive(Debug, Args)]
pub struct SharingOptions {
    /// A dataset
    dataset: PathBuf,
    /// Split [default: the first]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Trainers
    #[arg(long, value_name = "N", default_value_t = 4)]
    trainers: usize,
    /// How long one takes for each batch, where one is slow
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1s")]
    slow: Duration,
    /// Samples a batch
    #[arg(long, value_name = "N", default_value_t = 64)]
    batch_size: u64,
    /// How batches come: shm, tcp, or auto for what trainers do by themselves
    #[arg(long, value_name = "NAME", default_value = "tcp")]
    transport: Transport,
    /// Duration of a run
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s")]
    duration: Duration,
    #[command(flatten)]
    cold: ColdArgs,
}

/// One trainer of a run.
#[derive(Clone, Copy)]
struct Trainer {
    seed: u64,
    /// Sleep after each batch.
    pause: Duration,
}

/// The result of a run of several trainers.
#[derive(Default)]
struct Took {
    /// Batches of trainers that do not pause.
    batches: u64,
    bytes: u64,
    /// Bytes that all trainers received, including the slow one.
    all_bytes: u64,
    seconds: f64,
    /// Times from requesting a batch until it arrived, in ms.
    waits: Vec<f64>,
    /// CPU seconds of the server and the clients.
    cpu: [f64; 2],
    /// Bytes that the server read.
    read: u64,
}

/// Measures the batches per second of each trainer that is not slow: alone; several with their own batches; several with the
/// same batches; and several with the same batches while one trainer is slow.
///
/// # Errors
/// The dataset cannot be read or decoded, or there are fewer than two trainers.
pub fn sharing(options: &SharingOptions, runs: usize) -> Result<BenchReport> {
    let root = &options.dataset;
    let count = options.trainers;
    if count < 2 {
        return Err(Error::from("two trainers or more can share"));
    }
    let dataset = dataset(root)?;
    let split = split_of(&dataset, root, options.split.as_deref())?;
    let (server, url) = serve(|server| Ok(server.add_dataset(NAME, &dataset)?))?;
    let quick = |seed| Trainer {
        seed,
        pause: Duration::ZERO,
    };
    let slow = Trainer {
        seed: 0,
        pause: options.slow,
    };
    let own = (0..count as u64).map(quick).collect();
    let same = vec![quick(0); count];
    let with_slow = (1..count).map(|_| quick(0)).chain([slow]).collect();
    let cases: [(String, Vec<Trainer>); 4] = [
        (format!("{count} trainers, each its own batches"), own),
        (format!("{count} trainers, the same batches"), same),
        (
            format!("the same, one takes {:?} a batch", options.slow),
            with_slow,
        ),
        ("one trainer alone".to_owned(), vec![quick(0)]),
    ];
    let took: RefCell<BTreeMap<usize, Vec<Took>>> = RefCell::default();
    let evictor = Evictor::buffered(options.cold.cold)?;
    // Bytes that the last run read.
    let read = &Cell::new(0);
    let files = footprint(&split);
    let alternatives = cases.iter().enumerate().map(|(number, (name, trainers))| {
        let (took, url, split) = (&took, &url, split.name());
        let run = move || {
            let run = trainers_at(url, split, trainers, options)?;
            let quick = trainers.iter().filter(|t| t.pause.is_zero()).count();
            let sample = Measurement {
                amount: run.batches as f64 / quick.max(1) as f64,
                seconds: run.seconds,
            };
            read.set(run.read);
            took.borrow_mut().entry(number).or_default().push(run);
            Ok(sample)
        };
        let one = Alternative::here(name.clone(), "batches/s", run);
        one.reading(files.clone(), evictor, |_| Delivered::local(read.get()))
    });
    let title = format!(
        "What each trainer gets that is not slow: RandomResizedCrop({SIDE}) batches of {} from {}",
        options.batch_size,
        root.display()
    );
    let mut report = side_by_side(title, runs, alternatives.collect())?;
    for (row, runs) in report.rows.iter_mut().zip(took.into_inner().into_values()) {
        // The first round does not count.
        let counted = &runs[1.min(runs.len() - 1)..];
        let waits: Vec<f64> = counted
            .iter()
            .flat_map(|run| run.waits.iter().copied())
            .collect();
        let [p50, p99] = [0.5, 0.99].map(|part| quantile(&waits, part));
        let each = |side: usize| {
            let of = |run: &Took| run.cpu[side] / (run.all_bytes as f64 / 1e9).max(1e-9);
            median(&counted.iter().map(of).collect::<Vec<_>>())
        };
        let (server, client) = (each(0), each(1));
        row.extra.insert("batch_ms_p50", p50);
        row.extra.insert("batch_ms_p99", p99);
        row.extra.insert("server_cpu_s_per_gb", server);
        row.extra.insert("client_cpu_s_per_gb", client);
        report.notes.push(format!(
            "{}: a batch after p50 {p50:.0} ms, p99 {p99:.0} ms; server {server:.2}, clients {client:.2} CPU seconds a GB",
            row.name
        ));
    }
    server.shutdown();
    Ok(report)
}

/// Lets trainers take batches until the time is up.
fn trainers_at(
    url: &str,
    split: &str,
    trainers: &[Trainer],
    options: &SharingOptions,
) -> Result<Took> {
    let mut streams = trainers
        .iter()
        .map(|trainer| open(url, split, trainer, options))
        .collect::<Result<Vec<Stream>>>()?;
    let before = cpu();
    let begin = Instant::now();
    let takes: Vec<Result<(Took, f64)>> = std::thread::scope(|scope| {
        let threads: Vec<_> = streams
            .iter_mut()
            .zip(trainers)
            .map(|(stream, trainer)| {
                scope.spawn(move || {
                    let took = take_until(stream, trainer, begin + options.duration)?;
                    // Returned here, because the CPU time of a thread is lost when it ends.
                    Ok((took, Threads::own_cpu_seconds()))
                })
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
            let panicked = |_| Err(Error::from("a trainer panicked"));
            thread.join().unwrap_or_else(panicked)
        };
        threads.into_iter().map(join).collect()
    });
    let after = cpu();
    let mut all = Took {
        seconds: begin
            .elapsed()
            .as_secs_f64()
            .min(options.duration.as_secs_f64()),
        cpu: [after[0] - before[0], after[1] - before[1]],
        ..Took::default()
    };
    // Trainers of the same batches share the reads for them.
    let each = streams.iter().map(bytes_read);
    let shares = trainers.windows(2).all(|pair| pair[0].seed == pair[1].seed);
    all.read = match shares {
        true => each.max().unwrap_or(0),
        false => each.sum(),
    };
    for (took, trainer) in takes.into_iter().zip(trainers) {
        let (took, cpu) = took?;
        all.cpu[1] += cpu;
        all.all_bytes += took.bytes;
        if trainer.pause.is_zero() {
            all.batches += took.batches;
            all.bytes += took.bytes;
            all.waits.extend(took.waits);
        }
    }
    Ok(all)
}

fn take_until(stream: &mut Stream, trainer: &Trainer, end: Instant) -> Result<Took> {
    let mut took = Took::default();
    loop {
        let asked = Instant::now();
        let batch = stream.next_batch()?;
        let now = Instant::now();
        // A batch that arrives after the end does not count.
        if now >= end {
            return Ok(took);
        }
        if let Some(batch) = batch {
            took.batches += 1;
            took.bytes += batch.payload.len() as u64;
            took.waits.push((now - asked).as_secs_f64() * 1e3);
        }
        if !trainer.pause.is_zero() {
            std::thread::sleep(trainer.pause.min(end - now));
        }
    }
}

/// Opens the stream of a trainer and takes its first batch.
fn open(url: &str, split: &str, trainer: &Trainer, bench: &SharingOptions) -> Result<Stream> {
    let mut options = Options::new(
        bench.batch_size,
        Transform::Train(TrainTransform::new(SIDE)),
    );
    options.seed = trainer.seed;
    options.drop_last = false;
    let client = ClientOptions {
        transport: bench.transport,
        ..ClientOptions::default()
    };
    let mut stream = Client::connect(url, client)?.open(options.to_schema().with_split(split))?;
    stream.next_batch()?;
    Ok(stream)
}

fn cpu() -> [f64; 2] {
    let threads = Threads::now();
    [
        threads.cpu_seconds(SERVER_THREADS),
        threads.cpu_seconds(CLIENT_THREADS),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cold::Cold;

    #[test]
    fn every_case_has_its_figures() {
        let mut options = SharingOptions {
            dataset: PathBuf::from("synthetic://imagenet?records=64&pictures=1"),
            split: None,
            trainers: 2,
            slow: Duration::from_millis(100),
            batch_size: 2,
            transport: Transport::Tcp,
            duration: Duration::from_millis(300),
            cold: ColdArgs { cold: Cold::Off },
        };
        let report = sharing(&options, 1).unwrap();
        assert_eq!(report.rows.len(), 4);
        for row in &report.rows {
            assert!(
                row.extra["batch_ms_p50"] <= row.extra["batch_ms_p99"],
                "{row:?}"
            );
            let cache = row.cache.as_ref().expect("caches matter");
            assert!(cache.cache.contains("no storage"), "{cache:?}");
        }
        options.trainers = 1;
        assert!(sharing(&options, 1).is_err());
    }
}
