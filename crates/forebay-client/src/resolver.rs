//! The current servers of a URL: listed in it, resolved from a name, or read from a file.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::placement::{self, Unit};
use crate::url::{self, Authority, Origin, Url};

/// Size limit of a list of servers, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Maximum number of times that the list is read again after all servers failed.
const MOST_LISTS: usize = 4;

/// A server to connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Server {
    /// The name that its certificate must match.
    pub(crate) authority: Authority,
    /// One address of a name whose addresses are separate servers; `None`: resolve the authority
    /// when connecting.
    pub(crate) address: Option<SocketAddr>,
}

impl From<Authority> for Server {
    fn from(authority: Authority) -> Self {
        Server {
            authority,
            address: None,
        }
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => address.fmt(f),
            None => self.authority.fmt(f),
        }
    }
}

/// The servers of a URL, at least one.
pub(crate) type Servers = Arc<[Server]>;

/// Reads the servers of a URL, and keeps the last result.
pub(crate) struct Resolver {
    origin: Origin,
    last: Mutex<Option<Servers>>,
}

impl Resolver {
    pub(crate) fn new(url: &Url) -> Resolver {
        let last = match url.origin() {
            Origin::List(servers) => Some(servers.iter().cloned().map(Server::from).collect()),
            _ => None,
        };
        Resolver {
            origin: url.origin().clone(),
            last: Mutex::new(last),
        }
    }

    /// Returns whether reading again may give other servers.
    pub(crate) fn may_change(&self) -> bool {
        !matches!(self.origin, Origin::List(_))
    }

    /// Returns the last result; reads if there is none.
    pub(crate) fn last(&self) -> Result<Servers> {
        let last = self.lock().clone();
        last.map_or_else(|| self.read(), Ok)
    }

    /// Reads the servers again. On failure, the last result stays valid.
    pub(crate) fn read(&self) -> Result<Servers> {
        let read = match &self.origin {
            Origin::List(_) => None,
            Origin::Dns(name) => Some(resolve(name)),
            Origin::File(path) => Some(from_file(path)),
        };
        let mut last = self.lock();
        match (read, &*last) {
            (Some(Ok(servers)), _) => Ok(last.insert(servers.into()).clone()),
            (_, Some(last)) => Ok(Arc::clone(last)),
            (Some(Err(e)), None) => Err(e),
            // Unreachable: a list is set from the beginning.
            (None, None) => Ok(Vec::new().into()),
        }
    }

