//! `Gcs`: the parts of Google's XML API that clients need, in memory. It reports checksums like
//! Google Cloud Storage.

use crate::BUCKET;
use crate::http::{Listener, Message, range_of};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

/// The bearer token that requests have to contain.
const TOKEN: &str = "rig-token";
const PAGE: usize = 1000;

/// A fake of Google Cloud Storage on loopback.
#[derive(Debug)]
pub struct Gcs {
    listener: Listener,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    generation: u64,
    objects: BTreeMap<String, Stored>,
    uploads: BTreeMap<String, Upload>,
}

#[derive(Debug, Clone, Default)]
struct Stored {
    bytes: Vec<u8>,
    generation: u64,
    metadata: Vec<(String, String)>,
}

#[derive(Debug, Default)]
struct Upload {
    name: String,
    metadata: Vec<(String, String)>,
    parts: BTreeMap<u32, Vec<u8>>,
}

impl Gcs {
    /// Starts the server.
    pub fn start() -> Self {
        let state = Arc::new(Mutex::new(State::default()));
        let serving = Arc::clone(&state);
        let listener = Listener::answering(move |request| {
            serving.lock().expect("no panic holds it").answer(request)
        });
        Self { listener, state }
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.listener.address()
    }

    /// Returns the address as an `http://` URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns the storage options for this server, without the endpoint.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("google_bearer_token", TOKEN.to_owned())]
    }

    /// Returns the number of open uploads.
    pub fn open_uploads(&self) -> usize {
        self.state.lock().expect("no panic holds it").uploads.len()
    }
}

impl State {
    fn answer(&mut self, request: &Message) -> Message {
        if request.header("authorization") != Some(&format!("Bearer {TOKEN}")) {
            return failure(401, "AuthenticationRequired");
        }
        let path = request.path();
        let Some(name) = path.strip_prefix(&format!("/{BUCKET}")) else {
            return failure(404, "NoSuchBucket");
        };
        let name = name.trim_start_matches('/').to_owned();
        let upload = request.query("uploadId");
        match (request.method(), name.is_empty(), upload) {
            ("GET", true, _) if request.query("uploads").is_some() => self.list_uploads(request),
            ("GET", true, _) => self.list(request),
            ("POST", false, None) => self.begin(request, name),
            ("PUT", false, Some(id)) => self.part(request, &id),
            ("POST", false, Some(id)) => self.complete(request, &id),
            ("DELETE", false, Some(id)) => match self.uploads.remove(&id) {
                Some(_) => Message::answer(204),
                None => failure(404, "NoSuchUpload"),
            },
            ("PUT", false, None) => self.put(request, name),
            ("GET" | "HEAD", false, _) => self.get(request, &name),
            ("DELETE", false, None) => match self.objects.remove(&name) {
                Some(_) => Message::answer(204),
                None => failure(404, "NoSuchKey"),
            },
            _ => failure(400, "InvalidArgument"),
        }
    }

    fn put(&mut self, request: &Message, name: String) -> Message {
        let have = self
            .objects
            .get(&name)
            .map_or(0, |object| object.generation);
        if let Some(wanted) = request.header("x-goog-if-generation-match")
            && wanted.parse() != Ok(have)
        {
            return failure(412, "PreconditionFailed");
        }
        let stored = self.store(name, request.body.clone(), metadata(request));
        described(Message::answer(200), &stored)
    }

    fn store(&mut self, name: String, bytes: Vec<u8>, metadata: Vec<(String, String)>) -> Stored {
        self.generation += 1;
        let stored = Stored {
            bytes,
            generation: self.generation,
            metadata,
        };
        self.objects.insert(name, stored.clone());
        stored
    }

    fn get(&self, request: &Message, name: &str) -> Message {
        let Some(stored) = self.objects.get(name) else {
            return failure(404, "NoSuchKey");
        };
        if let Some(wanted) = request.header("if-match")
            && wanted != etag(stored)
        {
            return failure(412, "PreconditionFailed");
        }
        let len = stored.bytes.len() as u64;
        let answer = match range_of(request, len) {
            None => Message::answer(200).with_body(stored.bytes.clone()),
            Some(Err(())) => return failure(416, "InvalidRange"),
            Some(Ok(range)) => Message::answer(206)
                .with(
                    "Content-Range",
                    format!("bytes {}-{}/{len}", range.start, range.end - 1),
                )
                .with_body(&stored.bytes[range.start as usize..range.end as usize]),
        };
        let len = answer.body.len();
        let mut answer = described(answer, stored).with("Content-Length", len);
        for (name, value) in &stored.metadata {
            answer = answer.with(name, value);
        }
        answer
    }

