//! Lists of names for messages, of bounded length.

/// Maximum number of listed names; further names are counted.
const MOST: usize = 10;
/// Maximum number of characters per name.
const MOST_CHARS: usize = 200;

/// Joins names for a message: `a, b and 12 more`. The result is short even if the data contains very many names.
///
/// ```
/// use forebay_shard::some_of;
///
/// assert_eq!(some_of(["train", "test"]), "train, test");
/// let many = (0..700_000).map(|number| number.to_string());
/// assert_eq!(some_of(many), "0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 699990 more");
/// ```
pub fn some_of<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> String {
    let mut names = names.into_iter();
    let mut text = String::new();
    for name in names.by_ref().take(MOST) {
        if !text.is_empty() {
            text.push_str(", ");
        }
        let name = name.as_ref();
        match name.char_indices().nth(MOST_CHARS) {
            Some((end, _)) => text.extend([&name[..end], "..."]),
            None => text.push_str(name),
        }
    }
    match names.count() {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_short_whatever_the_names_are() {
        assert_eq!(some_of(Vec::<String>::new()), "");
        assert_eq!(some_of(["a", "b"]), "a, b");
        let long = "ü".repeat(1 << 20);
        let text = some_of(std::iter::repeat_n(&long, 1000));
        assert!(text.len() < 5000, "{}", text.len());
        assert!(text.ends_with("ü... and 990 more"), "{text}");
    }
}
