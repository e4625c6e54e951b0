//! Prices of requests and of transfers from object stores, for estimates.
//!
//! The prices are list prices from a dated file: the one in this crate, or that of `FOREBAY_PRICES`. Where the reader is, is not
//! known, so each [`Cost`] has two amounts. Amounts are whole billionths of a dollar, so sums are exact.

use std::fmt;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::scheme::Kind;
use crate::{Error, Result};

/// The variable that names a file with other prices.
pub(crate) const VARIABLE: &str = "FOREBAY_PRICES";
const LIST_PRICES: &str = include_str!("prices.toml");
/// No file of prices is this long.
const MAX_BYTES: u64 = 64 << 10;
/// The highest price, in dollars.
const MAX_PRICE: f64 = 1000.0;
const NANO: f64 = 1e9;
const GB: u128 = 1_000_000_000;

/// The file: each kind of store has a table.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prices {
    as_of: AsOf,
    s3: Row,
    gs: Row,
    az: Row,
    own: Row,
    hf: Row,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: Name,
    get_per_1000: Price,
    put_per_1000: Price,
    region_per_gb: Price,
    internet_per_gb: Price,
}

struct AsOf(toml::value::Date);

impl<'de> Deserialize<'de> for AsOf {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let date = toml::value::Datetime::deserialize(deserializer)?.date;
        Ok(Self(date.ok_or_else(|| {
            D::Error::custom("expected a date such as 2025-06-01")
        })?))
    }
}

struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        if name.is_empty() || name.len() > 100 || name.chars().any(char::is_control) {
            return Err(D::Error::custom(
                "expected a name of 1 to 100 bytes without control characters",
            ));
        }
        Ok(Self(name))
    }
}

/// Billionths of a dollar.
struct Price(u64);

impl<'de> Deserialize<'de> for Price {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let dollars = f64::deserialize(deserializer)?;
        if !(0.0..=MAX_PRICE).contains(&dollars) {
            let expected = format!("expected a price of 0 to {MAX_PRICE} dollars");
            return Err(D::Error::custom(expected));
        }
        Ok(Self((dollars * NANO).round() as u64))
    }
}

/// The prices of one store.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tariff {
    name: String,
    /// Year, month and day, as in 20250601.
    as_of: u32,
    /// Billionths of a dollar for 1,000 requests.
    get: u64,
    put: u64,
    /// Billionths of a dollar for a billion bytes.
    region: u64,
    internet: u64,
}

/// Requests and bytes that a store charges for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Usage {
    /// Requests that read: GET and HEAD.
    pub gets: u64,
    /// Requests that write or list.
    pub puts: u64,
    /// Bytes that were received.
    pub received_bytes: u64,
    /// Bytes that were sent, which are free.
    pub sent_bytes: u64,
}

impl Usage {
    /// Returns the number of requests, without deletions.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.gets.saturating_add(self.puts)
    }

    pub(crate) fn combine(&self, other: &Usage, with: fn(u64, u64) -> u64) -> Usage {
        Usage {
            gets: with(self.gets, other.gets),
            puts: with(self.puts, other.puts),
            received_bytes: with(self.received_bytes, other.received_bytes),
            sent_bytes: with(self.sent_bytes, other.sent_bytes),
        }
    }
}

/// An estimated amount, for a reader in the region of the data and for one at the other end of the internet. It serializes as
/// dollars.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Cost {
    /// Billionths of a dollar, read in the region.
    #[serde(serialize_with = "dollars")]
    pub in_region: u64,
    /// Billionths of a dollar, read over the internet.
    #[serde(serialize_with = "dollars")]
    pub over_internet: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn dollars<S: Serializer>(nano: &u64, serializer: S) -> std::result::Result<S::Ok, S::Error> {
    serializer.serialize_f64(*nano as f64 / NANO)
}

/// Writes both amounts: `$0.0136 in the region, $12.42 over the internet`.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [region, internet] = [self.in_region, self.over_internet].map(amount);
        write!(f, "{region} in the region, {internet} over the internet")
    }
}