    fn list(&self, request: &Message) -> Message {
        let prefix = request.query("prefix").unwrap_or_default();
        let delimiter = request.query("delimiter").unwrap_or_default();
        let after = request
            .query("continuation-token")
            .or_else(|| request.query("start-after"))
            .unwrap_or_default();
        let mut body = String::new();
        let (mut dirs, mut count, mut last) = (Vec::new(), 0, String::new());
        let mut truncated = false;
        for (name, stored) in self.objects.range(after.clone()..) {
            if *name == after || !name.starts_with(&prefix) {
                continue;
            }
            if count == PAGE {
                truncated = true;
                break;
            }
            last.clone_from(name);
            let rest = &name[prefix.len()..];
            let cut = if delimiter.is_empty() {
                None
            } else {
                rest.find(&delimiter)
            };
            if let Some(at) = cut {
                let dir = format!("{prefix}{}", &rest[..at + delimiter.len()]);
                if !dirs.contains(&dir) {
                    dirs.push(dir);
                }
                continue;
            }
            count += 1;
            body.push_str(&format!(
                "<Contents><Key>{}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{}</Size></Contents>",
                escape(name),
                escape(&etag(stored)),
                stored.bytes.len()
            ));
        }
        for dir in dirs {
            let dir = escape(&dir);
            body.push_str(&format!(
                "<CommonPrefixes><Prefix>{dir}</Prefix></CommonPrefixes>"
            ));
        }
        if truncated {
            let last = escape(&last);
            body.push_str(&format!(
                "<NextContinuationToken>{last}</NextContinuationToken>"
            ));
        }
        let body = format!("<IsTruncated>{truncated}</IsTruncated>{body}");
        xml("ListBucketResult", &body)
    }

    fn begin(&mut self, request: &Message, name: String) -> Message {
        self.generation += 1;
        let id = format!("upload-{}", self.generation);
        let body = format!(
            "<Bucket>{BUCKET}</Bucket><Key>{}</Key><UploadId>{id}</UploadId>",
            escape(&name)
        );
        let upload = Upload {
            name,
            metadata: metadata(request),
            parts: BTreeMap::new(),
        };
        self.uploads.insert(id, upload);
        xml("InitiateMultipartUploadResult", &body)
    }

    fn part(&mut self, request: &Message, id: &str) -> Message {
        let Some(upload) = self.uploads.get_mut(id) else {
            return failure(404, "NoSuchUpload");
        };
        let Some(number) = request.query("partNumber").and_then(|n| n.parse().ok()) else {
            return failure(400, "InvalidArgument");
        };
        upload.parts.insert(number, request.body.clone());
        let sum = crc32c(&request.body);
        Message::answer(200)
            .with("ETag", format!("\"part-{number}-{sum:08x}\""))
            .with("x-goog-hash", format!("crc32c={}", base64(sum)))
    }

    fn complete(&mut self, request: &Message, id: &str) -> Message {
        let Some(upload) = self.uploads.get(id) else {
            return failure(404, "NoSuchUpload");
        };
        let said = String::from_utf8_lossy(&request.body);
        let named = said.matches("<PartNumber>").count();
        let last = upload.parts.keys().last().copied().unwrap_or(0);
        let small = upload
            .parts
            .iter()
            .any(|(number, part)| *number != last && part.len() < 5 << 20);
        if named != upload.parts.len() || small {
            return failure(400, "InvalidPart");
        }
        let Some(upload) = self.uploads.remove(id) else {
            return failure(404, "NoSuchUpload");
        };
        let bytes = upload.parts.into_values().flatten().collect();
        let stored = self.store(upload.name.clone(), bytes, upload.metadata);
        let body = format!(
            "<Bucket>{BUCKET}</Bucket><Key>{}</Key><ETag>{}</ETag>",
            escape(&upload.name),
            escape(&etag(&stored))
        );
        xml("CompleteMultipartUploadResult", &body)
    }

    fn list_uploads(&self, request: &Message) -> Message {
        let prefix = request.query("prefix").unwrap_or_default();
        let mut body = String::from("<IsTruncated>false</IsTruncated>");
        for (id, upload) in &self.uploads {
            if upload.name.starts_with(&prefix) {
                body.push_str(&format!(
                    "<Upload><Key>{}</Key><UploadId>{id}</UploadId>\
                     <Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload>",
                    escape(&upload.name)
                ));
            }
        }
        xml("ListMultipartUploadsResult", &body)
    }
}

fn metadata(request: &Message) -> Vec<(String, String)> {
    request
        .headers
        .iter()
        .filter(|(name, _)| name.to_ascii_lowercase().starts_with("x-goog-meta-"))
        .cloned()
        .collect()
}

fn etag(stored: &Stored) -> String {
    format!("\"g{}\"", stored.generation)
}

fn described(answer: Message, stored: &Stored) -> Message {
    let sum = base64(crc32c(&stored.bytes));
    answer
        .with("ETag", etag(stored))
        .with("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT")
        .with("x-goog-generation", stored.generation)
        .with("x-goog-hash", format!("crc32c={sum}"))
}

fn xml(root: &str, body: &str) -> Message {
    Message::answer(200)
        .with("Content-Type", "application/xml")
        .with_body(format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?><{root}>{body}</{root}>"
        ))
}

fn failure(status: u16, code: &str) -> Message {
    Message::answer(status)
        .with("Content-Type", "application/xml")
        .with_body(format!(
            "<Error><Code>{code}</Code><Message>said the rig</Message></Error>"
        ))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// CRC-32C, computed bytewise, so that the rig shares no code with the tested crates.
fn crc32c(bytes: &[u8]) -> u32 {
    let table: Vec<u32> = (0..256u32)
        .map(|byte| (0..8).fold(byte, |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1))))
        .collect();
    !bytes.iter().fold(!0u32, |crc, byte| {
        (crc >> 8) ^ table[((crc ^ u32::from(*byte)) & 0xff) as usize]
    })
}

fn base64(sum: u32) -> String {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = u64::from(sum) << 4;
    let letters = (0..6)
        .rev()
        .map(|at| LETTERS[(bits >> (6 * at) & 63) as usize]);
    letters.map(char::from).chain(['=', '=']).collect()
}
