//! Uploads that were begun and never completed: found, and ended.
//!
//! They cost as much as objects do, and no listing of objects shows them. `object_store` cannot list them, so the requests
//! are made here: S3's and Google's XML interfaces are the same but for how a request is authorised.

use super::upload::multipart;
use super::wire::read_some;
use super::{Fault, Live, Service, What};
use crate::Result;
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::path::Path as Name;
use object_store::signer::{SignedUrlOptions, Signer};
use quick_xml::Reader;
use quick_xml::events::Event;
use std::time::Duration;

/// A signed URL is used at once; this allows for clocks that differ.
const SIGNED_FOR: Duration = Duration::from_secs(300);
/// A page of 1,000 uploads is some 300 KB.
const MOST_PAGE_BYTES: usize = 8 << 20;

/// An upload that is open.
#[derive(Debug, Clone, Default, PartialEq)]
struct OpenUpload {
    name: String,
    id: String,
    /// When it was begun, in seconds of the store's clock.
    begun: Option<u64>,
}

#[derive(Debug, Default)]
struct Page {
    uploads: Vec<OpenUpload>,
    truncated: bool,
    next_key: String,
    next_id: String,
}

impl Live {
    pub(super) async fn abort_uploads(self, prefix: String) -> Result<u64> {
        self.refuse_web("write", &prefix)?;
        let below = self.name(&prefix)?;
        let mut ended = 0;
        for upload in self.open_uploads(&prefix, &below).await? {
            let Ok(name) = Name::parse(&upload.name) else {
                continue;
            };
            if name != below && !name.prefix_matches(&below) {
                continue;
            }
            let key = self.key(&name).unwrap_or_default();
            self.end_one(&key, name, upload.id).await?;
            ended += 1;
        }
        Ok(ended)
    }

    /// Ends the uploads of `key` that our own lost tries to begin one left behind: those that are as old as ours, or younger
    /// than `since`. Ours is complete by now or to be ended as well.
    pub(super) async fn end_strays(&self, key: &str, since: Duration) {
        let Ok(name) = self.name(key) else { return };
        // The object is there; what cannot be cleaned up now is found by `abort_uploads`.
        let Ok(open) = self.open_uploads(key, &name).await else {
            return;
        };
        let same: Vec<OpenUpload> = open
            .into_iter()
            .filter(|upload| upload.name == name.as_ref())
            .collect();
        let newest = same.iter().filter_map(|upload| upload.begun).max();
        for upload in same {
            let is_ours = match (upload.begun, newest) {
                (Some(begun), Some(newest)) => newest - begun <= since.as_secs() + 1,
                _ => true,
            };
            if is_ours {
                let _ = self.end_one(key, name.clone(), upload.id).await;
            }
        }
    }

    /// Ends one upload. That it is not there is what is wanted.
    pub(super) async fn end_one(&self, key: &str, name: Name, id: String) -> Result<()> {
        if matches!(self.0.service, Service::Azure(_)) {
            return Ok(());
        }
        let operation = self.operation("end an upload of", key, 0);
        let ended = self
            .run(&operation, |_| {
                let (live, name, id) = (self.clone(), name.clone(), id.clone());
                async move {
                    Ok(multipart(&live.0.service)?
                        .abort_multipart(&name, &id)
                        .await?)
                }
            })
            .await;
        match ended {
            Err(failed) if !matches!(failed.verdict.what, What::NotFound) => {
                Err(failed.into_error(&operation))
            }
            _ => Ok(()),
        }
    }

