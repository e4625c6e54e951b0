//! Access control: TLS certificates, tokens, and the names that each token gives access to.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use forebay_wire::Token;
use forebay_wire::token;
use forebay_wire::transport::tls::{ServerConfig, ServerTls};
use ring::digest::{SHA256, digest};
use subtle::ConstantTimeEq;

use crate::error::{Error, Result};
use crate::reloadable::{Change, Reloadable};

/// Tokens that clients authenticate with. Without any, every client is admitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// Tokens that give access to every dataset and job.
    pub fixed: Vec<Token>,
    /// A file with one token a line, optionally followed by a space and a comma-separated list of
    /// the datasets and jobs that it gives access to (default: all). The file is read again when it
    /// changes.
    pub file: Option<PathBuf>,
}

impl Tokens {
    /// Returns whether every client is admitted without a token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fixed.is_empty() && self.file.is_none()
    }
}

/// The names that a token gives access to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Names(Arc<[String]>),
}

impl Scope {
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Scope::All => true,
            Scope::Names(names) => names.iter().any(|allowed| allowed == name),
        }
    }
}

/// One token. Only its hash is kept.
#[derive(Clone)]
struct Entry {
    digest: [u8; 32],
    scope: Scope,
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Entry(***, {:?})", self.scope)
    }
}

fn sha256(text: &str) -> [u8; 32] {
    let digest = digest(&SHA256, text.as_bytes());
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// Credentials of a server: its tokens and its TLS configuration.
pub(crate) struct Access {
    fixed: Vec<Entry>,
    file: Option<Reloadable<Arc<[Entry]>>>,
    tls: Option<Reloadable<Arc<ServerConfig>>>,
}

/// The reason why a client is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    NoToken,
    Unknown,
}

impl Refused {
    /// The error text that the client receives.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Refused::NoToken => {
                "this server requires a token: give one with token_file= or FOREBAY_TOKEN"
            }
            Refused::Unknown => "this server does not know the token",
        }
    }
}

impl Access {
    pub(crate) fn new(tokens: &Tokens, tls: Option<&ServerTls>) -> Result<Access> {
        let fixed = tokens.fixed.iter().map(|token| Entry {
            digest: sha256(token.expose()),
            scope: Scope::All,
        });
        let file = match tokens.file.clone() {
            None => None,
            Some(path) => {
                let files = vec![path.clone()];
                let load = move || entries(&path);
                Some(
                    Reloadable::new("tokens", files, load)
                        .map_err(|reason| Error::Tokens { reason })?,
                )
            }
        };
        let tls = match tls.cloned() {
            None => None,
            Some(tls) => {
                let files = tls.files().map(ToOwned::to_owned).collect();
                let load = move || tls.load().map_err(|e| e.to_string());
                Some(
                    Reloadable::new("certificates", files, load)
                        .map_err(|reason| Error::Certificates { reason })?,
                )
            }
        };
        Ok(Access {
            fixed: fixed.collect(),
            file,
            tls,
        })
    }

    /// Returns the names that the token gives access to, and whether the token file was read again.
    pub(crate) fn admit(&self, shown: &str) -> (Result<Scope, Refused>, Option<Change>) {
        if self.fixed.is_empty() && self.file.is_none() {
            return (Ok(Scope::All), None);
        }
        let (listed, change) = match &self.file {
            Some(file) => file.current(),
            None => (Arc::default(), None),
        };
        if shown.is_empty() {
            return (Err(Refused::NoToken), change);
        }
        let shown = sha256(shown);
        let mut found = None;
        // Compares with every entry, so that the time taken reveals nothing. A token on several
        // lines has the names of all of them.
        for entry in self.fixed.iter().chain(listed.iter()) {
            if bool::from(shown.ct_eq(&entry.digest)) {
                found = Some(match (found, &entry.scope) {
                    (Some(Scope::Names(a)), Scope::Names(b)) => {
                        Scope::Names(a.iter().chain(b.iter()).cloned().collect())
                    }
                    (None, scope) => scope.clone(),
                    _ => Scope::All,
                });
            }
        }
        (found.ok_or(Refused::Unknown), change)
    }

