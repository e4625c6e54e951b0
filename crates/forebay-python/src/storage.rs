//! Where a dataset is, and how that is reached: `storage_options`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;

use forebay_store::{Location, ReadOptions, StoreOptions};

use crate::failure::{Failure, Kind};

/// Options by their names: those of Forebay, and others as the field's tools have them.
pub(crate) type StorageOptions = BTreeMap<String, String>;

/// The place that a text names, if datasets can be read from there.
pub(crate) fn location(text: impl AsRef<OsStr>) -> Result<Location, Failure> {
    let location = Location::parse(text).map_err(|error| Failure::new(Kind::Option, error))?;
    if !location.is_remote() {
        location
            .local_path()
            .map_err(|error| Failure::new(Kind::Option, error))?;
    }
    Ok(location)
}

/// How datasets are read with these options.
pub(crate) fn read_options(named: &StorageOptions) -> Result<ReadOptions, Failure> {
    let mut store = StoreOptions::default();
    for (name, value) in named {
        match name.as_str() {
            "endpoint" => store.endpoint = Some(value.clone()),
            "region" => store.region = Some(value.clone()),
            "anonymous" => {
                store.anonymous = match value.to_ascii_lowercase().as_str() {
                    "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return Err(refused(name, "'true' or 'false'")),
                }
            }
            "timeout" => store.timeout = seconds(name, value)?,
            "outage_timeout" => {
                store.retry = store.retry.with_give_up_after(seconds(name, value)?);
            }
            _ => drop(store.extra.insert(name.clone(), value.clone())),
        }
    }
    Ok(ReadOptions::new(store))
}

fn seconds(name: &str, value: &str) -> Result<Duration, Failure> {
    let seconds = value.parse().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| refused(name, "seconds, more than 0, as a string"))
}

/// The value is not shown: nobody knows what somebody put there.
fn refused(name: &str, expected: &str) -> Failure {
    let message = format!("storage_options: {name} is not what it can be: expected {expected}");
    Failure::new(Kind::Option, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_have_names() {
        let options = |pairs: &[(&str, &str)]| {
            let named = pairs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
            read_options(&named.collect())
        };
        let read = options(&[
            ("endpoint", "http://127.0.0.1:1"),
            ("anonymous", "True"),
            ("outage_timeout", "7.5"),
            ("aws_access_key_id", "k"),
        ])
        .unwrap();
        assert_eq!(read.store.endpoint.as_deref(), Some("http://127.0.0.1:1"));
        assert!(read.store.anonymous);
        assert_eq!(read.store.retry.give_up_after, Duration::from_millis(7500));
        assert_eq!(read.store.extra["aws_access_key_id"], "k");
        for (name, value) in [
            ("anonymous", "SECRET"),
            ("timeout", "SECRET"),
            ("timeout", "-1"),
        ] {
            let error = options(&[(name, value)]).unwrap_err();
            let shown = format!("{error:?}");
            assert!(shown.contains(name) && !shown.contains("SECRET"), "{shown}");
        }
    }

    #[test]
    fn places_are_known() {
        assert!(location("s3://bucket/x").unwrap().is_remote());
        assert!(!location("file:///x").unwrap().is_remote());
        assert!(location("ftp://x/y").is_err());
    }
}
