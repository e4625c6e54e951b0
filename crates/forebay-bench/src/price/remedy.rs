//! The table of remedies: where they apply, what they change, and the gain.

use serde::Serialize;

use super::model::{Cores, Gain, StageTimes};
use super::sample::{Storing, StoringCost};

/// Measured times by round, and properties of the source.
#[derive(Debug, Clone)]
pub struct Situation {
    /// Times per image, by round.
    pub rounds: Vec<StageTimes>,
    /// Seconds per image from memory, by round; empty if this was not measured.
    pub memory_s: Vec<f64>,
    /// Cores of the machines that decode.
    pub cores: Cores,
    /// Bytes read per image.
    pub image_bytes: f64,
    /// Whether the source is read over a network.
    pub is_remote: bool,
    /// Costs of ways to store the images; the present way is the first.
    pub ways: Vec<StoringCost>,
    /// Images per second that were measured, by round.
    pub rates: Vec<f64>,
}

/// The predicted gain of a remedy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Price {
    /// The remedy.
    pub remedy: String,
    /// How to apply it, such as a command.
    pub how: String,
    /// Images per second with the remedy, divided by those without.
    #[serde(flatten)]
    pub gain: Gain,
    /// Images per second with the remedy.
    pub images_per_s: f64,
    /// The resource that limits with the remedy.
    pub then: &'static str,
    /// Bytes of the dataset with the remedy, divided by those without.
    pub bytes: f64,
}

/// Smaller gains are not listed.
pub(super) const WORTH: f64 = 1.02;

type Change = [(StageTimes, Cores); 2];

/// A remedy, and the times before and after it for each round; no rounds if it does not apply.
struct Remedy {
    name: &'static str,
    how: &'static str,
    rounds: fn(&Situation) -> Vec<Change>,
    storing: Option<Storing>,
}

const fn stored(name: &'static str, how: &'static str, storing: Storing) -> Remedy {
    Remedy {
        name,
        how,
        rounds: |_| Vec::new(),
        storing: Some(storing),
    }
}

const REMEDIES: &[Remedy] = &[
    Remedy {
        name: "a decode thread for each core",
        how: "leave threads at 0",
        rounds: |situation| {
            let Cores { cores, threads } = situation.cores;
            let with = Cores {
                cores,
                threads: cores,
            };
            situation.with_cores((threads < cores).then_some(with))
        },
        storing: None,
    },
    Remedy {
        name: "one more machine of this kind that decodes",
        how: "forebay serve, and forebay://A:7070,B:7070/NAME",
        rounds: |situation| {
            let Cores { cores, threads } = situation.cores;
            let with = Cores {
                cores: 2.0 * cores,
                threads: 2.0 * threads,
            };
            situation.with_cores(Some(with))
        },
        storing: None,
    },
    Remedy {
        name: "storage as fast as the page cache",
        how: "more memory, or a faster disk",
        rounds: |situation| match situation.is_remote {
            true => Vec::new(),
            false => situation.with_storage(&situation.memory_s),
        },
        storing: None,
    },
    Remedy {
        name: "a local cache, from the second epoch on",
        how: "cache_dir=, or --cache-dir",
        rounds: |situation| match situation.is_remote {
            true => situation.with_storage(&situation.memory_s),
            false => Vec::new(),
        },
        storing: None,
    },
    stored(
        "seek points (later epochs learn them)",
        "forebay convert --seek-points auto",
        Storing::SeekPoints,
    ),
    stored(
        "fast images",
        "forebay convert --format indexed --images fast",
        Storing::Fast,
    ),
    stored(
        "fast images without codes",
        "forebay convert --format indexed --images fast-raw",
        Storing::FastRaw,
    ),
    stored(
        "images with short sides of 256 pixels, which are other pixels",
        "forebay pack --resize-short 256 --quality 90",
        Storing::Smaller,
    ),
];

