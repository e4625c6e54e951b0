//! The progress bar: stage, share, items and bytes per second, and the time left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use serde_json::json;

use crate::paint::printable;
use crate::quantity;

/// Minimum interval between two drawings.
const REDRAW: Duration = Duration::from_millis(80);

/// Rates and the time left are computed over this much of the recent past.
const RATE_WINDOW: Duration = Duration::from_secs(8);

/// Takes one event: a line of JSON without its end.
pub(crate) type Events = Arc<dyn Fn(String) + Send + Sync>;

/// A bar on stderr, for as long as it lives.
pub struct Bar {
    bar: ProgressBar,
    events: Option<Events>,
    things: AtomicU64,
    bytes: AtomicU64,
    state: Mutex<State>,
}

struct State {
    drawn: Option<Instant>,
    /// Samples of the recent past, the oldest first: (time, bytes, items).
    marks: Vec<(Instant, u64, u64)>,
    total: Option<u64>,
    /// The text at the end of the line.
    also: Option<String>,
}

impl Bar {
    pub(crate) fn start(
        bars: &MultiProgress,
        stage: &str,
        total: Option<u64>,
        colours: bool,
        events: Option<Events>,
    ) -> Self {
        let bar = bars.add(ProgressBar::new(total.unwrap_or(0)));
        bar.set_style(style(total.is_some(), colours));
        bar.set_prefix(stage.to_owned());
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Self {
            bar,
            events,
            things: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            state: Mutex::new(State {
                drawn: None,
                marks: Vec::new(),
                total,
                also: None,
            }),
        }
    }

    /// Sets the text at the end of the line, from the next update on.
    pub fn also(&self, text: Option<String>) {
        if let Ok(mut state) = self.state.lock() {
            state.also = text.as_deref().map(printable);
        }
    }

    /// Adds to the sums of things and bytes, shows the progress in bytes, and returns the sums.
    pub(crate) fn add(&self, things: u64, bytes: u64, noun: &str) -> (u64, u64) {
        let things = self.things.fetch_add(things, Ordering::Relaxed) + things;
        let bytes = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.update(bytes, things, noun, bytes);
        (things, bytes)
    }

    /// Shows the progress. `position` is in the unit of the total, from which the time left is computed. `things`, with a noun
    /// whose plural ends with s, and `bytes` are shown with their rates.
    pub(crate) fn update(&self, position: u64, things: u64, noun: &str, bytes: u64) {
        if self.bar.is_hidden() && self.events.is_none() {
            return;
        }
        // A thread does not wait for another thread that draws the bar.
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        let now = Instant::now();
        if state.drawn.is_some_and(|drawn| now - drawn < REDRAW) {
            return;
        }
        state.drawn = Some(now);
        if let Some(events) = &self.events {
            let stage = self.bar.prefix();
            let event = json!({"type": "bar", "stage": stage, "position": position, "total": state.total,
                "items": things, "unit": noun, "bytes": bytes});
            return events(event.to_string());
        }
        state.marks.push((now, bytes, things));
        while state.marks.len() > 2 && now - state.marks[1].0 > RATE_WINDOW {
            state.marks.remove(0);
        }
        let (since, bytes_then, things_then) = state.marks[0];
        let elapsed = now - since;
        let one = noun.strip_suffix('s').unwrap_or(noun);
        let mut message = quantity::counted(things, one, noun);
        if elapsed > Duration::from_millis(200) {
            let new_things = things.saturating_sub(things_then);
            let new_bytes = bytes.saturating_sub(bytes_then);
            message.push_str(&format!("  {}/s", quantity::rate(new_things, elapsed)));
            if bytes > 0 {
                message.push_str(&format!("  {}", quantity::byte_rate(new_bytes, elapsed)));
            }
            if let Some(left) =
                time_left(state.total, position, new_bytes, new_things, bytes, elapsed)
            {
                message.push_str(&format!("  ETA {}", quantity::eta(left)));
            }
        }
        if let Some(also) = &state.also {
            message.push_str(&format!("  {also}"));
        }
        self.bar.set_position(position);
        self.bar.set_message(message);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the time left at the recent rate, in the unit of the total: bytes if bytes are counted, otherwise items.
fn time_left(
    total: Option<u64>,
    position: u64,
    new_bytes: u64,
    new_things: u64,
    bytes: u64,
    elapsed: Duration,
) -> Option<Duration> {
    let left = total?.checked_sub(position)?;
    let new = if bytes > 0 { new_bytes } else { new_things };
    if new == 0 || left == 0 {
        return None;
    }
    Duration::try_from_secs_f64(elapsed.as_secs_f64() * left as f64 / new as f64).ok()
}

fn style(has_total: bool, colours: bool) -> ProgressStyle {
    let template = match (has_total, colours) {
        (true, true) => "{prefix:.bold} {bar:28.cyan/8} {percent:>3}%  {wide_msg}",
        (true, false) => "{prefix} {bar:28} {percent:>3}%  {wide_msg}",
        (false, true) => "{prefix:.bold} {spinner:.cyan} {wide_msg}",
        (false, false) => "{prefix} {spinner} {wide_msg}",
    };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("█▉▊▋▌▍▎▏░")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_template_is_valid() {
        for total in [true, false] {
            for colours in [true, false] {
                let _ = style(total, colours);
            }
        }
    }

    #[test]
    fn the_time_left_follows_the_recent_rate() {
        let left = time_left(Some(1000), 500, 100, 0, 500, Duration::from_secs(2));
        assert_eq!(left, Some(Duration::from_secs(10)));
        assert_eq!(
            time_left(Some(1000), 500, 0, 0, 500, Duration::from_secs(2)),
            None
        );
        assert_eq!(
            time_left(None, 500, 100, 0, 500, Duration::from_secs(2)),
            None
        );
    }
}
