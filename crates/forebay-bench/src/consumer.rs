//! Consumers that sleep for each batch, for a published step time or for the recorded step times of a training.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Durations of training steps, which repeat after the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps(Arc<[Duration]>);

impl Steps {
    /// Returns steps that take no time.
    #[must_use]
    pub fn none() -> Self {
        Self::from(Duration::ZERO)
    }

    /// Returns whether no step takes time.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(Duration::is_zero)
    }

    /// Returns the duration of a step by its number, counted from 0.
    #[must_use]
    pub fn at(&self, number: u64) -> Duration {
        self.0[(number % self.0.len() as u64) as usize]
    }

    /// Returns the mean duration of a step, which determines the rate of the consumer.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let total: f64 = self.0.iter().map(Duration::as_secs_f64).sum();
        Duration::from_secs_f64(total / self.0.len() as f64)
    }

    fn scaled(&self, factor: f64) -> Self {
        Self(self.0.iter().map(|step| step.mul_f64(factor)).collect())
    }
}

impl From<Duration> for Steps {
    fn from(step: Duration) -> Self {
        Self(Arc::new([step]))
    }
}

impl fmt::Display for Steps {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            [step] => write!(out, "{step:?}"),
            steps => {
                let mut sorted = steps.to_vec();
                sorted.sort_unstable();
                let median = sorted[sorted.len() / 2];
                write!(
                    out,
                    "{median:.1?} (median of {} recorded steps)",
                    steps.len()
                )
            }
        }
    }
}

/// A stand-in for an accelerator that sleeps for a step with each batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumer {
    name: String,
    /// Durations of steps with `images` images.
    steps: Steps,
    images: u64,
}

/// Name, milliseconds per step, and images per step.
const PRESETS: [(&str, u64, u64); 4] = [
    ("v100-resnet50-fp16", 183, 256),
    ("v100-resnet50-amp", 321, 256),
    ("v100-googlenet-inference", 49, 256),
    ("kth-alexnet", 1500, 64),
];

impl Consumer {
    /// Returns the names of all presets, each computed from published rates.
    pub fn names() -> impl Iterator<Item = &'static str> {
        PRESETS.iter().map(|preset| preset.0)
    }

    /// Returns the consumer with a published step time; `None` for an unknown name.
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let &(name, ms, images) = PRESETS.iter().find(|preset| preset.0 == name)?;
        Some(Self {
            name: name.to_owned(),
            steps: Duration::from_millis(ms).into(),
            images,
        })
    }

    /// Returns a consumer that takes `step` for `images` images.
    #[must_use]
    pub fn with_step(step: Duration, images: u64) -> Self {
        Self {
            name: format!("{} ms for {images} images", 1e3 * step.as_secs_f64()),
            steps: step.into(),
            images: images.max(1),
        }
    }

    /// Returns a consumer with recorded step times of `images` images each; `None` without any.
    #[must_use]
    pub fn recorded(source: &str, steps: &[Duration], images: u64) -> Option<Self> {
        if steps.is_empty() {
            return None;
        }
        let steps = Steps(steps.into());
        let images = images.max(1);
        Some(Self {
            name: format!("{source}, {steps}, {images} images each"),
            steps,
            images,
        })
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the step times for batches of `batch_size`. They are scaled with the batch size, so that the rate is that of the
    /// preset.
    #[must_use]
    pub fn steps(&self, batch_size: u64) -> Steps {
        match batch_size == self.images {
            true => self.steps.clone(),
            false => self.steps.scaled(batch_size as f64 / self.images as f64),
        }
    }

    /// Returns the images per second that the consumer takes if it never waits.
    #[must_use]
    pub fn images_per_s(&self) -> f64 {
        self.images as f64 / self.steps.mean().as_secs_f64().max(1e-9)
    }

    /// Returns a line for reports.
    pub fn note(&self) -> String {
        format!(
            "Stand-in: consumers ({}) sleep in place of training, {:.0} images/s each; a real step also takes CPU and PCIe, so these figures are upper bounds.",
            self.name,
            self.images_per_s()
        )
    }
}

impl Default for Consumer {
    fn default() -> Self {
        let (name, ms, images) = PRESETS[0];
        Self {
            name: name.to_owned(),
            steps: Duration::from_millis(ms).into(),
            images,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preset_rates_are_the_published_ones() {
        let rate = |name| Consumer::preset(name).unwrap().images_per_s();
        assert!((8.0 * rate("v100-resnet50-fp16") - 11_160.0).abs() < 40.0);
        assert!((8.0 * rate("v100-resnet50-amp") - 6380.0).abs() < 10.0);
        assert!((8.0 * rate("v100-googlenet-inference") - 42_000.0).abs() < 250.0);
        assert_eq!(Consumer::preset("a100"), None);
        assert_eq!(Consumer::names().next(), Some(Consumer::default().name()));
    }

    #[test]
    fn steps_grow_with_the_batch() {
        let consumer = Consumer::with_step(Duration::from_millis(100), 50);
        assert_eq!(consumer.steps(25).at(7), Duration::from_millis(50));
        assert_eq!(consumer.images_per_s(), 500.0);
    }

    #[test]
    fn recorded_steps_start_again_after_the_last() {
        let ms = Duration::from_millis;
        assert_eq!(Consumer::recorded("file", &[], 8), None);
        let consumer = Consumer::recorded("file", &[ms(10), ms(20), ms(60)], 8).unwrap();
        let steps = consumer.steps(8);
        let waited: Vec<Duration> = (0..5).map(|number| steps.at(number)).collect();
        assert_eq!(waited, [ms(10), ms(20), ms(60), ms(10), ms(20)]);
        assert_eq!(steps.mean(), ms(30));
        assert_eq!(consumer.steps(4).at(2), ms(30));
        assert_eq!(
            consumer.name(),
            "file, 20.0ms (median of 3 recorded steps), 8 images each"
        );
        assert!(!steps.is_zero() && Steps::none().is_zero());
    }
}
