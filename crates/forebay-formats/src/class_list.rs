//! Lists of classes in the order of their labels, and the files that hold such lists.

use crate::class_order::ClassOrder;
use crate::error::{Error, Result};
use crate::finding::escape;
use crate::key_path::{base, stem};
use crate::name_forms::NameForms;
use crate::option_names;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) const SYNSET_LABELS: &str = "synset_labels.txt";
const SYNSET_MAPPING: &str = "LOC_synset_mapping.txt";
pub(crate) const CLASSES: &str = "classes.txt";
/// Class lists that are used without an option if they are at the top of a source, in order of precedence.
pub(crate) const KNOWN_NAMES: &[&str] = &[SYNSET_LABELS, SYNSET_MAPPING, CLASSES];

/// The file from Kaggle with the classes of the validation images by name.
pub(crate) const VALIDATION_SOLUTION: &str = "LOC_val_solution.csv";

/// One class.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassName {
    /// The name of the class directory; for ImageNet the WordNet id (synset).
    pub name: Vec<u8>,
    /// The meaning in words, if the list has it.
    pub text: Option<String>,
}

/// The classes in the order of their labels.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(into = "StoredClasses", try_from = "StoredClasses")]
pub struct ClassList {
    classes: Vec<ClassName>,
    index: BTreeMap<Vec<u8>, u32>,
    forms: NameForms,
    origin: Option<PathBuf>,
}

/// A list as it is stored in a file.
#[derive(Serialize, Deserialize)]
struct StoredClasses {
    classes: Vec<ClassName>,
    /// The path of its file for messages.
    origin: Option<String>,
}

impl From<ClassList> for StoredClasses {
    fn from(list: ClassList) -> Self {
        Self {
            classes: list.classes,
            origin: list.origin.map(|path| path.to_string_lossy().into_owned()),
        }
    }
}

impl TryFrom<StoredClasses> for ClassList {
    type Error = Error;

    fn try_from(stored: StoredClasses) -> Result<Self> {
        Self::new(stored.classes, stored.origin.map(PathBuf::from))
    }
}

impl ClassList {
    pub(crate) fn new(classes: Vec<ClassName>, origin: Option<PathBuf>) -> Result<Self> {
        let mut index = BTreeMap::new();
        for (number, class) in (0u32..).zip(&classes) {
            if index.insert(class.name.clone(), number).is_some() {
                let what = format!("the class {} is in it more than once", escape(&class.name));
                return Err(Error::list(origin.unwrap_or_default(), what));
            }
        }
        let forms = NameForms::new(index.iter().map(|(name, number)| (&name[..], *number)));
        Ok(Self {
            classes,
            index,
            forms,
            origin,
        })
    }

    /// Returns the number of classes.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.classes.is_empty()
    }

    /// Returns the class with this index (label minus label base).
    pub fn get(&self, index: u32) -> Option<&ClassName> {
        self.classes.get(index as usize)
    }

    /// Returns the index of a class. The name may be in another Unicode form.
    pub fn index_of(&self, name: &[u8]) -> Option<u32> {
        let exact = |name: &[u8]| self.index.get(name).copied();
        exact(name).or_else(|| self.forms.find(name, exact).ok().flatten())
    }

    /// Returns whether the list has the name only in another Unicode form.
    pub(crate) fn has_other_form(&self, name: &[u8]) -> bool {
        !self.index.contains_key(name) && self.index_of(name).is_some()
    }

    /// Returns all classes in the order of their labels.
    pub fn iter(&self) -> impl Iterator<Item = &ClassName> {
        self.classes.iter()
    }

    /// Returns the file that the list came from; `None` if the class directories are the list.
    pub fn origin(&self) -> Option<&Path> {
        self.origin.as_deref()
    }

    /// If all names are numbers, returns the first class that is not in numeric order, and the class that should have its
    /// label. Returns `None` for a list from a file, whose order is deliberate.
    pub fn first_number_out_of_order(&self) -> Option<(&ClassName, &ClassName)> {
        let is_number = |class: &ClassName| class.name.iter().all(u8::is_ascii_digit);
        if self.origin.is_some() || !self.classes.iter().all(is_number) {
            return None;
        }
        let mut natural: Vec<&ClassName> = self.classes.iter().collect();
        natural.sort_by(|a, b| ClassOrder::Natural.compare(&a.name, &b.name));
        self.classes
            .iter()
            .zip(natural)
            .find(|(class, other)| class != other)
    }

    /// Returns the error of a class directory below `src` that is not in the list.
    pub fn unknown(&self, src: &Path, name: &[u8]) -> Error {
        let list = self.origin.as_deref().unwrap_or(src).display().to_string();
        let what = format!(
            "this class is not among the {} of {list}, so it has no number; give a list that has it ({} FILE)",
            self.len(),
            option_names::CLASSES
        );
        Error::list(src.join(OsStr::from_bytes(name)), what)
    }
}

/// The class of each file of a validation split without class directories, from a list beside the split.
#[derive(Debug, Clone)]
pub struct FileClasses {
    origin: PathBuf,
    lookup: ClassLookup,
}

