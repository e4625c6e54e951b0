//! Sources of credentials and settings: the environment, and the profiles of the AWS tools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The largest number of bytes read from a profile file, which usually has a few KB.
const MOST_BYTES: u64 = 1 << 20;

/// The environment variables of this process, or those of a test.
#[derive(Clone)]
pub(super) struct Environment {
    vars: BTreeMap<String, String>,
}

impl Environment {
    pub(super) fn of_process() -> Self {
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { vars }
    }

    #[cfg(test)]
    pub(super) fn new(vars: &[(&str, &str)]) -> Self {
        let vars = vars
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Self { vars }
    }

    pub(super) fn var(&self, name: &str) -> Option<&str> {
        self.vars
            .get(name)
            .map(String::as_str)
            .filter(|value| !value.is_empty())
    }

    pub(super) fn vars(&self) -> impl Iterator<Item = (&str, &str)> {
        self.vars
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    fn file(&self, var: &str, name: &str) -> Option<PathBuf> {
        match self.var(var) {
            Some(path) => Some(PathBuf::from(path)),
            None => Some(Path::new(self.var("HOME")?).join(".aws").join(name)),
        }
    }
}

/// The values of a profile, by their names in the AWS files.
pub(super) type Profile = BTreeMap<String, String>;

/// Loads the profile `name`, or, without a name, the profile that the AWS tools would use. The credentials file takes
/// precedence over the configuration file. The error text describes the problem with the profile.
pub(super) fn load(around: &Environment, name: Option<&str>) -> Result<Profile, String> {
    let asked = name.or_else(|| around.var("AWS_PROFILE"));
    let name = asked
        .or_else(|| around.var("AWS_DEFAULT_PROFILE"))
        .unwrap_or("default");
    let mut found = None;
    for (var, file, prefix) in [
        ("AWS_CONFIG_FILE", "config", "profile "),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", ""),
    ] {
        let Some(path) = around.file(var, file) else {
            continue;
        };
        let Some(text) = read(&path)? else { continue };
        let mut sections = parse(&text);
        let section = sections
            .remove(&format!("{prefix}{name}"))
            .or_else(|| sections.remove(name));
        if let Some(section) = section {
            found.get_or_insert_with(Profile::new).extend(section);
        }
    }
    match (found, asked) {
        (Some(profile), _) => Ok(profile),
        (None, None) => Ok(Profile::new()),
        (None, Some(asked)) => Err(format!("there is no AWS profile {asked:?}")),
    }
}

fn read(path: &Path) -> Result<Option<String>, String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let opened = forebay_shard::storage::open_input(path);
    match opened.and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => Err(format!("{} cannot be read: {error}", path.display())),
    }
}

/// Parses sections of `name = value` lines. Indented lines belong to multi-line values, which none of the names used here
/// has, so they are skipped.
fn parse(text: &str) -> BTreeMap<String, Profile> {
    let mut sections: BTreeMap<String, Profile> = BTreeMap::new();
    let mut current: Option<String> = None;
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) || is_nested {
            continue;
        }
        if let Some(header) = line.strip_prefix('[') {
            let name = header.split(']').next().unwrap_or_default();
            let name: Vec<&str> = name.split_whitespace().collect();
            let name = name.join(" ").replace(['"', '\''], "");
            sections.entry(name.clone()).or_default();
            current = Some(name);
            continue;
        }
        if let (Some((name, value)), Some(section)) = (line.split_once('='), &current)
            && let Some(section) = sections.get_mut(section)
        {
            let value = value.split(" #").next().unwrap_or_default();
            section.insert(name.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    sections
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_found_in_both_files() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        let credentials = dir.path().join("credentials");
        std::fs::write(
            &config,
            "[default]\nregion = eu-west-1\n# a note\n[profile  \"work\"]\nregion=us-east-2\n\
             s3 =\n  max_concurrent_requests = 20\nendpoint_url = http://127.0.0.1:9 # near\n",
        )
        .unwrap();
        std::fs::write(
            &credentials,
            "[default]\naws_access_key_id=A\naws_secret_access_key = B=C\n[work]\naws_access_key_id = W\n",
        )
        .unwrap();
        let around = |profile: &str| {
            Environment::new(&[
                ("AWS_CONFIG_FILE", config.to_str().unwrap()),
                ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap()),
                ("AWS_PROFILE", profile),
            ])
        };
        let default = load(&around(""), None).unwrap();
        assert_eq!(default["region"], "eu-west-1");
        assert_eq!(default["aws_secret_access_key"], "B=C");
        let work = load(&around("work"), None).unwrap();
        assert_eq!(work["aws_access_key_id"], "W");
        assert_eq!(work["endpoint_url"], "http://127.0.0.1:9");
        assert!(!work.contains_key("aws_secret_access_key"));
        assert_eq!(load(&around("work"), Some("default")).unwrap(), default);
        assert!(load(&around("other"), None).unwrap_err().contains("other"));
    }

    #[test]
    fn missing_files_fail_only_for_a_named_profile() {
        let around = Environment::new(&[("HOME", "/nonexistent")]);
        assert!(load(&around, None).unwrap().is_empty());
        assert!(load(&around, Some("x")).is_err());
        assert!(load(&Environment::new(&[]), None).unwrap().is_empty());
    }
}
