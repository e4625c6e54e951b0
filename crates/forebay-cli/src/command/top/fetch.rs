//! Fetches the report of a server with an HTTP/1.0 request; the response ends when the server closes the connection.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use forebay_monitor::report::{FORMAT, Report};

use crate::failure::{Failure, io_hint};
use crate::paint::printable;

/// Default port: the one that the documentation uses for `--admin-listen`.
const PORT: u16 = 7071;
const TIMEOUT: Duration = Duration::from_secs(5);
/// Size limit of a response in bytes, about ten times the report of a thousand ranks.
const MOST_BYTES: u64 = 32 << 20;

/// Address of a server's dashboard.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// Host name or IP address; IPv6 addresses are without brackets.
    host: String,
    port: u16,
    /// URL path before `/api/status`, for a dashboard behind a proxy.
    path: String,
}

impl Target {
    /// Returns the servers of the arguments, each once. `dns://HOST:PORT` stands for every address of the name.
    pub(super) fn parse_all(texts: &[String]) -> Result<Vec<Target>, Failure> {
        let mut targets = Vec::new();
        for text in texts {
            let named = match text.strip_prefix("dns://") {
                None => vec![Target::parse(text)?],
                Some(name) => Target::parse(name)?.addresses()?,
            };
            for target in named {
                if !targets.contains(&target) {
                    targets.push(target);
                }
            }
        }
        Ok(targets)
    }

    /// Returns a target for each address of the host.
    fn addresses(&self) -> Result<Vec<Target>, Failure> {
        let found = (self.host.as_str(), self.port).to_socket_addrs();
        let found = found.map_err(|error| {
            Failure::new(format!("cannot resolve {:?}: {error}", self.host))
                .maybe_hint(io_hint(&error))
        })?;
        let mut hosts: Vec<_> = found.map(|address| address.ip()).collect();
        hosts.sort_unstable();
        let targets = hosts.iter().map(|host| Target {
            host: host.to_string(),
            port: self.port,
            path: self.path.clone(),
        });
        Ok(targets.collect())
    }

    pub(super) fn parse(text: &str) -> Result<Target, Failure> {
        let wrong = |what: &str| {
            Failure::usage(format!("{}: {what}", printable(text)))
                .hint("give what the server's --admin-listen says, for instance 127.0.0.1:7071")
        };
        let rest = match text.split_once("://") {
            None => text,
            Some(("http", rest)) => rest,
            Some(("https", _)) => {
                return Err(wrong("dashboards speak plain HTTP"));
            }
            Some(("forebay" | "forebays", _)) => {
                return Err(wrong(
                    "that is where trainers connect, not where the dashboard is",
                ));
            }
            Some(_) => return Err(wrong("expected an address or an http:// URL")),
        };
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        if authority.contains('@') {
            return Err(Failure::usage(
                "a dashboard has no users: leave out what is before the @",
            ));
        }
        if path.contains(['?', '#']) || path.chars().any(|c| c.is_control() || c == ' ') {
            return Err(wrong("expected a path without query"));
        }
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest
                    .split_once(']')
                    .ok_or_else(|| wrong("a ] is missing"))?;
                (host, port.strip_prefix(':'))
            }
            None if authority.matches(':').count() > 1 => (authority, None),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| wrong("that port is none"))?,
            None => PORT,
        };
        if host.is_empty() || host.chars().any(|c| c.is_control() || c == ' ') {
            return Err(wrong("there is no host in it"));
        }
        Ok(Target {
            host: host.to_owned(),
            port,
            path: path.trim_end_matches('/').to_owned(),
        })
    }

    fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    /// Fetches the server's current report.
    pub(super) fn report(&self) -> Result<Report, Failure> {
        let body = self.body().map_err(|error| {
            let hint = match error.kind() {
                io::ErrorKind::ConnectionRefused => Some(
                    "start the server with --admin-listen 127.0.0.1:7071, or name the address that it has"
                        .to_owned(),
                ),
                _ => io_hint(&error),
            };
            Failure::new(format!("cannot ask {self}: {error}")).maybe_hint(hint)
        })?;
        let odd = |what: String| {
            Failure::new(format!(
                "{self} is not the dashboard of a forebay server: {what}"
            ))
            .hint("name the address of the server's --admin-listen")
        };
        // The format version is checked first, since the fields depend on it.
        let value: serde_json::Value = forebay_shard::json::from_slice(&body)
            .map_err(|_| odd("its answer is no JSON".to_owned()))?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                let text = format!(
                    "{self} reports in format {format}, this program reads {FORMAT}: use the one that came with the server"
                );
                return Err(Failure::new(text));
            }
            None => return Err(odd("its answer has no format".to_owned())),
        }
        serde_json::from_value(value).map_err(|error| odd(error.to_string()))
    }

    fn body(&self) -> io::Result<Vec<u8>> {
        let mut socket = self.connect()?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let request = format!(
            "GET {}/api/status HTTP/1.0\r\nHost: {}\r\nAccept: application/json\r\nUser-Agent: forebay/{}\r\n\r\n",
            self.path,
            self.authority(),
            env!("CARGO_PKG_VERSION"),
        );
        socket.write_all(request.as_bytes())?;
        let mut answer = Vec::new();
        let read = socket.take(MOST_BYTES).read_to_end(&mut answer);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("no answer for {TIMEOUT:?}"),
            ),
            _ => error,
        })?;
        split(&answer).map(<[u8]>::to_vec)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = None;
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::Error::other("the name has no address")))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.authority(), self.path)
    }
}

