//! The ranges that `forebay cache` fetches, in storage order or in the order of a rank's epoch.

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Args as ClapArgs;
use forebay_loader::Options;
use forebay_loader::plan::{EpochPlan, PlanOptions};
use forebay_options::{TransformSpec, Transforms};
use forebay_shard::dataset::sidecar_path;
use forebay_shard::{Dataset, Shard, ShardFormat, Split};

use crate::command::loader_option_args::LoaderOptionArgs;
use crate::contents::named_split;
use crate::failure::Failure;
use crate::paint::printable;

/// Size of a piece in storage order, in bytes.
pub(super) const PIECE_BYTES: u64 = 16 << 20;
/// Bytes that a reader fetches from the end of an indexed shard before it knows the length of the index there.
const TAIL_BYTES: u64 = 64 << 10;

/// The training whose data is fetched.
#[derive(Debug, Clone, ClapArgs)]
#[command(next_help_heading = "Order")]
pub(super) struct PlanArgs {
    /// Fetch first what this epoch of a loader needs first, and only what its rank reads: seed, batch_size,
    /// rank, world_size, virtual_ranks and shuffle decide, as in -o seed=7 -o world_size=8
    #[arg(long, value_name = "N", requires = "split")]
    epoch: Option<u64>,

    #[command(flatten)]
    options: LoaderOptionArgs,
}

/// The loader options that determine which records a rank reads, and in which order.
const OF_ORDER: [&str; 6] = [
    "seed",
    "batch_size",
    "rank",
    "world_size",
    "virtual_ranks",
    "shuffle",
];

/// A byte range of a file to fetch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) path: PathBuf,
    pub(super) bytes: Range<u64>,
    /// Whether the file may be missing, as the index file of a TFRecord shard may. Its bytes are not counted.
    pub(super) optional: bool,
}

/// Returns the pieces of a dataset to fetch, in order.
pub(super) fn pieces(
    dataset: &Dataset,
    split: Option<&str>,
    plan: &PlanArgs,
    block_bytes: u64,
) -> Result<Vec<Piece>, Failure> {
    let split = split.map(|name| named_split(dataset, name)).transpose()?;
    if let Some(source) = &dataset.manifest().source {
        return Err(Failure::new(format!(
            "the dataset has mapped shards: its records are in {}",
            printable(&source.location)
        ))
        .hint("the cache fills while loaders read; `forebay convert` makes shards that can be cached before"));
    }
    match (plan.epoch, split) {
        (Some(epoch), Some(split)) => {
            planned(dataset, &dataset.split(split)?, epoch, plan, block_bytes)
        }
        _ if !plan.options.is_empty() => {
            Err(Failure::usage("-o is about an epoch, and there is none")
                .hint("name it: --epoch N"))
        }
        _ => Ok(stored(dataset, split)),
    }
}

/// Returns the shards of a split, or of all splits, in storage order. The index file of a shard comes before the shard.
fn stored(dataset: &Dataset, split: Option<&str>) -> Vec<Piece> {
    let splits = &dataset.manifest().splits;
    let meant = splits
        .iter()
        .filter(|entry| split.is_none_or(|name| entry.name == name));
    let mut pieces = Vec::new();
    for shard in meant.flat_map(|entry| &entry.shards) {
        // Only TFRecord shards have an index file; indexed shards contain their index.
        if dataset.manifest().shard_format == ShardFormat::TfRecord {
            pieces.push(sidecar(dataset, Path::new(&shard.name)));
        }
        let path = dataset.root().join(&shard.name);
        let mut start = 0;
        while start < shard.bytes {
            let end = shard.bytes.min(start + PIECE_BYTES);
            pieces.push(Piece {
                path: path.clone(),
                bytes: start..end,
                optional: false,
            });
            start = end;
        }
    }
    pieces
}

/// Returns the index file of a TFRecord shard as one piece.
fn sidecar(dataset: &Dataset, shard: &Path) -> Piece {
    let name = shard.file_name().unwrap_or_default().to_string_lossy();
    Piece {
        path: sidecar_path(dataset.root(), &name),
        bytes: 0..u64::MAX,
        optional: true,
    }
}

