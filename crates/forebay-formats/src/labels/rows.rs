//! Rows of a file of labels, as cells with the names of their columns.

use super::encoding::Utf8;
use crate::error::{Error, Result};
use serde_json::Value;
use std::borrow::Cow;
use std::cell::{Cell as Shared, RefCell};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Longest line. A longer one is probably caused by a quote that is not closed.
const LINE_MAX_BYTES: u64 = 1 << 20;
/// The buffer is trimmed when more bytes than this precede the current record.
const RECENT_BYTES: usize = 64 << 10;
/// The line of column names must end within this many bytes.
const HEAD_BYTES: u64 = 64 << 10;
/// Most columns; more are treated as an error in the file.
pub(super) const COLUMNS_MAX: usize = 256;

/// A value of one column in one row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Cell<'a> {
    Empty,
    /// A value of a format without types (CSV, TSV).
    Text(&'a [u8]),
    String(&'a str),
    Int64(i64),
    Float(f64),
    /// A JSON list; nested lists are flattened in order.
    List(Vec<Cell<'a>>),
}

/// A column's name and its value in one line.
pub(crate) type Named<'a> = (Cow<'a, str>, Cell<'a>);

impl Cell<'_> {
    /// Returns the single values: none of an empty cell, all of a list.
    pub(super) fn values(&self) -> &[Self] {
        match self {
            Self::Empty => &[],
            Self::List(values) => values,
            _ => std::slice::from_ref(self),
        }
    }

    pub(crate) fn to_bytes(&self) -> Cow<'_, [u8]> {
        match self {
            Self::Empty => Cow::Borrowed(b""),
            Self::Text(text) => Cow::Borrowed(text),
            Self::String(text) => Cow::Borrowed(text.as_bytes()),
            Self::Int64(number) => Cow::Owned(number.to_string().into_bytes()),
            Self::Float(number) => Cow::Owned(number.to_string().into_bytes()),
            Self::List(_) => Cow::Borrowed(b""),
        }
    }

    pub(crate) fn to_int64(&self) -> Option<i64> {
        match self {
            Self::Int64(number) => Some(*number),
            Self::Text(text) => integer(text),
            _ => None,
        }
    }

    pub(crate) fn to_float(&self) -> Option<f32> {
        match self {
            Self::Int64(number) => Some(*number as f32),
            Self::Float(number) => Some(*number as f32),
            Self::Text(text) => integer(text)
                .map(|number| number as f32)
                .or_else(|| float(text)),
            _ => None,
        }
    }
}

/// Parses an integer without leading zeros.
pub(super) fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    if digits.first() == Some(&b'0') && digits.len() > 1 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses a decimal number. `None` for words such as `nan` and `inf`, and for values beyond the range of float32: these are
/// text.
pub(super) fn float(text: &[u8]) -> Option<f32> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let leading_zero =
        digits.first() == Some(&b'0') && digits.get(1).is_some_and(u8::is_ascii_digit);
    if leading_zero
        || !digits
            .first()
            .is_some_and(|byte| byte.is_ascii_digit() || *byte == b'.')
    {
        return None;
    }
    let number: f32 = std::str::from_utf8(text).ok()?.parse().ok()?;
    number.is_finite().then_some(number)
}

/// An open file of labels.
pub(crate) struct Rows {
    path: PathBuf,
    format: Format,
}

enum Format {
    Delimited {
        reader: Box<csv::Reader<BudgetReader<Input>>>,
        budget: Rc<Shared<u64>>,
        recent: Rc<RefCell<RecentBytes>>,
    },
    JsonLines(Input),
}

/// The input as UTF-8. The `Cursor` holds the beginning, which was read to detect the format.
type Input = io::Chain<Cursor<Vec<u8>>, BufReader<Utf8<File>>>;

/// Fails when a line exceeds the budget of bytes, and keeps the bytes that were read last.
struct BudgetReader<R> {
    inner: R,
    budget: Rc<Shared<u64>>,
    recent: Rc<RefCell<RecentBytes>>,
}

/// The bytes that were read last, trimmed to the next record.
#[derive(Default)]
struct RecentBytes {
    start: u64,
    bytes: Vec<u8>,
}

impl RecentBytes {
    /// Returns the line number of a record.
    fn line(&mut self, position: &csv::Position) -> u64 {
        let at = position.byte().saturating_sub(self.start);
        let at = usize::try_from(at)
            .unwrap_or(usize::MAX)
            .min(self.bytes.len());
        let line = line_of(position, self.bytes.get(at..).unwrap_or_default());
        if at > RECENT_BYTES {
            self.bytes.drain(..at);
            self.start += at as u64;
        }
        line
    }
}

