//! `<split>/<class>/<file>`: directories at the top named train, val or test. `val` and `valid` become the split
//! `validation`, as TensorFlow names it.

use super::classes::units;
use super::{Arrangement, Layout, LayoutContext, SplitSource};
use crate::error::{Error, Result};
use crate::finding::escape;
use crate::images::Top;
use crate::key_path::split_name;
use forebay_shard::some_of;

#[derive(Debug)]
pub(super) struct Splits;

const EXAMPLE: &str = "\
SRC/                                          or an archive of it
  train/n01440764/n01440764_10026.JPEG
  val/n01440764/ILSVRC2012_val_00000293.JPEG
  test/ILSVRC2012_test_00000001.JPEG";

impl Layout for Splits {
    fn name(&self) -> &'static str {
        "splits"
    }

    fn summary(&self) -> &'static str {
        "a folder with splits"
    }

    fn example(&self) -> &'static str {
        EXAMPLE
    }

    fn labels_by_directories(&self) -> bool {
        true
    }

    /// A directory named like a split is one if it has directories itself; it may also be a class (of trains),
    /// so one that holds files only counts only where nothing but splits is beside it.
    fn recognizes(&self, top: &Top<'_>, _context: &LayoutContext<'_>) -> Result<bool> {
        let named: Vec<_> = top
            .dirs
            .iter()
            .filter(|dir| split_name(dir).is_some())
            .collect();
        if named.is_empty() {
            return Ok(false);
        }
        if named.len() == top.dirs.len() {
            return Ok(true);
        }
        for dir in named {
            if !top.below(dir)?.dirs.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn arrange(&self, top: &Top<'_>, context: &LayoutContext<'_>) -> Result<Arrangement> {
        let mut arrangement = Arrangement {
            findings: top.findings.clone(),
            ..Arrangement::default()
        };
        arrangement.findings.extend(top.outside_files());
        let (wanted, others) = find_splits(top, context.split, &mut arrangement)?;
        for (name, dir) in wanted {
            let below = top.below(dir)?;
            let units = context.units(units(&below, &mut arrangement));
            arrangement.splits.push(SplitSource {
                name: name.to_owned(),
                dir: below.relative,
                units,
            });
        }
        for dir in others {
            arrangement.class_dirs.extend(top.below(dir)?.dirs);
        }
        Ok(arrangement)
    }
}

/// A split's name and its directory.
type Named<'t> = (&'static str, &'t [u8]);

/// The directories that are splits: those that are wanted, in the order of their names, and the others.
pub(super) fn find_splits<'t>(
    top: &'t Top<'_>,
    split: Option<&str>,
    arrangement: &mut Arrangement,
) -> Result<(Vec<Named<'t>>, Vec<&'t [u8]>)> {
    let mut found: Vec<Named<'t>> = Vec::new();
    for dir in &top.dirs {
        let Some(name) = split_name(dir) else {
            continue;
        };
        if let Some((_, other)) = found.iter().find(|(known, _)| *known == name) {
            let what = format!(
                "both {}/ and {}/ would be the split {name}",
                escape(other),
                escape(dir)
            );
            return Err(Error::source(&top.path, what));
        }
        found.push((name, dir));
    }
    arrangement
        .findings
        .extend(top.outside_dirs(|dir| split_name(dir).is_some()));
    found.sort();
    let is_wanted =
        |(name, dir): &Named<'_>| split.is_none_or(|s| s == *name || s.as_bytes() == *dir);
    let (wanted, others): (Vec<_>, Vec<_>) = found.iter().copied().partition(is_wanted);
    if wanted.is_empty() {
        let names = found.iter().map(|(name, _)| *name);
        let what = match split {
            Some(asked) => format!("there is no split {asked}, only {}", some_of(names)),
            None => "there is no directory named train, val or test".into(),
        };
        return Err(Error::source(&top.path, what));
    }
    Ok((wanted, others.into_iter().map(|(_, dir)| dir).collect()))
}
