//! Packs a directory and prints the throughput:
//! `cargo run --release -p forebay-pack --example pack_directory -- SRC DST [tfrecord|indexed|zstd] [JOBS] [cached]`

use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
use forebay_store::{Durability, Location};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [src, dst, rest @ ..] = args.as_slice() else {
        return Err("usage: pack_directory SRC DST [tfrecord|indexed|zstd] [JOBS] [cached]".into());
    };
    let mut options = PackOptions::new(Location::parse(src)?, Location::parse(dst)?);
    for arg in rest {
        match arg.to_str() {
            Some("tfrecord") => options.format = DatasetFormat::TfRecord,
            Some("indexed") => options.format = DatasetFormat::INDEXED,
            Some("zstd") => {
                options.format = DatasetFormat::Indexed(forebay_shard::Codec::ZSTD.into())
            }
            Some("cached") => options.durability = Durability::Cached,
            Some("unshuffled") => options.shuffle = forebay_pack::ShuffleWhen::Never,
            other => options.jobs = Some(other.unwrap_or_default().parse()?),
        }
    }
    let summary = pack(&options, &(), &Cancel::new())?;
    let seconds = summary.census_time.as_secs_f64() + summary.write_time.as_secs_f64();
    println!(
        "{} records, {:.1} MB in {seconds:.3} s (census {:.3} s): {:.0} MB/s",
        summary.records(),
        summary.image_bytes as f64 / 1e6,
        summary.census_time.as_secs_f64(),
        summary.image_bytes as f64 / 1e6 / seconds,
    );
    for ((action, reason), count) in &summary.findings {
        println!("{action:?} {reason:?}: {count}");
    }
    Ok(())
}
