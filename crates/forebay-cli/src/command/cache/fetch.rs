//! `forebay cache LOCATION`: fetches a dataset into the local cache before training starts.
//!
//! Several threads fetch pieces of files, in storage order or in the order in which a rank reads them in an epoch. Cached
//! pieces are skipped, so running the command again continues an interrupted fetch.

use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use clap::Args as ClapArgs;
use forebay_cache::{ReadOptions, RemoteStorage};
use forebay_shard::{Dataset, ShardFormat, Storage};
use forebay_store::{Location, for_each_parallel};
use serde_json::json;

use super::pieces::{PIECE_BYTES, Piece, PlanArgs, pieces};
use crate::cache_args::CacheArgs;
use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::quantity;
use crate::store_args::StoreArgs;

#[derive(Debug, ClapArgs)]
pub(super) struct FetchArgs {
    /// Split to fetch [default: all]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,

    /// Fetches at the same time
    #[arg(short, long, value_name = "N", default_value_t = 8)]
    jobs: usize,

    #[command(flatten)]
    plan: PlanArgs,

    #[command(flatten)]
    pub(super) cache: CacheArgs,

    #[command(flatten)]
    store: StoreArgs,
}

#[derive(Default)]
struct Progress {
    present: AtomicU64,
    fetched: AtomicU64,
    refused: AtomicU64,
}

impl Progress {
    fn done(&self) -> u64 {
        self.present.load(Ordering::Relaxed) + self.fetched.load(Ordering::Relaxed)
    }

    /// Fetches a piece into the cache, and adds its bytes to the totals.
    fn fill(&self, storage: &RemoteStorage, piece: &Piece) -> Result<(), Failure> {
        let path = piece.path.display();
        match storage.fill(&piece.path, piece.bytes.clone()) {
            Ok(Some(filled)) if !piece.optional => {
                for (sum, bytes) in [
                    (&self.present, filled.present_bytes),
                    (&self.fetched, filled.fetched_bytes),
                    (&self.refused, filled.refused_bytes),
                ] {
                    sum.fetch_add(bytes, Ordering::Relaxed);
                }
                Ok(())
            }
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(Failure::new(format!(
                "{path} cannot be cached: the store tells neither an ETag nor when it was changed"
            ))),
            Err(error) if piece.optional && error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(Failure::new(format!("cannot read {path}: {error}"))),
        }
    }
}

/// Returns an error for a dataset of mapped shards: this command fetches only the files of the manifest, but the records of
/// mapped shards are ranges of other files.
fn refuse_index(dataset: &Dataset, location: &Location) -> Result<(), Failure> {
    if dataset.manifest().shard_format != ShardFormat::Mapped {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{location} is an index: its records are in files of another tool, which are not read into a cache ahead"
    ))
    .hint("loaders keep what they read in their cache; `forebay convert` makes shards, which can be read ahead"))
}

pub(super) fn run(location: &str, args: &FetchArgs, console: &Console) -> Result<Outcome, Failure> {
    let location = Location::parse(location)?;
    if !location.is_remote() {
        return Err(Failure::usage(format!(
            "{location} is a local directory: it is read where it is"
        ))
        .hint("name a dataset in a store, such as s3://bucket/imagenet"));
    }
    let started = Instant::now();
    let cache = args.cache.open(console)?;
    let block_bytes = cache
        .as_ref()
        .map_or(PIECE_BYTES, |cache| cache.block_bytes());
    let mut options = ReadOptions::new(args.store.options_until(console)).with_cache(cache);
    options.read_ahead_bytes = 0;
    let storage = Arc::new(RemoteStorage::open(&location, &options)?);
    let seam: Arc<dyn Storage> = Arc::<RemoteStorage>::clone(&storage);
    let dataset = Dataset::options().storage(seam).open(storage.root())?;
    refuse_index(&dataset, &location)?;
    let pieces = pieces(&dataset, args.split.as_deref(), &args.plan, block_bytes)?;
    let total = pieces.iter().filter(|piece| !piece.optional);
    let total_bytes: u64 = total.map(|piece| piece.bytes.end - piece.bytes.start).sum();

    let interrupt = console.interrupt().answer();
    let progress = Progress::default();
    let bar = console.bar("fetching", Some(total_bytes));
    let told = Mutex::new(Instant::now());
    let filled = for_each_parallel(&pieces, args.jobs.max(1), |piece| {
        if interrupt.is_asked() {
            return Ok(());
        }
        progress.fill(&storage, piece)?;
        let done = progress.done();
        bar.update(done, done / PIECE_BYTES, "pieces", done);
        if let Ok(mut told) = told.try_lock()
            && told.elapsed() >= Console::EVENT_INTERVAL
        {
            *told = Instant::now();
            console.event(
                "progress",
                &json!({
                    "present_bytes": progress.present.load(Ordering::Relaxed),
                    "fetched_bytes": progress.fetched.load(Ordering::Relaxed),
                    "total_bytes": total_bytes,
                }),
            );
        }
        Ok(())
    });
    drop(bar);
    let [present, fetched, refused] =
        [progress.present, progress.fetched, progress.refused].map(AtomicU64::into_inner);
    if interrupt.is_asked() {
        return Err(Failure::interrupted(format!(
            "{} of {} are in the cache",
            quantity::bytes(present + fetched),
            quantity::bytes(total_bytes)
        ))
        .hint("the same command continues from there"));
    }
    filled
        .map_err(|failure: Failure| failure.hint("the same command continues where it stopped"))?;
    let elapsed = started.elapsed();
    console.line(format!(
        "{location}: {} in the cache, {} fetched in {}, {}",
        quantity::bytes(present + fetched),
        quantity::bytes(fetched),
        quantity::duration(elapsed),
        quantity::byte_rate(fetched, elapsed),
    ));
    if refused > 0 {
        console.note(format!(
            "{} have no room and will be read from the store; give --cache-bytes more to keep them",
            quantity::bytes(refused)
        ));
    }
    console.event(
        "summary",
        &json!({
            "command": "cache",
            "exit_code": 0,
            "location": location.to_string(),
            "present_bytes": present,
            "fetched_bytes": fetched,
            "refused_bytes": refused,
            "total_bytes": total_bytes,
            "seconds": elapsed.as_secs_f64(),
        }),
    );
    Ok(Outcome::Done)
}
