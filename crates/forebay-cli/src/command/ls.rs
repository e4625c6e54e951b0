//! `forebay ls`: lists a location, and summarizes a dataset there.

use std::convert::Infallible;
use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args as ClapArgs;
use forebay_shard::Manifest;
use forebay_shard::manifest::{self, FILE_NAME as MANIFEST};
use forebay_store::{Location, Object, ObjectOrTree, Store, for_each_parallel};
use serde_json::json;

use crate::console::Console;
use crate::failure::{Failure, Outcome};
use crate::paint::printable;
use crate::quantity;
use crate::store_args::StoreArgs;
use crate::table::{Align, Table};

/// List a directory, a bucket, or the splits of a dataset
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
A dataset is shown as a summary; -l and -r list its objects as well. Names that
end in / are prefixes.

Examples:
  forebay ls s3://bucket/datasets/
  forebay ls s3://bucket/datasets/imagenet
  forebay ls -l -r s3://bucket/datasets/imagenet
  forebay ls --json https://example.org/imagenet")]
pub(crate) struct Args {
    /// A directory, a bucket, a prefix, an object, a dataset
    #[arg(value_name = "LOCATION")]
    location: PathBuf,

    /// Sizes, times and checksums as well
    #[arg(short, long)]
    long: bool,

    /// Everything below, not only this level
    #[arg(short, long)]
    recursive: bool,

    #[command(flatten)]
    store: StoreArgs,
}

pub(crate) fn run(args: Args, console: &Console) -> Result<Outcome, Failure> {
    let location = Location::parse(&args.location)?;
    let source = ObjectOrTree::find(&location, &args.store.options())?;
    let store = source.store();
    let mut listed = Listed::default();
    if let Some(object) = source.object() {
        listed.objects.push(object.clone());
        print_objects(&listed, &args, console);
        return finish(&listed, None, console);
    }
    let manifest = match store.head(MANIFEST)? {
        Some(_) => {
            let name = store.location().join(MANIFEST).to_string();
            let json = store.get(MANIFEST, manifest::MAX_BYTES)?;
            Some(Manifest::parse(&PathBuf::from(name), &json)?)
        }
        None => None,
    };
    if let Some(manifest) = &manifest {
        print_dataset(manifest, &location, console);
    }
    if manifest.is_none() || args.long || args.recursive {
        if manifest.is_some() {
            console.blank();
        }
        let level = match args.recursive {
            true => store.list_all("")?,
            false => store.list_dir("")?,
        };
        (listed.dirs, listed.objects) = (level.dirs, level.objects);
        for left in level.left_out {
            let path = printable(&left.path);
            console.warning(format!("{path} is not listed: {}", left.why));
        }
        if manifest.is_none() && listed.dirs.is_empty() && listed.objects.is_empty() {
            return Err(nothing_there(store, &location));
        }
        if args.long {
            listed.ask_checksums(store);
        }
        print_objects(&listed, &args, console);
    }
    finish(&listed, manifest.as_ref(), console)
}

#[derive(Default)]
struct Listed {
    dirs: Vec<String>,
    objects: Vec<Object>,
}

impl Listed {
    /// Requests the checksums of the objects, which listings do not contain. Each takes a request, so lists of more than
    /// `ASK_MOST` objects get none.
    fn ask_checksums(&mut self, store: &Store) {
        const ASK_MOST: usize = 1000;
        const PARALLEL: usize = 16;
        if self.objects.len() > ASK_MOST || !store.location().is_remote() {
            return;
        }
        let Ok(()) = for_each_parallel(&mut self.objects, PARALLEL, |object| {
            // An object that was deleted in the meantime is printed as listed, without a checksum.
            if let Ok(Some(now)) = store.head(&object.key) {
                object.crc32c = now.crc32c;
            }
            Ok::<_, Infallible>(())
        });
    }
}

fn nothing_there(store: &Store, location: &Location) -> Failure {
    let shown = printable(&location.to_string());
    // An empty local directory exists, but a store has no empty prefixes.
    let is_dir = store
        .location()
        .local_path()
        .is_ok_and(|path| path.is_dir());
    if is_dir {
        Failure::new(format!("{shown} is empty"))
    } else {
        Failure::new(format!("there is nothing at {shown}")).hint(
            "check the bucket and the prefix; `forebay ls` of what is above it shows what is there",
        )
    }
}

