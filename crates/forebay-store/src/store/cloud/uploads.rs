//! Lists and aborts multipart uploads that were never completed.
//!
//! Used only when the staging session of a killed process is resumed, because the parts of its uploads cost money. All other
//! open uploads are left to the bucket's lifecycle rule (docs/internals/decisions/0090).
//! `object_store` cannot list uploads, so the requests are made here. The XML interfaces of S3 and Google differ only in
//! how a request is authorized.

use super::watcher::read_some;
use super::{Fault, Live, Outcome};
use crate::Result;
use object_store::client::{HttpClient, HttpRequest, HttpResponse};
use object_store::path::Path as Name;
use serde::Deserialize;
use std::sync::Arc;

/// The largest accepted page; 1,000 uploads, the usual maximum, take some 300 KB.
const MOST_PAGE_BYTES: usize = 8 << 20;

/// An upload that is open.
#[derive(Debug, Deserialize, PartialEq)]
#[serde(rename_all = "PascalCase")]
struct OpenUpload {
    key: String,
    upload_id: String,
}

/// A page of the list of open uploads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    #[serde(default, rename = "Upload")]
    uploads: Vec<OpenUpload>,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    next_key_marker: String,
    #[serde(default)]
    next_upload_id_marker: String,
}

impl Live {
    pub(super) async fn abort_uploads_of(self, key: String) -> Result<()> {
        let name = self.name(&key)?;
        let operation = self.operation("list the uploads of", &key, 0);
        let files = self
            .run(&operation, |_| {
                let (open, name) = (Arc::clone(&self.0), name.clone());
                async move { open.service.unfinished(&name).await }
            })
            .await
            .map_err(|failed| failed.into_error(&operation))?;
        if let Some(ids) = files {
            for id in ids {
                self.end_one(&key, name.clone(), id).await?;
            }
            return Ok(());
        }
        for upload in self.open_uploads(&key, &name).await? {
            if upload.key == name.as_ref() {
                self.end_one(&key, name.clone(), upload.upload_id).await?;
            }
        }
        Ok(())
    }

    /// Aborts one upload; succeeds if there is no such upload.
    pub(super) async fn end_one(&self, key: &str, name: Name, id: String) -> Result<()> {
        if !self.0.service.has_uploads() {
            return Ok(());
        }
        let operation = self.operation("end an upload of", key, 0);
        let ended = self
            .run(&operation, |_| {
                let (live, name, id) = (self.clone(), name.clone(), id.clone());
                async move { Ok(live.multipart()?.abort_multipart(&name, &id).await?) }
            })
            .await;
        match ended {
            Err(failed) if !matches!(failed.verdict.what, Outcome::NotFound) => {
                Err(failed.into_error(&operation))
            }
            _ => Ok(()),
        }
    }

    async fn open_uploads(&self, key: &str, below: &Name) -> Result<Vec<OpenUpload>> {
        let operation = self.operation("list the uploads of", key, 0);
        let mut found = Vec::new();
        let mut marker = (String::new(), String::new());
        loop {
            let page = self
                .run(&operation, |_| {
                    let (live, below, marker) = (self.clone(), below.clone(), marker.clone());
                    async move { live.uploads_page(&below, marker).await }
                })
                .await
                .map_err(|failed| failed.into_error(&operation))?;
            let next = (page.next_key_marker, page.next_upload_id_marker);
            found.extend(page.uploads);
            if !page.is_truncated || next == marker {
                return Ok(found);
            }
            marker = next;
        }
    }

