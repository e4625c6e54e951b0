//! Web servers, which are read only.

use super::open::Opening;
use super::watcher::Watched;
use super::{Open, Service};
use crate::{Location, Result};
use object_store::http::{HttpBuilder, HttpStore};
use object_store::{ClientConfigKey, ClientOptions, ObjectStore};
use std::sync::Arc;

struct Web(Arc<HttpStore>);

#[async_trait::async_trait]
impl Service for Web {
    fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0) as _
    }

    /// The path is part of the server's URL already.
    fn prefix<'a>(&self, _: &'a Location) -> &'a str {
        ""
    }
}

pub(super) fn connect(mut opening: Opening<'_>) -> Result<Open> {
    let url = opening.location.to_string();
    opening.check_http(&url)?;
    let options = client_options(&mut opening)?;
    let store = HttpBuilder::new()
        .with_url(url)
        .with_client_options(options)
        .with_retry(Opening::no_retry())
        .with_http_connector(Watched::Web)
        .build()
        .map_err(|error| opening.failed(&error))?;
    opening.finish(Box::new(Web(Arc::new(store))), None)
}

/// The options of the client, with the settings that no other part has taken.
pub(super) fn client_options(opening: &mut Opening<'_>) -> Result<ClientOptions> {
    let mut options = opening.client_options();
    for (name, value) in std::mem::take(&mut opening.extra) {
        let key = name
            .parse::<ClientConfigKey>()
            .map_err(|_| opening.unknown(&name))?;
        options = options.with_config(key, value);
    }
    Ok(options)
}
