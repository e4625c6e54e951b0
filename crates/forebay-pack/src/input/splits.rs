//! `<split>/<class>/<file>`: directories at the top named train, val or test. `val` and `valid` become the split
//! `validation`, as TensorFlow names it.

use super::classes::units;
use super::top::{finding, join};
use super::{Arrangement, Layout, LayoutKind, SplitSource, Top, split_name};
use crate::error::{Error, Result};
use crate::report::{Action, Reason, escape};

pub(super) struct Splits;

impl Layout for Splits {
    fn kind(&self) -> LayoutKind {
        LayoutKind::Splits
    }

    /// A directory named like a split is one if it has directories itself; it may also be a class (of trains),
    /// so one that holds files only counts only where nothing but splits is beside it.
    fn recognises(&self, top: &Top) -> Result<bool> {
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

    fn arrange(&self, top: &Top, split: Option<&str>) -> Result<Arrangement> {
        let mut arrangement = Arrangement {
            findings: top.findings.clone(),
            ..Arrangement::default()
        };
        arrangement.findings.extend(top.outside_files());
        let mut found: Vec<(&'static str, &[u8])> = Vec::new();
        for dir in &top.dirs {
            match split_name(dir) {
                Some(name) => {
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
                None => {
                    arrangement.findings.push(finding(
                        Action::Ignored,
                        Reason::Outside,
                        &join(&top.relative, dir),
                    ));
                }
            }
        }
        found.sort();
        let wanted =
            |(name, dir): &(&str, &[u8])| split.is_none_or(|s| s == *name || s.as_bytes() == *dir);
        if !found.iter().any(wanted) {
            let names: Vec<_> = found.iter().map(|(name, _)| *name).collect();
            let what = match split {
                Some(asked) => format!("there is no split {asked}, only {}", names.join(", ")),
                None => "there is no directory named train, val or test".into(),
            };
            return Err(Error::source(&top.path, what));
        }
        for item in &found {
            let (name, dir) = *item;
            let below = top.below(dir)?;
            if wanted(item) {
                let units = units(&below, &mut arrangement);
                arrangement.splits.push(SplitSource {
                    name: name.to_owned(),
                    dir: dir.to_vec(),
                    units,
                });
            } else {
                arrangement.class_dirs.extend(below.dirs);
            }
        }
        Ok(arrangement)
    }
}
