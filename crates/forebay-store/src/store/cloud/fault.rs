//! Classification of failed tries: the retry policy, and the message for the user.

use super::Operation;
use super::exchange_log::Observation;
use crate::{Error, ErrorKind};
use object_store::client::HttpErrorKind;
use std::error::Error as StdError;
use std::time::Duration;

/// Why one try failed.
#[derive(Debug)]
pub(super) enum Fault {
    /// `object_store` returned this error.
    Store(object_store::Error),
    /// Nothing arrived within this time.
    TimedOut(Duration),
    /// The response does not have the requested bytes, or the store received other bytes than were sent.
    BadBytes(String),
    /// The received or stored bytes do not have the expected checksum.
    Damaged(Damage),
    /// The pages of a listing repeat, so it would never end.
    EndlessListing,
    /// A retry would not help.
    Final(Error),
}

/// A checksum that is not the expected one.
#[derive(Debug)]
pub(super) struct Damage {
    pub(super) what: &'static str,
    pub(super) expected: u32,
    pub(super) found: u32,
}

impl Fault {
    pub(super) fn read_only() -> Self {
        Self::BadBytes("web servers and the Hugging Face Hub are read only".to_owned())
    }
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

/// The classification of a fault.
#[derive(Debug)]
pub(super) struct RetryClass {
    pub(super) what: Outcome,
    /// Which retries may follow.
    pub(super) again: RetryPolicy,
}

#[derive(Debug)]
pub(super) enum Outcome {
    /// The error is known in full.
    Known(Error),
    NotFound,
    AlreadyThere,
    /// The range begins beyond the end of the object.
    BeyondEnd,
    /// The bytes have a wrong checksum.
    Damaged(Damage),
    /// A condition of the request does not hold.
    Condition,
    Failed {
        kind: ErrorKind,
        why: String,
        hint: Option<String>,
    },
}

impl Outcome {
    /// A line for the observer of long waits: which operation is retried, why, and for how long.
    pub(super) fn waits_for(
        &self,
        operation: &Operation,
        tries: u32,
        left: Duration,
        pause: Option<Duration>,
    ) -> String {
        let why = match self {
            Self::Failed { why, .. } => why.as_str(),
            Self::Damaged(_) => "the bytes arrive damaged",
            _ => "it failed",
        };
        let (op, object) = (operation.op, &operation.object);
        if let Some(pause) = pause {
            let pause = pause.as_secs();
            return format!(
                "waiting to {op} {object}: {why}; the store asks to wait, and the next try is in {pause} s"
            );
        }
        format!(
            "waiting to {op} {object}: {why}; tried {tries} times, and tried again for {:.0} s",
            left.as_secs_f64().ceil()
        )
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RetryPolicy {
    Never,
    /// At most this many tries, and only while retry tokens are available. A refusal that many operations meet is not caused by
    /// a damaged request.
    Spare(u32),
    /// At most this many tries.
    Some(u32),
    Yes,
    /// Retry, and lower the limit of requests in flight to the bucket.
    Slower,
}

/// Error codes that are transient although their HTTP status suggests otherwise.
const PASSING_CODES: [&str; 14] = [
    "RequestTimeout",
    "IncompleteBody",
    "BadDigest",
    "XAmzContentSHA256Mismatch",
    "XAmzContentChecksumMismatch",
    "Md5Mismatch",
    "Crc64Mismatch",
    "ConditionalRequestConflict",
    // Of Hadoop.
    "SafeModeException",
    "RetriableException",
    "StandbyException",
    "AlreadyBeingCreatedException",
    "RecoveryInProgressException",
    "ReplicaNotFoundException",
];
/// Error codes that mean that the credentials, or the clock of this machine, are not accepted.
const CREDENTIAL_CODES: [&str; 21] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "RequestExpired",
    "InvalidToken",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "UnrecognizedClientException",
    "SignatureDoesNotMatch",
    "RequestTimeTooSkewed",
    "InvalidSecurity",
    "MissingSecurityHeader",
    "CredentialsNotSupported",
    "NotSignedUp",
    "AccountProblem",
    "AllAccessDisabled",
    "AuthenticationFailed",
    "InvalidAuthenticationInfo",
    "AccountIsDisabled",
    "authError",
    "accountDisabled",
];
/// The codes among them that mean that the credentials have expired.
const EXPIRED_CODES: [&str; 4] = [
    "ExpiredToken",
    "ExpiredTokenException",
    "TokenRefreshRequired",
    "RequestExpired",
];
/// The codes by which Hadoop refuses a user.
const HADOOP_DENIES: [&str; 3] = [
    "AccessControlException",
    "AuthorizationException",
    "SecurityException",
];
/// The code that the log has for a listing whose pages repeat.
pub(super) const ENDLESS_LISTING: &str = "EndlessListing";
/// Error codes of the Hugging Face Hub, of `hub` and of `webhdfs`, each with its cause and its remedy.
const SERVICE_CODES: [(&str, ErrorKind, &str, &str); 7] = [
    (
        "RepoNotFound",
        ErrorKind::Denied,
        "there is no such repository, or it is private",
        "check its name; for a private one set HF_TOKEN, or run `hf auth login`",
    ),
    (
        "BadToken",
        ErrorKind::Denied,
        "the token is not valid",
        "HF_TOKEN has it, or the file that `hf auth login` writes; log in again, or read without it (storage option anonymous)",
    ),
    (
        "GatedRepo",
        ErrorKind::Denied,
        "the repository is gated",
        "accept its conditions on its page, then set HF_TOKEN, or run `hf auth login`",
    ),
    (
        "RevisionNotFound",
        ErrorKind::Refused,
        "the repository has no such revision",
        "a branch, a tag or a commit follows the @",
    ),
    (
        "NoHub",
        ErrorKind::BadAnswer,
        "the answer is not that of a Hugging Face Hub",
        "check the endpoint: HF_ENDPOINT names it",
    ),
    (
        "NoWebHdfs",
        ErrorKind::BadAnswer,
        "the answer is not that of WebHDFS",
        "the host and port are those of a name node's web address, often port 9870, or of HttpFS, often 14000",
    ),
    (
        "AuthenticationRequired",
        ErrorKind::Denied,
        "the cluster wants to know who you are, and a user's name is not enough",
        "get a delegation token with `hdfs fetchdt`, and set WEBHDFS_DELEGATION_TOKEN to its URL form",
    ),
];
/// Stores refuse requests whose time differs by more than 15 minutes from theirs. A difference of half of that is not caused
/// by a slow network.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(450);
/// Maximum number of tries of a request that is refused as malformed, which may have been damaged in transit.
const DAMAGED_ON_THE_WAY: u32 = 3;
/// Maximum number of tries if bytes arrive damaged; bytes that are damaged every time are damaged in the store.
const DAMAGED_AGAIN: u32 = 6;
/// Maximum number of tries if a signed address is refused; each is with a fresh one.
const SIGNED_AGAIN: u32 = 4;
/// Hosts of instance metadata services, which `object_store` asks for credentials.
const METADATA_HOSTS: [&str; 4] = [
    "169.254.169.254",
    "169.254.170.2",
    "metadata.google.internal",
    "metadata",
];

/// Classifies a fault by the logged responses.
pub(super) fn judge(fault: Fault, seen: &Observation) -> RetryClass {
    match fault {
        Fault::Final(error) => RetryClass {
            what: Outcome::Known(error),
            again: RetryPolicy::Never,
        },
        Fault::TimedOut(time) => {
            let why = format!("no answer for {:.1} s", time.as_secs_f64());
            trouble(ErrorKind::TimedOut, why, RetryPolicy::Yes)
        }
        Fault::EndlessListing => endless_listing(),
        Fault::BadBytes(why) => trouble(ErrorKind::BadAnswer, why, RetryPolicy::Yes),
        Fault::Damaged(damage) => RetryClass {
            what: Outcome::Damaged(damage),
            again: RetryPolicy::Some(DAMAGED_AGAIN),
        },
        Fault::Store(error) => judge_error(&error, seen),
    }
}

fn endless_listing() -> RetryClass {
    let why = "the listing does not end: its pages repeat".to_owned();
    trouble(ErrorKind::BadAnswer, why, RetryPolicy::Never)
}

fn trouble(kind: ErrorKind, why: String, again: RetryPolicy) -> RetryClass {
    hinted(kind, why, again, None)
}

fn hinted(kind: ErrorKind, why: String, again: RetryPolicy, hint: Option<&str>) -> RetryClass {
    let hint = hint.map(str::to_owned);
    RetryClass {
        what: Outcome::Failed { kind, why, hint },
        again,
    }
}

fn certain(what: Outcome) -> RetryClass {
    RetryClass {
        what,
        again: RetryPolicy::Never,
    }
}

/// Classifies an error of `object_store`: first by error code and kind, else by transport error or status.
fn judge_error(error: &object_store::Error, seen: &Observation) -> RetryClass {
    if let (true, Some(status @ (400 | 401 | 403 | 404 | 410))) = (seen.is_signed, seen.status) {
        return judge_signed(status, seen);
    }
    if METADATA_HOSTS.contains(&seen.host.as_str()) {
        let why = "there are no credentials, and no instance metadata to get them from";
        let hint = "set them in the environment (docs/storage.md has the names), choose a profile \
                    (AWS_PROFILE), or read a public bucket with the storage option anonymous";
        return hinted(
            ErrorKind::Denied,
            why.to_owned(),
            RetryPolicy::Spare(2),
            Some(hint),
        );
    }
    let code = seen.code.as_deref();
    if code.is_some_and(|code| PASSING_CODES.contains(&code)) {
        return trouble(ErrorKind::Server, said(seen), RetryPolicy::Yes);
    }
    if code == Some(ENDLESS_LISTING) {
        return endless_listing();
    }
    // A missing bucket would otherwise look like a missing object.
    if let Some(code @ ("NoSuchBucket" | "ContainerNotFound" | "InvalidBucketName")) = code {
        let why = format!("there is no such bucket ({code})");
        return trouble(ErrorKind::Refused, why, RetryPolicy::Never);
    }
    if code.is_some_and(|code| CREDENTIAL_CODES.contains(&code)) {
        return denied(seen);
    }
    if let Some((_, kind, why, hint)) = SERVICE_CODES.iter().find(|row| code == Some(row.0)) {
        return hinted(*kind, (*why).to_owned(), RetryPolicy::Never, Some(hint));
    }
    use object_store::Error as Store;
    match error {
        Store::NotFound { .. } => certain(Outcome::NotFound),
        Store::AlreadyExists { .. } => certain(Outcome::AlreadyThere),
        Store::Precondition { .. } | Store::NotModified { .. } => certain(Outcome::Condition),
        Store::NotSupported { .. } if seen.status == Some(200) => {
            let why = "the server sends files only as a whole, not in parts".to_owned();
            trouble(ErrorKind::Unsupported, why, RetryPolicy::Never)
        }
        Store::NotSupported { .. }
        | Store::NotImplemented { .. }
        | Store::InvalidPath { .. }
        | Store::UnknownConfigurationKey { .. } => {
            trouble(ErrorKind::Unsupported, innermost(error), RetryPolicy::Never)
        }
        _ => match seen.transport {
            Some(kind) => judge_transport(kind, error, seen),
            None => judge_status(error, seen),
        },
    }
}

fn judge_status(error: &object_store::Error, seen: &Observation) -> RetryClass {
    match seen.status {
        // Hadoop answers so to all kinds of failures.
        Some(403) if is_hadoop(seen) => trouble(ErrorKind::Refused, said(seen), RetryPolicy::Never),
        Some(401 | 403) => denied(seen),
        Some(400) if clock_difference(seen).is_some() => denied(seen),
        Some(429 | 503) => trouble(ErrorKind::Throttled, said(seen), RetryPolicy::Slower),
        Some(501) => trouble(ErrorKind::Unsupported, said(seen), RetryPolicy::Never),
        Some(500..) | Some(408) => trouble(ErrorKind::Server, said(seen), RetryPolicy::Yes),
        Some(400) => trouble(
            ErrorKind::Refused,
            said(seen),
            RetryPolicy::Spare(DAMAGED_ON_THE_WAY),
        ),
        Some(300..400) => judge_redirect(seen),
        Some(416) => certain(Outcome::BeyondEnd),
        Some(401..500) => trouble(ErrorKind::Refused, said(seen), RetryPolicy::Never),
        // Some servers respond with success to a range beyond the end, and `object_store` rejects the response.
        Some(206) if innermost(error).contains("Wanted range starting") => {
            certain(Outcome::BeyondEnd)
        }
        // The status is success, but the response is truncated, damaged, or an error page.
        Some(_) => trouble(ErrorKind::BadAnswer, innermost(error), RetryPolicy::Yes),
        // No request was made, for example because credentials could not be read.
        None => trouble(ErrorKind::Refused, innermost(error), RetryPolicy::Spare(2)),
    }
}

/// Whether the code is that of a failure in Hadoop other than of permissions.
fn is_hadoop(seen: &Observation) -> bool {
    let code = seen.code.as_deref().unwrap_or_default();
    code.ends_with("Exception") && !HADOOP_DENIES.contains(&code)
}

/// The store refuses the credentials. A wrong clock has the same effect; the message names it if the response shows it.
fn denied(seen: &Observation) -> RetryClass {
    let code = seen.code.as_deref().unwrap_or_default();
    let mut why = said(seen);
    let hint = if let Some(off) = clock_difference(seen) {
        why.push_str(&format!("; the clock of this machine is {off} the store's"));
        "set the clock of this machine, for example with NTP"
    } else if code == "RequestTimeTooSkewed" {
        "set the clock of this machine, for example with NTP; a request that waits 15 minutes behind a proxy meets \
         the same error"
    } else if HADOOP_DENIES.contains(&code) {
        "HADOOP_USER_NAME is the user that asks; its permissions are those of the file and of the directories above it"
    } else if EXPIRED_CODES.contains(&code) {
        "the credentials have expired: get new ones, set them, and run the same command again"
    } else {
        "check the credentials, what they may do, and the region and endpoint; a public bucket is read with the storage option anonymous"
    };
    hinted(ErrorKind::Denied, why, RetryPolicy::Never, Some(hint))
}

/// The difference between this machine's clock and the store's as text, if it exceeds the tolerance.
fn clock_difference(seen: &Observation) -> Option<String> {
    let (theirs, ours) = seen.clocks?;
    let (behind, way) = match theirs.duration_since(ours) {
        Ok(behind) => (behind, "behind"),
        Err(ahead) => (ahead.duration(), "ahead of"),
    };
    if behind < CLOCK_TOLERANCE {
        return None;
    }
    // Rounded up to a minute, since the response took some time.
    let minutes = behind.as_secs().div_ceil(60) * 60;
    let time = humantime::format_duration(Duration::from_secs(minutes));
    Some(format!("{time} {way}"))
}

/// A redirect that was not followed. Requests to buckets follow none, since they carry credentials.
fn judge_redirect(seen: &Observation) -> RetryClass {
    let redirect = seen.redirect.clone().unwrap_or_default();
    let mut why = said(seen);
    // Only the host is shown: the rest of the URL may contain a signature.
    let host: Option<String> = redirect
        .host
        .map(|host| host.chars().filter(|c| !c.is_control()).take(255).collect());
    if let Some(host) = &host {
        why.push_str(&format!(", a redirect to {host}"));
    }
    why.push_str(match redirect.why {
        Some(_) => "; ",
        None => "; requests to a bucket carry credentials and follow no redirect",
    });
    why.push_str(redirect.why.unwrap_or_default());
    let hint = match (redirect.why, redirect.region) {
        (Some(_), _) => "name the URL that has the files".to_owned(),
        (None, Some(region)) if is_name(&region) => {
            format!("the bucket is in the region {region}: set the option region")
        }
        _ => "the bucket is in another region or at another endpoint: set the option region or endpoint"
            .to_owned(),
    };
    RetryClass {
        what: Outcome::Failed {
            kind: ErrorKind::Refused,
            why,
            hint: Some(hint),
        },
        again: RetryPolicy::Never,
    }
}

/// A signed address that the Hub redirected to, and whose host refused it. The token plays no part there.
fn judge_signed(status: u16, seen: &Observation) -> RetryClass {
    let host: String = seen.host.chars().filter(|c| !c.is_control()).collect();
    let why = match status {
        404 | 410 => format!("{host}, where the Hub redirected to, does not have the file"),
        _ => format!(
            "{host}, where the Hub redirected to, refused the signed address (status {status}): it may have expired"
        ),
    };
    let hint = "each try asks the Hub for a fresh address; check the clock of this machine, or try again later";
    let again = RetryPolicy::Some(SIGNED_AGAIN);
    hinted(ErrorKind::BadAnswer, why, again, Some(hint))
}

fn judge_transport(
    kind: HttpErrorKind,
    error: &object_store::Error,
    seen: &Observation,
) -> RetryClass {
    let cause = innermost(error);
    let (kind, why) = match kind {
        HttpErrorKind::Connect => (
            ErrorKind::Unreachable,
            format!("cannot connect to {}: {cause}", seen.host),
        ),
        HttpErrorKind::Timeout => (ErrorKind::TimedOut, cause),
        HttpErrorKind::Decode => (ErrorKind::BadAnswer, cause),
        _ => (
            ErrorKind::Unreachable,
            format!("the connection broke: {cause}"),
        ),
    };
    // A retry does not make a certificate valid.
    let is_certificate = why.contains("certificate");
    let again = if is_certificate {
        RetryPolicy::Spare(2)
    } else {
        RetryPolicy::Yes
    };
    let is_of_time = why.contains("expired") || why.contains("not valid yet");
    let hint = match (is_certificate, is_of_time) {
        (false, _) => None,
        (true, false) => {
            Some("the server's certificate is not trusted here: install its authority's")
        }
        (true, true) => Some("check the clock of this machine, then the server's certificate"),
    };
    let hint = hint.map(str::to_owned);
    RetryClass {
        what: Outcome::Failed { kind, why, hint },
        again,
    }
}

/// The store's response in one line: status, code and message.
fn said(seen: &Observation) -> String {
    let status = seen.status.unwrap_or_default();
    let mut text = format!("the store answered {status}");
    let status = http::StatusCode::from_u16(status).ok();
    if let Some(name) = status.and_then(|status| status.canonical_reason()) {
        text.push_str(&format!(" {name}"));
    }
    // A code is shown only if it looks like a name. Of a message only the first line is shown: some stores repeat the
    // request in it.
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

pub(super) fn is_name(text: &str) -> bool {
    text.len() <= 64
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
}

/// The innermost cause of an error; the outer errors only repeat it and add URLs.
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
    use std::time::SystemTime;

    fn generic(text: &str) -> Fault {
        Fault::Store(object_store::Error::Generic {
            store: "test",
            source: text.into(),
        })
    }

    fn answered(status: u16, code: &str) -> Observation {
        Observation {
            status: Some(status),
            code: (!code.is_empty()).then(|| code.to_owned()),
            ..Observation::default()
        }
    }

    #[test]
    fn transient_faults_are_retried() {
        for (status, code, again) in [
            (500, "InternalError", RetryPolicy::Yes),
            (503, "SlowDown", RetryPolicy::Slower),
            (429, "", RetryPolicy::Slower),
            (502, "", RetryPolicy::Yes),
            (501, "NotImplemented", RetryPolicy::Never),
            (400, "InvalidRequest", RetryPolicy::Spare(3)),
            (400, "ExpiredToken", RetryPolicy::Never),
            (400, "TokenRefreshRequired", RetryPolicy::Never),
            (403, "RequestTimeTooSkewed", RetryPolicy::Never),
            (403, "InvalidAccessKeyId", RetryPolicy::Never),
            (401, "", RetryPolicy::Never),
            (404, "NoSuchBucket", RetryPolicy::Never),
            (400, "BadDigest", RetryPolicy::Yes),
            (403, "AccessDenied", RetryPolicy::Never),
            (409, "ConditionalRequestConflict", RetryPolicy::Yes),
            (405, "", RetryPolicy::Never),
            (301, "", RetryPolicy::Never),
            (200, "", RetryPolicy::Yes),
        ] {
            let verdict = judge(generic("x"), &answered(status, code));
            assert_eq!(verdict.again, again, "{status} {code}");
        }
    }

    #[test]
    fn a_wrong_clock_is_reported_with_the_difference() {
        let now = SystemTime::now();
        let (day, minute) = (Duration::from_secs(86_400), Duration::from_secs(60));
        let ahead = "; the clock of this machine is 1day ahead of the store's";
        for (status, code, theirs, expected) in [
            (403, "RequestTimeTooSkewed", now + day, "1day behind"),
            (403, "SignatureDoesNotMatch", now - day, ahead),
            (403, "", now - day, ahead),
            (400, "", now - day, ahead),
            (403, "AccessDenied", now - minute, "(AccessDenied)"),
        ] {
            let mut seen = answered(status, code);
            seen.clocks = Some((theirs, now));
            let RetryClass { what, again } = judge(generic("x"), &seen);
            let Outcome::Failed { why, hint, .. } = what else {
                panic!("no trouble")
            };
            assert!(why.contains(expected), "{why}");
            let is_of_clock = hint.is_some_and(|hint| hint.contains("clock"));
            assert_eq!(is_of_clock, code != "AccessDenied", "{status} {code}");
            assert_eq!(again, RetryPolicy::Never);
        }
    }

    #[test]
    fn messages_are_shown_in_part_and_on_one_line() {
        let mut seen = answered(403, "AccessDenied<script>");
        seen.message = Some(format!("no\u{7}\nStringToSign: SECRET {}", "x".repeat(500)));
        let Outcome::Failed { why, hint, .. } = judge(generic("x"), &seen).what else {
            panic!("no trouble")
        };
        assert_eq!(why, "the store answered 403 Forbidden: no");
        assert!(hint.is_some());
    }

    #[test]
    fn missing_credentials_are_reported_as_such() {
        let seen = Observation {
            host: "169.254.169.254".to_owned(),
            transport: Some(HttpErrorKind::Connect),
            ..Observation::default()
        };
        let Outcome::Failed { kind, why, .. } = judge(generic("x"), &seen).what else {
            panic!("no trouble")
        };
        assert_eq!(kind, ErrorKind::Denied);
        assert!(why.contains("no credentials"), "{why}");
    }
}