    /// The current TLS configuration, and whether it was read again; `None` without TLS.
    pub(crate) fn tls(&self) -> Option<(Arc<ServerConfig>, Option<Change>)> {
        self.tls.as_ref().map(Reloadable::current)
    }

    /// Reads all files again, changed or not.
    pub(crate) fn reload(&self) -> Vec<Change> {
        let tokens = self.file.as_ref().map(Reloadable::reload);
        let tls = self.tls.as_ref().map(Reloadable::reload);
        tokens.into_iter().chain(tls).collect()
    }
}

fn entries(path: &std::path::Path) -> Result<Arc<[Entry]>, String> {
    let text = token::read(path).map_err(|e| e.to_string())?;
    let lines = token::lines(&text, path).map_err(|e| e.to_string())?;
    if lines.is_empty() {
        // An empty file would lock out every client; most likely it is being written.
        return Err(token::no_token(path).to_string());
    }
    let entry = |(token, names): (Token, Option<Vec<String>>)| Entry {
        digest: sha256(token.expose()),
        scope: names.map_or(Scope::All, |names| Scope::Names(names.into())),
    };
    Ok(lines.into_iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(text, "a test").unwrap()
    }

    #[test]
    fn tokens_have_scopes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens");
        let text = "aaaaaaaaaaaaaaaa x,y\naaaaaaaaaaaaaaaa z\nbbbbbbbbbbbbbbbb\n";
        std::fs::write(&path, text).unwrap();
        let tokens = Tokens {
            fixed: vec![token("cccccccccccccccc")],
            file: Some(path.clone()),
        };
        let access = Access::new(&tokens, None).unwrap();
        let admit = |shown| access.admit(shown).0;
        let scope = admit("aaaaaaaaaaaaaaaa").unwrap();
        let has = ["x", "y", "z", "w", ""].map(|name| scope.has(name));
        assert_eq!(has, [true, true, true, false, false]);
        assert_eq!(admit("bbbbbbbbbbbbbbbb"), Ok(Scope::All));
        assert_eq!(admit("cccccccccccccccc"), Ok(Scope::All));
        assert_eq!(admit("aaaaaaaaaaaaaaa"), Err(Refused::Unknown));
        assert_eq!(admit(""), Err(Refused::NoToken));
        std::fs::write(&path, "dddddddddddddddd\n").unwrap();
        assert_eq!(access.reload()[0].problem, None);
        assert_eq!(admit("aaaaaaaaaaaaaaaa"), Err(Refused::Unknown));
        assert_eq!(admit("dddddddddddddddd"), Ok(Scope::All));
        // A file that was emptied by mistake keeps the tokens that it had before.
        std::fs::write(&path, "# none\n").unwrap();
        assert!(access.reload()[0].problem.is_some());
        assert_eq!(admit("dddddddddddddddd"), Ok(Scope::All));
    }

    #[test]
    fn without_tokens_every_client_is_admitted() {
        let access = Access::new(&Tokens::default(), None).unwrap();
        assert_eq!(access.admit("").0, Ok(Scope::All));
        assert_eq!(access.admit("anything").0, Ok(Scope::All));
        assert!(access.tls().is_none() && access.reload().is_empty());
    }

    #[test]
    fn secrets_are_not_printed() {
        let tokens = Tokens {
            fixed: vec![token("marked-0123456789")],
            file: None,
        };
        let entry = Entry {
            digest: sha256("marked-0123456789"),
            scope: Scope::All,
        };
        let shown = format!("{tokens:?} {entry:?}");
        assert!(!shown.contains("marked"), "{shown}");
        assert!(!shown.contains(&format!("{:?}", entry.digest[0..2].to_vec())));
    }
}