#[derive(Debug, Clone)]
enum ClassLookup {
    /// One class for each file in byte order of the keys, from the lines of `synset_labels.txt`.
    Order(Vec<u32>),
    /// By the file name without extension. The content is the CSV file, parsed by [`FileClasses::of`].
    Stem(Vec<u8>),
    /// By the number at the end of the file name without extension, counted from 1.
    Number {
        names: Vec<Vec<u8>>,
        /// Index into `names` for each number.
        lines: Vec<u16>,
    },
}

impl FileClasses {
    /// Creates the lookup from the content of Kaggle's `LOC_val_solution.csv`.
    pub(crate) fn by_solution(origin: PathBuf, bytes: Vec<u8>) -> Self {
        let lookup = ClassLookup::Stem(bytes);
        Self { origin, lookup }
    }

    /// Creates the lookup for images whose names end with a number `n`, counted from 1: the class is `names[lines[n - 1]]`.
    pub(crate) fn by_number(origin: PathBuf, names: Vec<Vec<u8>>, lines: Vec<u16>) -> Self {
        let lookup = ClassLookup::Number { names, lines };
        Self { origin, lookup }
    }

    /// Returns the class indexes of `count` files, given in byte order of their keys. Every file must have a class.
    pub fn of<'a>(
        &self,
        list: &ClassList,
        count: u64,
        names: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Vec<u32>> {
        match &self.lookup {
            ClassLookup::Order(classes) if classes.len() as u64 == count => Ok(classes.clone()),
            ClassLookup::Order(classes) => {
                let lines = classes.len();
                let what = format!(
                    "it has {lines} lines, so it cannot tell the classes of {count} images"
                );
                Err(Error::list(&self.origin, what))
            }
            ClassLookup::Stem(bytes) => {
                let classes = validation_solution(bytes, list, &self.origin)?;
                names
                    .map(|name| class_by_stem(&classes, name, &self.origin))
                    .collect()
            }
            ClassLookup::Number {
                names: classes,
                lines,
            } => names
                .map(|name| {
                    let class = number_of(name)
                        .and_then(|number| lines.get(number.checked_sub(1)?))
                        .and_then(|class| classes.get(usize::from(*class)))
                        .ok_or_else(|| {
                            Error::list(
                                &self.origin,
                                format!("it has no line for {}", escape(name)),
                            )
                        })?;
                    list.index_of(class)
                        .ok_or_else(|| list.unknown(&self.origin, class))
                })
                .collect(),
        }
    }
}

fn class_by_stem(classes: &BTreeMap<Vec<u8>, u32>, name: &[u8], origin: &Path) -> Result<u32> {
    let none = || Error::list(origin, format!("it has no line for {}", escape(name)));
    classes.get(stem(name)).copied().ok_or_else(none)
}

/// Returns the number at the end of a name, before its extension.
fn number_of(name: &[u8]) -> Option<usize> {
    let stem = stem(name);
    let start = stem
        .iter()
        .rposition(|byte| !byte.is_ascii_digit())
        .map_or(0, |at| at + 1);
    std::str::from_utf8(&stem[start..]).ok()?.parse().ok()
}

/// Largest size of a list, which is read into memory.
const LIST_MAX_BYTES: u64 = 64 << 20;

/// Reads the file of a list.
pub(crate) fn read_list(path: &Path) -> Result<Vec<u8>> {
    let fail = |source: io::Error| Error::io(path, "read the class list", source);
    let meta = std::fs::metadata(path).map_err(fail)?;
    if meta.len() > LIST_MAX_BYTES {
        let what = format!("with {} bytes this is no class list", meta.len());
        return Err(Error::source(path, what));
    }
    forebay_shard::storage::read_file(path).map_err(fail)
}

/// Returns whether a file of this name at the top of a source is a list of classes.
pub(crate) fn is_list(name: &str) -> bool {
    KNOWN_NAMES.contains(&name) || name == VALIDATION_SOLUTION
}

/// Returns whether a path is that of a list of classes.
pub fn is_list_path(path: &[u8]) -> bool {
    std::str::from_utf8(base(path)).is_ok_and(is_list)
}

/// Parses lines of `ImageId,PredictionString`; the latter begins with the synset, boxes follow.
fn validation_solution(
    bytes: &[u8],
    list: &ClassList,
    path: &Path,
) -> Result<BTreeMap<Vec<u8>, u32>> {
    let mut classes = BTreeMap::new();
    for (number, line) in bytes.split(|b| *b == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line.starts_with(b"ImageId,") {
            continue;
        }
        let at = |what: String| Error::list(path, format!("line {}: {what}", number + 1));
        let Some(comma) = line.iter().position(|b| *b == b',') else {
            return Err(at("there is no comma after the image's name".into()));
        };
        let synset = line[comma + 1..]
            .split(|b| *b == b' ')
            .next()
            .unwrap_or_default();
        let Some(class) = list.index_of(synset) else {
            return Err(at(format!(
                "{} is not among the {} classes",
                escape(synset),
                list.len()
            )));
        };
        classes.insert(line[..comma].to_vec(), class);
    }
    Ok(classes)
}

