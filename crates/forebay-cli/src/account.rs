//! Prints the account of a dataset: what was read, and what it was used for.

use std::collections::BTreeMap;

use forebay_pack::Account;

use crate::console::Console;
use crate::failure::Outcome;
use crate::paint::printable;
use crate::quantity;

/// Maximum number of columns that are listed.
const COLUMNS_SHOWN: usize = 12;

/// Prints an account, and a warning for each of its problems.
pub(crate) fn print(account: &Account, classes: &[String], console: &Console) {
    for (name, text) in lines(account, classes) {
        console.line(format!("  {name:<10} {}", printable(&text)));
    }
    for (what, count) in &account.problems {
        console.warning(format!("{}: {}", printable(what), quantity::count(*count)));
    }
}

/// Returns the outcome of a command that made a dataset with this account.
pub(crate) fn outcome(account: Option<&Account>) -> Outcome {
    match account.is_none_or(|account| account.problems.is_empty()) {
        true => Outcome::Done,
        false => Outcome::SomeUnreadable,
    }
}

fn lines(account: &Account, classes: &[String]) -> Vec<(&'static str, String)> {
    let unit = account.unit.trim_end_matches('s');
    let counted = |count| quantity::counted(count, unit, &account.unit);
    let mut lines = vec![("read", counted(account.read))];
    let splits: Vec<String> = account
        .packed
        .iter()
        .map(|(name, split)| format!("{name} {}", quantity::count(split.samples)))
        .collect();
    let samples = quantity::counted(account.packed_samples(), "sample", "samples");
    lines.push(("packed", format!("{samples}: {}", splits.join(", "))));
    for (name, counts) in [
        ("left out", &account.left_out),
        ("ignored", &account.ignored),
    ] {
        if !counts.is_empty() {
            let all = counted(counts.values().sum());
            lines.push((name, format!("{all}: {}", reasons(counts))));
        }
    }
    if account.outside > 0 {
        let outside = counted(account.outside);
        lines.push((
            "outside",
            format!("{outside} that the options do not select"),
        ));
    }
    for role in ["split", "image"] {
        if let Some(found) = account.roles.get(role) {
            lines.push((role, found.source.clone()));
        }
    }
    lines.push(("label", label(account, classes)));
    for (name, columns) in [("columns", &account.columns), ("unused", &account.unused)] {
        if !columns.is_empty() {
            lines.push((name, listed(columns)));
        }
    }
    lines
}

fn reasons(counts: &BTreeMap<String, u64>) -> String {
    let each = counts.iter();
    let each = each.map(|(reason, count)| format!("{} {reason}", quantity::count(*count)));
    each.collect::<Vec<_>>().join(", ")
}

/// Describes the source of labels, and the splits without labels.
fn label(account: &Account, classes: &[String]) -> String {
    let Some(role) = account.roles.get("label") else {
        return "none".to_owned();
    };
    let mut text = role.source.clone();
    if let Some(form) = &role.form {
        text = format!("{text} ({form})");
    }
    match classes {
        [] => {}
        [one] => text += &format!(": 1 class, {one}"),
        [first, second, ..] => {
            let count = quantity::count(classes.len() as u64);
            text += &format!(": {count} classes, {first} then {second}");
            if classes.len() > 2 {
                text += " ...";
            }
        }
    }
    let without: Vec<&str> = account
        .packed
        .iter()
        .filter(|(_, split)| split.labelled == 0 && split.samples > 0)
        .map(|(name, _)| name.as_str())
        .collect();
    if !without.is_empty() {
        let verb = if without.len() == 1 { "has" } else { "have" };
        text += &format!("; {} {verb} none", without.join(", "));
    }
    text
}

fn listed(names: &[String]) -> String {
    let shown = names.iter().take(COLUMNS_SHOWN).map(String::as_str);
    let text = shown.collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(COLUMNS_SHOWN) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_shard::manifest::{RoleAccount, SplitAccount};

    #[test]
    fn an_account_covers_everything_that_was_read() {
        let mut account = Account::new("files");
        account.read = 12_000;
        for (name, samples, labelled) in [("train", 10_000, 10_000), ("test", 1_995, 0)] {
            let split = SplitAccount { samples, labelled };
            account.packed.insert(name.to_owned(), split);
        }
        account.left_out.insert("not an image".to_owned(), 3);
        account.ignored.insert("hidden".to_owned(), 2);
        let role = RoleAccount {
            source: "breed".to_owned(),
            form: Some("text".to_owned()),
        };
        account.roles.insert("label".to_owned(), role);
        account.columns = vec!["caption".to_owned()];
        let classes = ["cat", "dog", "owl"].map(String::from);
        let lines: Vec<String> = lines(&account, &classes)
            .into_iter()
            .map(|(name, text)| format!("{name}: {text}"))
            .collect();
        assert_eq!(
            lines,
            [
                "read: 12,000 files",
                "packed: 11,995 samples: test 1,995, train 10,000",
                "left out: 3 files: 3 not an image",
                "ignored: 2 files: 2 hidden",
                "label: breed (text): 3 classes, cat then dog ...; test has none",
                "columns: caption",
            ]
        );
    }
}
