//! Measures how long a trainer waits after its server is killed, and after it shuts down.

use std::time::{Duration, Instant};

use clap::Args;
use forebay_cli::frontend::quantity::parse_duration;
use forebay_client::{Client, ClientOptions, Stream};

use crate::fleet::ServedArgs;
use crate::measure::{BenchReport, Row, quantile};
use crate::{Error, Result};

/// Number of batches after an event in which the longest wait is searched. Some of the first ones may be prefetched already.
const AFTER: usize = 8;

/// Options of [`failover`].
#[derive(Debug, Args)]
pub struct FailoverOptions {
    #[command(flatten)]
    served: ServedArgs,
    /// How long the trainer works on a batch
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0s")]
    step: Duration,
}

#[derive(Clone, Copy, PartialEq)]
enum What {
    Nothing,
    Kill,
    Drain,
}

/// Measures the longest wait for a batch without an event, after `kill -9` of the server, and after SIGTERM; `rounds` times each.
///
/// # Errors
/// A server does not start, or a batch is out of order.
pub fn failover(options: &FailoverOptions, rounds: usize) -> Result<BenchReport> {
    let served = &options.served;
    let mut servers = [served.start(&[])?, served.start(&[])?];
    let url = format!(
        "forebay://{},{}/{}",
        servers[0].address, servers[1].address, servers[0].name
    );
    let mut stream = open(&url, served)?;
    let mut trainer = Trainer {
        stream: &mut stream,
        step: options.step,
        usual: Vec::new(),
    };
    trainer.longest(2 * AFTER)?;
    trainer.usual.clear();
    let mut rows = Vec::new();
    let mut usual = Vec::new();
    for (what, name) in [
        (What::Nothing, "nothing happens"),
        (What::Kill, "kill -9 of the server"),
        (What::Drain, "SIGTERM: the server hands over"),
    ] {
        let mut waits = Vec::new();
        for _ in 0..rounds.max(1) {
            // Separates this round from the effects of the previous one.
            trainer.longest(AFTER)?;
            let at = trainer.stream.server();
            let mine = usize::from(servers[0].address != at);
            match what {
                What::Nothing => {}
                What::Kill => servers[mine].kill()?,
                What::Drain => servers[mine].terminate()?,
            }
            waits.push(trainer.longest(AFTER)?.as_secs_f64() * 1e3);
            if what != What::Nothing {
                servers[mine].again(served)?;
            }
        }
        rows.push(row(name, waits));
        if what == What::Nothing {
            let waits = trainer.usual.iter();
            usual = waits.map(|wait| wait.as_secs_f64() * 1e3).collect();
        }
    }
    let stats = stream.stats();
    Ok(BenchReport {
        title: format!(
            "The longest wait for a batch among {AFTER}, over {rounds} rounds; batches of {} by {}",
            served.batch_size, served.transport
        ),
        rows,
        notes: vec![
            format!(
                "While nothing happens: p50 {:.1} ms, p99 {:.1} ms, of {} batches; the trainer works {:?} on each",
                quantile(&usual, 0.5),
                quantile(&usual, 0.99),
                usual.len(),
                options.step
            ),
            format!(
                "{} times a lost server was replaced, {} times one handed over; the longest time from a loss to a batch: {:.1} ms",
                stats.reconnects,
                stats.handovers,
                stats.longest_gap.as_secs_f64() * 1e3
            ),
        ],
    })
}

fn row(name: &str, waits: Vec<f64>) -> Row {
    let mut row = Row::new(name, "ms", waits);
    row.extra.insert("max", quantile(&row.rates, 1.0));
    row
}

fn open(url: &str, served: &ServedArgs) -> Result<Stream> {
    let client = ClientOptions {
        transport: served.transport,
        // No migration checks: a stream changes its server only in the event of the round.
        look_every: Duration::ZERO,
        ..ClientOptions::default()
    };
    let client = Client::connect(url, client)?;
    let split = served.split_of(&client);
    Ok(client.open(served.batches().to_schema().with_split(&split))?)
}

struct Trainer<'a> {
    stream: &'a mut Stream,
    step: Duration,
    usual: Vec<Duration>,
}

impl Trainer<'_> {
    /// Takes `batches` batches and sleeps after each. Returns the longest wait for a batch.
    fn longest(&mut self, batches: usize) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        let mut taken = 0;
        while taken < batches {
            let (epoch, position) = self.stream.position();
            let began = Instant::now();
            let batch = self.stream.next_batch()?;
            let wait = began.elapsed();
            longest = longest.max(wait);
            self.usual.push(wait);
            if let Some(batch) = batch {
                if (batch.epoch, batch.position) != (epoch, position) {
                    return Err(Error::from("a batch that is not the next one"));
                }
                taken += 1;
                let began = Instant::now();
                while began.elapsed() < self.step {
                    std::thread::sleep(self.step.saturating_sub(began.elapsed()));
                }
            }
        }
        Ok(longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_the_longest_wait() {
        let row = row("x", vec![4.0, 2.0, 9.0]);
        assert_eq!((row.median, row.extra["max"]), (4.0, 9.0));
    }
}
