//! Bearer tokens of clients. Tokens never appear in logs or errors.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Minimum length of a token in bytes; shorter ones can be guessed.
const MIN_LEN: usize = 16;
/// Maximum length of a token in bytes: enough for a signed token of an identity provider, and below the limit of a client's
/// first message.
const MAX_LEN: usize = 4096;
/// Maximum size of a token file in bytes.
const MAX_FILE: u64 = 1 << 20;

/// A token. Prints as `***`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

/// A line of a token file: the token, and the names that it gives access to; `None` for all.
pub type Line = (Token, Option<Vec<String>>);

/// An error of a token or a token file. Messages do not contain the token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// Too short, too long, or with invalid characters.
    #[error(
        "{from} is no token: {what}; expected {MIN_LEN} to {MAX_LEN} printable ASCII characters without spaces"
    )]
    Invalid {
        /// The source of the token.
        from: String,
        /// The problem.
        what: &'static str,
    },
    /// An unreadable file.
    #[error("cannot read the token file {}: {source}", .path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file without a token.
    #[error("the token file {} holds {found}: expected {expected}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Its content, described without secrets.
        found: String,
        /// The expected content.
        expected: &'static str,
    },
}

impl Token {
    /// Creates a token from `text`; `from` names its source in errors.
    ///
    /// # Errors
    ///
    /// [`TokenError::Invalid`].
    pub fn new(text: &str, from: impl fmt::Display) -> Result<Token, TokenError> {
        let what = match text.len() {
            0 => "it is empty",
            len if len < MIN_LEN => "it is too short",
            len if len > MAX_LEN => "it is too long",
            _ if !text.bytes().all(|b| b.is_ascii_graphic()) => {
                "it has a space or a character beyond ASCII"
            }
            _ => return Ok(Token(text.to_owned())),
        };
        Err(TokenError::Invalid {
            from: from.to_string(),
            what,
        })
    }

    /// Reads the first token of a file, in the format of [`lines`]; used by clients.
    ///
    /// # Errors
    ///
    /// As [`read`] and [`lines`]; also for a file without a token.
    pub fn from_file(path: &Path) -> Result<Token, TokenError> {
        let text = read(path)?;
        match lines(&text, path)?.into_iter().next() {
            Some((token, _)) => Ok(token),
            None => Err(no_token(path)),
        }
    }

    /// Returns the secret itself, for sending and comparing only, never for display.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Reads a token file, after checking its size.
///
/// # Errors
///
/// [`TokenError::Read`] and [`TokenError::File`].
pub fn read(path: &Path) -> Result<String, TokenError> {
    let failed = |source| TokenError::Read {
        path: path.to_owned(),
        source,
    };
    let file = crate::open_input(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(TokenError::File {
            path: path.to_owned(),
            found: format!("more than {MAX_FILE} bytes"),
            expected: "a token a line",
        });
    }
    String::from_utf8(bytes).map_err(|_| TokenError::File {
        path: path.to_owned(),
        found: "bytes that are no text".to_owned(),
        expected: "a token a line",
    })
}

/// Parses a token file: each token, with the names that it gives access to, or `None` for all.
///
/// A line is a token, optionally followed by a space and a comma-separated list of names. Empty
/// lines and lines that begin with `#` are skipped.
///
/// # Errors
///
/// The number of the invalid line, never its content.
pub fn lines(text: &str, path: &Path) -> Result<Vec<Line>, TokenError> {
    let mut all = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let from = format!("line {} of {}", i + 1, path.display());
        let mut words = line.split_whitespace();
        let token = Token::new(words.next().unwrap_or_default(), &from)?;
        let names = words.next().map(|names| {
            names
                .split(',')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect()
        });
        if words.next().is_some() {
            return Err(TokenError::File {
                path: path.to_owned(),
                found: format!("more than two words in line {}", i + 1),
                expected: "TOKEN, or TOKEN NAME,NAME",
            });
        }
        all.push((token, names));
    }
    Ok(all)
}

/// The error for a file without tokens, which would admit no client.
#[must_use]
pub fn no_token(path: &Path) -> TokenError {
    TokenError::File {
        path: path.to_owned(),
        found: "no token".to_owned(),
        expected: "a token a line",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKED: &str = "marked-0123456789abcdef";

    #[test]
    fn lines_hold_a_token_and_optional_names() {
        let path = Path::new("tokens");
        let text = format!("# who\n\n{MARKED}\n  {MARKED}2  a,b  \r\n{MARKED}3 a,\n");
        let all = lines(&text, path).unwrap();
        let names = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect());
        assert_eq!(all[0], (Token(MARKED.to_owned()), None));
        assert_eq!(all[1].1, names(&["a", "b"]));
        assert_eq!(all[2].1, names(&["a"]));
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn errors_tell_the_line_and_keep_the_secret() {
        let path = Path::new("tokens");
        for (text, part) in [
            (
                "marked\n".to_owned(),
                "line 1 of tokens is no token: it is too short",
            ),
            (format!("#\nmarked{}\n", "x".repeat(5000)), "line 2"),
            (format!("{MARKED}ä\n"), "beyond ASCII"),
            (format!("{MARKED} a b\n"), "more than two words in line 1"),
        ] {
            let e = lines(&text, path).unwrap_err();
            let shown = format!("{e} {e:?}");
            assert!(shown.contains(part), "{shown}");
            assert!(!shown.contains("marked"), "{shown}");
        }
        let token = Token::new(MARKED, "x").unwrap();
        assert_eq!(format!("{token:?} {:?}", Some(&token)), "*** Some(***)");
    }

    #[test]
    fn clients_use_the_first_token_of_a_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(
            Token::from_file(file.path())
                .unwrap_err()
                .to_string()
                .contains("no token")
        );
        std::fs::write(
            file.path(),
            format!("# new\n{MARKED} a\nother-0123456789abcdef\n"),
        )
        .unwrap();
        assert_eq!(Token::from_file(file.path()).unwrap().expose(), MARKED);
        std::fs::write(file.path(), [0xff, 0xfe]).unwrap();
        assert!(Token::from_file(file.path()).is_err());
        assert!(Token::from_file(Path::new("/nonexistent/token")).is_err());
    }
}
