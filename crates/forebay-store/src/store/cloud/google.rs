//! Google Cloud Storage.

use super::open::{Opening, is_ours};
use super::watcher::Watched;
use super::{Fault, Open, Service};
use crate::Result;
use object_store::ObjectStore;
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::multipart::MultipartStore;
use std::sync::Arc;

const GOOGLE_URL: &str = "https://storage.googleapis.com";

struct Google(Arc<GoogleCloudStorage>);

#[async_trait::async_trait]
impl Service for Google {
    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0) as _
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(&*self.0)
    }

    fn names_generations(&self) -> bool {
        true
    }

    async fn uploads_request(
        &self,
        open: &Open,
        query: &[(&'static str, String)],
    ) -> std::result::Result<Option<HttpRequest>, Fault> {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        let token = self.0.credentials().get_credential().await?;
        if !token.bearer.is_empty()
            && let Ok(mut value) =
                object_store::HeaderValue::from_str(&format!("Bearer {}", token.bearer))
        {
            value.set_sensitive(true);
            request.headers_mut().insert("authorization", value);
        }
        let bucket = open.location.authority().unwrap_or_default();
        let base = open.settings.base_url.trim_end_matches('/');
        let url = reqwest::Url::parse_with_params(&format!("{base}/{bucket}"), query)
            .map_err(|_| Fault::BadBytes("the bucket's URL cannot be used".to_owned()))?;
        *request.uri_mut() = super::uploads::uri(url.as_str())?;
        Ok(Some(request))
    }
}

pub(super) fn connect(mut opening: Opening<'_>) -> Result<Open> {
    let around = opening.around;
    let emulator = opening.variable(&["STORAGE_EMULATOR_HOST"])?.map(|host| {
        if host.contains("://") {
            host
        } else {
            format!("http://{host}")
        }
    });
    let is_emulator = emulator.is_some() && opening.options.endpoint.is_none();
    let endpoint = opening
        .options
        .endpoint
        .clone()
        .or_else(|| opening.take(&["google_base_url", "base_url", "endpoint"]))
        .or(opening.variable(&["GOOGLE_BASE_URL"])?)
        .or(emulator);
    if let Some(endpoint) = &endpoint {
        opening.check_http(endpoint)?;
    }
    let mut builder = GoogleCloudStorageBuilder::new()
        .with_client_options(opening.client_options())
        .with_retry(Opening::no_retry())
        .with_http_connector(Watched::Bucket);
    if let Some(path) = opening.variable(&["SERVICE_ACCOUNT"])? {
        builder = builder.with_service_account_path(path);
    }
    for (name, value) in around.vars() {
        let name = name.to_ascii_lowercase();
        if name.starts_with("google_")
            && !is_ours(&name)
            && let Ok(key) = name.parse::<GoogleConfigKey>()
        {
            opening.check_value(&name.to_ascii_uppercase(), value)?;
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in std::mem::take(&mut opening.extra) {
        let key = name
            .parse::<GoogleConfigKey>()
            .map_err(|_| opening.unknown(&name))?;
        builder = builder.with_config(key, value);
    }
    let bucket = opening.location.authority().unwrap_or_default();
    builder = builder.with_bucket_name(bucket);
    opening.settings.base_url = endpoint.clone().unwrap_or_else(|| GOOGLE_URL.to_owned());
    if let Some(endpoint) = &endpoint {
        builder = builder.with_base_url(endpoint);
    }
    if opening.options.anonymous || is_emulator {
        builder = builder.with_skip_signature(true);
    }
    let store = builder.build().map_err(|error| opening.failed(&error))?;
    opening.finish(Box::new(Google(Arc::new(store))), endpoint.as_deref())
}