impl Situation {
    fn with_cores(&self, cores: Option<Cores>) -> Vec<Change> {
        let Some(cores) = cores else {
            return Vec::new();
        };
        let rounds = self.rounds.iter();
        rounds
            .map(|&times| [(times, self.cores), (times, cores)])
            .collect()
    }

    fn with_storage(&self, storage_s: &[f64]) -> Vec<Change> {
        let rounds = self.rounds.iter().zip(storage_s);
        let change = |(&times, &storage_s): (&StageTimes, &f64)| {
            // A cache is in front of the storage, and never slower than the storage.
            let with = StageTimes {
                storage_s: storage_s.min(times.storage_s),
                ..times
            };
            [(times, self.cores), (with, self.cores)]
        };
        rounds.map(change).collect()
    }

    /// Returns all combinations of rounds of stages and rounds of images, which were not measured together.
    fn with_way(&self, way: &StoringCost) -> Vec<Change> {
        let Some(stored) = self.ways.first() else {
            return Vec::new();
        };
        let bytes = self.bytes_with(way);
        let mut changes = Vec::new();
        for &times in &self.rounds {
            for (with, without) in way.seconds.iter().zip(&stored.seconds) {
                let factor = with / without.max(f64::MIN_POSITIVE);
                let with = StageTimes {
                    storage_s: times.storage_s * bytes,
                    fetch_cpu_s: times.fetch_cpu_s * bytes,
                    decode_cpu_s: times.decode_cpu_s * factor,
                    transform_cpu_s: times.transform_cpu_s * factor,
                    ..times
                };
                changes.push([(times, self.cores), (with, self.cores)]);
            }
        }
        changes
    }

    /// Returns the bytes read with a way to store the images, divided by those without.
    fn bytes_with(&self, way: &StoringCost) -> f64 {
        // Labels, keys and frames stay the same; only the image changes. Both sizes are of the same sample, whose images may be
        // larger or smaller than those of the dataset.
        let all = |way: &StoringCost| way.bytes + way.rest;
        self.ways
            .first()
            .map_or(1.0, |stored| all(way) / all(stored).max(f64::MIN_POSITIVE))
    }

    fn price(&self, remedy: &Remedy) -> Option<Price> {
        let way = match remedy.storing {
            Some(storing) => Some(self.ways.iter().find(|way| way.storing == storing)?),
            None => None,
        };
        let rounds = match way {
            Some(way) => self.with_way(way),
            None => (remedy.rounds)(self),
        };
        let [_, (times, cores)] = *rounds.get(rounds.len() / 2)?;
        let gain = Gain::predict(&rounds).with_spread(&self.rates);
        Some(Price {
            remedy: remedy.name.to_owned(),
            how: remedy.how.to_owned(),
            images_per_s: crate::measure::median(&self.rates) * gain.gain,
            gain,
            then: times.limit(cores).name(),
            bytes: way.map_or(1.0, |way| self.bytes_with(way)),
        })
    }
}

/// Returns the name of the remedy that stores images in this way, and its command.
pub(super) fn of_storing(storing: Storing) -> Option<(&'static str, &'static str)> {
    let mut remedies = REMEDIES.iter();
    let found = remedies.find(|remedy| remedy.storing == Some(storing))?;
    Some((found.name, found.how))
}

/// Predicts the gains of all remedies that apply and gain enough, the largest first.
#[must_use]
pub fn prices(situation: &Situation) -> Vec<Price> {
    let mut prices: Vec<Price> = REMEDIES
        .iter()
        .filter_map(|remedy| situation.price(remedy))
        .filter(|price| price.gain.gain >= WORTH)
        .collect();
    prices.sort_by(|a, b| b.gain.gain.total_cmp(&a.gain.gain));
    prices
}

