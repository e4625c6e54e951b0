//! `forebay-lab failover`, `fairness` and `clients`.

use forebay_pack::{Cancel, DatasetFormat, PackOptions, pack};
use forebay_store::Location;

use crate::support::{images, run, text};

#[test]
fn failover_fairness_and_clients_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("shards");
    let mut options = PackOptions::new(Location::from(images()), Location::from(&*root));
    options.format = DatasetFormat::INDEXED;
    pack(&options, &(), &Cancel::new()).unwrap();
    let small = ["--batch-size", "4", "--side", "16", "--json"];
    let bench = |what: &str, more: &[&str]| {
        let ran = run([what, text(&root)].iter().chain(&small).chain(more));
        ran.done()
            .events()
            .into_iter()
            .find(|event| event["type"] == "bench")
            .unwrap()
    };
    let failover = bench("failover", &["--runs", "1"]);
    let rows = failover["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 3, "{failover}");
    for row in rows {
        assert!(row["median"].as_f64() <= row["max"].as_f64(), "{failover}");
    }
    let replaced = failover["notes"].to_string();
    assert!(
        replaced.contains("1 times a lost server was replaced, 1 times one handed over"),
        "{replaced}"
    );
    let fairness = bench(
        "fairness",
        &["--duration", "200ms", "--slow", "20ms", "--active", "3"],
    );
    assert_eq!(
        fairness["rows"][0]["rates"].as_array().unwrap().len(),
        3,
        "{fairness}"
    );
    assert_eq!(
        fairness["rows"][1]["rates"].as_array().unwrap().len(),
        2,
        "{fairness}"
    );
    let clients = bench(
        "clients",
        &["--duration", "200ms", "--idle", "5", "--active", "2"],
    );
    for row in clients["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        assert!(
            row["median"].as_f64().unwrap() > 0.0 || name.contains("processor"),
            "{clients}"
        );
    }
}