    /// Calls `with` with the known servers. After a transient error, reads the list again and
    /// retries if it has changed.
    pub(crate) fn try_all<T>(&self, mut with: impl FnMut(&[Server]) -> Result<T>) -> Result<T> {
        let mut servers = self.last()?;
        for _ in 0..MOST_LISTS {
            let failed = match with(&servers) {
                Err(e) if e.is_passing() => e,
                result => return result,
            };
            let now = self.read()?;
            if now == servers {
                return Err(failed);
            }
            servers = now;
        }
        with(&servers)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Servers>> {
        // Set by a single assignment.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the servers in the order in which `unit` tries them; those named in `last` come last.
pub(crate) fn order(servers: &[Server], unit: &Unit<'_>, last: &[&str]) -> Vec<Server> {
    let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let (late, early): (Vec<usize>, Vec<usize>) =
        (0..servers.len()).partition(|&i| last.contains(&names[i].as_str()));
    let mut ordered = Vec::with_capacity(servers.len());
    for part in [early, late] {
        let part_names: Vec<&str> = part.iter().map(|&i| names[i].as_str()).collect();
        let places = placement::order(&part_names, unit);
        ordered.extend(places.into_iter().map(|i| servers[part[i]].clone()));
    }
    ordered
}

/// Returns the server that placement assigns to `unit`.
pub(crate) fn home(servers: &[Server], unit: &Unit<'_>) -> Option<Server> {
    let names: Vec<String> = servers.iter().map(ToString::to_string).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    placement::choose(&names, unit).map(|i| servers[i].clone())
}

/// Returns every address of a name, of the address family that the system prefers, so that a
/// dual-stack server counts once.
fn resolve(name: &Authority) -> Result<Vec<Server>> {
    let failed = Error::connecting(name);
    let found = (name.host.as_str(), name.port)
        .to_socket_addrs()
        .map_err(&failed)?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    let Some(&first) = addresses.first() else {
        let none = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        return Err(failed(none));
    };
    addresses.retain(|address| address.is_ipv4() == first.is_ipv4());
    addresses.sort_unstable();
    addresses.dedup();
    let server = |address| Server {
        authority: name.clone(),
        address: Some(address),
    };
    Ok(addresses.into_iter().map(server).collect())
}

/// Parses one `HOST:PORT` a line; skips empty lines and lines that begin with `#`.
fn from_file(path: &Path) -> Result<Vec<Server>> {
    let bad = |what: String| Error::Servers {
        path: path.to_owned(),
        what,
    };
    let read = || {
        use io::Read;
        let mut text = String::new();
        let file = forebay_wire::open_input(path)?;
        file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
        Ok(text)
    };
    let text = read().map_err(|e: io::Error| bad(e.to_string()))?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(bad(format!("it is larger than {MAX_FILE_BYTES} bytes")));
    }
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let servers = url::list(lines).map_err(bad)?;
    Ok(servers.into_iter().map(Server::from).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(url: &str) -> Resolver {
        Resolver::new(&url.parse().unwrap())
    }

    fn shown(servers: &[Server]) -> Vec<String> {
        servers.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_file_is_reread_and_the_last_good_list_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("servers");
        let resolver = resolver(&format!("forebay+file://{}/set", path.display()));
        assert!(resolver.may_change());
        let e = resolver.last().unwrap_err();
        assert!(e.to_string().contains("servers"), "{e}");
        std::fs::write(&path, "# ours\n a:1 \n\nb\n").unwrap();
        assert_eq!(shown(&resolver.last().unwrap()), ["a:1", "b:7070"]);
        std::fs::write(&path, "[::1]:5\n").unwrap();
        assert_eq!(shown(&resolver.last().unwrap()), ["a:1", "b:7070"]);
        assert_eq!(shown(&resolver.read().unwrap()), ["[::1]:5"]);
        for bad in ["", "# nobody\n", "a:b\n", "a b:70000\n"] {
            std::fs::write(&path, bad).unwrap();
            assert_eq!(shown(&resolver.read().unwrap()), ["[::1]:5"], "{bad:?}");
            let url = format!("forebay+file://{}/set", path.display());
            let fresh = Resolver::new(&url.parse().unwrap());
            assert!(
                matches!(fresh.read(), Err(Error::Servers { .. })),
                "{bad:?}"
            );
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(shown(&resolver.read().unwrap()), ["[::1]:5"]);
    }

    #[test]
    fn every_address_of_a_name_is_a_server() {
        let resolver = resolver("forebay+dns://localhost:99/set");
        let servers = resolver.read().unwrap();
        assert!(!servers.is_empty());
        for server in servers.iter() {
            assert_eq!(server.authority.host, "localhost");
            assert!(
                server
                    .address
                    .is_some_and(|at| at.ip().is_loopback() && at.port() == 99)
            );
        }
    }

    #[test]
    fn failed_servers_are_tried_last() {
        let servers = resolver("forebay://a,b,c,d/set").last().unwrap();
        let unit = Unit {
            run: "set",
            number: 0,
            count: 1,
        };
        let all = order(&servers, &unit, &[]);
        assert_eq!(all[0], home(&servers, &unit).unwrap());
        let lost = all[0].to_string();
        let rest = order(&servers, &unit, &[&lost]);
        assert_eq!(shown(&rest[..3]), shown(&all[1..]));
        assert_eq!(rest[3], all[0]);
    }
}
