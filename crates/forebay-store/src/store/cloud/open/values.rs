//! Refuses values of settings that cannot be sent in a request.

use super::{Opening, fault};
use crate::Result;
use std::io::Read;
use std::path::Path;

/// The largest number of bytes read from a token file; a token has a few KiB.
const MAX_TOKEN_BYTES: u64 = 1 << 20;

impl Opening<'_> {
    /// Refuses a value that cannot be part of a header or a URL: the `object_store` client would panic. `name` is the variable or
    /// option that the user set; the value is never shown.
    pub(in crate::store::cloud) fn check_value(&self, name: &str, value: &str) -> Result<()> {
        let lower = name.to_ascii_lowercase();
        let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
        // The value is a document of several lines.
        if has(&["service_account_key", "certificate"]) {
            return Ok(());
        }
        let may_be_a_path = has(&["file", "path", "credentials", "service_account"]);
        let why = if value.ends_with(['\n', '\r']) {
            "ends with a line break"
        } else if value.chars().any(char::is_control) {
            "has a control character"
        } else if !value.is_ascii() && !may_be_a_path {
            "has a character that is not ASCII"
        } else if lower.ends_with("region") && !fault::is_name(value) {
            "is not the name of a region"
        } else {
            return Ok(());
        };
        Err(self.wrong(
            &format!("{name} {why}"),
            Some("set it again without that; a line break often comes from the end of a file"),
        ))
    }

    /// Refuses a token file whose content cannot be sent in a header.
    pub(in crate::store::cloud) fn check_token_file(&self, name: &str, path: &str) -> Result<()> {
        // If the file cannot be read, the request that needs the token fails later.
        let mut token = Vec::new();
        let is_read = forebay_shard::storage::open_file(Path::new(path))
            .and_then(|file| file.take(MAX_TOKEN_BYTES).read_to_end(&mut token));
        if is_read.is_ok() && token.iter().any(u8::is_ascii_control) {
            return Err(self.wrong(
                &format!("the token in the file of {name} has a line break or a control character"),
                Some("write the file again without it: printf %s \"$TOKEN\" > FILE"),
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{KEYS, opened};
    use crate::store::StoreOptions;

    /// Each of these values would make the client panic, or send a request that no store accepts.
    #[test]
    fn variables_that_cannot_be_sent_are_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let token = dir.path().join("token");
        std::fs::write(&token, "MARKED\n").unwrap();
        let token = token.to_str().unwrap();
        let role = ("AWS_ROLE_ARN", "arn:aws:iam::1:role/x");
        let account = ("AZURE_STORAGE_ACCOUNT_NAME", "me");
        let [id, secret] = KEYS;
        for (url, vars, name) in [
            (
                "s3://b",
                vec![("AWS_ACCESS_KEY_ID", "MARKED\n"), secret],
                "AWS_ACCESS_KEY_ID",
            ),
            (
                "s3://b",
                vec![("AWS_ACCESS_KEY_ID", "MARKED\u{e9}"), secret],
                "AWS_ACCESS_KEY_ID",
            ),
            (
                "s3://b",
                vec![id, ("AWS_SECRET_ACCESS_KEY", "MARKED\r\n")],
                "AWS_SECRET_ACCESS_KEY",
            ),
            (
                "s3://b",
                vec![id, secret, ("AWS_SESSION_TOKEN", "MAR\u{7}KED")],
                "AWS_SESSION_TOKEN",
            ),
            (
                "s3://b",
                vec![id, secret, ("AWS_REGION", "eu-MARKED\n")],
                "AWS_REGION",
            ),
            (
                "s3://b",
                vec![id, secret, ("AWS_DEFAULT_REGION", "eu MARKED")],
                "AWS_DEFAULT_REGION",
            ),
            (
                "s3://b",
                vec![id, secret, ("AWS_ENDPOINT_URL", "https://MARKED\n")],
                "AWS_ENDPOINT_URL",
            ),
            (
                "s3://b",
                vec![role, ("AWS_WEB_IDENTITY_TOKEN_FILE", token)],
                "AWS_WEB_IDENTITY_TOKEN_FILE",
            ),
            (
                "gs://b",
                vec![("GOOGLE_BASE_URL", "https://MARKED\t")],
                "GOOGLE_BASE_URL",
            ),
            (
                "gs://b",
                vec![("GOOGLE_SERVICE_ACCOUNT", "/MARKED\n")],
                "GOOGLE_SERVICE_ACCOUNT",
            ),
            (
                "gs://b",
                vec![("STORAGE_EMULATOR_HOST", "MARKED\n")],
                "STORAGE_EMULATOR_HOST",
            ),
            (
                "az://b",
                vec![account, ("AZURE_STORAGE_SAS_KEY", "sig=MARKED\n")],
                "AZURE_STORAGE_SAS_KEY",
            ),
            (
                "az://b",
                vec![account, ("AZURE_FEDERATED_TOKEN_FILE", token)],
                "AZURE_FEDERATED_TOKEN_FILE",
            ),
            (
                "az://b",
                vec![(
                    "AZURE_STORAGE_CONNECTION_STRING",
                    "AccountName=a;AccountKey=MARKED\n",
                )],
                "AZURE_STORAGE_CONNECTION_STRING",
            ),
            (
                "az://b",
                vec![("AZURE_STORAGE_ACCOUNT_NAME", "MARKED\n")],
                "AZURE_STORAGE_ACCOUNT_NAME",
            ),
        ] {
            let error = opened(url, &StoreOptions::new(), &vars).unwrap_err();
            let shown = format!("{error} {error:?}");
            assert!(shown.contains(name), "{name}: {shown}");
            assert!(
                !shown.contains("MARKED") && !shown.contains("KED"),
                "{shown}"
            );
        }
        // Variables that are not read may be anything.
        let other = ("AWS_OTHER", "x\n");
        opened("s3://b", &StoreOptions::new(), &[id, secret, other]).unwrap();
    }

    #[test]
    fn options_that_cannot_be_sent_are_refused_by_name() {
        for (name, value) in [
            ("aws_session_token", "MARKED\n"),
            ("region", "MARKED\n"),
            ("endpoint", "https://MARKED\u{0}"),
            ("user_agent", "MARKED\n"),
        ] {
            let options = StoreOptions::new().with(name, value);
            let shown = format!("{:?}", opened("s3://b", &options, &KEYS).unwrap_err());
            assert!(shown.contains(name) && !shown.contains("MARKED"), "{shown}");
        }
        for options in [
            StoreOptions {
                region: Some("MARKED\n".to_owned()),
                ..StoreOptions::new()
            },
            StoreOptions::new().with_endpoint("https://MARKED\n"),
            // Only one of the two URL parsers accepts these.
            StoreOptions::new().with_endpoint("https://256.256.256.256"),
            StoreOptions::new().with_endpoint("https://xn--a"),
        ] {
            let shown = format!("{:?}", opened("s3://b", &options, &KEYS).unwrap_err());
            assert!(!shown.contains("MARKED"), "{shown}");
        }
        let virtual_hosted = StoreOptions::new().with("aws_virtual_hosted_style_request", "true");
        assert!(opened("s3://xn--a", &virtual_hosted, &KEYS).is_err());
    }
}