/// Returns the blocks that a rank reads in an epoch, in order of first use. The indexes of all shards come first, since opening
/// the split reads them.
fn planned(
    dataset: &Dataset,
    split: &Split,
    epoch: u64,
    args: &PlanArgs,
    block_bytes: u64,
) -> Result<Vec<Piece>, Failure> {
    let refused = |error: forebay_loader::Error| Failure::usage(error.to_string());
    let (records, mut bytes) = (split.len(), 0);
    for shard in split.shards() {
        let range = shard.byte_range(0..shard.len())?;
        bytes += range.end - range.start;
    }
    // A loader computes the same order from the same options. Options need a transform, which does not affect the order.
    let mut given = args.options.read(|name| OF_ORDER.contains(&name))?;
    given.transform = Some(Transforms::One(TransformSpec::new("keep_encoded")));
    given.shuffle.get_or_insert(true.into());
    given.drop_last = Some(false);
    let seed = given.seed.unwrap_or(0);
    let options = Options::from_schema(&given).map_err(refused)?;
    let options = options
        .resolve_within(records, bytes, split.block_records())
        .map_err(refused)?;
    let plan = EpochPlan::new(&PlanOptions {
        records,
        seed,
        epoch,
        virtual_ranks: options.virtual_ranks,
        shuffle: options.shuffle,
        run_records: 1,
    })
    .map_err(refused)?;

    let mut blocks = Blocks {
        block_bytes,
        pieces: Vec::new(),
        seen: HashSet::new(),
    };
    for (at, shard) in split.shards().iter().enumerate() {
        match dataset.manifest().shard_format {
            ShardFormat::Mapped => {}
            ShardFormat::TfRecord => blocks.pieces.push(sidecar(dataset, shard.path())),
            ShardFormat::Indexed => {
                let len = shard.file_len();
                blocks.add(at, shard, len.saturating_sub(TAIL_BYTES)..len);
            }
        }
    }
    let mut seen_runs = HashSet::new();
    let batches = options.batches(records).map_err(refused)?;
    let step = usize::try_from(batches.global_size()).unwrap_or(usize::MAX);
    let starts = (0..records).step_by(step);
    let positions = starts.flat_map(|start| batches.assignment().positions(epoch, start));
    for position in positions.filter(|&position| position < records) {
        let run = plan.run_at(position).records;
        if !seen_runs.insert(run.start) {
            continue;
        }
        let mut record = run.start;
        while record < run.end {
            let Some((at, first)) = split.locate(record) else {
                break;
            };
            let Some(shard) = split.shards().get(at) else {
                break;
            };
            let count = (run.end - record).min(shard.len() - first).max(1);
            blocks.add(at, shard, shard.byte_range(first..first + count)?);
            record += count;
        }
    }
    Ok(blocks.pieces)
}

/// Collects blocks of shards, and skips blocks that are in the list already.
struct Blocks {
    block_bytes: u64,
    pieces: Vec<Piece>,
    /// (Number of the shard in the split, number of the block in the shard).
    seen: HashSet<(usize, u64)>,
}

