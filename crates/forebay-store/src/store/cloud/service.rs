//! The trait of a service (S3, Google, Azure, the Hugging Face Hub, WebHDFS, web): the differences between their protocols.

use super::upload::Completion;
use super::{Fault, Open};
use crate::Location;
use object_store::ObjectStore;
use object_store::client::HttpRequest;
use object_store::multipart::MultipartStore;
use object_store::path::Path as Name;
use std::sync::Arc;

/// The differences between services.
#[async_trait::async_trait]
pub(super) trait Service: Send + Sync {
    fn store(&self) -> Arc<dyn ObjectStore>;

    /// The calls for multipart uploads; `None` if the service is read only.
    fn multipart(&self) -> Option<&dyn MultipartStore> {
        None
    }

    fn is_read_only(&self) -> bool {
        self.multipart().is_none()
    }

    /// The part of the location's path that object names begin with.
    fn prefix<'a>(&self, location: &'a Location) -> &'a str {
        location.key().unwrap_or_default()
    }

    /// The location at the revision that it has now, if the service has revisions of all objects together.
    async fn pinned(&self, _: &Location) -> std::result::Result<Option<Location>, Fault> {
        Ok(None)
    }

    /// Whether the service has listings.
    fn lists(&self) -> bool {
        !self.is_read_only()
    }

    /// Whether a multipart upload has an explicit begin request that returns an upload id.
    fn has_uploads(&self) -> bool {
        true
    }

    /// Whether no object changes while the store is open, and its etag is a hash of its bytes.
    fn is_pinned(&self) -> bool {
        false
    }

    /// Whether listings are in the order of names, so that one continues after the last name that arrived.
    fn lists_in_order(&self) -> bool {
        true
    }

    /// Whether conditions use the generation of an object instead of its etag.
    fn names_generations(&self) -> bool {
        false
    }

    /// Whether some servers of this protocol accept conditions and ignore them.
    fn may_ignore_conditions(&self) -> bool {
        false
    }

    /// Whether the parts of an upload are appended to a file, so that they are sent one after the other.
    fn appends_parts(&self) -> bool {
        false
    }

    /// The ids of the unfinished uploads of an object, if they are files; else `uploads_request` asks for them.
    async fn unfinished(&self, _: &Name) -> std::result::Result<Option<Vec<String>>, Fault> {
        Ok(None)
    }

    /// The request that lists open multipart uploads; `None` if the service has no such list.
    async fn uploads_request(
        &self,
        _: &Open,
        _: &[(&'static str, String)],
    ) -> std::result::Result<Option<HttpRequest>, Fault> {
        Ok(None)
    }

    /// Completes a multipart upload, and returns the etag of the object.
    async fn complete(
        &self,
        _: &Open,
        completion: &Completion,
    ) -> std::result::Result<Option<String>, Fault> {
        let (name, ids) = (&completion.name, completion.ids.to_vec());
        let multipart = self.multipart().ok_or_else(Fault::read_only)?;
        let done = multipart.complete_multipart(name, &completion.upload_id, ids);
        Ok(done.await?.e_tag)
    }
}