/// Formats an amount, rounded to cents from a dollar on and to hundredths of a cent below.
fn amount(nano: u64) -> String {
    match nano {
        0 => "$0".to_owned(),
        1..50_000 => "less than $0.0001".to_owned(),
        50_000..999_950_000 => format!("$0.{:04}", (nano + 50_000) / 100_000),
        _ => {
            let cents = nano.saturating_add(5_000_000) / 10_000_000;
            format!("${}.{:02}", cents / 100, cents % 100)
        }
    }
}

impl Tariff {
    /// Loads the prices of a kind of store from `file`, or the list prices.
    pub(crate) fn load(
        kind: Kind,
        has_own_endpoint: bool,
        file: Option<&str>,
    ) -> Result<Arc<Self>> {
        let prices = match file {
            None => parse(LIST_PRICES).map_err(|why| failed("prices.toml", why))?,
            Some(file) => read(Path::new(file)).map_err(|why| failed(file, why))?,
        };
        let row = match kind {
            Kind::hub => prices.hf,
            Kind::s3 if !has_own_endpoint => prices.s3,
            Kind::google if !has_own_endpoint => prices.gs,
            Kind::azure if !has_own_endpoint => prices.az,
            _ => prices.own,
        };
        let toml::value::Date { year, month, day } = prices.as_of.0;
        Ok(Arc::new(Self {
            name: row.name.0,
            as_of: (u32::from(year) * 100 + u32::from(month)) * 100 + u32::from(day),
            get: row.get_per_1000.0,
            put: row.put_per_1000.0,
            region: row.region_per_gb.0,
            internet: row.internet_per_gb.0,
        }))
    }

    /// Returns the price of requests and bytes.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> Cost {
        let of = |price: u64, count: u64| u128::from(price) * u128::from(count);
        // Billionths of a dollar for 1,000 requests; rounded once.
        let requests = of(self.get, usage.gets) + of(self.put, usage.puts);
        let with = |per_gb| {
            let transfer = of(per_gb, usage.received_bytes);
            let sum = (requests * (GB / 1000) + transfer + GB / 2) / GB;
            u64::try_from(sum).unwrap_or(u64::MAX)
        };
        Cost {
            in_region: with(self.region),
            over_internet: with(self.internet),
        }
    }

    fn is_free(&self) -> bool {
        [self.get, self.put, self.region, self.internet] == [0; 4]
    }

    /// Returns a cost by these prices as text, with its origin.
    #[must_use]
    pub fn price(&self, cost: &Cost) -> String {
        match self.is_free() {
            true => format!("no charge ({})", self.origin()),
            false => format!("{cost} ({})", self.origin()),
        }
    }

    /// Returns the size from which on a read costs at most 1 % more over the internet because it is a request; `None` if
    /// requests or transfers are free.
    #[must_use]
    pub fn large_read_bytes(&self) -> Option<u64> {
        // (get / 1000) / (bytes * internet / GB) = 1 / 100
        let bytes = (u128::from(self.get) * GB / 10).checked_div(u128::from(self.internet))?;
        u64::try_from(bytes).ok().filter(|&bytes| bytes > 0)
    }

    /// Returns the date of the prices as a number: 20250601.
    #[must_use]
    pub fn as_of(&self) -> u32 {
        self.as_of
    }

    /// Returns the origin of an estimate: `estimated from list prices of Amazon S3 Standard, us-east-1 as of 2025-06-01`.
    #[must_use]
    pub fn origin(&self) -> String {
        let (year, month, day) = (
            self.as_of / 10_000,
            self.as_of / 100 % 100,
            self.as_of % 100,
        );
        let name = &self.name;
        format!("estimated from list prices of {name} as of {year:04}-{month:02}-{day:02}")
    }
}

fn failed(file: &str, why: String) -> Error {
    Error::Options {
        place: format!("the prices in \"{file}\""),
        why,
        hint: Some(format!(
            "{VARIABLE} names this file; docs/storage.md has its keys"
        )),
    }
}

fn read(file: &Path) -> std::result::Result<Prices, String> {
    // Opening a pipe would wait for its writer.
    let is_file = std::fs::metadata(file).map(|found| found.is_file());
    if !is_file.map_err(|error| error.to_string())? {
        return Err("it is not a regular file".to_owned());
    }
    let opened = std::fs::File::open(file).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let len = opened.take(MAX_BYTES + 1).read_to_string(&mut text);
    if len.map_err(|error| error.to_string())? as u64 > MAX_BYTES {
        return Err(format!(
            "it has more than {MAX_BYTES} bytes, which no prices have"
        ));
    }
    parse(&text)
}

