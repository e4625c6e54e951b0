//! Which part of a pack a machine writes, where several share the work.

use super::MAX_SHARDS;
use std::fmt;
use std::str::FromStr;

/// Part `number` of `count`, numbered from 1. Shard *k* of the plan, counted from 0 through all splits, is written by part
/// `k mod count + 1`: parts are of about equal size, and each has its share of every split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    number: u32,
    count: u32,
}

impl Part {
    /// Part `number` of `count`; none unless `1 <= number <= count` and `count` has at most five digits.
    pub fn new(number: u32, count: u32) -> Option<Self> {
        (1..=count).contains(&number).then_some(())?;
        (count <= MAX_SHARDS).then_some(Self { number, count })
    }

    /// Its number, from 1.
    pub fn number(self) -> u32 {
        self.number
    }

    /// How many parts there are.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether it writes shard number `shard` of the plan, counted from 0 through all splits.
    pub fn takes(self, shard: usize) -> bool {
        shard % self.count as usize == self.number as usize - 1
    }

    /// The part, out of `count`, that writes a shard.
    pub(crate) fn of_shard(shard: usize, count: u32) -> Option<Self> {
        let number = u32::try_from(shard % usize::try_from(count.max(1)).ok()?).ok()? + 1;
        Self::new(number, count)
    }

    /// The name of its directory while the pack is unfinished.
    pub(crate) fn dir_name(self) -> String {
        format!("part-{:05}-of-{:05}", self.number, self.count)
    }

    /// The part that a directory belongs to.
    pub(crate) fn of_dir_name(name: &str) -> Option<Self> {
        let (number, count) = name.strip_prefix("part-")?.split_once("-of-")?;
        let part = Self::new(number.parse().ok()?, count.parse().ok()?)?;
        (part.dir_name() == name).then_some(part)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.count)
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(number, count)| {
            Some((number.trim().parse().ok()?, count.trim().parse().ok()?))
        });
        let Some((number, count)) = numbers else {
            return Err(format!("{text:?} is not I/N, such as 3/16"));
        };
        Self::new(number, count).ok_or_else(|| match number {
            0 => "parts are numbered from 1: add 1 to an index that begins at 0".to_owned(),
            _ if count > MAX_SHARDS => format!("there can be at most {MAX_SHARDS} parts"),
            _ => format!("there is no part {number} of {count}: parts are numbered 1 to {count}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_numbered_from_one() {
        assert_eq!("3/16".parse(), Ok(Part::new(3, 16).unwrap()));
        assert_eq!("3/16".parse::<Part>().unwrap().to_string(), "3/16");
        for wrong in [
            "", "3", "/", "a/b", "0/4", "5/4", "-1/4", "1/0", "1/100000", "1/4/2",
        ] {
            assert!(wrong.parse::<Part>().is_err(), "{wrong:?}");
        }
        assert!("0/4".parse::<Part>().unwrap_err().contains("add 1"));
    }

    #[test]
    fn every_shard_is_in_one_part() {
        for count in [1, 2, 3, 7, 20] {
            for shard in 0..19 {
                let parts = (1..=count).filter_map(|number| Part::new(number, count));
                let takers: Vec<_> = parts.filter(|part| part.takes(shard)).collect();
                assert_eq!(takers, [Part::of_shard(shard, count).unwrap()]);
            }
        }
    }

    #[test]
    fn directories_tell_their_part() {
        let part = Part::new(3, 16).unwrap();
        assert_eq!(Part::of_dir_name(&part.dir_name()), Some(part));
        for other in ["part-3-of-16", "part-00017-of-00016", "part-00003", "x"] {
            assert_eq!(Part::of_dir_name(other), None, "{other}");
        }
    }
}
