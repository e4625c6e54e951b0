//! `Location`: a parsed path or URL.
//!
//! Defines the syntax of the paths and URLs that users may give for a dataset or a directory of images. Parsing makes no
//! request and no system call; whether the place exists shows when it is opened.

use crate::hub_url::HubUrl;
use crate::scheme::find;
use crate::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Alternative to an unsupported location, for error messages.
const CAN_USE: &str = "a path such as /data/imagenet or a URL such as file:///data/imagenet";
/// The scheme of generated datasets, which `forebay-synthetic` opens.
const SYNTHETIC: &str = "synthetic";

/// A place that a user named: a local path, or a URL.
///
/// Text of the form `scheme://...` is a URL, everything else is a path; write `./s3://x` for a local path
/// that looks like a URL. Parsing accepts every well-formed URL, also with an unknown scheme; such a URL fails
/// in [`local_path`](Location::local_path).
///
/// ```
/// use forebay_store::Location;
/// assert_eq!(Location::parse("file:///a%20b")?.local_path()?.to_str(), Some("/a b"));
/// let remote = Location::parse("s3://bucket/prefix")?;
/// assert!(remote.local_path().unwrap_err().to_string().contains("s3"));
/// # Ok::<(), forebay_store::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location(Place);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    Local(PathBuf),
    /// User name, password and query are never stored, so they cannot be printed. The query of a synthetic dataset is kept:
    /// it contains no secret.
    Remote {
        scheme: String,
        authority: String,
        path: String,
    },
}

impl Location {
    /// Parses a path or URL. Fails on an empty text, a malformed URL, and a URL that contains credentials.
    pub fn parse(text: impl AsRef<OsStr>) -> Result<Self> {
        let text = text.as_ref();
        if text.is_empty() {
            return Err(bad(text, "it is empty"));
        }
        if text.as_bytes().contains(&0) {
            return Err(bad(text, "it has a NUL byte in it"));
        }
        let Some((scheme, rest)) = split_scheme(text) else {
            return Ok(Self(Place::Local(PathBuf::from(text))));
        };
        let scheme = scheme.to_ascii_lowercase();
        if scheme == "file" {
            return local_from_url(text, rest);
        }
        let Ok(rest) = std::str::from_utf8(rest) else {
            return Err(bad(text, "a URL must be UTF-8"));
        };
        let (rest, extra) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, ""),
        };
        let kind = find(&scheme);
        let names_account = kind.is_some_and(|kind| kind.account_names.contains(&scheme.as_str()))
            && !authority.contains(':');
        if authority.contains('@') && !names_account {
            return Err(bad(
                text,
                "credentials do not belong in a URL: it ends up in logs and manifests",
            ));
        }
        if authority.is_empty() {
            return Err(bad(text, "no host or bucket follows the scheme"));
        }
        // Without its query or fragment the URL would silently name another object.
        if !extra.is_empty() && kind.is_some_and(|kind| kind.is_bucket) {
            return Err(bad(text, "? and # cannot be part of a name here"));
        }
        // The query of a synthetic dataset defines its content, and contains no secret.
        let query = if scheme == SYNTHETIC { extra } else { "" };
        Ok(Self(Place::Remote {
            scheme,
            authority: authority.to_owned(),
            path: format!("{path}{query}"),
        }))
    }

    /// The URL's scheme in lower case; `None` for a local path.
    pub fn scheme(&self) -> Option<&str> {
        match &self.0 {
            Place::Local(_) => None,
            Place::Remote { scheme, .. } => Some(scheme),
        }
    }

    /// Host and port, or bucket; `None` for a local path.
    pub fn authority(&self) -> Option<&str> {
        match &self.0 {
            Place::Local(_) => None,
            Place::Remote { authority, .. } => Some(authority),
        }
    }

    /// Whether the location is in a bucket or on a web server.
    pub fn is_remote(&self) -> bool {
        self.scheme().is_some_and(|scheme| find(scheme).is_some())
    }

    /// The path after the bucket or host, without leading and trailing slashes; `None` for a local path.
    pub fn key(&self) -> Option<&str> {
        match &self.0 {
            Place::Local(_) => None,
            Place::Remote { path, .. } => Some(path.trim_matches('/')),
        }
    }

    /// The parts of a URL of the Hugging Face Hub.
    pub(crate) fn hub_url(&self) -> Option<HubUrl<'_>> {
        let is_hub = self.scheme() == Some("hf");
        HubUrl::parse(self.authority().filter(|_| is_hub)?, self.key()?)
    }

    /// The location `name` below this one. `name` may contain slashes; an empty `name` returns this location.
    ///
    /// ```
    /// use forebay_store::Location;
    /// assert_eq!(Location::parse("s3://bucket/a/")?.join("b/c").to_string(), "s3://bucket/a/b/c");
    /// assert_eq!(Location::parse("/data")?.join("train").to_string(), "/data/train");
    /// # Ok::<(), forebay_store::Error>(())
    /// ```
    #[must_use]
    pub fn join(&self, name: &str) -> Self {
        let name = name.trim_matches('/');
        if name.is_empty() {
            return self.clone();
        }
        Self(match &self.0 {
            Place::Local(path) => Place::Local(path.join(name)),
            Place::Remote {
                scheme,
                authority,
                path,
            } => Place::Remote {
                scheme: scheme.clone(),
                authority: authority.clone(),
                path: format!("{}/{name}", path.trim_end_matches('/')),
            },
        })
    }

    /// Splits a location into parent and name; `None` if it can only be a directory or a prefix.
    ///
    /// # Errors
    /// [`Error::BadKey`] if the name is not UTF-8, as names in stores are.
    pub fn parent_and_name(&self) -> Result<Option<(Self, String)>> {
        if let Ok(path) = self.local_path() {
            if path.as_os_str().as_encoded_bytes().ends_with(b"/") {
                return Ok(None);
            }
            let Some(name) = path.file_name() else {
                return Ok(None);
            };
            let name = name.to_str().ok_or_else(|| Error::BadKey {
                key: name.to_string_lossy().into_owned(),
                why: "it is not UTF-8",
            })?;
            let parent = match path.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent,
                _ => Path::new("."),
            };
            return Ok(Some((Self::from(parent), name.to_owned())));
        }
        if self.hub_url().is_some_and(|url| url.path.is_empty()) {
            return Ok(None);
        }
        let text = self.to_string();
        let begin = text.find("://").map_or(0, |at| at + 3);
        match text[begin..].rfind('/') {
            Some(slash) if begin + slash + 1 < text.len() => {
                let (parent, name) = text.split_at(begin + slash + 1);
                Ok(Some((Self::parse(parent)?, name.to_owned())))
            }
            _ => Ok(None),
        }
    }

    /// The path of a local location. For any other location, an error that says what to use instead.
    pub fn local_path(&self) -> Result<&Path> {
        let scheme = match &self.0 {
            Place::Local(path) => return Ok(path),
            Place::Remote { scheme, .. } => scheme,
        };
        let why = match scheme.as_str() {
            known if find(known).is_some() => {
                format!("this takes local files only, and {scheme}:// storage is elsewhere")
            }
            "forebay" => {
                "that is a server's address, not a place that files can be read from or written to"
                    .to_owned()
            }
            "hdfs" => "HDFS is reached over HTTP: webhdfs://HOST:9870/PATH, with the web address of its name node".to_owned(),
            other => format!("the scheme {other}:// is not known"),
        };
        Err(Error::Unsupported {
            text: self.to_string(),
            why,
            can_use: CAN_USE,
        })
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self(Place::Local(path))
    }
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self(Place::Local(path.to_path_buf()))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Local(path) => path.display().fmt(f),
            Place::Remote {
                scheme,
                authority,
                path,
            } => write!(f, "{scheme}://{authority}{path}"),
        }
    }
}