/// Parses a file. An error names the line and the key.
fn parse(text: &str) -> std::result::Result<Prices, String> {
    toml::from_str(text).map_err(|error| {
        let message = error.message().replace('\n', " ");
        let Some(before) = error.span().and_then(|span| text.get(..span.start)) else {
            return message;
        };
        let line = before.matches('\n').count();
        let key = text.lines().nth(line).unwrap_or_default();
        let key = key.split('=').next().unwrap_or_default().trim();
        format!("line {}, {key:?}: {message}", line + 1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tariff(kind: Kind) -> Arc<Tariff> {
        Tariff::load(kind, false, None).unwrap()
    }

    fn usage(gets: u64, puts: u64, received_bytes: u64) -> Usage {
        Usage {
            gets,
            puts,
            received_bytes,
            ..Usage::default()
        }
    }

    #[test]
    fn requests_and_bytes_have_exact_prices() {
        let s3 = tariff(Kind::s3);
        let one = s3.cost(&usage(1, 0, 0));
        assert_eq!((one.in_region, one.over_internet), (400, 400));
        // 1,000,000 GETs, 1,000 PUTs and 138 GB: 0.40 + 0.005, and 12.42 more over the internet.
        let cost = s3.cost(&usage(1_000_000, 1000, 138_000_000_000));
        assert_eq!(cost.in_region, 405_000_000);
        assert_eq!(cost.over_internet, 12_825_000_000);
        assert_eq!(
            cost.to_string(),
            "$0.4050 in the region, $12.83 over the internet"
        );
        let all = usage(u64::MAX, u64::MAX, u64::MAX);
        assert_eq!(s3.cost(&all).over_internet, u64::MAX, "no overflow");
        let json = serde_json::to_value(cost).unwrap();
        assert_eq!(json["over_internet"], 12.825);
        assert_eq!(
            tariff(Kind::google)
                .cost(&usage(0, 0, 1_000_000_000))
                .over_internet,
            120_000_000
        );
        assert_eq!(
            tariff(Kind::azure)
                .cost(&usage(0, 2000, 1_000_000_000))
                .over_internet,
            97_000_000
        );
    }

    #[test]
    fn own_endpoints_and_the_hub_are_free() {
        for (kind, own) in [
            (Kind::s3, true),
            (Kind::google, true),
            (Kind::azure, true),
            (Kind::web, false),
            (Kind::hub, false),
        ] {
            let tariff = Tariff::load(kind, own, None).unwrap();
            assert!(tariff.is_free(), "{tariff:?}");
            assert_eq!(tariff.cost(&usage(9, 9, 1 << 40)), Cost::default());
            assert_eq!(tariff.large_read_bytes(), None);
        }
        assert!(!tariff(Kind::s3).is_free());
    }

    #[test]
    fn requests_stop_mattering_at_a_read_size() {
        // 0.0000004 / (444,444 * 0.09 / 1,000,000,000) = 1 %
        let s3 = tariff(Kind::s3);
        assert_eq!(s3.large_read_bytes(), Some(444_444));
        assert_eq!(
            s3.origin(),
            "estimated from list prices of Amazon S3 Standard, us-east-1 as of 2025-06-01"
        );
        assert_eq!(s3.as_of(), 20_250_601);
    }

    #[test]
    fn amounts_are_rounded_once() {
        for (nano, text) in [
            (0, "$0"),
            (1, "less than $0.0001"),
            (50_000, "$0.0001"),
            (13_649_999, "$0.0136"),
            (999_949_999, "$0.9999"),
            (999_950_000, "$1.00"),
            (12_425_000_000, "$12.43"),
        ] {
            assert_eq!(amount(nano), text);
        }
    }

    #[test]
    fn errors_of_a_price_file_name_line_and_key() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prices.toml");
        let refused = |from: &str, to: &str| {
            assert!(LIST_PRICES.contains(from), "{from}");
            std::fs::write(&file, LIST_PRICES.replacen(from, to, 1)).unwrap();
            let error = Tariff::load(Kind::s3, false, file.to_str()).unwrap_err();
            assert!(error.hint().unwrap().contains(VARIABLE));
            error.to_string()
        };
        let at = |key: &str| {
            let lines = LIST_PRICES.lines();
            1 + lines.take_while(|line| !line.starts_with(key)).count()
        };
        let get = format!("line {}, \"get_per_1000\": ", at("get_per"));
        for (to, why) in [
            ("get_per_1000 = \"0.0004\"", "invalid type: string"),
            ("get_per_1000 = -1", "expected a price of 0 to 1000 dollars"),
            (
                "get_per_1000 = nan",
                "expected a price of 0 to 1000 dollars",
            ),
            (
                "get_per_1000 = 1001",
                "expected a price of 0 to 1000 dollars",
            ),
        ] {
            let error = refused("get_per_1000 = 0.0004", to);
            assert!(error.contains(&get) && error.contains(why), "{error}");
        }
        let unknown = refused("get_per_1000 = 0.0004", "gets = 0.0004");
        assert!(
            unknown.contains(&format!("line {}, \"gets\": unknown field", at("get_per"))),
            "{unknown}"
        );
        let missing = refused("[hf]", "[s3.more]");
        assert!(
            missing.contains("line ") && missing.contains("more"),
            "{missing}"
        );
        let date = refused("2025-06-01", "07:30:00");
        assert!(
            date.contains(&format!("line {}, \"as_of\": expected a date", at("as_of"))),
            "{date}"
        );
        let name = refused("Amazon S3", "\\u001b[2J");
        assert!(name.contains("\"name\": expected a name"), "{name}");
        std::fs::write(&file, vec![b'#'; 70_000]).unwrap();
        let long = Tariff::load(Kind::s3, false, file.to_str()).unwrap_err();
        assert!(long.to_string().contains("more than 65536 bytes"), "{long}");
        let directory = Tariff::load(Kind::s3, false, dir.path().to_str()).unwrap_err();
        assert!(
            directory.to_string().ends_with("it is not a regular file"),
            "{directory}"
        );
        let absent = dir.path().join("absent");
        let absent = Tariff::load(Kind::s3, false, absent.to_str()).unwrap_err();
        assert!(absent.to_string().contains("absent"), "{absent}");
    }

    #[test]
    fn the_example_of_the_documents_is_right() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/storage.md");
        let page = std::fs::read_to_string(path).unwrap();
        let s3 = tariff(Kind::s3);
        let gets = 138_000_000_000_u64.div_ceil(3_500_000);
        let requests = s3.cost(&usage(gets, 0, 0));
        let transfer = s3.cost(&usage(0, 0, 138_000_000_000));
        let of = |epochs| s3.cost(&usage(epochs * gets, 0, epochs * 138_000_000_000));
        assert_eq!(gets, 39_429);
        for (row, cost) in [
            ("39,429 requests x $0.0004 / 1,000", requests),
            ("138 GB x $0, x $0.09", transfer),
            ("an epoch", of(1)),
            ("90 epochs", of(90)),
            ("90 epochs with `--cache-dir` and room for all", of(1)),
        ] {
            let [region, internet] = [cost.in_region, cost.over_internet].map(amount);
            let line = format!("| {row} | {region} | {internet} |");
            assert!(page.contains(&line), "{line}");
        }
        assert!(page.contains(&format!(
            "at reads of {} kB",
            s3.large_read_bytes().unwrap() / 1000
        )));
    }

    #[test]
    fn a_price_file_replaces_list_prices() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prices.toml");
        let text = LIST_PRICES.replacen("get_per_1000 = 0.0004", "get_per_1000 = 1", 1);
        std::fs::write(&file, text.replacen("2025-06-01", "2026-02-28", 1)).unwrap();
        let tariff = Tariff::load(Kind::s3, false, file.to_str()).unwrap();
        assert_eq!(tariff.cost(&usage(3, 0, 0)).in_region, 3_000_000);
        assert!(tariff.origin().ends_with("as of 2026-02-28"));
    }
}