    async fn open_uploads(&self, key: &str, below: &Name) -> Result<Vec<OpenUpload>> {
        // Azure has no uploads, only blocks without a blob, which it removes itself.
        if matches!(self.0.service, Service::Azure(_) | Service::Web(_)) {
            return Ok(Vec::new());
        }
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
            let next = (page.next_key, page.next_id);
            found.extend(page.uploads);
            if !page.truncated || next == marker {
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
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        let uri = match &self.0.service {
            Service::S3(s3) => {
                let options = SignedUrlOptions::new().with_query(query);
                s3.signed_url_opts(http::Method::GET, &Name::default(), SIGNED_FOR, &options)
                    .await?
                    .to_string()
            }
            Service::Google(google) => {
                let token = google.credentials().get_credential().await?;
                if !token.bearer.is_empty()
                    && let Ok(mut value) =
                        object_store::HeaderValue::from_str(&format!("Bearer {}", token.bearer))
                {
                    value.set_sensitive(true);
                    request.headers_mut().insert("authorization", value);
                }
                let bucket = self.0.location.authority().unwrap_or_default();
                let base = self.0.settings.base_url.trim_end_matches('/');
                let query: Vec<String> = query
                    .iter()
                    .map(|(name, value)| format!("{name}={}", percent_encode(value)))
                    .collect();
                format!("{base}/{bucket}?{}", query.join("&"))
            }
            Service::Azure(_) | Service::Web(_) => return Ok(Page::default()),
        };
        *request.uri_mut() = uri
            .parse()
            .map_err(|_| Fault::BadBytes("the bucket's URL cannot be used".to_owned()))?;
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

/// Makes a request that is ready; any answer but success is a fault.
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

fn percent_encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn parse_page(xml: &[u8]) -> Option<Page> {
    let mut reader = Reader::from_reader(xml);
    let mut page = Page::default();
    let mut is_list = false;
    let mut upload: Option<OpenUpload> = None;
    let mut text = String::new();
    let mut buf = Vec::new();
    loop {
        buf.clear();
        match reader.read_event_into(&mut buf).ok()? {
            Event::Start(start) => {
                text.clear();
                match start.local_name().as_ref() {
                    b"ListMultipartUploadsResult" => is_list = true,
                    b"Upload" => upload = Some(OpenUpload::default()),
                    _ => {}
                }
            }
            Event::Empty(start) if start.local_name().as_ref() == b"ListMultipartUploadsResult" => {
                is_list = true;
            }
            Event::Text(more) => text.push_str(&more.decode().ok()?),
            Event::GeneralRef(reference) => match reference.resolve_char_ref() {
                Ok(Some(character)) => text.push(character),
                _ => text.push(match &*reference {
                    b"amp" => '&',
                    b"lt" => '<',
                    b"gt" => '>',
                    b"quot" => '"',
                    b"apos" => '\'',
                    _ => return None,
                }),
            },
            Event::End(end) => {
                let said = std::mem::take(&mut text);
                let said = said.trim();
                match (end.local_name().as_ref(), &mut upload) {
                    (b"Upload", _) => page.uploads.extend(upload.take()),
                    (b"Key", Some(upload)) => upload.name = said.to_owned(),
                    (b"UploadId", Some(upload)) => upload.id = said.to_owned(),
                    (b"Initiated", Some(upload)) => upload.begun = seconds(said),
                    (b"IsTruncated", None) => page.truncated = said == "true",
                    (b"NextKeyMarker", None) => page.next_key = said.to_owned(),
                    (b"NextUploadIdMarker", None) => page.next_id = said.to_owned(),
                    _ => {}
                }
            }
            Event::Eof => return is_list.then_some(page),
            _ => {}
        }
    }
}

/// Seconds of a time such as `2026-01-31T12:34:56.000Z`, from an origin of no meaning: times are only compared.
fn seconds(text: &str) -> Option<u64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // Days since a 1st of March, as civil calendars are usually counted.
    let (year, month) = if month > 2 {
        (year, month - 3)
    } else {
        (year.checked_sub(1)?, month + 9)
    };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (month * 153 + 2) / 5 + day - 1;
    Some(((days * 24 + hour) * 60 + minute) * 60 + second)
}

/// A page of uploads, which a stranger may have sent.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(xml: &[u8]) {
    if let Some(page) = parse_page(xml) {
        // Each takes some tags.
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
            <Owner><ID>x</ID></Owner></Upload></ListMultipartUploadsResult>"#;
        let page = parse_page(xml).unwrap();
        assert!(page.truncated);
        assert_eq!(
            (page.next_key.as_str(), page.next_id.as_str()),
            ("k&2", "i2")
        );
        assert_eq!(page.uploads.len(), 1);
        assert_eq!(page.uploads[0].name, "a/b & c");
        assert_eq!(page.uploads[0].id, "id1");
        assert!(parse_page(b"<html></html>").is_none());
        assert!(
            parse_page(b"<ListMultipartUploadsResult><Upload>")
                .is_some_and(|p| p.uploads.is_empty())
        );
        for cut in 0..xml.len() {
            let _ = parse_page(&xml[..cut]);
        }
    }

    #[test]
    fn times_are_compared_across_months() {
        let at = |text| seconds(text).unwrap();
        assert_eq!(
            at("2024-03-01T00:00:00Z") - at("2024-02-28T23:59:59Z"),
            86_401
        );
        assert_eq!(
            at("2025-01-01T00:00:00Z") - at("2024-12-31T23:00:00Z"),
            3_600
        );
        assert_eq!(seconds("yesterday"), None);
        assert_eq!(seconds("2024-13-01T00:00:00Z"), None);
    }
}
