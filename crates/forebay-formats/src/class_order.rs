//! The order in which class names are numbered.

use crate::option_names::CLASS_ORDER;
use std::cmp::Ordering;

/// Order of classes that no list numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ClassOrder {
    /// By the bytes of their names, as torchvision's ImageFolder and Keras number them.
    #[default]
    Text,
    /// Numbers in names are compared by value: `2` before `10`.
    Natural,
}

impl ClassOrder {
    /// Returns the option value of the order.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Natural => "natural",
        }
    }

    /// Returns all orders.
    pub fn all() -> [Self; 2] {
        [Self::Text, Self::Natural]
    }

    /// Returns the order with this option value.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|order| order.name() == name)
    }

    /// Compares two class names.
    pub fn compare(self, a: &[u8], b: &[u8]) -> Ordering {
        match self {
            Self::Text => a.cmp(b),
            Self::Natural => natural(a, b),
        }
    }

    /// Returns a warning if all names are whole numbers but `names`, which are in this order, are not in numeric order. `base`
    /// is the label of the first class.
    pub fn warning<'n>(
        self,
        names: impl ExactSizeIterator<Item = &'n [u8]> + Clone,
        base: i64,
    ) -> Option<String> {
        let is_number = |name: &[u8]| !name.is_empty() && name.iter().all(u8::is_ascii_digit);
        if self == Self::Natural || !names.clone().all(is_number) {
            return None;
        }
        let mut sorted: Vec<&[u8]> = names.clone().collect();
        sorted.sort_by(|a, b| natural(a, b));
        let (label, (name, other)) = (base..).zip(names.zip(sorted)).find(|(_, (a, b))| a != b)?;
        let (name, other) = (
            String::from_utf8_lossy(name),
            String::from_utf8_lossy(other),
        );
        Some(format!(
            "the names of the classes are numbers, and are numbered in the order of text: label {label} is class {name:?}, not {other:?}; {CLASS_ORDER} natural numbers them by value"
        ))
    }
}

/// Compares runs of digits by value and other characters by bytes. Names that are equal in this way are compared by all bytes.
fn natural(a: &[u8], b: &[u8]) -> Ordering {
    let (mut left, mut right) = (a, b);
    while let (Some(x), Some(y)) = (left.first(), right.first()) {
        let order = match (x.is_ascii_digit(), y.is_ascii_digit()) {
            (true, true) => {
                let (one, rest_of_a) = number(left);
                let (other, rest_of_b) = number(right);
                (left, right) = (rest_of_a, rest_of_b);
                one.len().cmp(&other.len()).then_with(|| one.cmp(other))
            }
            _ => {
                (left, right) = (&left[1..], &right[1..]);
                x.cmp(y)
            }
        };
        if order != Ordering::Equal {
            return order;
        }
    }
    left.len().cmp(&right.len()).then_with(|| a.cmp(b))
}

/// Returns the digits at the beginning without leading zeros, and the rest.
fn number(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text
        .iter()
        .position(|byte| !byte.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let start = digits
        .iter()
        .position(|digit| *digit != b'0')
        .unwrap_or(end);
    (&digits[start..], rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn natural_order_compares_numbers_by_value() {
        let mut names = ["a10", "10", "2", "a2b", "02", "a2", "b", "", "a02"];
        names.sort_by(|a, b| ClassOrder::Natural.compare(a.as_bytes(), b.as_bytes()));
        assert_eq!(names, ["", "02", "2", "10", "a02", "a2", "a2b", "a10", "b"]);
    }

    #[test]
    fn numbers_in_text_order_give_a_warning() {
        let warning = |names: &[&str], order: ClassOrder| {
            order.warning(names.iter().map(|name| name.as_bytes()), 1)
        };
        let said = warning(&["0", "1", "10", "2"], ClassOrder::Text).unwrap();
        assert!(
            said.contains("label 3 is class \"10\", not \"2\""),
            "{said}"
        );
        assert_eq!(warning(&["0", "1", "2"], ClassOrder::Text), None);
        assert_eq!(warning(&["1", "10", "2", "a"], ClassOrder::Text), None);
        assert_eq!(warning(&["1", "2", "10"], ClassOrder::Natural), None);
    }
}
