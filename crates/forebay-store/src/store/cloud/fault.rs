//! What a failed try means: whether another one may help, and what to tell the user.

use super::wire::Seen;
use crate::{Error, Trouble};
use object_store::client::HttpErrorKind;
use std::error::Error as StdError;
use std::time::Duration;

/// Why one try failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// The client or the store said so.
    Store(object_store::Error),
    /// Nothing came for so long.
    TimedOut(Duration),
    /// The answer's bytes are not those that were asked for.
    BadBytes(String),
    /// The bytes that arrived, or are stored, have another checksum.
    Damaged {
        what: &'static str,
        expected: u32,
        found: u32,
    },
    /// The answer is from before this process wrote the object.
    Old,
    /// No try would change it.
    Final(Error),
}

impl From<object_store::Error> for Fault {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Final(error)
    }
}

/// What follows from a fault.
#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) what: What,
    /// Tries that may follow.
    pub(super) again: Again,
}

#[derive(Debug)]
pub(super) enum What {
    /// The error is known in full.
    Known(Error),
    NotFound,
    AlreadyThere,
    /// A range begins behind the end.
    BeyondEnd,
    /// Bytes have another checksum, each time.
    Damaged {
        what: &'static str,
        expected: u32,
        found: u32,
    },
    /// A condition of the request does not hold.
    Condition,
    Trouble {
        kind: Trouble,
        why: String,
        hint: Option<String>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Again {
    Never,
    /// So many times at most.
    Some(u32),
    Yes,
    /// Yes, and everybody should ask less.
    Slower,
}

/// Error codes of stores that a further try may overcome, though the status does not say so.
const PASSING_CODES: [&str; 8] = [
    "RequestTimeout",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
    "Md5Mismatch",
    "Crc64Mismatch",
    "ConditionalRequestConflict",
];
/// A request that is refused as malformed may have been damaged on its way, which does not happen often.
const DAMAGED_ON_THE_WAY: u32 = 3;
/// Bytes that are damaged each time are damaged in the store.
const DAMAGED_AGAIN: u32 = 6;
/// Caches that tell old answers do so for seconds.
const OLD_AGAIN: u32 = 8;
/// Where instances get their credentials from: nobody else answers there.
const METADATA_HOSTS: [&str; 4] = [
    "169.254.169.254",
    "169.254.170.2",
    "metadata.google.internal",
    "metadata",
];

/// Judges a fault by what was seen of the requests.
pub(super) fn judge(fault: Fault, seen: &Seen) -> Verdict {
    let trouble = |kind, why: String, again| Verdict {
        what: What::Trouble {
            kind,
            why,
            hint: None,
        },
        again,
    };
    let error = match fault {
        Fault::Final(error) => {
            return Verdict {
                what: What::Known(error),
                again: Again::Never,
            };
        }
        Fault::TimedOut(time) => {
            let why = format!("no answer for {:.1} s", time.as_secs_f64());
            return trouble(Trouble::TimedOut, why, Again::Yes);
        }
        Fault::Old => {
            let why = "the store answers as it was before it was written to".to_owned();
            return trouble(Trouble::BadAnswer, why, Again::Some(OLD_AGAIN));
        }
        Fault::BadBytes(why) => return trouble(Trouble::BadAnswer, why, Again::Yes),
        Fault::Damaged {
            what,
            expected,
            found,
        } => {
            return Verdict {
                what: What::Damaged {
                    what,
                    expected,
                    found,
                },
                again: Again::Some(DAMAGED_AGAIN),
            };
        }
        Fault::Store(error) => error,
    };
    if METADATA_HOSTS.contains(&seen.host.as_str()) {
        return Verdict {
            what: What::Trouble {
                kind: Trouble::Denied,
                why: "there are no credentials, and no instance metadata to get them from"
                    .to_owned(),
                hint: Some(
                    "set them in the environment (docs/storage.md has the names), choose a profile \
                     (AWS_PROFILE), or read a public bucket with --anonymous"
                        .to_owned(),
                ),
            },
            again: Again::Some(2),
        };
    }
    let passing = seen
        .code
        .as_deref()
        .is_some_and(|code| PASSING_CODES.contains(&code));
    if passing {
        return trouble(Trouble::Server, said(seen), Again::Yes);
    }
    // A bucket that is not there would otherwise look like an object that is not there.
    if let Some(code @ ("NoSuchBucket" | "ContainerNotFound")) = seen.code.as_deref() {
        let why = format!("there is no such bucket ({code})");
        return trouble(Trouble::Refused, why, Again::Never);
    }
    let what = |what| Verdict {
        what,
        again: Again::Never,
    };
    use object_store::Error as Store;
    match &error {
        Store::NotFound { .. } => return what(What::NotFound),
        Store::AlreadyExists { .. } => return what(What::AlreadyThere),
        Store::Precondition { .. } | Store::NotModified { .. } => return what(What::Condition),
        Store::NotSupported { .. } if seen.status == Some(200) => {
            let why = "the server sends files only as a whole, not in parts".to_owned();
            return trouble(Trouble::Unsupported, why, Again::Never);
        }
        Store::NotSupported { .. }
        | Store::NotImplemented { .. }
        | Store::InvalidPath { .. }
        | Store::UnknownConfigurationKey { .. } => {
            return trouble(Trouble::Unsupported, innermost(&error), Again::Never);
        }
        _ => {}
    }
    if let Some(kind) = seen.transport {
        return judge_transport(kind, &error, seen);
    }
    match seen.status {
        Some(401 | 403) => Verdict {
            what: What::Trouble {
                kind: Trouble::Denied,
                why: said(seen),
                hint: Some(
                    "check the credentials, what they may do, and the region and endpoint; a \
                     public bucket is read with --anonymous"
                        .to_owned(),
                ),
            },
            again: Again::Never,
        },
        Some(429 | 503) => trouble(Trouble::Throttled, said(seen), Again::Slower),
        Some(501) => trouble(Trouble::Unsupported, said(seen), Again::Never),
        Some(500..) | Some(408) => trouble(Trouble::Server, said(seen), Again::Yes),
        Some(400) => trouble(
            Trouble::Refused,
            said(seen),
            Again::Some(DAMAGED_ON_THE_WAY),
        ),
        Some(300..400) => Verdict {
            what: What::Trouble {
                kind: Trouble::Refused,
                why: said(seen),
                hint: Some("the bucket is elsewhere: set its region, or the endpoint".to_owned()),
            },
            again: Again::Never,
        },
        Some(416) => what(What::BeyondEnd),
        Some(401..500) => trouble(Trouble::Refused, said(seen), Again::Never),
        // Some servers answer with success where nothing of the range is there, and the client finds out.
        Some(206) if innermost(&error).contains("Wanted range starting") => what(What::BeyondEnd),
        // It was answered with success, and the answer cannot be used: cut, damaged, or an error in disguise.
        Some(_) => trouble(Trouble::BadAnswer, innermost(&error), Again::Yes),
        // No request was made: credentials could not be read, for one.
        None => trouble(Trouble::Refused, innermost(&error), Again::Some(2)),
    }
}

fn judge_transport(kind: HttpErrorKind, error: &object_store::Error, seen: &Seen) -> Verdict {
    let cause = innermost(error);
    let (kind, why) = match kind {
        HttpErrorKind::Connect => (
            Trouble::Unreachable,
            format!("cannot connect to {}: {cause}", seen.host),
        ),
        HttpErrorKind::Timeout => (Trouble::TimedOut, cause),
        HttpErrorKind::Decode => (Trouble::BadAnswer, cause),
        _ => (
            Trouble::Unreachable,
            format!("the connection broke: {cause}"),
        ),
    };
    // Certificates do not become valid by asking again.
    let again = if why.contains("certificate") {
        Again::Some(2)
    } else {
        Again::Yes
    };
    let hint = why.contains("certificate").then(|| {
        "the server's certificate is not trusted here: install its authority's".to_owned()
    });
    Verdict {
        what: What::Trouble { kind, why, hint },
        again,
    }
}

/// What the store said, in a line.
fn said(seen: &Seen) -> String {
    let status = seen.status.unwrap_or_default();
    let name = match status {
        400 => " Bad Request",
        401 => " Unauthorized",
        403 => " Forbidden",
        404 => " Not Found",
        409 => " Conflict",
        429 => " Too Many Requests",
        500 => " Internal Server Error",
        502 => " Bad Gateway",
        503 => " Service Unavailable",
        504 => " Gateway Timeout",
        _ => "",
    };
    let mut text = format!("the store answered {status}{name}");
    // Codes are names. A message is shown only in part: some stores repeat the request in it.
    if let Some(code) = seen.code.as_deref().filter(|code| is_name(code)) {
        text.push_str(&format!(" ({code})"));
    }
    if let Some(message) = seen.message.as_deref() {
        let line = message.lines().next().unwrap_or_default().trim();
        let line: String = line.chars().filter(|c| !c.is_control()).take(160).collect();
        if !line.is_empty() {
            text.push_str(&format!(": {line}"));
        }
    }
    text
}

fn is_name(text: &str) -> bool {
    text.len() <= 64
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// The last cause of an error: those around it only repeat it, with URLs.
pub(super) fn innermost(error: &(dyn StdError + 'static)) -> String {
    let mut cause = error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    let text = cause.to_string();
    let text = text.lines().next().unwrap_or_default();
    text.chars().filter(|c| !c.is_control()).take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generic(text: &str) -> Fault {
        Fault::Store(object_store::Error::Generic {
            store: "test",
            source: text.into(),
        })
    }

    fn answered(status: u16, code: &str) -> Seen {
        Seen {
            status: Some(status),
            code: (!code.is_empty()).then(|| code.to_owned()),
            ..Seen::default()
        }
    }

    #[test]
    fn what_may_pass_is_tried_again() {
        for (status, code, again) in [
            (500, "InternalError", Again::Yes),
            (503, "SlowDown", Again::Slower),
            (429, "", Again::Slower),
            (502, "", Again::Yes),
            (501, "NotImplemented", Again::Never),
            (400, "InvalidRequest", Again::Some(3)),
            (400, "BadDigest", Again::Yes),
            (403, "AccessDenied", Again::Never),
            (409, "ConditionalRequestConflict", Again::Yes),
            (405, "", Again::Never),
            (301, "", Again::Never),
            (200, "", Again::Yes),
        ] {
            let verdict = judge(generic("x"), &answered(status, code));
            assert_eq!(verdict.again, again, "{status} {code}");
        }
    }

    #[test]
    fn messages_are_shown_in_part_and_on_one_line() {
        let mut seen = answered(403, "AccessDenied<script>");
        seen.message = Some(format!("no\u{7}\nStringToSign: SECRET {}", "x".repeat(500)));
        let What::Trouble { why, hint, .. } = judge(generic("x"), &seen).what else {
            panic!("no trouble")
        };
        assert_eq!(why, "the store answered 403 Forbidden: no");
        assert!(hint.is_some());
    }

    #[test]
    fn missing_credentials_are_called_so() {
        let seen = Seen {
            host: "169.254.169.254".to_owned(),
            transport: Some(HttpErrorKind::Connect),
            ..Seen::default()
        };
        let What::Trouble { kind, why, .. } = judge(generic("x"), &seen).what else {
            panic!("no trouble")
        };
        assert_eq!(kind, Trouble::Denied);
        assert!(why.contains("no credentials"), "{why}");
    }
}