/// Returns the line number of a record as an editor shows it. `from` begins at the record's position, which the CSV parser may
/// report before the line end of the previous line (with CRLF) and before empty lines.
pub(crate) fn line_of(position: &csv::Position, from: &[u8]) -> u64 {
    let ends = from.iter().take_while(|byte| matches!(byte, b'\r' | b'\n'));
    position.line() + ends.filter(|byte| **byte == b'\n').count() as u64
}

impl<R: Read> Read for BudgetReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(out)?;
        let bytes = out.get(..read).unwrap_or_default();
        self.recent.borrow_mut().bytes.extend_from_slice(bytes);
        let left = self.budget.get().checked_sub(read as u64);
        self.budget.set(left.ok_or_else(|| {
            io::Error::other("a line is longer than 1 MiB: is a quote not closed?")
        })?);
        Ok(read)
    }
}

impl Rows {
    /// Detects the format by the extension, or else by the first line.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let fail = |error| Error::io(path, "read the labels", error);
        let file = forebay_shard::storage::open_file(path).map_err(fail)?;
        let mut file = Utf8::new(file).map_err(fail)?;
        let ending = path.extension().unwrap_or_default().to_ascii_lowercase();
        let mut head = Vec::new();
        (&mut file)
            .take(HEAD_BYTES)
            .read_to_end(&mut head)
            .map_err(fail)?;
        let text = head.trim_ascii_start();
        let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let delimiter = match ending.to_str() {
            Some("jsonl" | "ndjson" | "json") => None,
            Some("tsv") => Some(delimiter(first, b'\t')),
            Some("csv") => Some(delimiter(first, b',')),
            _ if first.starts_with(b"{") => None,
            _ if first.contains(&b'\t') => Some(b'\t'),
            _ => Some(delimiter(first, b',')),
        };
        let file = Cursor::new(head).chain(BufReader::new(file));
        let format = match delimiter {
            None => Format::JsonLines(file),
            Some(delimiter) => {
                let budget = Rc::new(Shared::new(LINE_MAX_BYTES));
                let recent = Rc::<RefCell<RecentBytes>>::default();
                let fuse = BudgetReader {
                    inner: file,
                    budget: Rc::clone(&budget),
                    recent: Rc::clone(&recent),
                };
                let reader = csv::ReaderBuilder::new()
                    .delimiter(delimiter)
                    .from_reader(fuse);
                Format::Delimited {
                    reader: Box::new(reader),
                    budget,
                    recent,
                }
            }
        };
        Ok(Self {
            path: path.to_path_buf(),
            format,
        })
    }

    /// Calls `take` for each line that is not empty, with its line number and its cells.
    pub(crate) fn each(self, mut take: impl FnMut(u64, &[Named<'_>]) -> Result<()>) -> Result<()> {
        let path = self.path;
        match self.format {
            Format::Delimited {
                mut reader,
                budget,
                recent,
            } => {
                let fail = |error: csv::Error| {
                    let what = match error.kind() {
                        csv::ErrorKind::UnequalLengths {
                            pos: Some(at),
                            expected_len,
                            len,
                        } => {
                            let line = recent.borrow_mut().line(at);
                            format!(
                                "line {line}: it has {len} values, and the first line {expected_len}"
                            )
                        }
                        _ => error.to_string(),
                    };
                    Error::list(&path, what)
                };
                let headers = reader.byte_headers().map_err(fail)?.clone();
                let names: Vec<String> = headers
                    .iter()
                    .map(|name| String::from_utf8_lossy(name.trim_ascii()).into_owned())
                    .collect();
                check_names(&path, &names)?;
                let mut record = csv::ByteRecord::new();
                loop {
                    budget.set(LINE_MAX_BYTES);
                    if !reader.read_byte_record(&mut record).map_err(fail)? {
                        return Ok(());
                    }
                    let line = record.position();
                    let line = line.map_or(0, |at| recent.borrow_mut().line(at));
                    let cells: Vec<Named<'_>> = names
                        .iter()
                        .zip(&record)
                        .map(|(name, value)| {
                            let cell = if value.is_empty() {
                                Cell::Empty
                            } else {
                                Cell::Text(value)
                            };
                            (Cow::Borrowed(name.as_str()), cell)
                        })
                        .collect();
                    take(line, &cells)?;
                }
            }
            Format::JsonLines(mut file) => {
                let mut text = Vec::new();
                for number in 1u64.. {
                    text.clear();
                    let read = (&mut file)
                        .take(LINE_MAX_BYTES + 1)
                        .read_until(b'\n', &mut text)
                        .map_err(|error| Error::io(&path, "read the labels", error))?;
                    if read == 0 {
                        break;
                    }
                    let at = |what: String| Error::list(&path, format!("line {number}: {what}"));
                    if read as u64 > LINE_MAX_BYTES {
                        return Err(at("it is longer than 1 MiB".into()));
                    }
                    if text.trim_ascii().is_empty() {
                        continue;
                    }
                    let object: serde_json::Map<String, Value> =
                        forebay_shard::json::from_slice(&text)
                            .map_err(|error| at(error.to_string()))?;
                    let mut cells = Vec::with_capacity(object.len());
                    for (name, value) in &object {
                        push_cells(Cow::Borrowed(name), value, &mut cells).map_err(at)?;
                    }
                    if cells.len() > COLUMNS_MAX {
                        return Err(at(format!("more than {COLUMNS_MAX} columns")));
                    }
                    take(number, &cells)?;
                }
                Ok(())
            }
        }
    }
}

/// Returns the delimiter of the line of column names: `own`, or another one that spreadsheets write.
fn delimiter(names: &[u8], own: u8) -> u8 {
    let count = |wanted: u8| {
        let mut is_quoted = false;
        let parts = names.iter().filter(|byte| {
            is_quoted ^= **byte == b'"';
            !is_quoted && **byte == wanted
        });
        parts.count()
    };
    if count(own) > 0 {
        return own;
    }
    let others = [b',', b';', b'\t'].into_iter().rev();
    let most = others.max_by_key(|other| count(*other));
    most.filter(|other| count(*other) > 0).unwrap_or(own)
}

fn check_names(path: &Path, names: &[String]) -> Result<()> {
    if names.len() > COLUMNS_MAX {
        return Err(Error::list(
            path,
            format!("more than {COLUMNS_MAX} columns"),
        ));
    }
    for (at, name) in names.iter().enumerate() {
        if names[..at].contains(name) {
            return Err(Error::list(
                path,
                format!("the column {name:?} is there twice"),
            ));
        }
    }
    Ok(())
}

/// Adds the cells of a JSON value. The fields of an object become cells named `outer/inner`.
fn push_cells<'a>(
    name: Cow<'a, str>,
    value: &'a Value,
    cells: &mut Vec<Named<'a>>,
) -> Result<(), String> {
    if cells.len() > COLUMNS_MAX {
        return Err(format!("more than {COLUMNS_MAX} columns"));
    }
    let cell = match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                push_cells(Cow::Owned(format!("{name}/{field}")), value, cells)?;
            }
            return Ok(());
        }
        Value::Array(items) => {
            let mut values = Vec::with_capacity(items.len());
            flatten(items, &mut values).map_err(|what| format!("{name}: {what}"))?;
            Cell::List(values)
        }
        Value::Null => Cell::Empty,
        value => scalar(value).map_err(|what| format!("{name}: {what}"))?,
    };
    if cells.iter().any(|(known, _)| *known == name) {
        return Err(format!("the column {name:?} occurs twice"));
    }
    cells.push((name, cell));
    Ok(())
}

