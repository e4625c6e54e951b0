//! Listings of many pages.

use forebay_rigs::Scripted;
use forebay_store::{Location, Store, StoreOptions};
use std::time::Duration;

const PAGES: usize = 8;

/// The page with this number, which names the next one.
fn page(number: usize) -> String {
    let next = match number + 1 {
        PAGES => String::new(),
        next => format!("<NextContinuationToken>page-{next}</NextContinuationToken>"),
    };
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult>{next}<Contents><Key>x/{number}.jpg</Key>\
         <LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>3</Size></Contents>\
         </ListBucketResult>"
    )
}

#[test]
fn a_timeout_applies_to_each_page() {
    let timeout = Duration::from_millis(400);
    let server = Scripted::start(move |_, target| {
        std::thread::sleep(timeout / 3);
        let number = (1..PAGES).find(|number| target.contains(&format!("token=page-{number}")));
        (200, Vec::new(), page(number.unwrap_or(0)).into_bytes())
    });
    let options = StoreOptions::new()
        .with_endpoint(format!("http://{}", server.address()))
        .with_timeout(timeout)
        .with("aws_access_key_id", "id")
        .with("aws_secret_access_key", "secret");
    let store = Store::open(&Location::parse("s3://bucket/x").unwrap(), &options).unwrap();
    assert_eq!(store.list("").unwrap().len(), PAGES);
    assert_eq!(server.take().len(), PAGES, "no page is requested twice");
}
