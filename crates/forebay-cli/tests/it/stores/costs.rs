//! Copies and epochs of stores have prices.

use super::{Place, Reach};

use crate::support::{run, text};

use forebay_rigs::{FaultProxy, Plan, S3Server};

/// The embedded prices, with prices of an endpoint of one's own: a dollar for each request that reads, two for each that writes.
fn prices(place: &Place) -> std::path::PathBuf {
    let text = include_str!("../../../../forebay-store/src/prices.toml");
    let own = text.find("[own]").unwrap();
    let (others, own) = text.split_at(own);
    let own = own.replacen("get_per_1000 = 0", "get_per_1000 = 1000", 1);
    let own = own.replacen("put_per_1000 = 0", "put_per_1000 = 500", 1);
    let own = own.replacen("internet_per_gb = 0", "internet_per_gb = 1000", 1);
    let path = place.path("prices.toml");
    std::fs::write(&path, format!("{others}{own}")).unwrap();
    path
}

#[test]
fn copies_and_epochs_have_prices() {
    let place = Place::new();
    let server = S3Server::start();
    let proxy = FaultProxy::new(server.address(), 1, Plan::none());
    let free = Reach::s3(proxy.url(), server.settings());
    let mut charged = free.clone();
    let file = prices(&place);
    charged
        .0
        .push(("FOREBAY_PRICES".to_owned(), text(&file).to_owned()));
    let (whole, to) = (place.path("whole"), "s3://bucket/priced");

    let local = place.path("local");
    let copied = run(["cp", text(&whole), text(&local), "--json"]).done();
    assert_eq!(copied.summary()["stores"], serde_json::json!([]));
    let copied = run(["cp", "--overwrite", text(&whole), text(&local)]).done();
    assert!(!copied.stdout.contains("request"), "{}", copied.stdout);

    let before = proxy.requests();
    let sent = charged
        .run(["cp", text(&whole), to, "--json"])
        .done()
        .summary();
    let store = &sent["stores"][0];
    assert_eq!(store["store"], "s3://bucket", "{sent}");
    let count = |name: &str| store[name].as_u64().unwrap();
    // A probe of conditional puts is deleted again, which is free.
    let made = proxy.requests() - before;
    assert!(
        (made - 1..=made).contains(&count("requests")),
        "{made}: {sent}"
    );
    assert_eq!(count("requests"), count("gets") + count("puts"));
    assert!(
        count("sent_bytes") >= sent["bytes"].as_u64().unwrap(),
        "{sent}"
    );
    let dollars = count("gets") as f64 + 0.5 * count("puts") as f64;
    assert_eq!(store["cost"]["in_region"], dollars, "{sent}");
    let origin = "estimated from list prices of an endpoint of your own as of 2025-06-01";
    assert_eq!(store["prices"], origin);

    let fetched = free.run(["cp", to, text(&place.path("fetched"))]).done();
    assert!(
        fetched.stdout.contains("  s3://bucket: "),
        "{}",
        fetched.stdout
    );
    assert!(fetched.stdout.contains(" requests, "), "{}", fetched.stdout);
    assert!(
        fetched.stdout.contains(&format!("no charge ({origin})")),
        "{}",
        fetched.stdout
    );

    let quick = ["--cold", "off", "--run-time", "20ms"];
    let advise = ["advise", to, "--json"].into_iter().chain(quick);
    let advised = charged.run(advise).done();
    let events = advised.events();
    let cost = &events
        .iter()
        .find(|event| event["type"] == "advice")
        .unwrap()["cost"];
    let number = |name: &str| cost[name].as_f64().unwrap();
    assert!(number("requests") >= 1.0, "{cost}");
    let (region, internet) = (&cost["cost"]["in_region"], &cost["cost"]["over_internet"]);
    assert_eq!(region.as_f64(), Some(number("requests")), "{cost}");
    let transfer = number("bytes") / 1e6;
    let difference = internet.as_f64().unwrap() - number("requests") - transfer;
    assert!(difference.abs() < 1e-6, "{cost}");
    assert_eq!(cost["cached_cost"]["over_internet"], 0.0);
    assert!(cost["text"].as_str().unwrap().contains(origin), "{cost}");

    let explain = ["bench", "explain", to, "--runs", "1", "--batch-size", "4"];
    let explained = charged.run(explain.into_iter().chain(quick)).done();
    assert!(
        explained.stdout.contains("an epoch reads "),
        "{}",
        explained.stdout
    );

    std::fs::write(&file, "as_of = 2025-06-01\n[s3]\ngets = 1\n").unwrap();
    let refused = charged
        .run(["cp", to, text(&place.path("refused"))])
        .code(1);
    assert!(
        refused.stderr.contains("line 3, \"gets\": unknown field"),
        "{}",
        refused.stderr
    );
    assert!(!place.path("refused").exists());
}
