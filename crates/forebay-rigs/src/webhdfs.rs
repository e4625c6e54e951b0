//! `WebHdfs`: name nodes and a data node of HDFS over HTTP, in memory.

use crate::http::{Listener, Message, decode};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

const PREFIX: &str = "/webhdfs/v1";
/// Entries of a page of a listing.
const PAGE: usize = 3;

/// The forms that servers of WebHDFS have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A name node that redirects to a data node.
    NameNode,
    /// A name node that takes no user's name, but this delegation token.
    Secure(&'static str),
    /// A gateway, or a name node before Hadoop 2.8: it sends the bytes of files itself, lists directories at once, has no
    /// options of renames and no extended attributes.
    Gateway,
}

/// A fake of HDFS on loopback.
#[derive(Debug)]
pub struct WebHdfs {
    active: Listener,
    standby: Listener,
    data: Listener,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    form: Form,
    data: SocketAddr,
    last_id: u64,
    /// Number of appends to break off in the middle.
    broken_appends: u32,
    /// Number of renames that are not done, with answers that lack their end.
    cut_renames: u32,
    /// By absolute path; the root is "/".
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug, Clone)]
struct Entry {
    id: u64,
    modified: u64,
    /// The bytes of a file; a directory has none.
    bytes: Option<Vec<u8>>,
    attributes: Vec<(String, String)>,
}

type Answer = Result<Message, Message>;

impl WebHdfs {
    /// Starts the server.
    pub fn start(form: Form) -> Self {
        let unbound = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut state = State {
            form,
            data: unbound,
            last_id: 1,
            broken_appends: 0,
            cut_renames: 0,
            entries: BTreeMap::new(),
        };
        state.make_dirs("/");
        let state = Arc::new(Mutex::new(state));
        let answering = |is_data| {
            let state = Arc::clone(&state);
            Listener::answering(move |request| {
                let mut state = state.lock().expect("no panic holds it");
                state
                    .answer(request, is_data)
                    .unwrap_or_else(|refusal| refusal)
            })
        };
        let (active, data) = (answering(false), answering(true));
        state.lock().expect("no panic holds it").data = data.address();
        let standby = Listener::answering(|_| {
            refusal(
                403,
                "StandbyException",
                "Operation category READ is not supported in state standby",
            )
        });
        Self {
            active,
            standby,
            data,
            state,
        }
    }

    /// Returns the address of the active name node.
    pub fn address(&self) -> SocketAddr {
        self.active.address()
    }

    /// Returns the address of a name node on standby.
    pub fn standby(&self) -> SocketAddr {
        self.standby.address()
    }

    /// Returns the address as a `webhdfs://` URL.
    pub fn url(&self) -> String {
        format!("webhdfs://{}", self.address())
    }

    /// Returns the paths of all files.
    pub fn files(&self) -> Vec<String> {
        let state = self.state.lock().expect("no panic holds it");
        let files = state
            .entries
            .iter()
            .filter(|(_, entry)| entry.bytes.is_some());
        files.map(|(path, _)| path.clone()).collect()
    }

    /// Returns the address of the data node.
    pub fn data_node(&self) -> SocketAddr {
        self.data.address()
    }

    /// Redirects to this address, of a proxy of the data node.
    pub fn redirect_to(&self, address: SocketAddr) {
        self.state.lock().expect("no panic holds it").data = address;
    }

    /// Breaks the next appends off in the middle.
    pub fn break_appends(&self, number: u32) {
        self.state.lock().expect("no panic holds it").broken_appends = number;
    }

    /// Does not do the next renames, and cuts the answers off.
    pub fn cut_renames(&self, number: u32) {
        self.state.lock().expect("no panic holds it").cut_renames = number;
    }

