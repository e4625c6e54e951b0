//! The model behind predicted gains: concurrent stages, each limited by one resource.
//!
//! A pipeline with queues between its stages runs at the rate of its slowest resource (asymptotic bounds of operational
//! analysis). An image takes time of the storage, of the cores and of the consumer, and the longest of these times is the time
//! per image. A remedy changes one of them. Its gain is the ratio of the longest times before and after, so it ends where the
//! next resource limits.
//!
//! Reasons, and comparisons with runs: `docs/internals/decisions/0251-price-of-remedies.md`.

/// Seconds that one image needs of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct StageTimes {
    /// Seconds of the storage, with the loader's number of concurrent reads.
    pub storage_s: f64,
    /// CPU seconds for reading, checksums and assembling batches.
    pub fetch_cpu_s: f64,
    /// CPU seconds for decoding.
    pub decode_cpu_s: f64,
    /// CPU seconds for resizing and everything after it.
    pub transform_cpu_s: f64,
    /// CPU seconds for transferring a batch to another process.
    pub handover_cpu_s: f64,
    /// Seconds of the consumer.
    pub consumer_s: f64,
}

/// The cores that stages share.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Cores {
    /// Number of cores of all machines that decode.
    pub cores: f64,
    /// Number of decode threads.
    pub threads: f64,
}

/// The resource that limits a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitingResource {
    /// The storage.
    Storage,
    /// The cores, or the decode threads.
    Cores,
    /// The consumer.
    Consumer,
}

impl LimitingResource {
    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            LimitingResource::Storage => "storage",
            LimitingResource::Cores => "decoding",
            LimitingResource::Consumer => "the consumer",
        }
    }
}

/// Resources with nearly equal times wait for each other, because queues are short and times vary. With this exponent, two
/// equal resources give 8 % less than one of them alone.
const EXPONENT: f64 = 8.0;
/// Minimum relative error of a prediction in each direction.
const LEAST_ERROR: f64 = 0.05;
/// Busy cores share caches and memory bandwidth, which reduces the lower bound by this fraction.
const SHARED_CORES: f64 = 0.15;
/// CPU time per image may be higher by this fraction on cores that mostly wait, whose caches others have filled, than on busy
/// ones.
const IDLE_CORES: f64 = 0.2;

impl StageTimes {
    /// Returns the seconds per image of each resource.
    fn resources(&self, cores: Cores) -> [(LimitingResource, f64); 3] {
        let decode = self.decode_cpu_s + self.transform_cpu_s;
        let all = self.fetch_cpu_s + decode + self.handover_cpu_s;
        let of_threads = decode / cores.threads.min(cores.cores).max(f64::MIN_POSITIVE);
        let of_cores = all / cores.cores.max(f64::MIN_POSITIVE);
        [
            (LimitingResource::Storage, self.storage_s),
            (LimitingResource::Cores, of_threads.max(of_cores)),
            (LimitingResource::Consumer, self.consumer_s),
        ]
    }

    /// Returns the resource with the longest time.
    #[must_use]
    pub fn limit(&self, cores: Cores) -> LimitingResource {
        let longest = self.resources(cores).into_iter();
        let longest = longest.max_by(|a, b| a.1.total_cmp(&b.1));
        longest.map_or(LimitingResource::Cores, |(resource, _)| resource)
    }

    /// Returns the images per second: the rate of the slowest resource.
    #[must_use]
    pub fn images_per_s(&self, cores: Cores) -> f64 {
        let longest = self.resources(cores).map(|(_, seconds)| seconds);
        1.0 / longest.into_iter().fold(f64::MIN_POSITIVE, f64::max)
    }

    /// Returns the images per second if resources with nearly equal times wait for each other.
    fn images_per_s_with_waits(&self, cores: Cores) -> f64 {
        let powers = self.resources(cores).map(|(_, s)| s.powf(EXPONENT));
        1.0 / powers
            .iter()
            .sum::<f64>()
            .powf(1.0 / EXPONENT)
            .max(f64::MIN_POSITIVE)
    }
}

/// A predicted ratio of two rates.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Gain {
    /// Median of the ratio.
    pub gain: f64,
    /// Lower end of the interval.
    pub lowest: f64,
    /// Upper end of the interval.
    pub highest: f64,
}

