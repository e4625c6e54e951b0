//! The sentence that describes a bottleneck: its measurements, and what to do.

use std::fmt::{self, Display, Formatter};

use super::Bottleneck;
use crate::stats::Bound;

/// A fraction, displayed in percent.
struct Percent(f64);

impl Display for Percent {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", (self.0 * 100.0).round())
    }
}

/// A factor. Beyond a hundred it is not precise enough for a number.
struct Times(f64);

impl Times {
    const MOST: f64 = 100.0;
}

impl Display for Times {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 >= Self::MOST {
            true => f.write_str("over 100x"),
            false => write!(f, "{:.1}x", self.0),
        }
    }
}

impl Display for Bottleneck {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.bound {
            Bound::Unknown => f.write_str("nothing measured yet: no batch was handed out"),
            Bound::Trainer => self.trainer(f),
            Bound::Handover if self.is_receiving() => self.receiving(f),
            Bound::Handover => self.handover(f),
            Bound::Device => self.device(f),
            Bound::Decode => self.decode(f),
            Bound::Neighbor => self.neighbor(f),
            Bound::Storage => self.storage(f),
            Bound::Network => self.network(f),
            // Only a server compares several ranks; one loader does not see the others.
            Bound::Straggler => f.write_str("straggler-bound: one rank is slower than the others"),
        }
    }
}

impl Bottleneck {
    fn trainer(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let waits = Percent(self.trainer_waits);
        if self.is_fed() {
            return write!(f, "the trainer waited {waits} of its time for batches");
        }
        // The trainer did not get what the threads could have delivered, so no factor is stated.
        write!(
            f,
            "trainer-bound: decode threads waited for room {} of their time; the trainer waited {waits} of its time all the \
             same, at the start of an epoch or in bursts",
            Percent(self.decode_blocked),
        )
    }

    fn handover(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "handover-bound: handing batches to the training loop took {} of the loop's time; {} could give {}; \
             another thread holds the interpreter or the processors: move its work to another process",
            Percent(self.handover),
            self.decoders(),
            Times(self.decode_headroom),
        )
    }

    /// The case of [`Bound::Handover`] in which the thread that receives batches from a server is busy.
    fn receiving(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "handover-bound: the thread that receives batches used {} of a core, the trainer waited {} of its time; \
             decoding could give {}; use more connections, smaller images, or a server on the same host, whose batches \
             need no copy",
            Percent(self.receiving),
            Percent(self.trainer_waits),
            Times(self.decode_headroom),
        )
    }

    fn device(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "device-bound: copying batches to the device took {} of the time of the thread that copies, the trainer waited \
             {} of its time; copy bytes and normalize on the device, or use smaller images",
            Percent(self.copying),
            Percent(self.trainer_waits),
        )
    }

    fn decode(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (decoders, waits) = (self.decoders(), Percent(self.trainer_waits));
        write!(
            f,
            "decode-bound: {decoders}, the trainer waited {waits} of its time; "
        )?;
        if let Some(more) = self.storage_headroom {
            let least = match self.at_least && more < Times::MOST {
                true => "at least ",
                false => "",
            };
            write!(f, "storage could give {least}{}; ", Times(more))?;
        }
        // Whether each core already has a decode thread.
        f.write_str(match (1..=self.threads).contains(&self.cores) {
            true => {
                "each core has a thread: decode on more machines with `forebay serve`, or pack smaller images: `forebay pack --resize-short`"
            }
            false => "add threads, or pack smaller images: `forebay pack --resize-short`",
        })
    }

    fn neighbor(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let waits = Percent(self.trainer_waits);
        write!(f, "neighbor-bound: the trainer waited {waits} of its time")?;
        match &self.cores_elsewhere {
            Some(cores) => write!(f, "; {cores}"),
            None => Ok(()),
        }
    }

    fn storage(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("storage-bound: ")?;
        if let Some(storage) = &self.storage {
            write!(f, "{storage} is slower than decoding: ")?;
        }
        write!(
            f,
            "decode threads waited {} of their time for records, {} busy {} gave {:.1} MB/s; \
             decoding could give {}; use faster storage, more readers or larger blocks",
            Percent(self.decode_starved),
            plural(self.readers, "reader"),
            Percent(self.fetch_busy),
            self.bytes_per_s / 1e6,
            Times(self.decode_headroom),
        )
    }

    fn network(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let network = self.network.unwrap_or_default();
        write!(
            f,
            "network-bound: the server spent {} of its time sending, at {:.1} MB/s, the trainer waited {} of its time; \
             decoding could give {}; use a faster network, or smaller images",
            Percent(network.sending),
            network.bytes_per_s / 1e6,
            Percent(self.trainer_waits),
            Times(self.decode_headroom),
        )
    }

    /// Describes the decoders and their load: threads, or the cores that more threads share.
    fn decoders(&self) -> String {
        let threads = plural(self.threads, "thread");
        if self.cores == 0 || self.threads <= self.cores {
            return format!("{threads} busy {}", Percent(self.decode_busy));
        }
        let at_work = self.decode_busy * self.threads as f64 / self.cores as f64;
        let cores = plural(self.cores, "core");
        format!("{threads} on {cores} busy {}", Percent(at_work.min(1.0)))
    }
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