/// The scheme and the bytes after `://`, if the text starts with a valid scheme (RFC 3986).
fn split_scheme(text: &OsStr) -> Option<(&str, &[u8])> {
    let bytes = text.as_bytes();
    let at = bytes.windows(3).position(|three| three == b"://")?;
    let scheme = std::str::from_utf8(bytes.get(..at)?).ok()?;
    let mut characters = scheme.chars();
    let well_formed = characters.next().is_some_and(|c| c.is_ascii_alphabetic())
        && characters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    well_formed.then(|| (scheme, bytes.get(at + 3..).unwrap_or_default()))
}

fn local_from_url(text: &OsStr, rest: &[u8]) -> Result<Location> {
    let path = rest.strip_prefix(b"localhost").unwrap_or(rest);
    if path.first() != Some(&b'/') {
        return Err(bad(
            text,
            "file:// takes an absolute path on this machine: file:///data/images",
        ));
    }
    let decoded =
        percent_decode(path).ok_or_else(|| bad(text, "% must be followed by two hex digits"))?;
    if decoded.contains(&0) {
        return Err(bad(text, "it has a NUL byte in it"));
    }
    Ok(Location(Place::Local(OsString::from_vec(decoded).into())))
}

fn percent_decode(bytes: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, tail)) = rest.split_first() {
        if first == b'%' {
            let digit = |at: usize| tail.get(at).and_then(|b| (*b as char).to_digit(16));
            // Two hex digits are at most 255.
            out.push((digit(0)? * 16 + digit(1)?) as u8);
            rest = tail.get(2..)?;
        } else {
            out.push(first);
            rest = tail;
        }
    }
    Some(out)
}