impl Blocks {
    fn add(&mut self, at: usize, shard: &Shard, bytes: Range<u64>) {
        let size = self.block_bytes;
        for block in bytes.start / size..bytes.end.div_ceil(size) {
            if self.seen.insert((at, block)) {
                let end = ((block + 1) * size).min(shard.file_len());
                self.pieces.push(Piece {
                    path: shard.path().to_owned(),
                    bytes: block * size..end,
                    optional: false,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use forebay_pack::{Cancel, PackOptions, Sharding};
    use std::collections::BTreeSet;

    #[derive(Parser)]
    struct Cli {
        #[arg(long)]
        split: Option<String>,
        #[command(flatten)]
        plan: PlanArgs,
    }

    fn plan(args: &[&str]) -> PlanArgs {
        let first = ["warm", "--split", "train", "-o", "seed=3"];
        let epoch = ["--epoch", "0"]
            .iter()
            .filter(|_| !args.contains(&"--epoch"));
        Cli::try_parse_from(first.iter().chain(epoch).chain(args))
            .unwrap()
            .plan
    }

    /// Packs the test images of the repository into three shards.
    fn packed(root: &Path, format: forebay_pack::DatasetFormat) -> Dataset {
        let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/images");
        let mut options = PackOptions::new(images, root);
        options.format = format;
        options.sharding = Sharding::Count(3);
        forebay_pack::pack(&options, &(), &Cancel::new()).unwrap();
        Dataset::open(root).unwrap()
    }

    fn places(pieces: &[Piece]) -> BTreeSet<(PathBuf, u64)> {
        let needed = pieces.iter().filter(|piece| !piece.optional);
        needed
            .map(|piece| (piece.path.clone(), piece.bytes.start))
            .collect()
    }

    #[test]
    fn a_rank_gets_its_blocks_in_the_order_of_its_epoch() {
        const BLOCK: u64 = 4096;
        let dir = tempfile::tempdir().unwrap();
        let dataset = packed(
            &dir.path().join("set"),
            forebay_pack::DatasetFormat::TfRecord,
        );
        let split = dataset.split("train").unwrap();
        let whole = pieces(&dataset, Some("train"), &plan(&[]), BLOCK).unwrap();
        let all: u64 = split.shards().iter().map(Shard::file_len).sum();
        let needed = whole.iter().filter(|piece| !piece.optional);
        assert_eq!(
            needed
                .clone()
                .map(|piece| piece.bytes.end - piece.bytes.start)
                .sum::<u64>(),
            all
        );
        // The first piece after the indexes holds the first record of the epoch.
        let order = EpochPlan::new(&PlanOptions {
            records: split.len(),
            seed: 3,
            epoch: 0,
            virtual_ranks: 64,
            shuffle: forebay_loader::Shuffle::blocks(1, 2),
            run_records: 1,
        })
        .unwrap();
        let (at, first) = split.locate(order.sample_at(0)).unwrap();
        let shard = &split.shards()[at];
        let start = shard.byte_range(first..first + 1).unwrap().start;
        let piece = needed.clone().next().unwrap();
        assert_eq!(
            (&*piece.path, piece.bytes.start),
            (shard.path(), start / BLOCK * BLOCK)
        );
        // The ranks together fetch all blocks, and each rank fetches only some of them.
        for world_size in [2, 3] {
            let mut all = BTreeSet::new();
            for rank in 0..world_size {
                let options = [format!("rank={rank}"), format!("world_size={world_size}")];
                let plan = plan(&["-o", &options[0], "-o", &options[1], "-o", "batch_size=3"]);
                let rank = places(&pieces(&dataset, Some("train"), &plan, BLOCK).unwrap());
                assert!(rank.len() < places(&whole).len());
                all.extend(rank);
            }
            assert_eq!(all, places(&whole));
        }
        let other = pieces(&dataset, Some("train"), &plan(&["--epoch", "1"]), BLOCK).unwrap();
        assert_eq!(places(&other), places(&whole));
        assert_ne!(other, whole);
        let wrong = plan(&["-o", "rank=2", "-o", "world_size=2"]);
        let error = pieces(&dataset, Some("train"), &wrong, BLOCK).unwrap_err();
        assert!(error.message().contains("rank"), "{error}");
    }

    #[test]
    fn indexes_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let dataset = packed(
            &dir.path().join("set"),
            forebay_pack::DatasetFormat::INDEXED,
        );
        let found = pieces(&dataset, Some("train"), &plan(&[]), 4096).unwrap();
        let (name, bytes) = (
            dataset.root().join("train-00000-of-00003.fbs"),
            &found[0].bytes,
        );
        assert_eq!(found[0].path, name);
        let len = std::fs::metadata(&name).unwrap().len();
        assert_eq!(bytes.start, len.saturating_sub(TAIL_BYTES) / 4096 * 4096);
        let stored = pieces(
            &dataset,
            None,
            &PlanArgs {
                epoch: None,
                options: LoaderOptionArgs::default(),
            },
            4096,
        )
        .unwrap();
        assert!(stored.len() > 3 && stored.iter().all(|piece| piece.bytes.start == 0));
    }
}
