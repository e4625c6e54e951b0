//! Azure Blob Storage.

use super::open::{Opening, is_ours};
use super::upload::Completion;
use super::watcher::Watched;
use super::{CRC32C_NAME, Fault, Open, Service, TOKEN_NAME};
use crate::Result;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use object_store::azure::{AzureAuthorizer, AzureConfigKey, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::HttpRequest;
use object_store::multipart::MultipartStore;
use object_store::{HeaderValue, ObjectStore};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Azure(Arc<MicrosoftAzure>);

#[async_trait::async_trait]
impl Service for Azure {
    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0) as _
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(&*self.0)
    }

    /// Azure has no multipart uploads: blocks are sent one by one, and it removes uncommitted blocks after a week.
    fn has_uploads(&self) -> bool {
        false
    }

    /// Commits the block list with metadata, which `object_store` does not send for parts that are uploaded one by one.
    async fn complete(
        &self,
        open: &Open,
        completion: &Completion,
    ) -> std::result::Result<Option<String>, Fault> {
        let mut body = String::from("<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>");
        for id in completion.ids.iter() {
            let id = BASE64_STANDARD.encode(&id.content_id);
            // The block may have been committed by a try whose response was lost: `Latest` covers both cases.
            body.push_str(&format!("<Latest>{id}</Latest>"));
        }
        body.push_str("</BlockList>");
        let header = |text: String| {
            HeaderValue::from_str(&text).map_err(|_| Fault::BadBytes("a bad header".to_owned()))
        };
        let len = body.len();
        let mut request = HttpRequest::new(body.into());
        *request.method_mut() = http::Method::PUT;
        *request.uri_mut() = format!("{}?comp=blocklist", completion.url)
            .parse()
            .map_err(|_| Fault::BadBytes("the object's URL cannot be used".to_owned()))?;
        let headers = request.headers_mut();
        headers.insert("content-length", header(len.to_string())?);
        headers.insert("content-type", header("application/xml".to_owned())?);
        for (name, value) in [
            (CRC32C_NAME, format!("{:08x}", completion.crc32c)),
            (TOKEN_NAME, completion.token.clone()),
        ] {
            if let Ok(name) = http::HeaderName::try_from(format!("x-ms-meta-{name}")) {
                headers.insert(name, header(value)?);
            }
        }
        let credential = self.0.credentials().get_credential().await?;
        AzureAuthorizer::new(&credential, &open.settings.account).try_authorize(&mut request)?;
        let answer = super::uploads::execute(&open.client, request).await?;
        let etag = answer
            .headers()
            .get("etag")
            .and_then(|etag| etag.to_str().ok());
        Ok(etag.map(str::to_owned))
    }
}

pub(super) fn connect(mut opening: Opening<'_>) -> Result<Open> {
    let around = opening.around;
    let connection = opening
        .take(&["azure_storage_connection_string", "connection_string"])
        .or(opening.variable(&["AZURE_STORAGE_CONNECTION_STRING"])?);
    let connection: BTreeMap<String, String> = connection
        .as_deref()
        .unwrap_or_default()
        .split(';')
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let endpoint = opening
        .options
        .endpoint
        .clone()
        .or_else(|| opening.take(&["azure_storage_endpoint", "azure_endpoint", "endpoint"]))
        .or(opening.variable(&["AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"])?)
        .or_else(|| connection.get("blobendpoint").cloned());
    if let Some(endpoint) = &endpoint {
        opening.check_http(endpoint)?;
    }
    let mut builder = MicrosoftAzureBuilder::new()
        .with_client_options(opening.client_options())
        .with_retry(Opening::no_retry())
        .with_http_connector(Watched::Bucket);
    for (name, key) in [
        ("accountname", AzureConfigKey::AccountName),
        ("accountkey", AzureConfigKey::AccessKey),
        ("sharedaccesssignature", AzureConfigKey::SasKey),
    ] {
        if let Some(value) = connection.get(name) {
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in around.vars() {
        let name = name.to_ascii_lowercase();
        if name.starts_with("azure_")
            && !is_ours(&name)
            && let Ok(key) = name.parse::<AzureConfigKey>()
        {
            opening.check_value(&name.to_ascii_uppercase(), value)?;
            if matches!(key, AzureConfigKey::FederatedTokenFile) {
                opening.check_token_file(&name.to_ascii_uppercase(), value)?;
            }
            builder = builder.with_config(key, value);
        }
    }
    for (name, value) in std::mem::take(&mut opening.extra) {
        let key = name
            .parse::<AzureConfigKey>()
            .map_err(|_| opening.unknown(&name))?;
        builder = builder.with_config(key, value);
    }
    let authority = opening.location.authority().unwrap_or_default();
    match authority.split_once('@') {
        Some((container, host)) => {
            let account = host.split('.').next().unwrap_or_default();
            builder = builder.with_container_name(container).with_account(account);
        }
        None => builder = builder.with_container_name(authority),
    }
    if let Some(endpoint) = &endpoint {
        builder = builder.with_endpoint(endpoint.clone());
    }
    if opening.options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let Some(account) = builder.get_config_value(&AzureConfigKey::AccountName) else {
        return Err(opening.wrong(
            "the storage account is not known",
            Some("set AZURE_STORAGE_ACCOUNT_NAME, or write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"),
        ));
    };
    opening.settings.account = account;
    let store = builder.build().map_err(|error| opening.failed(&error))?;
    opening.finish(Box::new(Azure(Arc::new(store))), endpoint.as_deref())
}