/// An error about `text`, which is shown without user name, password and query.
fn bad(text: &OsStr, why: &str) -> Error {
    let text = text.to_string_lossy();
    let text = text.split('?').next().unwrap_or_default();
    let shown = match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}...{}", &text[..scheme + 3], &text[at..])
        }
        _ => text.to_owned(),
    };
    Error::BadLocation {
        text: shown,
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(String, String)> {
        let found = Location::parse(text).unwrap().parent_and_name().unwrap();
        found.map(|(parent, name)| (parent.to_string(), name))
    }

    #[test]
    fn names_are_split_from_parents() {
        let some = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        assert_eq!(parts("s3://b/a/x"), some("s3://b/a/", "x"));
        assert_eq!(parts("s3://b/x"), some("s3://b/", "x"));
        assert_eq!(parts("s3://b/a/"), None);
        assert_eq!(parts("s3://b"), None);
        assert_eq!(parts("/a/x"), some("/a", "x"));
        assert_eq!(parts("x"), some(".", "x"));
        assert_eq!(parts("a/"), None);
        assert_eq!(parts(".."), None);
    }

    fn local(text: &str) -> PathBuf {
        Location::parse(text)
            .unwrap()
            .local_path()
            .unwrap()
            .to_path_buf()
    }

    #[test]
    fn paths_are_taken_as_they_are() {
        for text in [
            "a", "/a/b", "./s3://x", "a%20b", "C:/x", "1x://y", "://", "a b/ü",
        ] {
            assert_eq!(local(text), Path::new(text));
        }
        let odd = OsStr::from_bytes(b"/data/\xff\xfe");
        assert_eq!(
            Location::parse(odd)
                .unwrap()
                .local_path()
                .unwrap()
                .as_os_str(),
            odd
        );
    }

    #[test]
    fn file_urls_are_decoded() {
        assert_eq!(local("file:///a/b%20c"), Path::new("/a/b c"));
        assert_eq!(local("FILE://localhost/a"), Path::new("/a"));
        for text in [
            "file://host/a",
            "file://a",
            "file:///a%2",
            "file:///a%zz",
            "file:///a%00",
        ] {
            assert!(
                matches!(Location::parse(text), Err(Error::BadLocation { .. })),
                "{text}"
            );
        }
    }

    #[test]
    fn errors_of_other_schemes_name_an_alternative() {
        for text in [
            "s3://bucket/x",
            "gs://b",
            "https://host:1/x",
            "forebay://h:1/name",
            "ftp://h/x",
            "hdfs://h:8020/x",
            "abfss://container@account.dfs.core.windows.net/x",
        ] {
            let location = Location::parse(text).unwrap();
            assert_eq!(location.to_string(), text);
            let error = location.local_path().unwrap_err().to_string();
            assert!(error.contains(location.scheme().unwrap()), "{error}");
            assert!(error.contains("file:///"), "{error}");
        }
    }

    #[test]
    fn secrets_are_refused_and_never_shown() {
        let error = Location::parse("s3://KEY:SECRET@bucket/x?sig=HIDDEN")
            .unwrap_err()
            .to_string();
        assert!(
            !error.contains("SECRET") && !error.contains("HIDDEN"),
            "{error}"
        );
        assert!(Location::parse("abfss://c:SECRET@account/x").is_err());
        assert!(Location::parse("s3://bucket/a#b").is_err());
        assert!(Location::parse("gs://bucket/a?b").is_err());
        let synthetic = Location::parse("synthetic://imagenet?records=3").unwrap();
        assert_eq!(synthetic.to_string(), "synthetic://imagenet?records=3");
        assert!(!synthetic.is_remote());
        let signed = Location::parse("https://host/x?sig=HIDDEN#frag").unwrap();
        assert!(!format!("{signed:?} {signed}").contains("HIDDEN"));
    }

    #[test]
    fn join_appends_names() {
        for (base, name, joined, key) in [
            ("s3://b", "x/y", "s3://b/x/y", Some("x/y")),
            ("s3://b/", "/x/", "s3://b/x", Some("x")),
            ("gs://b/p", "", "gs://b/p", Some("p")),
            ("https://h:1/p/", "x", "https://h:1/p/x", Some("p/x")),
            ("/a", "b/c", "/a/b/c", None),
        ] {
            let place = Location::parse(base).unwrap().join(name);
            assert_eq!(place.to_string(), joined);
            assert_eq!(place.key(), key, "{joined}");
            assert_eq!(place.is_remote(), key.is_some(), "{joined}");
        }
        assert!(!Location::parse("forebay://h:1/x").unwrap().is_remote());
    }

    #[test]
    fn empty_locations_are_refused() {
        assert!(Location::parse("").is_err());
        assert!(Location::parse("s3://").is_err());
        assert!(Location::parse("s3:///x").is_err());
    }
}