    async fn uploads_page(
        &self,
        below: &Name,
        marker: (String, String),
    ) -> std::result::Result<Page, Fault> {
        let mut query = vec![("uploads", String::new())];
        if !below.as_ref().is_empty() {
            query.push(("prefix", below.as_ref().to_owned()));
        }
        if !marker.0.is_empty() {
            query.push(("key-marker", marker.0));
            query.push(("upload-id-marker", marker.1));
        }
        let Some(request) = self.0.service.uploads_request(&self.0, &query).await? else {
            return Ok(Page::default());
        };
        let answer = execute(&self.0.client, request).await?;
        let body = read_some(answer.into_body(), MOST_PAGE_BYTES + 1);
        let body = body.await.map_err(|error| {
            Fault::Store(object_store::Error::Generic {
                store: "HTTP",
                source: Box::new(error),
            })
        })?;
        if body.len() > MOST_PAGE_BYTES {
            return Err(Fault::BadBytes("a page of uploads is too long".to_owned()));
        }
        parse_page(&body)
            .ok_or_else(|| Fault::BadBytes("the list of uploads cannot be understood".to_owned()))
    }
}

/// Sends a prepared request; any status other than success is a fault.
pub(super) async fn execute(
    client: &HttpClient,
    request: HttpRequest,
) -> std::result::Result<HttpResponse, Fault> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| {
        Fault::Store(object_store::Error::Generic {
            store: "HTTP",
            source,
        })
    };
    let answer = client
        .execute(request)
        .await
        .map_err(|error| failed(Box::new(error)))?;
    match answer.status().as_u16() {
        200..300 => Ok(answer),
        404 => Err(Fault::Store(object_store::Error::NotFound {
            path: String::new(),
            source: "no such object".into(),
        })),
        status => Err(failed(format!("status {status}").into())),
    }
}

/// Converts a URL to the type that a request needs.
pub(super) fn uri(url: &str) -> std::result::Result<http::Uri, Fault> {
    url.parse()
        .map_err(|_| Fault::BadBytes("the bucket's URL cannot be used".to_owned()))
}

/// Parses a page; `None` if the response is something else, such as an error page.
fn parse_page(xml: &[u8]) -> Option<Page> {
    let xml = std::str::from_utf8(xml).ok()?;
    if !xml.contains("<ListMultipartUploadsResult") {
        return None;
    }
    quick_xml::de::from_str(xml).ok()
}

/// Fuzz target: parses an untrusted page of uploads.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(xml: &[u8]) {
    if let Some(page) = parse_page(xml) {
        // Each upload takes several bytes of tags.
        assert!(page.uploads.len() <= xml.len() / 8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_parsed() {
        let xml = br#"<?xml version="1.0"?><ListMultipartUploadsResult xmlns="x"><Bucket>b</Bucket>
            <KeyMarker/><NextKeyMarker>k&amp;2</NextKeyMarker><NextUploadIdMarker>i2</NextUploadIdMarker>
            <IsTruncated>true</IsTruncated>
            <Upload><Key>a/b &#x26; c</Key><UploadId>id1</UploadId><Initiated>2026-03-01T00:00:00.000Z</Initiated>
            <Owner><ID>x</ID></Owner></Upload>
            <Upload><Key>d</Key><UploadId>id2</UploadId><Initiated>2026-02-28T23:59:59.000Z</Initiated></Upload>
            </ListMultipartUploadsResult>"#;
        let page = parse_page(xml).unwrap();
        assert!(page.is_truncated);
        assert_eq!(page.next_key_marker, "k&2");
        assert_eq!(page.next_upload_id_marker, "i2");
        assert_eq!(page.uploads.len(), 2);
        assert_eq!(page.uploads[0].key, "a/b & c");
        assert_eq!(page.uploads[0].upload_id, "id1");
        let none = parse_page(b"<ListMultipartUploadsResult/>").unwrap();
        assert!(none.uploads.is_empty() && !none.is_truncated);
        assert!(parse_page(b"<html></html>").is_none());
        for cut in 0..xml.len() {
            let _ = parse_page(&xml[..cut]);
        }
    }

    #[test]
    fn deeply_nested_elements_are_parsed() {
        let levels = 200_000;
        for name in ["Other", "Upload"] {
            let (open, close) = (format!("<{name}>"), format!("</{name}>"));
            let xml = format!(
                "<ListMultipartUploadsResult>{}{}</ListMultipartUploadsResult>",
                open.repeat(levels),
                close.repeat(levels)
            );
            // Unknown elements are skipped without recursion.
            let _ = parse_page(xml.as_bytes());
        }
    }
}
