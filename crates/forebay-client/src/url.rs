//! URLs of servers: `forebay://host:port/name`, or `forebays://` with TLS.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result};

const SCHEME: &str = "forebay://";
/// Each scheme with its TLS variant.
const SCHEMES: [(&str, &str, Kind); 3] = [
    (SCHEME, "forebays://", Kind::List),
    ("forebay+dns://", "forebays+dns://", Kind::Dns),
    ("forebay+file://", "forebays+file://", Kind::File),
];
/// The default port.
pub const DEFAULT_PORT: u16 = 7070;
/// Maximum number of servers in a URL.
const MAX_SERVERS: usize = 256;

#[derive(Clone, Copy)]
enum Kind {
    List,
    Dns,
    File,
}

/// A parsed `forebay://` URL, or `forebays://` for TLS.
///
/// The host is a name, an IPv4 address or an IPv6 address in brackets. The port is optional.
/// Several servers of the same data are separated by commas. `forebay+dns://host:port/name` means
/// every address that the name resolves to, each a server. `forebay+file:///path/of/list/name`
/// means the servers in a file, one `HOST:PORT` a line. Both are read again while streams run.
///
/// ```
/// use forebay_client::Url;
///
/// let url: Url = "forebay://a.example,[::1]:7071/imagenet".parse()?;
/// assert_eq!(url.servers()[1].to_string(), "[::1]:7071");
/// assert_eq!(url.name(), "imagenet");
/// # Ok::<(), forebay_client::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    secure: bool,
    origin: Origin,
    name: String,
}

/// The source of the list of servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// The URL itself; at least one server.
    List(Vec<Authority>),
    /// All addresses of a name.
    Dns(Authority),
    /// A file.
    File(PathBuf),
}

/// Host and port of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    /// A name or an address, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Url {
    /// Returns whether `text` begins like a server URL, rather than a path or another scheme.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        split_scheme(text).is_some()
    }

    /// Returns whether `text` begins like a server URL with TLS.
    #[must_use]
    pub fn is_secure_text(text: &str) -> bool {
        matches!(split_scheme(text), Some((true, ..)))
    }

    /// Returns whether the URL requires TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns the source of the list of servers.
    #[must_use]
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Returns the servers in the URL itself; empty if it names a file.
    #[must_use]
    pub fn servers(&self) -> &[Authority] {
        match &self.origin {
            Origin::List(servers) => servers,
            Origin::Dns(server) => std::slice::from_ref(server),
            Origin::File(_) => &[],
        }
    }

    /// Returns the name of the dataset or job.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Url> {
        parse(text).map_err(|what| Error::Url {
            url: without_user(text),
            what,
        })
    }
}

/// Removes user information, which may contain a secret.
fn without_user(text: &str) -> String {
    match text.rfind('@') {
        Some(at) => format!("{SCHEME}***{}", &text[at..]),
        None => text.to_owned(),
    }
}

/// Splits off the scheme: whether it requires TLS, the source of servers, and the rest.
fn split_scheme(text: &str) -> Option<(bool, Kind, &str)> {
    let after = |scheme: &str| {
        let start = text.get(..scheme.len())?;
        start
            .eq_ignore_ascii_case(scheme)
            .then(|| &text[scheme.len()..])
    };
    SCHEMES.into_iter().find_map(|(clear, secure, kind)| {
        let found = |is_secure| move |rest| (is_secure, kind, rest);
        after(clear)
            .map(found(false))
            .or_else(|| after(secure).map(found(true)))
    })
}

fn parse(text: &str) -> Result<Url, String> {
    let Some((secure, kind, rest)) = split_scheme(text) else {
        return Err("it does not begin with forebay:// or forebays://".to_owned());
    };
    if let Some(c) = rest.chars().find(|c| c.is_control() || c.is_whitespace()) {
        return Err(format!("it contains {c:?}"));
    }
    if rest.contains('@') {
        return Err("a user or password has no place in it".to_owned());
    }
    if let Some(c) = rest.chars().find(|c| matches!(c, '?' | '#' | '%')) {
        return Err(format!("{c:?} has no meaning in it"));
    }
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (place, name) = match kind {
        // The last component is the name, the rest is the path of the file.
        Kind::File => rest.rsplit_once('/'),
        _ => rest.split_once('/'),
    }
    .ok_or("it names no dataset: expected /NAME after the server")?;
    if name.is_empty() {
        return Err("it names no dataset: expected a name after the last /".to_owned());
    }
    if name.contains('/') {
        return Err(format!(
            "{name:?} is not the name of a dataset: servers serve names, not paths"
        ));
    }
    if name.len() > 255 {
        return Err("the name is longer than 255 bytes".to_owned());
    }
    let origin = match kind {
        Kind::List => Origin::List(list(place.split(','))?),
        Kind::Dns if place.contains(',') => {
            return Err(
                "it names several hosts: expected one name, whose addresses all count".into(),
            );
        }
        Kind::Dns => Origin::Dns(authority(place)?),
        Kind::File if Path::new(place).is_absolute() => Origin::File(place.into()),
        Kind::File => {
            return Err(format!(
                "{place:?} is no absolute path of a file: expected forebay+file:///PATH/NAME"
            ));
        }
    };
    Ok(Url {
        secure,
        origin,
        name: name.to_owned(),
    })
}

