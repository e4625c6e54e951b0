//! Options and transforms that had another name: an error names the one to use.

/// Earlier names and what they are now, with those of interfaces that have more options than the schema.
const RENAMED: &[(&str, Now)] = &[
    ("CentreCrop", Now::Same("CenterCrop")),
    ("Raw", Now::Same("KeepEncoded")),
    ("draws", Now::Same("num_samples")),
    ("keep_last", Now::Opposite("drop_last")),
    ("lanes", Now::Same("virtual_ranks")),
    ("profile", Now::Same("resize_like")),
    ("raw", Now::Same("keep_encoded")),
];

#[derive(Clone, Copy)]
enum Now {
    /// The same values.
    Same(&'static str),
    /// True means what false meant.
    Opposite(&'static str),
}

/// Returns what to use instead of an earlier name; `shown` writes a name as the interface has it.
///
/// ```
/// use forebay_options::renamed;
///
/// let hint = renamed("lanes", |name| format!("`{name}`"));
/// assert_eq!(hint.as_deref(), Some("use `virtual_ranks`"));
/// assert_eq!(renamed("batch_size", str::to_owned), None);
/// ```
#[must_use]
pub fn renamed(name: &str, shown: impl FnOnce(&str) -> String) -> Option<String> {
    let (_, now) = RENAMED.iter().find(|(earlier, _)| *earlier == name)?;
    Some(match now {
        Now::Same(now) => format!("use {}", shown(now)),
        Now::Opposite(now) => format!("use {}, which means the opposite", shown(now)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_names_are_not_options() {
        for (earlier, now) in RENAMED {
            assert!(!crate::is_option(earlier), "{earlier}");
            let (Now::Same(now) | Now::Opposite(now)) = now;
            // Names of transforms.
            let others = ["CenterCrop", "KeepEncoded", "keep_encoded"];
            assert!(crate::is_option(now) || others.contains(now), "{now}");
        }
    }
}