impl Gain {
    /// Predicts the gain of a change from several rounds of measurements, each with times and cores before and after.
    #[must_use]
    pub fn predict(rounds: &[[(StageTimes, Cores); 2]]) -> Gain {
        let ratio = |rate: fn(&StageTimes, Cores) -> f64| {
            move |[(before, of), (after, with)]: &[(StageTimes, Cores); 2]| {
                rate(after, *with) / rate(before, *of).max(f64::MIN_POSITIVE)
            }
        };
        let sharp: Vec<f64> = rounds.iter().map(ratio(StageTimes::images_per_s)).collect();
        let smooth = rounds
            .iter()
            .map(ratio(StageTimes::images_per_s_with_waits));
        let all: Vec<f64> = sharp.iter().copied().chain(smooth).collect();
        let fold = |by: fn(f64, f64) -> f64| all.iter().copied().reduce(by).unwrap_or(1.0);
        let has = |of: fn(&[(StageTimes, Cores); 2]) -> bool| f64::from(rounds.iter().any(of));
        let more_work = has(|[(_, before), (_, after)]| {
            before.cores == after.cores && before.threads.min(before.cores) < after.threads
        });
        let idle_before = has(|[(before, of), (after, with)]| {
            before.limit(*of) != LimitingResource::Cores
                && after.limit(*with) == LimitingResource::Cores
        });
        Gain {
            gain: crate::measure::median(&sharp),
            lowest: fold(f64::min) * (1.0 - LEAST_ERROR) * (1.0 - SHARED_CORES * more_work),
            highest: fold(f64::max) * (1.0 + LEAST_ERROR) * (1.0 + IDLE_CORES * idle_before),
        }
    }

