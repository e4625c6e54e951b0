//! URLs of the Hugging Face Hub: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`.

/// A dataset repository at a revision, and a path in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubUrl<'a> {
    pub(crate) id: [&'a str; 2],
    pub(crate) revision: &'a str,
    pub(crate) path: &'a str,
}

impl<'a> HubUrl<'a> {
    /// The parts of a URL with this authority and this path without slashes at its ends.
    pub(crate) fn parse(authority: &str, key: &'a str) -> Option<Self> {
        if authority != "datasets" {
            return None;
        }
        let (owner, rest) = key.split_once('/')?;
        let (name, rest) = rest.split_at(rest.find(['@', '/']).unwrap_or(rest.len()));
        let (revision, path) = match rest.strip_prefix('@') {
            None => ("main", rest),
            Some(rest) => {
                // The names of these revisions have slashes in them.
                let is_long = rest.starts_with("refs/convert/") || rest.starts_with("refs/pr/");
                let mut ends = rest.match_indices('/').map(|(at, _)| at);
                rest.split_at(ends.nth(2 * usize::from(is_long)).unwrap_or(rest.len()))
            }
        };
        let is_usable =
            |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains(['@', '%']);
        let is_complete =
            is_usable(owner) && is_usable(name) && !matches!(revision, "" | "." | "..");
        is_complete.then(|| Self {
            id: [owner, name],
            revision,
            path: path.trim_matches('/'),
        })
    }

    /// The URL of the same path in the repository `id` at `commit`.
    pub(crate) fn at(&self, id: &[String], commit: &str) -> String {
        let url = format!("hf://datasets/{}@{commit}/{}", id.join("/"), self.path);
        url.trim_end_matches('/').to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repository_revision_and_path_are_told_apart() {
        for (url, expected) in [
            ("hf://datasets/me/a", Some(("main", ""))),
            ("hf://datasets/me/a/", Some(("main", ""))),
            (
                "hf://datasets/me/a/data/x.tar",
                Some(("main", "data/x.tar")),
            ),
            ("hf://datasets/me/a@v1.0/x@2", Some(("v1.0", "x@2"))),
            (
                "hf://datasets/me/a@refs/convert/parquet",
                Some(("refs/convert/parquet", "")),
            ),
            (
                "hf://datasets/me/a@refs/pr/12/x/y",
                Some(("refs/pr/12", "x/y")),
            ),
            (
                "hf://datasets/me/a@refs%2Fpr%2F1/x",
                Some(("refs%2Fpr%2F1", "x")),
            ),
            ("hf://datasets/me/a@", None),
            ("hf://datasets/me", None),
            ("hf://datasets/me/", None),
            ("hf://datasets/../a", None),
            ("hf://datasets/me/..", None),
            ("hf://me/a", None),
        ] {
            let (authority, key) = url[5..].split_once('/').unwrap();
            let found = HubUrl::parse(authority, key);
            assert_eq!(
                found.as_ref().map(|found| (found.revision, found.path)),
                expected,
                "{url}"
            );
            assert!(found.is_none_or(|found| found.id == ["me", "a"]), "{url}");
        }
    }

    #[test]
    fn a_commit_replaces_name_and_revision() {
        let id = ["us".to_owned(), "b".to_owned()];
        for (path, expected) in [
            (
                "me/a@main/x/{1..2}.tar",
                "hf://datasets/us/b@0123/x/{1..2}.tar",
            ),
            ("me/a", "hf://datasets/us/b@0123"),
        ] {
            let pinned = HubUrl::parse("datasets", path).unwrap().at(&id, "0123");
            assert_eq!(pinned, expected);
        }
    }
}
