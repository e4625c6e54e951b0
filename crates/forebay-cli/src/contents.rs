//! Opens what the user named: the shards of a dataset by split, or a single shard.

use std::path::{Path, PathBuf};

use forebay_shard::example::RecordFeatures;
use forebay_shard::{Dataset, Shard, find_split};
use forebay_store::StoreOptions;

use crate::failure::{Failure, counted_choices};
use crate::input::{Input, Kind, show};

/// An open dataset or shard.
pub(crate) enum Contents {
    Dataset(Dataset),
    Shard(Shard),
}

/// The name of a split, if there are splits, and its shards.
pub(crate) type SplitShards = (Option<String>, Vec<Shard>);

/// The location of a record.
pub(crate) struct Located {
    pub(crate) split: Option<String>,
    pub(crate) shard: Shard,
    /// Number in the split, or in the shard if only a shard was named.
    pub(crate) index: u64,
    /// Number in the shard.
    pub(crate) record: u64,
}

impl Contents {
    pub(crate) fn open(path: &Path, store: &StoreOptions) -> Result<Self, Failure> {
        let input = Input::recognise(path, store)?;
        Ok(match input.kind() {
            Kind::Dataset => Self::Dataset(input.open_dataset()?),
            Kind::Shard => Self::Shard(input.open_shard()?),
        })
    }