    /// Widens the interval by the spread of measured rates, because a gain is a ratio of two such rates.
    #[must_use]
    pub fn with_spread(self, rates: &[f64]) -> Gain {
        let (lowest, highest) = rates
            .iter()
            .fold((f64::INFINITY, 0.0f64), |(low, high), &rate| {
                (low.min(rate), high.max(rate))
            });
        let spread = (highest - lowest) / 2.0 / crate::measure::median(rates);
        let error = (spread * std::f64::consts::SQRT_2).min(0.9);
        // Without rates, the median is 0 and the error NaN.
        if error.is_nan() || error <= LEAST_ERROR {
            return self;
        }
        Gain {
            lowest: self.lowest * (1.0 - error) / (1.0 - LEAST_ERROR),
            highest: self.highest * (1.0 + error) / (1.0 + LEAST_ERROR),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const TIMES: StageTimes = StageTimes {
        storage_s: 0.001,
        fetch_cpu_s: 0.0002,
        decode_cpu_s: 0.006,
        transform_cpu_s: 0.002,
        handover_cpu_s: 0.0,
        consumer_s: 0.0005,
    };

    fn cores(cores: f64, threads: f64) -> Cores {
        Cores { cores, threads }
    }

    #[test]
    fn the_slowest_resource_gives_the_rate() {
        assert_eq!(TIMES.limit(cores(4.0, 4.0)), LimitingResource::Cores);
        // 8.2 ms per image on 4 cores.
        assert!((TIMES.images_per_s(cores(4.0, 4.0)) - 1.0 / 0.00205).abs() < 1e-6);
        // One thread decodes for 8 ms per image; other threads read.
        assert!((TIMES.images_per_s(cores(4.0, 1.0)) - 125.0).abs() < 1e-9);
        // More threads than cores are no faster than the cores.
        assert_eq!(
            TIMES.images_per_s(cores(2.0, 2.0)),
            TIMES.images_per_s(cores(2.0, 8.0))
        );
        assert_eq!(TIMES.limit(cores(16.0, 16.0)), LimitingResource::Storage);
        let slow = StageTimes {
            consumer_s: 0.1,
            ..TIMES
        };
        assert_eq!(slow.limit(cores(2.0, 2.0)), LimitingResource::Consumer);
        assert!((slow.images_per_s(cores(2.0, 2.0)) - 10.0).abs() < 1e-9);
    }

    #[test]
    fn a_gain_ends_where_the_next_resource_limits() {
        let four = cores(4.0, 4.0);
        let fast = StageTimes {
            decode_cpu_s: 0.0001,
            transform_cpu_s: 0.0001,
            ..TIMES
        };
        let gain = Gain::predict(&[[(TIMES, four), (fast, four)]]);
        assert!((gain.gain - 2.05).abs() < 1e-9, "{gain:?}");
        assert!(gain.lowest < 2.05 && gain.highest > 2.05);
        // A faster storage gains nothing if the storage does not limit.
        let disk = StageTimes {
            storage_s: 0.0001,
            ..TIMES
        };
        let none = Gain::predict(&[[(TIMES, four), (disk, four)]]);
        assert!((none.gain - 1.0).abs() < 1e-9 && covers(&none, 1.0));
        assert!(none.highest < 1.1, "{none:?}");
    }

    fn covers(gain: &Gain, ratio: f64) -> bool {
        (gain.lowest..=gain.highest).contains(&ratio)
    }

    /// Simulates a pipeline with bounded queues, whose times vary by a third. Returns the images per second.
    fn pipeline((times, cores): (StageTimes, Cores)) -> f64 {
        const IMAGES: usize = 2000;
        let mut random = Random::new(3);
        let mut vary = |seconds: f64| seconds * (2.0 + random.below(2001) as f64 / 1e3) / 3.0;
        let mut threads = vec![0.0f64; cores.threads.min(cores.cores) as usize];
        let (mut disk, mut consumer, mut taken) = (0.0f64, 0.0f64, Vec::new());
        for image in 0..IMAGES {
            let queue = 4 + threads.len();
            let room = image.checked_sub(queue).map_or(0.0, |at| taken[at]);
            disk = disk.max(room) + vary(times.storage_s);
            let free = threads.iter_mut().min_by(|a, b| a.total_cmp(b));
            let thread = free.expect("a decode thread");
            *thread = thread.max(disk) + vary(times.decode_cpu_s + times.transform_cpu_s);
            consumer = consumer.max(*thread) + vary(times.consumer_s);
            taken.push(consumer);
        }
        IMAGES as f64 / consumer
    }

    #[test]
    fn pipelines_with_queues_gain_what_is_predicted() {
        let times = |storage_s, decode_cpu_s, consumer_s| StageTimes {
            storage_s,
            fetch_cpu_s: 0.0,
            decode_cpu_s,
            consumer_s,
            ..TIMES
        };
        let two = cores(2.0, 2.0);
        let decoding = (times(0.001, 0.006, 0.0005), two);
        for (before, after) in [
            (decoding, (times(0.001, 0.002, 0.0005), two)),
            (decoding, (decoding.0, cores(4.0, 4.0))),
            ((times(0.01, 0.006, 0.0005), two), decoding),
            ((times(0.001, 0.006, 0.02), two), decoding),
        ] {
            let predicted = Gain::predict(&[[before, after]]);
            let gained = pipeline(after) / pipeline(before);
            assert!(covers(&predicted, gained), "{predicted:?}, but {gained}");
        }
    }

    #[test]
    fn more_cores_and_idle_cores_widen_the_interval() {
        let threads = |threads| (TIMES, cores(2.0, threads));
        let more = Gain::predict(&[[threads(1.0), threads(2.0)]]);
        let machines = Gain::predict(&[[threads(2.0), (TIMES, cores(4.0, 4.0))]]);
        assert!(more.lowest / more.gain < 0.85 && more.highest / more.gain < 1.1);
        assert!(machines.lowest / machines.gain > 0.9, "{machines:?}");
        let slow = StageTimes {
            storage_s: 0.05,
            ..TIMES
        };
        let cached = Gain::predict(&[[(slow, cores(2.0, 2.0)), threads(2.0)]]);
        assert!(cached.highest / cached.gain > 1.2 && cached.lowest / cached.gain > 0.9);
    }

    #[test]
    fn rates_that_vary_widen_the_interval() {
        let gain = Gain {
            gain: 2.0,
            lowest: 1.9,
            highest: 2.1,
        };
        assert_eq!(gain.with_spread(&[100.0, 101.0, 99.0]), gain);
        assert_eq!(gain.with_spread(&[]), gain);
        let wide = gain.with_spread(&[80.0, 100.0, 120.0]);
        let error = 0.2 * std::f64::consts::SQRT_2;
        assert!((wide.lowest - 2.0 * (1.0 - error)).abs() < 1e-9, "{wide:?}");
        assert!((wide.highest - 2.0 * (1.0 + error)).abs() < 1e-9 && wide.gain == 2.0);
    }

    #[test]
    fn rounds_that_differ_widen_the_interval() {
        let four = cores(4.0, 4.0);
        let round = |factor: f64| {
            let faster = StageTimes {
                decode_cpu_s: TIMES.decode_cpu_s * factor,
                ..TIMES
            };
            [(TIMES, four), (faster, four)]
        };
        let alike = Gain::predict(&[round(0.7), round(0.7)]);
        let unlike = Gain::predict(&[round(0.6), round(0.7), round(0.8)]);
        assert!(unlike.highest > alike.highest && unlike.lowest < alike.lowest);
        assert!((unlike.gain - alike.gain).abs() < 1e-9);
        assert_eq!(Gain::predict(&[]).gain, 0.0);
    }
}
