//! What each kind of service reads, and in which order it counts.

use super::{Opening, is_ours};
use crate::Result;
use crate::store::cloud::profile::{self, Profile};
use crate::store::cloud::wire::Watched;
use crate::store::cloud::{Open, Service};
use object_store::ClientConfigKey;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use std::collections::BTreeMap;
use std::sync::Arc;

const GOOGLE_URL: &str = "https://storage.googleapis.com";

impl Opening<'_> {
    pub(super) fn s3(mut self) -> Result<Open> {
        let around = self.around;
        let has_keys = |name: &str| {
            self.extra.contains_key(name)
                || self.extra.contains_key(name.trim_start_matches("aws_"))
                || (self.profile.is_none() && around.var(&name.to_ascii_uppercase()).is_some())
        };
        let is_keyed = has_keys("aws_access_key_id") || has_keys("aws_secret_access_key");
        let profile = match profile::load(around, self.profile.as_deref()) {
            Ok(profile) => profile,
            // Whoever gives keys needs no profile; AWS_PROFILE may be meant for other tools.
            Err(_) if is_keyed || self.options.anonymous => Profile::new(),
            Err(why) => {
                return Err(self.wrong(&why, Some("`aws configure list-profiles` names them")));
            }
        };
        let endpoint = self
            .options
            .endpoint
            .clone()
            .or_else(|| {
                self.take(&[
                    "aws_endpoint_url",
                    "aws_endpoint",
                    "endpoint_url",
                    "endpoint",
                ])
            })
            .or_else(|| around.var("AWS_ENDPOINT_URL_S3").map(str::to_owned))
            .or_else(|| around.var("AWS_ENDPOINT_URL").map(str::to_owned))
            .or_else(|| around.var("AWS_ENDPOINT").map(str::to_owned))
            .or_else(|| profile.get("endpoint_url").cloned());
        if let Some(endpoint) = &endpoint {
            self.check_http(endpoint)?;
        }
        let region = self
            .options
            .region
            .clone()
            .or_else(|| self.take(&["aws_region", "region", "aws_default_region"]))
            .or_else(|| around.var("AWS_REGION").map(str::to_owned))
            .or_else(|| around.var("AWS_DEFAULT_REGION").map(str::to_owned))
            .or_else(|| profile.get("region").cloned());
        let mut builder = AmazonS3Builder::new()
            .with_client_options(self.client_options())
            .with_retry(Self::no_retry())
            .with_http_connector(Watched)
            .with_disable_bulk_delete(true);
        for (name, value) in around.vars() {
            let name = name.to_ascii_lowercase();
            let is_key = matches!(
                name.as_str(),
                "aws_access_key_id" | "aws_secret_access_key" | "aws_session_token"
            );
            // A profile that was asked for by an option wins over keys in the environment.
            if name.starts_with("aws_")
                && !(is_key && self.profile.is_some())
                && !is_ours(&name)
                && let Ok(key) = name.parse::<AmazonS3ConfigKey>()
            {
                builder = builder.with_config(key, value);
            }
        }
        if !is_keyed && !self.options.anonymous {
            builder = self.with_profile(builder, &profile)?;
        }
        for (name, value) in std::mem::take(&mut self.extra) {
            let key = name
                .parse::<AmazonS3ConfigKey>()
                .map_err(|_| self.unknown(&name))?;
            builder = builder.with_config(key, value);
        }
        let bucket = self.location.authority().unwrap_or_default();
        builder = builder.with_bucket_name(bucket);
        if let Some(endpoint) = &endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = region {
            builder = builder.with_region(region);
        }
        if self.options.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = builder.build().map_err(|error| self.failed(&error))?;
        self.finish(Service::S3(Arc::new(store)), endpoint.as_deref())
    }

    /// Takes credentials from a profile.
    fn with_profile(
        &self,
        mut builder: AmazonS3Builder,
        profile: &Profile,
    ) -> Result<AmazonS3Builder> {
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
                return Err(self.wrong(
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
                return Err(self.wrong(
                    &format!(
                        "the AWS profile gets its credentials by {name}, which is not read here"
                    ),
                    Some("run: eval \"$(aws configure export-credentials --format env)\""),
                ));
            }
        }
        Ok(builder)
    }

    pub(super) fn google(mut self) -> Result<Open> {
        let around = self.around;
        let emulator = around.var("STORAGE_EMULATOR_HOST").map(|host| {
            if host.contains("://") {
                host.to_owned()
            } else {
                format!("http://{host}")
            }
        });
        let is_emulator = emulator.is_some() && self.options.endpoint.is_none();
        let endpoint = self
            .options
            .endpoint
            .clone()
            .or_else(|| self.take(&["google_base_url", "base_url", "endpoint"]))
            .or_else(|| around.var("GOOGLE_BASE_URL").map(str::to_owned))
            .or(emulator);
        if let Some(endpoint) = &endpoint {
            self.check_http(endpoint)?;
        }
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_client_options(self.client_options())
            .with_retry(Self::no_retry())
            .with_http_connector(Watched);
        if let Some(path) = around.var("SERVICE_ACCOUNT") {
            builder = builder.with_service_account_path(path);
        }
        for (name, value) in around.vars() {
            let name = name.to_ascii_lowercase();
            if name.starts_with("google_")
                && !is_ours(&name)
                && let Ok(key) = name.parse::<GoogleConfigKey>()
            {
                builder = builder.with_config(key, value);
            }
        }
        for (name, value) in std::mem::take(&mut self.extra) {
            let key = name
                .parse::<GoogleConfigKey>()
                .map_err(|_| self.unknown(&name))?;
            builder = builder.with_config(key, value);
        }
        let bucket = self.location.authority().unwrap_or_default();
        builder = builder.with_bucket_name(bucket);
        self.settings.base_url = endpoint.clone().unwrap_or_else(|| GOOGLE_URL.to_owned());
        if let Some(endpoint) = &endpoint {
            builder = builder.with_base_url(endpoint);
        }
        if self.options.anonymous || is_emulator {
            builder = builder.with_skip_signature(true);
        }
        let store = builder.build().map_err(|error| self.failed(&error))?;
        self.finish(Service::Google(Arc::new(store)), endpoint.as_deref())
    }

    pub(super) fn azure(mut self) -> Result<Open> {
        let around = self.around;
        let connection = self
            .take(&["azure_storage_connection_string", "connection_string"])
            .or_else(|| {
                around
                    .var("AZURE_STORAGE_CONNECTION_STRING")
                    .map(str::to_owned)
            });
        let connection: BTreeMap<String, String> = connection
            .as_deref()
            .unwrap_or_default()
            .split(';')
            .filter_map(|pair| pair.split_once('='))
            .map(|(name, value)| (name.trim().to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let endpoint = self
            .options
            .endpoint
            .clone()
            .or_else(|| self.take(&["azure_storage_endpoint", "azure_endpoint", "endpoint"]))
            .or_else(|| around.var("AZURE_STORAGE_ENDPOINT").map(str::to_owned))
            .or_else(|| around.var("AZURE_ENDPOINT").map(str::to_owned))
            .or_else(|| connection.get("blobendpoint").cloned());
        if let Some(endpoint) = &endpoint {
            self.check_http(endpoint)?;
        }
        let mut builder = MicrosoftAzureBuilder::new()
            .with_client_options(self.client_options())
            .with_retry(Self::no_retry())
            .with_http_connector(Watched);
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
                builder = builder.with_config(key, value);
            }
        }
        for (name, value) in std::mem::take(&mut self.extra) {
            let key = name
                .parse::<AzureConfigKey>()
                .map_err(|_| self.unknown(&name))?;
            builder = builder.with_config(key, value);
        }
        let authority = self.location.authority().unwrap_or_default();
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
        if self.options.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let Some(account) = builder.get_config_value(&AzureConfigKey::AccountName) else {
            return Err(self.wrong(
                "the storage account is not known",
                Some("set AZURE_STORAGE_ACCOUNT_NAME, or write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"),
            ));
        };
        self.settings.account = account;
        let store = builder.build().map_err(|error| self.failed(&error))?;
        self.finish(Service::Azure(Arc::new(store)), endpoint.as_deref())
    }

    pub(super) fn web(mut self) -> Result<Open> {
        let url = self.location.to_string();
        self.check_http(&url)?;
        let mut options = self.client_options();
        for (name, value) in std::mem::take(&mut self.extra) {
            let key = name
                .parse::<ClientConfigKey>()
                .map_err(|_| self.unknown(&name))?;
            options = options.with_config(key, value);
        }
        let store = HttpBuilder::new()
            .with_url(url)
            .with_client_options(options)
            .with_retry(Self::no_retry())
            .with_http_connector(Watched)
            .build()
            .map_err(|error| self.failed(&error))?;
        self.finish(Service::Web(Arc::new(store)), None)
    }
}