    /// Replaces the bytes of a file without a trace, or changes its age in milliseconds.
    pub fn tamper(&self, path: &str, bytes: Option<Vec<u8>>, age: u64) {
        let mut state = self.state.lock().expect("no panic holds it");
        let entry = state.entries.get_mut(path).expect("the file exists");
        if bytes.is_some() {
            entry.bytes = bytes;
        }
        entry.modified -= age;
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

fn refusal(status: u16, exception: &str, message: &str) -> Message {
    let package = match exception {
        "FileNotFoundException" => "java.io",
        "IllegalArgumentException" | "UnsupportedOperationException" => "java.lang",
        "StandbyException" => "org.apache.hadoop.ipc",
        "AccessControlException" => "org.apache.hadoop.security",
        _ => "org.apache.hadoop.fs",
    };
    let body = json!({"RemoteException": {
        "exception": exception, "javaClassName": format!("{package}.{exception}"), "message": message,
    }});
    answered(status, &body)
}

fn missing(path: &str) -> Message {
    refusal(
        404,
        "FileNotFoundException",
        &format!("File does not exist: {path}"),
    )
}

fn exists(path: &str) -> Message {
    refusal(
        403,
        "FileAlreadyExistsException",
        &format!("{path} for client 127.0.0.1 already exists"),
    )
}

fn answered(status: u16, body: &Value) -> Message {
    Message::answer(status)
        .with("Content-Type", "application/json")
        .with_body(body.to_string())
}

fn encoded(path: &str) -> String {
    let bytes = path.bytes().map(|byte| match byte {
        b'/' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte if byte.is_ascii_alphanumeric() => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    });
    bytes.collect()
}

fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

impl State {
    fn answer(&mut self, request: &Message, is_data: bool) -> Answer {
        let path = self.admitted(request)?;
        let op = request.query("op").unwrap_or_default().to_ascii_uppercase();
        if !is_data && let Some(redirect) = self.redirect(&path, &op, request)? {
            return Ok(redirect);
        }
        match op.as_str() {
            "SETXATTR" | "GETXATTRS" if self.form != Form::Gateway => {
                self.attributes(&path, request)
            }
            _ => self.work(&path, &op, request),
        }
    }

    /// The path of a request that is permitted.
    fn admitted(&self, request: &Message) -> Result<String, Message> {
        // A plus in a path is a plus, other than in a query.
        let path = request.target().split('?').next().unwrap_or_default();
        let path = decode(&path.replace('+', "%2B"));
        let path = path
            .strip_prefix(PREFIX)
            .ok_or_else(|| Message::answer(404))?;
        let path = match path.trim_end_matches('/') {
            "" => "/",
            path => path,
        };
        if path.contains(':') {
            return Err(refusal(
                400,
                "InvalidPathException",
                &format!("Invalid path name {path}"),
            ));
        }
        if let Form::Secure(token) = self.form
            && request.query("delegation").as_deref() != Some(token)
        {
            return Err(Message::answer(401).with("WWW-Authenticate", "Negotiate"));
        }
        if path.starts_with("/forbidden") {
            let message = "Permission denied: user=tester, access=READ";
            return Err(refusal(403, "AccessControlException", message));
        }
        Ok(path.to_owned())
    }

    /// The redirect to the data node, of a request that needs it.
    fn redirect(
        &self,
        path: &str,
        op: &str,
        request: &Message,
    ) -> Result<Option<Message>, Message> {
        let query = |name: &str| request.query(name).unwrap_or_default();
        match op {
            "CREATE" if query("overwrite") != "true" && self.entries.contains_key(path) => {
                return Err(exists(path));
            }
            "OPEN" => {
                let length = self.file(path)?.bytes.as_ref().map_or(0, Vec::len);
                if query("offset").parse().unwrap_or(0) > length {
                    return Err(refusal(403, "IOException", "Offset out of the range"));
                }
                if self.form == Form::Gateway {
                    return Ok(None);
                }
            }
            "CREATE" | "APPEND" => {}
            _ => return Ok(None),
        }
        let query = request.target().split_once('?').unwrap_or_default().1;
        let (data, path) = (self.data, encoded(path));
        let location = format!("http://{data}{PREFIX}{path}?{query}&namenoderpcaddress=x:8020");
        Ok(Some(Message::answer(307).with("Location", location)))
    }

    fn work(&mut self, path: &str, op: &str, request: &Message) -> Answer {
        let query = |name: &str| request.query(name).unwrap_or_default();
        match (request.method(), op) {
            ("GET", "OPEN") => self.open(path, request),
            ("PUT", "CREATE") => self.create(path, request),
            ("POST", "APPEND") => {
                self.file(path)?;
                let is_broken = self.broken_appends > 0;
                self.broken_appends = self.broken_appends.saturating_sub(1);
                let end = request.body.len() / if is_broken { 2 } else { 1 };
                let entry = self.entries.get_mut(path).ok_or_else(|| missing(path))?;
                entry
                    .bytes
                    .get_or_insert_default()
                    .extend_from_slice(&request.body[..end]);
                entry.modified = now();
                match is_broken {
                    true => Err(refusal(500, "IOException", "Broken pipe")),
                    false => Ok(Message::answer(200)),
                }
            }
            ("GET", "GETFILESTATUS") => {
                let entry = self.entries.get(path).ok_or_else(|| missing(path))?;
                Ok(answered(
                    200,
                    &json!({"FileStatus": self.status("", path, entry)}),
                ))
            }
            ("GET", "LISTSTATUS") => {
                let all = self.list(path, "")?;
                Ok(answered(200, &json!({"FileStatuses": {"FileStatus": all}})))
            }
            ("GET", "LISTSTATUS_BATCH") if self.form != Form::Gateway => {
                // Names of parameters have no case: Hadoop's client writes it so.
                let after = request
                    .query("startAfter")
                    .or_else(|| request.query("startafter"));
                let mut all = self.list(path, &after.unwrap_or_default())?;
                let rest = all.len().saturating_sub(PAGE);
                all.truncate(PAGE);
                let page = json!({"FileStatuses": {"FileStatus": all}});
                let listing = json!({"partialListing": page, "remainingEntries": rest});
                Ok(answered(200, &json!({"DirectoryListing": listing})))
            }
            ("PUT", "MKDIRS") => {
                self.make_dirs(path);
                Ok(answered(200, &json!({"boolean": true})))
            }
            ("PUT", "RENAME") => {
                self.rename(path, &query("destination"), request.query("renameoptions"))
            }
            ("DELETE", "DELETE") => {
                let below = format!("{path}/");
                let is_full = self.entries.keys().any(|each| each.starts_with(&below));
                if is_full && query("recursive") != "true" {
                    return Err(refusal(
                        403,
                        "PathIsNotEmptyDirectoryException",
                        "is non empty",
                    ));
                }
                self.entries.retain(|each, _| !each.starts_with(&below));
                let found = self.entries.remove(path).is_some();
                Ok(answered(200, &json!({"boolean": found})))
            }
            ("GET", "GETHOMEDIRECTORY") => Ok(answered(200, &json!({"Path": "/user/tester"}))),
            _ => {
                let message = format!("Invalid value for webhdfs parameter \"op\": {op}");
                Err(refusal(400, "IllegalArgumentException", &message))
            }
        }
    }

    /// Adds or lists the extended attributes of a file.
    fn attributes(&mut self, path: &str, request: &Message) -> Answer {
        let query = |name: &str| request.query(name).unwrap_or_default();
        let entry = self.entries.get_mut(path).ok_or_else(|| missing(path))?;
        if request.method() == "GET" {
            let all = entry.attributes.iter();
            let all: Vec<Value> = all
                .map(|(name, value)| json!({"name": name, "value": format!("\"{value}\"")}))
                .collect();
            return Ok(answered(200, &json!({"XAttrs": all})));
        }
        let (name, value) = (query("xattr.name"), query("xattr.value"));
        if query("flag") == "CREATE" && entry.attributes.iter().any(|(have, _)| *have == name) {
            return Err(refusal(403, "IOException", "XAttr already exists"));
        }
        entry.attributes.push((name, value));
        Ok(Message::answer(200))
    }

    fn file(&self, path: &str) -> Result<&Entry, Message> {
        let entry = self.entries.get(path).filter(|entry| entry.bytes.is_some());
        entry.ok_or_else(|| missing(path))
    }

    fn new_entry(&mut self, bytes: Option<Vec<u8>>) -> Entry {
        self.last_id += 1;
        Entry {
            id: self.last_id,
            modified: now(),
            bytes,
            attributes: Vec::new(),
        }
    }

    fn make_dirs(&mut self, path: &str) {
        if path != "/" {
            self.make_dirs(parent(path));
        }
        if !self.entries.contains_key(path) {
            let entry = self.new_entry(None);
            self.entries.insert(path.to_owned(), entry);
        }
    }

    fn open(&self, path: &str, request: &Message) -> Answer {
        let bytes = self.file(path)?.bytes.clone().unwrap_or_default();
        let number = |name| {
            request
                .query(name)
                .and_then(|text| text.parse::<usize>().ok())
        };
        let start = number("offset").unwrap_or(0).min(bytes.len());
        let end = number("length").map_or(bytes.len(), |length| (start + length).min(bytes.len()));
        Ok(Message::answer(200)
            .with("Content-Type", "application/octet-stream")
            .with_body(&bytes[start..end]))
    }

    fn create(&mut self, path: &str, request: &Message) -> Answer {
        let old = self.entries.get(path);
        if old.is_some_and(|old| old.bytes.is_none())
            || (old.is_some() && request.query("overwrite").as_deref() != Some("true"))
        {
            return Err(exists(path));
        }
        self.make_dirs(parent(path));
        let entry = self.new_entry(Some(request.body.clone()));
        self.entries.insert(path.to_owned(), entry);
        Ok(Message::answer(201))
    }

    /// Entries of a directory whose names follow `after`, or the file itself.
    fn list(&self, path: &str, after: &str) -> Result<Vec<Value>, Message> {
        let entry = self.entries.get(path).ok_or_else(|| missing(path))?;
        if entry.bytes.is_some() {
            return Ok(vec![self.status("", path, entry)]);
        }
        let below = format!("{}/", path.trim_end_matches('/'));
        let found = self
            .entries
            .range(below.clone()..)
            .take_while(|(each, _)| each.starts_with(&below));
        let found = found.filter_map(|(each, entry)| {
            let name = each.strip_prefix(&below)?;
            let is_own = !name.is_empty() && !name.contains('/') && name > after;
            is_own.then(|| self.status(name, each, entry))
        });
        Ok(found.collect())
    }

    fn status(&self, suffix: &str, path: &str, entry: &Entry) -> Value {
        let below = format!("{path}/");
        let is_file = entry.bytes.is_some();
        let children = match is_file {
            true => 0,
            false => self
                .entries
                .keys()
                .filter(|each| each.starts_with(&below))
                .count(),
        };
        json!({
            "accessTime": entry.modified, "blockSize": 134_217_728, "childrenNum": children,
            "fileId": entry.id, "group": "staff", "length": entry.bytes.as_ref().map_or(0, Vec::len),
            "modificationTime": entry.modified, "owner": "tester", "pathSuffix": suffix,
            "permission": if is_file { "644" } else { "755" }, "replication": u8::from(is_file),
            "storagePolicy": 0, "type": if is_file { "FILE" } else { "DIRECTORY" },
        })
    }

    fn rename(&mut self, from: &str, to: &str, option: Option<String>) -> Answer {
        if self.cut_renames > 0 {
            self.cut_renames -= 1;
            return Ok(Message::answer(200).with_body(r#"{"boolean": fal"#));
        }
        let option = option.filter(|_| self.form != Form::Gateway);
        let does_exist = self.entries.contains_key(to);
        let has_parent = self.entries.contains_key(parent(to));
        let is_possible = self.entries.contains_key(from) && has_parent;
        match option.as_deref() {
            Some(_) if !is_possible => return Err(missing(from)),
            Some("OVERWRITE") => {}
            Some(_) if does_exist => return Err(exists(to)),
            None if !is_possible || does_exist => {
                return Ok(answered(200, &json!({"boolean": false})));
            }
            _ => {}
        }
        let below = format!("{from}/");
        let moved = self
            .entries
            .keys()
            .filter(|each| *each == from || each.starts_with(&below));
        for each in moved.cloned().collect::<Vec<_>>() {
            if let Some(entry) = self.entries.remove(&each) {
                self.entries.insert(each.replacen(from, to, 1), entry);
            }
        }
        Ok(match option {
            Some(_) => Message::answer(200),
            None => answered(200, &json!({"boolean": true})),
        })
    }
}