/// Returns the body of an HTTP response. Returns an error for a status other than 200, and for a truncated body.
fn split(answer: &[u8]) -> io::Result<&[u8]> {
    let odd = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let Some(end) = end.filter(|_| answer.starts_with(b"HTTP/")) else {
        return Err(odd("its answer is not HTTP".to_owned()));
    };
    let head = String::from_utf8_lossy(&answer[..end]);
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1));
    if status != Some("200") {
        let status = printable(status.unwrap_or("nothing"));
        return Err(odd(format!("it answers {status} to /api/status")));
    }
    let body = &answer[end + 4..];
    let length = lines.find_map(|line| {
        let (name, value) = line.split_once(':')?;
        let is_length = name.eq_ignore_ascii_case("content-length");
        is_length.then(|| value.trim().parse::<usize>().ok())?
    });
    match length {
        Some(length) if length > body.len() => Err(odd(format!(
            "its answer ends after {} of {length} bytes",
            body.len()
        ))),
        Some(length) => Ok(&body[..length]),
        None => Ok(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_urls_are_parsed() {
        for (text, expected) in [
            ("127.0.0.1:7071", "127.0.0.1:7071"),
            ("node3", "node3:7071"),
            ("http://node3:80/", "node3:80"),
            ("http://proxy/forebay/", "proxy:7071/forebay"),
            ("[::1]:99", "[::1]:99"),
            ("::1", "[::1]:7071"),
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), expected, "{text}");
        }
        for text in [
            "",
            ":7071",
            "https://a",
            "forebay://a:7070/x",
            "a:b",
            "[::1",
            "http://u:p@a",
            "http://a/?x",
            "a b",
        ] {
            let failure = Target::parse(text).unwrap_err();
            assert_eq!(failure.exit_code(), 2, "{text}");
            assert!(!failure.message().contains("u:p"), "{}", failure.message());
        }
    }

    #[test]
    fn each_server_counts_once_and_a_name_stands_for_its_addresses() {
        let all = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            let targets = Target::parse_all(&texts)?;
            Ok::<_, Failure>(targets.iter().map(Target::to_string).collect::<Vec<_>>())
        };
        let found = all(&["b:99", "127.0.0.1", "http://b:99/", "dns://127.0.0.1:7071"]).unwrap();
        assert_eq!(found, ["b:99", "127.0.0.1:7071"]);
        assert_eq!(all(&["dns://[::1]:80/x"]).unwrap(), ["[::1]:80/x"]);
        assert_eq!(all(&["a", "a:b"]).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn invalid_responses_are_errors() {
        assert_eq!(
            split(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}xx").unwrap(),
            b"{}"
        );
        assert_eq!(split(b"HTTP/1.0 200 OK\r\n\r\n{}").unwrap(), b"{}");
        for (answer, part) in [
            (&b"HTTP/1.0 404 Not Found\r\n\r\n"[..], "answers 404"),
            (b"HTTP/1.0 200 OK\r\ncontent-length: 9\r\n\r\n{}", "2 of 9"),
            (b"SSH-2.0-x\r\n\r\n", "not HTTP"),
            (b"HTTP/1.0 200 OK", "not HTTP"),
            (b"", "not HTTP"),
        ] {
            let error = split(answer).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
