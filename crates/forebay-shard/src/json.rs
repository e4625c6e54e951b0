//! JSON from files and peers: its nesting is bounded before a value is built.
//!
//! A parser takes a stack frame for each level, and the stack of a thread may be smaller than the
//! 128 levels that `serde_json` allows. Code that reads JSON from outside calls these functions
//! instead of those of `serde_json`.

use serde::Deserialize;
use serde::de::Error as _;

/// Maximum nesting depth of arrays and objects in a document.
pub const MAX_DEPTH: usize = 32;

/// Reads a document.
///
/// # Errors
/// As `serde_json::from_slice`, and for a document that nests deeper than [`MAX_DEPTH`]: the error
/// names the offset.
pub fn from_slice<'a, T: Deserialize<'a>>(json: &'a [u8]) -> serde_json::Result<T> {
    check_depth(json)?;
    serde_json::from_slice(json)
}

/// Reads a document, as [`from_slice`] does.
///
/// # Errors
/// Those of [`from_slice`].
pub fn from_str<'a, T: Deserialize<'a>>(json: &'a str) -> serde_json::Result<T> {
    check_depth(json.as_bytes())?;
    serde_json::from_str(json)
}

/// Refuses a document that nests too deep. What is not JSON is left to the parser, which stops at
/// the first byte that is wrong and so never nests deeper than what was counted here.
fn check_depth(json: &[u8]) -> serde_json::Result<()> {
    let mut depth = 0usize;
    let mut bytes = json.iter().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'[' | b'{' if depth == MAX_DEPTH => {
                return Err(serde_json::Error::custom(format!(
                    "lists and objects nest deeper than {MAX_DEPTH} levels at offset {at}"
                )));
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some((_, byte)) = bytes.next() {
                    match byte {
                        b'"' => break,
                        // The byte after it belongs to the string, a quote too.
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn nested(open: &str, close: &str, levels: usize) -> String {
        format!("{}1{}", open.repeat(levels), close.repeat(levels))
    }

    #[test]
    fn documents_nest_up_to_the_bound() {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"a" : "#, "}]")] {
            let levels = MAX_DEPTH / open.matches(['[', '{']).count();
            from_str::<Value>(&nested(open, close, levels)).unwrap();
            let error = from_str::<Value>(&nested(open, close, levels + 1)).unwrap_err();
            let at = open.len() * levels;
            assert_eq!(
                error.to_string(),
                format!("lists and objects nest deeper than 32 levels at offset {at}")
            );
        }
        // Neighbors are not nested, however many there are.
        from_str::<Value>(&format!("[{}1]", "[[]],".repeat(1000))).unwrap();
    }

    #[test]
    fn brackets_in_strings_do_not_count() {
        for text in ["[{".repeat(100), "]}".repeat(100), r#"\""#.repeat(50)] {
            let json = format!(r#"{{"a\"[": "{text}", "\\": "[", "b": [{text:?}]}}"#);
            from_slice::<Value>(json.as_bytes()).unwrap();
        }
        // A string that does not end hides nothing that would be parsed.
        let hidden = format!(r#"["{}"#, nested("[", "]", 100));
        assert!(from_str::<Value>(&hidden).unwrap_err().is_eof());
        let hidden = format!(r#"["]{}"#, r#"\"]"#.repeat(40) + &nested("[", "]", 100));
        assert!(from_str::<Value>(&hidden).is_err());
    }

    #[test]
    fn brackets_that_close_nothing_hide_no_depth() {
        let json = format!("{}{}", "]".repeat(100), nested("[", "]", 100));
        assert!(from_str::<Value>(&json).is_err());
        let json = format!("[{}{}", "}".repeat(100), nested("[", "]", 100));
        assert!(from_str::<Value>(&json).is_err());
    }
}