    /// Returns its location.
    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Dataset(dataset) => dataset.root().to_owned(),
            Self::Shard(shard) => shard.path().to_owned(),
        }
    }

    /// Returns the features that hold image and label; for a single shard, those that `forebay pack` writes.
    pub(crate) fn record_features(&self) -> &RecordFeatures {
        match self {
            Self::Dataset(dataset) => &dataset.manifest().record_features,
            Self::Shard(_) => RecordFeatures::standard(),
        }
    }

    /// Returns the title of a label's class; the label is as it is stored.
    pub(crate) fn class_title(&self, label: i64) -> String {
        match self {
            Self::Dataset(dataset) => class_title(dataset, label - dataset.manifest().label_base),
            Self::Shard(_) => format!("label {label}"),
        }
    }

    /// Opens all shards, grouped by the name of their split.
    pub(crate) fn shards(&self) -> Result<Vec<SplitShards>, Failure> {
        match self {
            Self::Shard(shard) => Ok(vec![(None, vec![shard.clone()])]),
            Self::Dataset(dataset) => dataset
                .splits()
                .map(|name| {
                    let split = dataset.split(name)?;
                    Ok((Some(name.to_owned()), split.shards().to_vec()))
                })
                .collect(),
        }
    }

    /// Opens the shards of one split, or of all if none is named; `is_one` asks for one.
    pub(crate) fn shards_of(
        &self,
        split: Option<&str>,
        is_one: bool,
    ) -> Result<Vec<SplitShards>, Failure> {
        match self {
            Self::Dataset(dataset) if is_one || split.is_some() => {
                let split = self.choose_split(dataset, split)?;
                Ok(vec![(
                    Some(split.name().to_owned()),
                    split.shards().to_vec(),
                )])
            }
            _ => self.no_split(split).and_then(|()| self.shards()),
        }
    }

    /// Returns the stored label of a class, given by its name, its title or the label itself, which is all that a shard has.
    pub(crate) fn class_label(&self, name: &str) -> Result<i64, Failure> {
        let (classes, first) = match self {
            Self::Dataset(dataset) => (
                &dataset.manifest().classes[..],
                dataset.manifest().label_base,
            ),
            Self::Shard(_) => (&[] as &[_], 0),
        };
        let mut all = classes.iter();
        let at = all.position(|class| class.name == name || class.title() == name);
        let last = first + classes.len() as i64;
        let is_known = |label: &i64| classes.is_empty() || (first..last).contains(label);
        let label = at.map(|at| first + at as i64);
        let label = label.or_else(|| name.parse().ok().filter(is_known));
        label.ok_or_else(|| {
            let names: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
            Failure::new(format!(
                "{} has no class {name:?}: it has {}",
                show(&self.path()),
                counted_choices(&names)
            ))
        })
    }

    /// Finds a record by its number in the split.
    pub(crate) fn by_index(&self, split: Option<&str>, index: u64) -> Result<Located, Failure> {
        match self {
            Self::Shard(shard) => {
                self.no_split(split)?;
                if index >= shard.len() {
                    return Err(beyond(&show(shard.path()), index, shard.len()));
                }
                Ok(Located {
                    split: None,
                    shard: shard.clone(),
                    index,
                    record: index,
                })
            }
            Self::Dataset(dataset) => {
                let split = self.choose_split(dataset, split)?;
                let (shard, record) = split.locate(index).ok_or_else(|| {
                    beyond(&format!("split {}", split.name()), index, split.len())
                })?;
                Ok(Located {
                    split: Some(split.name().to_owned()),
                    shard: split.shards()[shard].clone(),
                    index,
                    record,
                })
            }
        }
    }

    /// Finds a record by its key, in all splits unless one is named.
    pub(crate) fn by_key(&self, split: Option<&str>, key: &[u8]) -> Result<Located, Failure> {
        match self {
            Self::Shard(shard) => {
                self.no_split(split)?;
                let record = shard.find_key(key)?;
                let record = record.ok_or_else(|| self.no_key(key, shard.index().has_keys()))?;
                Ok(Located {
                    split: None,
                    shard: shard.clone(),
                    index: record,
                    record,
                })
            }
            Self::Dataset(dataset) => {
                let names: Vec<String> = match split {
                    Some(_) => vec![self.choose_split(dataset, split)?.name().to_owned()],
                    None => dataset.splits().map(str::to_owned).collect(),
                };
                let mut has_keys = false;
                for name in names {
                    let split = dataset.split(&name)?;
                    has_keys |= split.shards().iter().any(|shard| shard.index().has_keys());
                    let found = split.find_key(key)?;
                    if let Some((index, (shard, record))) =
                        found.and_then(|index| Some((index, split.locate(index)?)))
                    {
                        return Ok(Located {
                            split: Some(name),
                            shard: split.shards()[shard].clone(),
                            index,
                            record,
                        });
                    }
                }
                Err(self.no_key(key, has_keys))
            }
        }
    }

    fn choose_split(
        &self,
        dataset: &Dataset,
        name: Option<&str>,
    ) -> Result<forebay_shard::Split, Failure> {
        let names: Vec<&str> = dataset.splits().collect();
        let name = match (name, names.as_slice()) {
            (Some(name), _) => named_split(dataset, name)?,
            (None, [only]) => only,
            (None, []) => {
                return Err(Failure::new(format!(
                    "{} has no records",
                    show(dataset.root())
                )));
            }
            (None, _) => {
                return Err(Failure::usage(format!(
                    "{} has several splits: {}",
                    show(dataset.root()),
                    counted_choices(&names)
                ))
                .hint(format!("choose one with --split {}", names[0])));
            }
        };
        Ok(dataset.split(name)?)
    }

    fn no_split(&self, split: Option<&str>) -> Result<(), Failure> {
        match split {
            None => Ok(()),
            Some(_) => Err(Failure::usage(format!(
                "{} is a single shard: --split goes with a dataset",
                show(&self.path())
            ))),
        }
    }

    fn no_key(&self, key: &[u8], has_keys: bool) -> Failure {
        let key = crate::paint::printable_bytes(key);
        let failure = Failure::new(format!(
            "{} has no record with the key {key}",
            show(&self.path())
        ));
        if has_keys {
            failure.hint("a key is the path below its split's directory, such as class/file.jpg")
        } else {
            failure.hint("its index knows no keys: name the record by its number")
        }
    }
}

/// Returns the name of a split of this name.
pub(crate) fn named_split<'a>(dataset: &'a Dataset, name: &str) -> Result<&'a str, Failure> {
    find_split(name, dataset.splits()).ok_or_else(|| {
        let names: Vec<&str> = dataset.splits().collect();
        Failure::usage(format!(
            "{} has no split {name:?}: it has {}",
            show(dataset.root()),
            counted_choices(&names)
        ))
    })
}

/// Returns the title of a label's class; the label counts from 0.
pub(crate) fn class_title(dataset: &Dataset, label: i64) -> String {
    let classes = &dataset.manifest().classes;
    let class = usize::try_from(label).ok().and_then(|at| classes.get(at));
    class.map_or_else(
        || format!("label {label}"),
        |class| class.title().to_owned(),
    )
}

fn beyond(place: &str, index: u64, records: u64) -> Failure {
    let failure = Failure::new(format!("{place} has no record {index}: it has {records}"));
    match records.checked_sub(1) {
        Some(last) => failure.hint(format!("records are numbered from 0 to {last}")),
        None => failure,
    }
}
