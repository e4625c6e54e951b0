//! Datasets read through a store have the same content as with a local reader.

use crate::packed;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_cache::{ReadError, ReadOptions, RemoteStorage, open_dataset, open_shard};
use forebay_shard::verify::{VerifyOptions, VerifyReport, verify_dataset, verify_dataset_in};
use forebay_shard::{Dataset, ShardFormat, Split, Storage};
use forebay_store::{Error, Location, Store, StoreOptions};
use packed::Recipe;

/// Opens a directory as a store.
fn storage(root: &Path, read_ahead_bytes: u64) -> Arc<RemoteStorage> {
    let location = Location::from(root);
    let store = Store::open(&location, &StoreOptions::default()).unwrap();
    let mut options = ReadOptions::default();
    options.read_ahead_bytes = read_ahead_bytes;
    Arc::new(RemoteStorage::new(store, &options))
}

fn open(root: &Path, storage: &Arc<RemoteStorage>) -> forebay_shard::Result<Split> {
    let storage = Arc::<RemoteStorage>::clone(storage);
    Dataset::options()
        .storage(storage)
        .open(root)?
        .split("train")
}

/// All records, keys and labels of a split.
fn contents(split: &Split) -> Vec<(Vec<u8>, Vec<u8>, Option<i64>)> {
    let mut all = Vec::new();
    for shard in split.shards() {
        let mut keys = Vec::new();
        shard
            .for_each_key(|_, key| keys.push(key.to_vec()))
            .unwrap();
        let mut scan = shard.scan(0..shard.len());
        while let Some(record) = scan.next_record().unwrap() {
            let i = record.info.index;
            let key = keys.get(i as usize).cloned().unwrap_or_default();
            all.push((record.bytes.to_vec(), key, shard.label(i)));
        }
    }
    let mut alone = Vec::new();
    for at in [0, 7, split.len() - 1] {
        split.read(at, &mut alone).unwrap();
        assert_eq!(alone, all[at as usize].0);
        assert_eq!(split.key(at).unwrap(), all[at as usize].1);
    }
    all
}

fn findings(report: &VerifyReport) -> (Vec<String>, u64, u64, u64, usize) {
    let findings = report.findings.iter().map(ToString::to_string).collect();
    let VerifyReport {
        shards,
        records,
        bytes,
        lost,
        ..
    } = report;
    (findings, *shards, *records, *bytes, lost.len())
}

fn recipes() -> Vec<Recipe> {
    let recipe = |format, sidecars| Recipe {
        format,
        sidecars,
        ..Recipe::default()
    };
    vec![
        recipe(ShardFormat::Indexed, false),
        recipe(ShardFormat::TfRecord, true),
        recipe(ShardFormat::TfRecord, false),
    ]
}

#[test]
fn a_store_and_a_directory_have_the_same_records() {
    for recipe in recipes() {
        let dir = tempfile::tempdir().unwrap();
        packed::write(dir.path(), &recipe);
        let local = Dataset::open(dir.path()).unwrap().split("train").unwrap();
        let expected = contents(&local);
        assert_eq!(expected.len() as u64, recipe.records);
        for read_ahead in [0, 1 << 20, 64 << 20] {
            let storage = storage(dir.path(), read_ahead);
            let split = open(dir.path(), &storage).unwrap();
            assert!(contents(&split) == expected, "{recipe:?} {read_ahead}");
        }
    }
}

#[test]
fn verify_finds_the_same_problems_in_a_store() {
    for recipe in recipes() {
        let dir = tempfile::tempdir().unwrap();
        packed::write(dir.path(), &recipe);
        let shard = dir.path().join(recipe.name(1));
        let whole = std::fs::read(&shard).unwrap();
        for round in 0..4 {
            match round {
                0 => {}
                1 => {
                    let mut bytes = whole.clone();
                    let middle = bytes.len() / 2;
                    bytes[middle] ^= 1;
                    std::fs::write(&shard, bytes).unwrap();
                }
                2 => std::fs::write(&shard, &whole[..whole.len() - 5]).unwrap(),
                _ => {
                    std::fs::write(&shard, &whole).unwrap();
                    std::fs::write(dir.path().join("train-00000-of-00099"), b"").unwrap();
                }
            }
            let options = VerifyOptions::default();
            let expected = verify_dataset(dir.path(), &options, &|_| {}).unwrap();
            assert_eq!(expected.is_ok(), round == 0);
            // A new storage, which has no metadata of the round before.
            let far = storage(dir.path(), 8 << 20);
            let found = verify_dataset_in(dir.path(), &*far, &options, &|_| {}).unwrap();
            assert_eq!(findings(&found), findings(&expected), "{recipe:?} {round}");
        }
    }
}

#[test]
fn a_shard_that_is_replaced_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = Recipe::default();
    packed::write(dir.path(), &recipe);
    let storage = storage(dir.path(), 0);
    let split = open(dir.path(), &storage).unwrap();
    let mut record = Vec::new();
    split.read(0, &mut record).unwrap();
    // Replaces the file by another one with the same bytes.
    let path = dir.path().join(recipe.name(0));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(dir.path().join("new"), bytes).unwrap();
    std::fs::rename(dir.path().join("new"), &path).unwrap();
    let error = split.read(0, &mut record).unwrap_err();
    assert!(
        matches!(ReadError::of(&error), Some(Error::Changed { .. })),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains(&recipe.name(0)) && text.contains("replaced"),
        "{text}"
    );
}

#[test]
fn errors_name_missing_objects() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = Recipe::default();
    let location = Location::from(dir.path());
    let options = ReadOptions::default();
    let error = open_dataset(&location, &options).unwrap_err().to_string();
    assert!(error.contains("forebay.json"), "{error}");
    let far = storage(dir.path(), 0);
    let error = open(dir.path(), &far).unwrap_err();
    assert!(
        matches!(ReadError::of(&error), Some(Error::NotFound { .. })),
        "{error}"
    );

    packed::write(dir.path(), &recipe);
    std::fs::remove_file(dir.path().join(recipe.name(2))).unwrap();
    let far = storage(dir.path(), 0);
    let error = open(dir.path(), &far).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(ReadError::of(&error), Some(Error::NotFound { .. })),
        "{text}"
    );
    assert!(text.contains(&recipe.name(2)), "{text}");
    assert_eq!(text.matches(&recipe.name(2)).count(), 1, "{text}");
}

#[test]
fn outside_paths_are_refused_and_locations_opened() {
    let dir = tempfile::tempdir().unwrap();
    let recipe = Recipe::default();
    packed::write(dir.path(), &recipe);
    let far = storage(dir.path(), 0);
    for path in ["/etc/passwd", "relative"] {
        let error = far.open(&PathBuf::from(path)).unwrap_err();
        assert!(error.to_string().contains("not below"), "{error}");
    }
    let location = Location::from(dir.path());
    let options = ReadOptions::default().for_loader();
    let dataset = open_dataset(&location, &options).unwrap();
    assert_eq!(dataset.split("train").unwrap().len(), recipe.records);
    let shard = open_shard(&location.join(&recipe.name(0)), &options).unwrap();
    assert_eq!(shard.len(), recipe.records / recipe.shards);
}
