//! A strict parser of the Prometheus text format. It accepts a subset that every scraper reads.

use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) lines: Vec<Line>,
}

#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

fn is_name(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes
        .next()
        .is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

/// Families by name.
pub(crate) fn parse(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line ends");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut helped = String::new();
    let mut current = String::new();
    let mut seen = BTreeSet::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').unwrap();
            assert!(is_name(name) && !help.is_empty(), "{line}");
            name.clone_into(&mut helped);
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, helped, "help comes right before the type");
            assert!(
                matches!(kind, "counter" | "gauge" | "histogram" | "summary"),
                "{line}"
            );
            if kind == "counter" {
                assert!(name.ends_with("_total"), "{line}");
            }
            let family = Family {
                kind: kind.to_owned(),
                lines: Vec::new(),
            };
            let before = families.insert(name.to_owned(), family);
            assert!(before.is_none(), "{name} is there twice");
            name.clone_into(&mut current);
        } else {
            let line = read(line);
            let family = families.get_mut(&current).expect("a type before lines");
            let suffix = line.name.strip_prefix(&current);
            let fits = match (family.kind.as_str(), suffix) {
                (_, Some("")) => family.kind != "histogram",
                ("histogram", Some(suffix)) => matches!(suffix, "_bucket" | "_sum" | "_count"),
                ("summary", Some(suffix)) => matches!(suffix, "_sum" | "_count"),
                _ => false,
            };
            assert!(fits, "{line:?} in {current}");
            assert!(
                seen.insert((line.name.clone(), line.labels.clone())),
                "{line:?} is there twice"
            );
            if family.kind != "gauge" {
                assert!(line.value >= 0.0, "{line:?}");
            }
            family.lines.push(line);
        }
    }
    for (name, family) in &families {
        if family.kind == "histogram" {
            check_histogram(name, family);
        }
    }
    families
}

fn read(text: &str) -> Line {
    let (name, rest) = match text.find(['{', ' ']) {
        Some(at) => text.split_at(at),
        None => panic!("{text}"),
    };
    assert!(is_name(name), "{text}");
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_prefix('{').unwrap_or(rest);
    while !rest.starts_with(' ') {
        let (label, value) = rest.split_once("=\"").unwrap();
        assert!(is_name(label), "{text}");
        let mut unescaped = String::new();
        let mut chars = value.char_indices();
        let end = loop {
            match chars.next().expect("labels end") {
                (at, '"') => break at,
                (_, '\\') => match chars.next().unwrap().1 {
                    'n' => unescaped.push('\n'),
                    c @ ('\\' | '"') => unescaped.push(c),
                    c => panic!("\\{c} in {text}"),
                },
                (_, c) => unescaped.push(c),
            }
        };
        assert!(
            labels.insert(label.to_owned(), unescaped).is_none(),
            "{text}"
        );
        rest = &value[end + 1..];
        rest = match rest.strip_prefix(',') {
            Some(rest) => rest,
            None => rest.strip_prefix('}').unwrap(),
        };
    }
    let value = rest.strip_prefix(' ').unwrap().parse().unwrap();
    let name = name.to_owned();
    Line {
        name,
        labels,
        value,
    }
}

/// Checks that buckets are cumulative and end with infinity, which equals the count.
fn check_histogram(name: &str, family: &Family) {
    let mut buckets: BTreeMap<BTreeMap<String, String>, Vec<(f64, f64)>> = BTreeMap::new();
    for line in family
        .lines
        .iter()
        .filter(|line| line.name.ends_with("_bucket"))
    {
        let mut labels = line.labels.clone();
        let end = labels.remove("le").unwrap();
        let end = if end == "+Inf" {
            f64::INFINITY
        } else {
            end.parse().unwrap()
        };
        buckets.entry(labels).or_default().push((end, line.value));
    }
    for (labels, buckets) in buckets {
        assert!(buckets.is_sorted(), "{name} {labels:?}: {buckets:?}");
        let &(end, all) = buckets.last().unwrap();
        assert_eq!(end, f64::INFINITY);
        let count = format!("{name}_count");
        let mut counts = family
            .lines
            .iter()
            .filter(|line| line.name == count && line.labels == labels);
        assert_eq!(counts.next().unwrap().value, all);
    }
}

/// Returns the names of Forebay's and process metrics in a text with PromQL expressions.
pub(crate) fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours = words.filter(|word| word.starts_with("forebay_") || word.starts_with("process_"));
    ours.map(str::to_owned).collect()
}

/// Returns the family that a name belongs to.
pub(crate) fn family_of(name: &str, is_there: impl Fn(&str) -> bool) -> Option<&str> {
    let stripped = ["_bucket", "_sum", "_count"]
        .iter()
        .filter_map(|end| name.strip_suffix(end));
    std::iter::once(name)
        .chain(stripped)
        .find(|name| is_there(name))
}

#[test]
fn labels_are_unescaped_and_mistakes_are_found() {
    let page = "# HELP a_total What.\n# TYPE a_total counter\na_total{x=\"a\\\"b\\\\c\\nd\",y=\"1, }\"} 3\n";
    let families = parse(page);
    let line = &families["a_total"].lines[0];
    assert_eq!(line.labels["x"], "a\"b\\c\nd");
    assert_eq!((line.labels["y"].as_str(), line.value), ("1, }", 3.0));
    for wrong in [
        "a_total 3\n",
        "# HELP a What.\n# TYPE a counter\na 3\n",
        "# HELP a What.\n# TYPE a gauge\na 3\na 4\n",
        "# HELP a What.\n# TYPE a gauge\nb 3\n",
        "# HELP a What.\n# TYPE a gauge\na{x=\"\\q\"} 3\n",
        "# HELP a What.\n# TYPE a histogram\na_bucket{le=\"1\"} 3\n",
    ] {
        assert!(
            std::panic::catch_unwind(|| parse(wrong)).is_err(),
            "{wrong}"
        );
    }
}