/// Parses a list of servers; removes duplicates and keeps the order.
pub(crate) fn list<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<Authority>, String> {
    let mut servers = Vec::new();
    for text in texts {
        let server = authority(text)?;
        if servers.len() == MAX_SERVERS {
            return Err(format!("it names more than {MAX_SERVERS} servers"));
        }
        if !servers.contains(&server) {
            servers.push(server);
        }
    }
    if servers.is_empty() {
        return Err("it names no server".to_owned());
    }
    Ok(servers)
}

fn authority(text: &str) -> Result<Authority, String> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest
            .split_once(']')
            .ok_or_else(|| format!("{text:?} has no closing bracket"))?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("{host:?} is no IPv6 address"));
        }
        let port = match after {
            "" => None,
            after => Some(
                after
                    .strip_prefix(':')
                    .ok_or_else(|| format!("expected :PORT after ], found {after:?}"))?,
            ),
        };
        (host, port)
    } else {
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        };
        if port.is_some_and(|port| port.contains(':')) {
            return Err(format!(
                "{text:?}: an IPv6 address needs brackets, as in [::1]:7070"
            ));
        }
        (host, port)
    };
    if host.is_empty() {
        return Err("it names no server: expected HOST:PORT".to_owned());
    }
    if host.contains(char::is_whitespace) {
        return Err(format!("{host:?} is no host"));
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(port) => match port.parse() {
            Ok(port) if port > 0 => port,
            _ => return Err(format!("{port:?} is no port: expected 1 to 65535")),
        },
    };
    Ok(Authority {
        host: host.to_owned(),
        port,
    })
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (clear, secure, _) = SCHEMES[match self.origin {
            Origin::List(_) => 0,
            Origin::Dns(_) => 1,
            Origin::File(_) => 2,
        }];
        f.write_str(if self.secure { secure } else { clear })?;
        if let Origin::File(path) = &self.origin {
            write!(f, "{}", path.display())?;
        }
        for (i, server) in self.servers().iter().enumerate() {
            let gap = if i == 0 { "" } else { "," };
            write!(f, "{gap}{server}")?;
        }
        write!(f, "/{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls() {
        for (text, shown) in [
            ("forebay://127.0.0.1:7070/x", "forebay://127.0.0.1:7070/x"),
            ("FOREBAY://host/x/", "forebay://host:7070/x"),
            ("forebays://host/x", "forebays://host:7070/x"),
            (
                "forebay://[::1]/data-1.2_b",
                "forebay://[::1]:7070/data-1.2_b",
            ),
            ("forebay://[fe80::1]:9/x", "forebay://[fe80::1]:9/x"),
            (
                "forebay://a:1,b,[::2]:3/x",
                "forebay://a:1,b:7070,[::2]:3/x",
            ),
            ("forebay://a,a:7070,b/x", "forebay://a:7070,b:7070/x"),
            ("forebay+dns://pods/x", "forebay+dns://pods:7070/x"),
            ("forebays+dns://pods:1/x", "forebays+dns://pods:1/x"),
            ("Forebay+File:///etc/list/x", "forebay+file:///etc/list/x"),
            ("forebays+file:///a/b/c/x/", "forebays+file:///a/b/c/x"),
        ] {
            let url: Url = text.parse().unwrap();
            assert_eq!(url.to_string(), shown);
            assert_eq!(shown.parse::<Url>().unwrap(), url);
        }
    }

    #[test]
    fn bad_urls_say_what_is_wrong() {
        for (text, part) in [
            ("http://a/x", "does not begin with forebay://"),
            ("/some/path", "does not begin with forebay://"),
            ("", "does not begin with forebay://"),
            ("forebay://a:7070", "names no dataset"),
            ("forebay://a:7070/", "names no dataset"),
            ("forebay:///x", "names no server"),
            ("forebay://a,,b/x", "names no server"),
            ("forebay://:7070/x", "names no server"),
            ("forebay://a:/x", "\"\" is no port"),
            ("forebay://a:0/x", "is no port"),
            ("forebay://a:65536/x", "is no port"),
            ("forebay://a:b/x", "is no port"),
            ("forebay://::1:7070/x", "needs brackets"),
            ("forebay://[::1/x", "no closing bracket"),
            ("forebay://[::1]7070/x", "expected :PORT"),
            ("forebay://[a]:1/x", "no IPv6 address"),
            ("forebay://a/x/y", "not paths"),
            ("forebay://a/x?y=1", "'?' has no meaning"),
            ("forebay://a/x%20y", "'%' has no meaning"),
            ("forebay://a/x y", "' '"),
            ("forebay://a/x\n", "'\\n'"),
            ("forebay+dns://a,b/x", "one name"),
            ("forebay+dns://a", "names no dataset"),
            ("forebay+file://list/x", "no absolute path"),
            ("forebay+file:///x", "no absolute path"),
        ] {
            let e = text.parse::<Url>().unwrap_err().to_string();
            assert!(e.contains(part), "{text}: {e}");
        }
    }

    #[test]
    fn secrets_are_not_repeated() {
        let e = "forebay://me:secret@a/x".parse::<Url>().unwrap_err();
        assert!(!e.to_string().contains("secret"), "{e}");
    }
}