fn print_dataset(manifest: &Manifest, location: &Location, console: &Console) {
    let records: u64 = manifest.splits.iter().map(|split| split.records).sum();
    let bytes: u64 = manifest.splits.iter().map(|split| split.bytes).sum();
    console.heading(format!(
        "{}: a dataset of {}, {}, {} shards",
        printable(&location.to_string()),
        quantity::counted(records, "record", "records"),
        quantity::bytes(bytes),
        manifest.shard_format.name(),
    ));
    let mut table = Table::new(&[
        ("split", Align::Left),
        ("records", Align::Right),
        ("shards", Align::Right),
        ("bytes", Align::Right),
    ]);
    for split in &manifest.splits {
        table.row([
            printable(&split.name),
            quantity::count(split.records),
            quantity::count(split.shards.len() as u64),
            quantity::bytes(split.bytes),
        ]);
    }
    console.table(&table);
    console.line(format!("  fingerprint {}", manifest.fingerprint));
    let splits = manifest.splits.iter().map(|split| {
        json!({
            "name": &split.name,
            "records": split.records,
            "shards": split.shards.len() as u64,
            "bytes": split.bytes,
        })
    });
    console.event(
        "dataset",
        &json!({
            "location": location.to_string(),
            "fingerprint": &manifest.fingerprint,
            "format": manifest.shard_format.name(),
            "classes": manifest.classes.len() as u64,
            "records": records,
            "bytes": bytes,
            "splits": splits.collect::<Vec<_>>(),
        }),
    );
}

fn print_objects(listed: &Listed, args: &Args, console: &Console) {
    let mut table = Table::new(&[
        ("", Align::Right),
        ("", Align::Left),
        ("", Align::Left),
        ("", Align::Left),
    ]);
    for dir in &listed.dirs {
        let name = format!("{}/", printable(dir));
        if args.long {
            table.row([String::new(), String::new(), String::new(), name]);
        } else {
            console.line(name);
        }
        console.event("prefix", &json!({"key": dir}));
    }
    for object in &listed.objects {
        let modified = object.modified.map(utc);
        let crc32c = object.crc32c.map(|crc| format!("{crc:08x}"));
        if args.long {
            table.row([
                quantity::count(object.len),
                modified.clone().unwrap_or_default(),
                crc32c.clone().unwrap_or_default(),
                printable(&object.key),
            ]);
        } else {
            console.line(printable(&object.key));
        }
        console.event(
            "object",
            &json!({
                "key": &object.key,
                "bytes": object.len,
                "modified": modified,
                "crc32c": crc32c,
                "etag": object.etag.as_deref(),
            }),
        );
    }
    if args.long {
        console.table(&table);
    }
}

fn finish(
    listed: &Listed,
    manifest: Option<&Manifest>,
    console: &Console,
) -> Result<Outcome, Failure> {
    console.event(
        "summary",
        &json!({
            "command": "ls",
            "exit_code": 0,
            "dataset": manifest.is_some(),
            "prefixes": listed.dirs.len() as u64,
            "objects": listed.objects.len() as u64,
            "bytes": listed.objects.iter().map(|object| object.len).sum::<u64>(),
        }),
    );
    Ok(Outcome::Done)
}

/// Formats a time in UTC as RFC 3339, with whole seconds.
fn utc(time: SystemTime) -> String {
    let seconds = match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => since.as_secs() as i64,
        Err(before) => -(before.duration().as_secs() as i64),
    };
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Converts days since 1970-01-01 into year, month and day of the Gregorian calendar. Years are counted from March 1, so that
/// the leap day is the last day of a year.
fn civil(days: i64) -> (i64, i64, i64) {
    const DAYS_OF_400_YEARS: i64 = 146_097;
    // 0000-03-01 is 719,468 days before 1970-01-01.
    let days = days + 719_468;
    let era = days.div_euclid(DAYS_OF_400_YEARS);
    let day_of_era = days.rem_euclid(DAYS_OF_400_YEARS);
    let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 {
        (month + 3, 0)
    } else {
        (month - 9, 1)
    };
    (era * 400 + year + later, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            assert_eq!(utc(time), expected);
        }
        let before = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(utc(before), "1969-12-31T23:59:59Z");
    }
}
