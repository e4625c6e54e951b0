//! Listings of many pages.

use forebay_rigs::Scripted;
use forebay_store::{Location, Store, StoreOptions};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const PAGES: usize = 8;

/// The page with this number, which names the next one.
fn page(number: usize) -> String {
    let next = Some(number + 1).filter(|next| *next < PAGES);
    page_of(number, next.map(|next| format!("page-{next}")))
}

fn page_of(number: usize, next: Option<String>) -> String {
    let next = next.map_or_else(String::new, |next| {
        format!("<NextContinuationToken>{next}</NextContinuationToken>")
    });
    format!(
        "<?xml version=\"1.0\"?><ListBucketResult>{next}<Contents><Key>x/{number}.jpg</Key>\
         <LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>3</Size></Contents>\
         </ListBucketResult>"
    )
}

fn options(server: &Scripted) -> StoreOptions {
    StoreOptions::new()
        .with_endpoint(format!("http://{}", server.address()))
        .with("aws_access_key_id", "id")
        .with("aws_secret_access_key", "secret")
}

#[test]
fn a_listing_whose_pages_repeat_is_an_error() {
    // Pages that continue with one that was there, and pages that have the same name each time.
    for is_new in [false, true] {
        let asked = AtomicUsize::new(0);
        let server = Scripted::start(move |_, _| {
            let number = asked.fetch_add(1, Ordering::Relaxed);
            let token = if is_new { number } else { number % 3 };
            let page = page_of(token % 3, Some(format!("page-{token}")));
            (200, Vec::new(), page.into_bytes())
        });
        let place = Location::parse("s3://bucket/x").unwrap();
        let store = Store::open(&place, &options(&server)).unwrap();
        let mut errors = vec![store.list("").unwrap_err()];
        if !is_new {
            errors.push(store.list_dir("").unwrap_err());
        }
        for error in errors {
            let text = error.to_string();
            assert!(text.starts_with("cannot list s3://bucket/x"), "{text}");
            assert!(text.contains("the listing does not end"), "{text}");
        }
    }
}

#[test]
fn a_timeout_applies_to_each_page() {
    let timeout = Duration::from_millis(400);
    let server = Scripted::start(move |_, target| {
        std::thread::sleep(timeout / 3);
        let number = (1..PAGES).find(|number| target.contains(&format!("token=page-{number}")));
        (200, Vec::new(), page(number.unwrap_or(0)).into_bytes())
    });
    let mut options = options(&server);
    options.timeout = timeout;
    let store = Store::open(&Location::parse("s3://bucket/x").unwrap(), &options).unwrap();
    assert_eq!(store.list("").unwrap().len(), PAGES);
    assert_eq!(server.take().len(), PAGES, "no page is requested twice");
}