/// Interprets the lines of `synset_labels.txt`. Without repeated lines, they are the list of classes. Otherwise each line is the
/// class of one validation image, and the list of classes has the distinct lines in byte order, as TensorFlow numbers them.
pub(crate) fn synset_labels(
    lines: Vec<ClassName>,
    path: PathBuf,
) -> Result<(ClassList, Option<FileClasses>)> {
    let mut different = lines.clone();
    different.sort_by(|a, b| a.name.cmp(&b.name));
    different.dedup_by(|a, b| a.name == b.name);
    if different.len() == lines.len() {
        return Ok((ClassList::new(lines, Some(path))?, None));
    }
    let list = ClassList::new(different, Some(path.clone()))?;
    let classes = lines
        .iter()
        .filter_map(|line| list.index_of(&line.name))
        .collect();
    Ok((
        list,
        Some(FileClasses {
            origin: path,
            lookup: ClassLookup::Order(classes),
        }),
    ))
}

/// Parses one class per line: `name`, `name<TAB>text`, or a WordNet id followed by a space and its text.
pub(crate) fn parse(bytes: &[u8]) -> Vec<ClassName> {
    let text = crate::labels::to_utf8(bytes);
    let lines = text
        .split(|b| *b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line).trim_ascii());
    lines
        .filter(|line| !line.is_empty())
        .map(parse_line)
        .collect()
}

fn parse_line(line: &[u8]) -> ClassName {
    let tab = line.iter().position(|b| *b == b'\t');
    let space = line
        .iter()
        .position(|b| *b == b' ')
        .filter(|at| is_wordnet_id(&line[..*at]));
    let (name, text) = match tab.or(space) {
        Some(at) => (line[..at].trim_ascii(), line[at + 1..].trim_ascii()),
        None => (line, b"".as_slice()),
    };
    let text = (!text.is_empty()).then(|| String::from_utf8_lossy(text).into_owned());
    ClassName {
        name: name.to_vec(),
        text,
    }
}

/// Returns whether a name is `n` and eight digits.
pub(crate) fn is_wordnet_id(name: &[u8]) -> bool {
    name.len() == 9 && name.starts_with(b"n") && name.iter().skip(1).all(u8::is_ascii_digit)
}

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_every_kind_are_parsed() {
        let classes = parse(
            b"\xef\xbb\xbfn01440764 tench, Tinca tinca\r\n\ngolden retriever\ncat\tFelis catus\n  dog  \n",
        );
        let shown: Vec<_> = classes
            .iter()
            .map(|c| {
                (
                    String::from_utf8_lossy(&c.name).into_owned(),
                    c.text.as_deref().unwrap_or("-"),
                )
            })
            .collect();
        let expected = [
            ("n01440764", "tench, Tinca tinca"),
            ("golden retriever", "-"),
            ("cat", "Felis catus"),
            ("dog", "-"),
        ];
        assert_eq!(shown, expected.map(|(name, text)| (name.to_owned(), text)));
    }

    #[test]
    fn repeated_lines_are_the_labels_of_files() {
        let (list, files) = synset_labels(parse(b"b\na\nb\n"), "x".into()).unwrap();
        assert_eq!(
            list.iter().map(|c| c.name.clone()).collect::<Vec<_>>(),
            [b"a", b"b"]
        );
        let files = files.unwrap();
        assert_eq!(files.of(&list, 3, std::iter::empty()).unwrap(), [1, 0, 1]);
        assert!(files.of(&list, 4, std::iter::empty()).is_err());
        let (list, files) = synset_labels(parse(b"b\na\n"), "x".into()).unwrap();
        assert_eq!(
            (list.index_of(b"b"), files.is_none()),
            (Some(0), true),
            "a list of classes keeps its order"
        );
    }

    #[test]
    fn a_solution_file_maps_names_to_classes() {
        let list = ClassList::new(parse(b"n1\nn2\n"), None).unwrap();
        let of = |text: &[u8]| validation_solution(text, &list, Path::new("s.csv"));
        let classes =
            of(b"ImageId,PredictionString\nv1,n2 1 2 3 4 n2 5 6 7 8 \r\nv.2,n1 1 2 3 4\n").unwrap();
        let class = |name: &[u8]| class_by_stem(&classes, name, Path::new("s.csv"));
        assert_eq!(
            (class(b"v.2.JPEG").unwrap(), class(b"v1.png").unwrap()),
            (0, 1)
        );
        assert!(
            class(b"v3.JPEG")
                .unwrap_err()
                .to_string()
                .contains("v3.JPEG")
        );
        assert!(
            of(b"v1,n9 1 2 3 4")
                .unwrap_err()
                .to_string()
                .contains("line 1: n9")
        );
        assert!(of(b"v1").is_err());
    }

    #[test]
    fn repeated_classes_are_an_error() {
        assert!(ClassList::new(parse(b"a\na\n"), None).is_err());
    }
}
