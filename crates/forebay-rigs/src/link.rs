//! `Link`: simulates the latency and the bandwidth of the network between a client and a server.

use s3s::S3Result;
use s3s::dto::{Range, StreamingBlob};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that are sent at once: large enough that the resolution of timers does not matter.
const CHUNK_BYTES: u64 = 256 << 10;
/// Maximum delay of a sender that it may make up for by sending faster.
const CATCH_UP: Duration = Duration::from_millis(20);

/// A link whose bandwidth all responses share.
#[derive(Debug)]
pub struct Link {
    latency: Duration,
    bytes_per_second: f64,
    /// Time at which all bytes sent so far have passed the link.
    free_at: Mutex<Instant>,
}

impl Link {
    /// Creates a link that delays each request by `latency`; the bytes of all responses share the
    /// bandwidth.
    pub fn new(latency: Duration, bytes_per_second: u64) -> Self {
        Self {
            latency,
            bytes_per_second: bytes_per_second.max(1) as f64,
            free_at: Mutex::new(Instant::now()),
        }
    }

    /// Waits for the latency of a request and the start of its response.
    pub(crate) async fn request(&self) {
        tokio::time::sleep(self.latency).await;
    }

    async fn send(&self, bytes: u64) {
        let time = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
        let through = {
            let mut free_at = self.free_at.lock().expect("no panic holds it");
            let earliest = Instant::now().checked_sub(CATCH_UP);
            *free_at = earliest.map_or(*free_at, |at| at.max(*free_at)) + time;
            *free_at
        };
        tokio::time::sleep_until(through.into()).await;
    }
}

/// Returns a range of a file at the speed of the link. Does little work per byte, so that the link
/// is the bottleneck and not the server.
pub(crate) fn body(link: Arc<Link>, path: &Path, range: Option<Range>) -> S3Result<StreamingBlob> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (len, file) = opened.map_err(s3s::S3Error::internal_error)?;
    let bytes = range.map_or(Ok(0..len), |range| range.check(len))?;
    let chunks = futures_util::stream::unfold((bytes, file), move |(bytes, file)| {
        let link = Arc::clone(&link);
        async move {
            let len = CHUNK_BYTES.min(bytes.end - bytes.start);
            if len == 0 {
                return None;
            }
            link.send(len).await;
            let mut chunk = vec![0; len as usize];
            let read = file.read_exact_at(&mut chunk, bytes.start);
            let chunk: io::Result<bytes::Bytes> = read.map(|()| chunk.into());
            Some((chunk, (bytes.start + len..bytes.end, file)))
        }
    });
    Ok(StreamingBlob::wrap(chunks))
}
