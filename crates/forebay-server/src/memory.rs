//! A memory budget for the pipelines of all streams.
//!
//! Each stream reports the memory that it plans to hold. If that exceeds what is left of the
//! budget, the stream is opened again with the remaining bytes as its limit; it then reads record
//! by record instead of in windows, in the same order. If that does not fit either, the client gets
//! a `Busy` error and tries another server.

use std::sync::Arc;

use forebay_options::StreamInfo;
use forebay_wire::{Batch, wire};
use wire::error::Kind;

use crate::sharing::Budget;
use crate::source::{
    BatchSource, Description, Failure, StreamMonitor, StreamRequest, StreamSource,
};

/// A source whose streams share a memory budget.
pub(crate) struct Bounded {
    source: Arc<dyn StreamSource>,
    budget: Arc<Budget>,
}

impl Bounded {
    pub(crate) fn new(source: Arc<dyn StreamSource>, budget: Arc<Budget>) -> Self {
        Bounded { source, budget }
    }

    /// Returns the stream if its planned memory fits into the budget.
    fn admit(&self, stream: Box<dyn BatchSource>) -> Option<Box<dyn BatchSource>> {
        let bytes = stream.memory_bytes();
        self.budget.take(bytes).then(|| {
            Box::new(Admitted {
                stream,
                _room: BudgetReservation {
                    budget: Arc::clone(&self.budget),
                    bytes,
                },
            }) as Box<dyn BatchSource>
        })
    }
}

impl StreamSource for Bounded {
    fn describe(&self) -> Description {
        self.source.describe()
    }

    fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
        if let Some(stream) = self.admit(self.source.open(request)?) {
            return Ok(stream);
        }
        let left = self.budget.left();
        let smaller = StreamRequest {
            memory_bytes: Some(left.min(request.memory_bytes.unwrap_or(left)).max(1)),
            ..request.clone()
        };
        // The same request succeeded above, so a failure here is due to the smaller memory limit.
        let stream = self.source.open(&smaller).ok();
        stream.and_then(|stream| self.admit(stream)).ok_or_else(|| {
            let most = self.budget.most();
            let text = format!(
                "the streams of this server plan to hold {} of the {most} bytes of total_memory, which does not suffice for \
                 another one with such batches; use another server, or raise total_memory of this one",
                most - left
            );
            Failure::new(Kind::Busy, text)
        })
    }
}

/// A stream whose memory counts against the budget. Fields drop in order: the memory is returned
/// after the stream is gone.
struct Admitted {
    stream: Box<dyn BatchSource>,
    _room: BudgetReservation,
}

struct BudgetReservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for BudgetReservation {
    fn drop(&mut self) {
        self.budget.give(self.bytes);
    }
}

impl BatchSource for Admitted {
    fn info(&self) -> StreamInfo {
        self.stream.info()
    }

    fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
        self.stream.next_batch()
    }

    fn monitor(&self) -> Arc<dyn StreamMonitor> {
        self.stream.monitor()
    }

    fn memory_bytes(&self) -> u64 {
        self.stream.memory_bytes()
    }
}

/// Memory that this process may use: the smaller of the machine's and the control group's. `None`
/// if the system does not report it.
pub fn of_this_machine() -> Option<u64> {
    #[cfg(target_os = "linux")]
    {
        let info = std::fs::read_to_string("/proc/meminfo").ok()?;
        let total = info
            .lines()
            .find_map(|line| line.strip_prefix("MemTotal:"))?;
        let kib: u64 = total.trim().trim_end_matches(" kB").parse().ok()?;
        let machine = kib.saturating_mul(1024);
        Some(control_group().map_or(machine, |group| group.min(machine)))
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// The tightest limit of this process's control group and its ancestors, of version 1 or 2.
#[cfg(target_os = "linux")]
fn control_group() -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let limit = |path: &std::path::Path| -> Option<u64> {
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let (root, file) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                _ if controllers.split(',').any(|name| name == "memory") => {
                    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
                }
                _ => return None,
            };
            let own = std::path::Path::new(path.trim_start_matches('/'));
            own.ancestors()
                .filter_map(|group| limit(&std::path::Path::new(root).join(group).join(file)))
                .min()
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plans to hold `wants` bytes, or the request's limit if that is lower, but no less than a
    /// minimum.
    struct Holds {
        wants: u64,
        least: u64,
    }

    struct Stream(u64);

    impl StreamSource for Holds {
        fn describe(&self) -> Description {
            Description::default()
        }

        fn open(&self, request: &StreamRequest<'_>) -> Result<Box<dyn BatchSource>, Failure> {
            match request.memory_bytes {
                Some(bytes) if bytes < self.least => Err(Failure::new(Kind::Invalid, "too little")),
                Some(bytes) if bytes < self.wants => Ok(Box::new(Stream(self.least))),
                _ => Ok(Box::new(Stream(self.wants))),
            }
        }
    }

    struct Nothing;

    impl StreamMonitor for Nothing {
        fn cancel(&self) {}

        fn stats(&self) -> wire::Stats {
            wire::Stats::default()
        }
    }

    impl BatchSource for Stream {
        fn info(&self) -> StreamInfo {
            StreamInfo::default()
        }

        fn next_batch(&mut self) -> Result<Option<Batch>, Failure> {
            Ok(None)
        }

        fn monitor(&self) -> Arc<dyn StreamMonitor> {
            Arc::new(Nothing)
        }

        fn memory_bytes(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn streams_hold_less_and_then_are_refused() {
        let budget = Arc::new(Budget::new(250));
        let holds = Holds {
            wants: 100,
            least: 20,
        };
        let source = Bounded::new(Arc::new(holds), Arc::clone(&budget));
        let options = forebay_options::LoaderOptions::default();
        let request = StreamRequest {
            options: &options,
            epoch: 0,
            position: 0,
            max_batch_bytes: 1,
            image_limits: forebay_image::Limits::default(),
            memory_bytes: None,
            threads: None,
            share: None,
            pool: None,
        };
        let streams: Vec<_> = (0..4).map(|_| source.open(&request).unwrap()).collect();
        let held: Vec<u64> = streams.iter().map(|stream| stream.memory_bytes()).collect();
        assert_eq!(held, [100, 100, 20, 20]);
        let refused = source.open(&request).map(|_| ()).unwrap_err();
        assert_eq!(refused.kind, Kind::Busy);
        assert!(
            refused.message.contains("240 of the 250"),
            "{}",
            refused.message
        );
        assert_eq!(budget.left(), 10);
        drop(streams);
        assert_eq!(budget.left(), 250);
        assert_eq!(source.open(&request).unwrap().memory_bytes(), 100);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_machine_has_memory() {
        assert!(of_this_machine().is_some_and(|bytes| bytes > 1 << 20));
    }
}
