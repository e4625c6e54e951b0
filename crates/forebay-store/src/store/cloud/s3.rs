//! S3, and stores with an S3-compatible interface.

use super::environment::{self, Profile};
use super::open::{Opening, is_ours};
use super::watcher::Watched;
use super::{Fault, Open, Service};
use crate::Result;
use crate::store::options::is_true;
use object_store::ObjectStore;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::client::{HttpRequest, HttpRequestBody};
use object_store::multipart::MultipartStore;
use object_store::path::Path as Name;
use object_store::signer::{SignedUrlOptions, Signer};
use std::sync::Arc;
use std::time::Duration;

/// The validity of a signed URL. It is used at once; this allows for a difference of the clocks.
const SIGNED_FOR: Duration = Duration::from_secs(300);

struct S3(Arc<AmazonS3>);

#[async_trait::async_trait]
impl Service for S3 {
    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0) as _
    }

    fn multipart(&self) -> Option<&dyn MultipartStore> {
        Some(&*self.0)
    }

    fn may_ignore_conditions(&self) -> bool {
        true
    }

    async fn uploads_request(
        &self,
        _: &Open,
        query: &[(&'static str, String)],
    ) -> std::result::Result<Option<HttpRequest>, Fault> {
        let options = SignedUrlOptions::new().with_query(query.to_vec());
        let url = self
            .0
            .signed_url_opts(http::Method::GET, &Name::default(), SIGNED_FOR, &options)
            .await?;
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.uri_mut() = super::uploads::uri(url.as_str())?;
        Ok(Some(request))
    }
}

pub(super) fn connect(mut opening: Opening<'_>) -> Result<Open> {
    let around = opening.around;
    let has_keys = |name: &str| {
        opening.extra.contains_key(name)
            || opening.extra.contains_key(name.trim_start_matches("aws_"))
            || (opening.profile.is_none() && around.var(&name.to_ascii_uppercase()).is_some())
    };
    let is_keyed = has_keys("aws_access_key_id") || has_keys("aws_secret_access_key");
    let profile = match environment::load(around, opening.profile.as_deref()) {
        Ok(profile) => profile,
        // With keys no profile is needed: AWS_PROFILE may be set for other tools.
        Err(_) if is_keyed || opening.options.anonymous => Profile::new(),
        Err(why) => {
            return Err(opening.wrong(&why, Some("`aws configure list-profiles` names them")));
        }
    };
    let endpoint = opening
        .options
        .endpoint
        .clone()
        .or_else(|| {
            opening.take(&[
                "aws_endpoint_url",
                "aws_endpoint",
                "endpoint_url",
                "endpoint",
            ])
        })
        .or(opening.variable(&["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])?)
        .or_else(|| profile.get("endpoint_url").cloned());
    if let Some(endpoint) = &endpoint {
        opening.check_http(endpoint)?;
    }
    let region = opening
        .options
        .region
        .clone()
        .or_else(|| opening.take(&["aws_region", "region", "aws_default_region"]))
        .or(opening.variable(&["AWS_REGION", "AWS_DEFAULT_REGION"])?)
        .or_else(|| profile.get("region").cloned());
    let mut builder = AmazonS3Builder::new()
        .with_client_options(opening.client_options())
        .with_retry(Opening::no_retry())
        .with_http_connector(Watched::Bucket)
        .with_disable_bulk_delete(true);
    for (name, value) in around.vars() {
        let name = name.to_ascii_lowercase();
        let is_key = matches!(
            name.as_str(),
            "aws_access_key_id" | "aws_secret_access_key" | "aws_session_token"
        );
        // A profile that an option names takes precedence over keys in the environment.
        if name.starts_with("aws_")
            && !(is_key && opening.profile.is_some())
            && !is_ours(&name)
            && let Ok(key) = name.parse::<AmazonS3ConfigKey>()
        {
            opening.check_value(&name.to_ascii_uppercase(), value)?;
            let is_token_file = matches!(
                key,
                AmazonS3ConfigKey::WebIdentityTokenFile
                    | AmazonS3ConfigKey::ContainerAuthorizationTokenFile
            );
            if is_token_file && !is_keyed && !opening.options.anonymous {
                opening.check_token_file(&name.to_ascii_uppercase(), value)?;
            }
            builder = builder.with_config(key, value);
        }
    }
    if !is_keyed && !opening.options.anonymous {
        builder = with_profile(&opening, builder, &profile)?;
    }
    for (name, value) in std::mem::take(&mut opening.extra) {
        let key = name
            .parse::<AmazonS3ConfigKey>()
            .map_err(|_| opening.unknown(&name))?;
        builder = builder.with_config(key, value);
    }
    let bucket = opening.location.authority().unwrap_or_default();
    builder = builder.with_bucket_name(bucket);
    if let Some(endpoint) = &endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    if let Some(region) = region {
        builder = builder.with_region(region);
    }
    if opening.options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let is_host = builder
        .get_config_value(&AmazonS3ConfigKey::VirtualHostedStyleRequest)
        .and_then(|text| is_true(&text));
    if is_host == Some(true) && reqwest::Url::parse(&format!("https://{bucket}.b/")).is_err() {
        return Err(opening.wrong("the bucket's name cannot be part of a host's name", None));
    }
    let store = builder.build().map_err(|error| opening.failed(&error))?;
    opening.finish(Box::new(S3(Arc::new(store))), endpoint.as_deref())
}

/// Sets the credentials of a profile.
fn with_profile(
    opening: &Opening<'_>,
    mut builder: AmazonS3Builder,
    profile: &Profile,
) -> Result<AmazonS3Builder> {
    for (name, text) in profile {
        opening.check_value(&format!("the AWS profile's {name}"), text)?;
    }
    let value = |name: &str| profile.get(name).cloned();
    match (value("aws_access_key_id"), value("aws_secret_access_key")) {
        (Some(id), Some(secret)) => {
            builder = builder
                .with_access_key_id(id)
                .with_secret_access_key(secret);
            if let Some(token) = value("aws_session_token") {
                builder = builder.with_token(token);
            }
            return Ok(builder);
        }
        (None, None) => {}
        _ => {
            return Err(opening.wrong(
                "the AWS profile has one of aws_access_key_id and aws_secret_access_key, not both",
                None,
            ));
        }
    }
    if let (Some(file), Some(role)) = (value("web_identity_token_file"), value("role_arn")) {
        return Ok(builder
            .with_config(AmazonS3ConfigKey::WebIdentityTokenFile, file)
            .with_config(AmazonS3ConfigKey::RoleArn, role));
    }
    for name in [
        "credential_process",
        "sso_session",
        "sso_start_url",
        "source_profile",
    ] {
        if profile.contains_key(name) {
            return Err(opening.wrong(
                &format!("the AWS profile gets its credentials by {name}, which is not read here"),
                Some("run: eval \"$(aws configure export-credentials --format env)\""),
            ));
        }
    }
    Ok(builder)
}