impl Price {
    /// Returns the sentence for a report.
    #[must_use]
    pub fn sentence(&self) -> String {
        let Gain {
            gain,
            lowest,
            highest,
        } = self.gain;
        let bytes = match (self.bytes - 1.0) * 100.0 {
            more if more >= 0.5 => format!(", {more:.0} % more bytes"),
            less if less <= -0.5 => format!(", {:.0} % fewer bytes", -less),
            _ => String::new(),
        };
        format!(
            "{}: {gain:.2}x ({lowest:.2}x to {highest:.2}x), {:.0} images/s{bytes}; then {} limits ({})",
            self.remedy, self.images_per_s, self.then, self.how
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(storing: Storing, seconds: f64, bytes: f64) -> StoringCost {
        StoringCost {
            storing,
            seconds: vec![seconds; 2],
            decode_seconds: vec![0.7 * seconds; 2],
            bytes,
            rest: 2000.0,
        }
    }

    /// Returns a situation with 8 ms of decoding per image of 100 kB, 4 cores, and a disk with 2,000 images/s.
    fn situation(threads: f64) -> Situation {
        let times = StageTimes {
            storage_s: 0.0005,
            fetch_cpu_s: 0.0001,
            decode_cpu_s: 0.006,
            transform_cpu_s: 0.002,
            ..StageTimes::default()
        };
        Situation {
            rounds: vec![times; 2],
            memory_s: vec![0.0001; 2],
            cores: Cores {
                cores: 4.0,
                threads,
            },
            image_bytes: 100_000.0,
            is_remote: false,
            ways: vec![
                way(Storing::AsStored, 0.008, 98_000.0),
                way(Storing::Fast, 0.004, 107_800.0),
            ],
            rates: vec![480.0; 2],
        }
    }

    fn named<'a>(prices: &'a [Price], part: &str) -> Option<&'a Price> {
        prices.iter().find(|price| price.remedy.contains(part))
    }

    #[test]
    fn only_remedies_that_apply_have_a_price() {
        let decoding = prices(&situation(4.0));
        assert!(named(&decoding, "thread for each core").is_none());
        assert!(
            named(&decoding, "page cache").is_none(),
            "storage does not limit"
        );
        assert!(named(&decoding, "seek points").is_none(), "not measured");
        let machine = named(&decoding, "machine").unwrap();
        assert!((machine.gain.gain - 2.0).abs() < 1e-9);
        let fast = named(&decoding, "fast images").unwrap();
        // 8.1 ms on 4 cores become 4.1 ms, with 2 us more for the additional bytes.
        assert!((fast.bytes - 1.098).abs() < 1e-9);
        assert!(
            (fast.gain.gain - 8.1 / (4.0 + 0.1 * 1.098)).abs() < 1e-9,
            "{fast:?}"
        );
        assert!(
            fast.sentence().starts_with("fast images: 1.97x (")
                && fast.sentence().contains("10 % more bytes"),
            "{}",
            fast.sentence()
        );
        let few = prices(&situation(1.0));
        let threads = named(&few, "thread for each core").unwrap();
        assert!((threads.gain.gain - 0.008 / (0.0081 / 4.0)).abs() < 1e-9);
        assert_eq!(threads.then, "decoding");
    }

    #[test]
    fn slow_storage_gains_from_a_cache_until_decoding_limits() {
        let mut slow = situation(4.0);
        for times in &mut slow.rounds {
            times.storage_s = 0.01;
        }
        let disk = prices(&slow);
        let faster = named(&disk, "page cache").unwrap();
        assert!((faster.gain.gain - 0.01 / (0.0081 / 4.0)).abs() < 1e-9);
        assert_eq!(faster.then, "decoding");
        assert!(named(&disk, "machine").is_none(), "cores do not limit");
        // Larger images slow down a slow storage.
        assert!(named(&disk, "fast images").is_none());
        slow.is_remote = true;
        let remote = prices(&slow);
        assert!(named(&remote, "local cache").is_some() && named(&remote, "page cache").is_none());
        assert_eq!(remote[0].remedy, "a local cache, from the second epoch on");
    }
}
