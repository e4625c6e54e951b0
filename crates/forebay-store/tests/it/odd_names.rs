//! Objects with invalid names are left out of listings and reported; the others are listed.

use forebay_rigs::Scripted;
use forebay_store::{Location, Store, StoreOptions};

/// A page of S3's or Google's listing.
const S3_PAGE: &str = "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>\
<Contents><Key>x/a/1.jpg</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e1&quot;</ETag><Size>3</Size></Contents>\
<Contents><Key>x/a//2.jpg</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e2&quot;</ETag><Size>3</Size></Contents>\
<Contents><Key>x/../&amp;.jpg</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e3&quot;</ETag><Size>3</Size></Contents>\
<Contents><Key>x/b/3.jpg</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>&quot;e4&quot;</ETag><Size>3</Size></Contents>\
<CommonPrefixes><Prefix>x/c//</Prefix></CommonPrefixes><CommonPrefixes><Prefix>x/d/</Prefix></CommonPrefixes>\
</ListBucketResult>";

fn open(server: &Scripted) -> Store {
    let options = StoreOptions::new()
        .with_endpoint(format!("http://{}", server.address()))
        .with("aws_access_key_id", "id")
        .with("aws_secret_access_key", "secret");
    Store::open(&Location::parse("s3://bucket/x").unwrap(), &options).unwrap()
}

#[test]
fn invalid_names_are_left_out_and_reported() {
    let server = Scripted::start(|method, target| {
        assert_eq!(method, "GET");
        assert!(target.contains("list-type=2"), "{target}");
        (200, Vec::new(), S3_PAGE.as_bytes().to_vec())
    });
    let store = open(&server);
    let listing = store.list_dir("").unwrap();
    let keys: Vec<&str> = listing
        .objects
        .iter()
        .map(|object| object.key.as_str())
        .collect();
    assert_eq!(
        (keys, listing.dirs),
        (vec!["a/1.jpg", "b/3.jpg"], vec!["d".to_owned()])
    );
    let left_out: Vec<&str> = listing
        .left_out
        .iter()
        .map(|left| left.path.as_str())
        .collect();
    assert_eq!(left_out, ["../&.jpg", "a//2.jpg", "c//"]);
    assert!(listing.left_out[0].why.contains("no path can have it"));

    let store = open(&server);
    let keys: Vec<String> = store
        .list("")
        .unwrap()
        .into_iter()
        .map(|object| object.key)
        .collect();
    assert_eq!(keys, ["a/1.jpg", "b/3.jpg"]);
    assert_eq!(store.invalid_names().unwrap().len(), 3);
    assert_eq!(store.list_all("a").unwrap().left_out.len(), 1);
}