/// Collects the values of a list. Nested lists must have equal lengths, so that a reader can restore them.
fn flatten<'a>(items: &'a [Value], values: &mut Vec<Cell<'a>>) -> Result<(), String> {
    let nested = items.iter().filter_map(Value::as_array).count();
    if nested == 0 {
        for item in items {
            values.push(scalar(item)?);
        }
        return Ok(());
    }
    let mut length = None;
    for item in items {
        let Some(inner) = item.as_array() else {
            return Err("a list cannot hold both lists and single values".into());
        };
        let start = values.len();
        flatten(inner, values)?;
        let found = (inner.len(), values.len() - start);
        if *length.get_or_insert(found) != found {
            return Err("the lists in a list must have equal lengths".into());
        }
    }
    Ok(())
}

fn scalar(value: &Value) -> Result<Cell<'_>, String> {
    Ok(match value {
        Value::Bool(value) => Cell::Int64(i64::from(*value)),
        Value::String(text) => Cell::String(text),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => Cell::Int64(integer),
            (None, Some(float)) => Cell::Float(float),
            (None, None) => return Err(format!("the number {number} is out of range")),
        },
        Value::Null => return Err("a list cannot hold null".into()),
        Value::Array(_) | Value::Object(_) => {
            return Err("a list cannot hold objects: use an object of lists".into());
        }
    })
}
