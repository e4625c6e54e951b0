//! `S3Server`: s3s-fs in this process, extended with atomic conditional writes and the list of open
//! uploads.

use crate::BUCKET;
use crate::link::{self, Link};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::dto::*;
use s3s::service::S3ServiceBuilder;
use s3s::{S3, S3Request, S3Response, S3Result};
use s3s_fs::FileSystem;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;
use tokio::runtime::Runtime;

const ACCESS_KEY: &str = "RIGACCESSKEY";
const SECRET_KEY: &str = "rig-secret-key";

/// A running S3 server that verifies signatures and payload hashes. Objects are files in a
/// temporary directory.
#[derive(Debug)]
pub struct S3Server {
    address: SocketAddr,
    uploads: Arc<Mutex<Uploads>>,
    dir: tempfile::TempDir,
    /// Stops the server when dropped.
    runtime: Option<Runtime>,
}

/// Open uploads by id: bucket, key and start time.
type Uploads = BTreeMap<String, (String, String, SystemTime)>;

impl S3Server {
    /// Starts the server with the bucket [`BUCKET`].
    pub fn start() -> Self {
        Self::start_as(true, false, None)
    }

    /// Starts a server behind a link, which delays requests and whose bandwidth all responses share.
    pub fn behind(link: Link) -> Self {
        Self::start_as(true, false, Some(Arc::new(link)))
    }

    /// Starts a server that accepts conditional puts and ignores the condition, as some servers do.
    pub fn ignoring_conditions() -> Self {
        Self::start_as(false, false, None)
    }

    /// Starts a server whose listings contain an empty object for each directory, as in buckets in
    /// which a console created folders.
    pub fn with_folders() -> Self {
        Self::start_as(true, true, None)
    }

    fn start_as(is_heedful: bool, has_folders: bool, link: Option<Arc<Link>>) -> Self {
        let dir = tempfile::tempdir().expect("a directory for the server");
        std::fs::create_dir(dir.path().join(BUCKET)).expect("a bucket");
        let uploads = Arc::new(Mutex::new(Uploads::new()));
        let files = FileSystem::new(dir.path()).expect("a file system");
        let files = Files {
            files,
            dir: dir.path().to_path_buf(),
            uploads: Arc::clone(&uploads),
            turn: tokio::sync::Mutex::new(()),
            is_heedful,
            has_folders,
            link,
        };
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let listener = runtime
            .block_on(tokio::net::TcpListener::bind("127.0.0.1:0"))
            .expect("a port on loopback");
        let address = listener.local_addr().expect("a bound socket");
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                let service = service.clone();
                tokio::spawn(async move {
                    let server = Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self {
            address,
            uploads,
            dir,
            runtime: Some(runtime),
        }
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address as an `http://` URL.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns the storage options for this server, without the endpoint.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        Self::keys()
    }

    /// Returns the credentials that every `S3Server` accepts.
    pub fn keys() -> Vec<(&'static str, String)> {
        vec![
            ("aws_access_key_id", ACCESS_KEY.to_owned()),
            ("aws_secret_access_key", SECRET_KEY.to_owned()),
            ("aws_region", "us-east-1".to_owned()),
        ]
    }

    /// Starts an upload like another client, which is never completed.
    pub fn begin_upload(&self, key: &str) {
        let mut uploads = self.uploads.lock().expect("no panic holds it");
        let id = format!("of-another-client-{}", uploads.len());
        uploads.insert(id, (BUCKET.to_owned(), key.to_owned(), SystemTime::now()));
    }

    /// Returns the number of open uploads.
    pub fn open_uploads(&self) -> usize {
        self.uploads.lock().expect("no panic holds it").len()
    }

    /// Returns the number of stored parts of open uploads. An upload whose begin was answered but
    /// whose answer was lost stays open without parts, and costs nothing.
    pub fn open_parts(&self) -> usize {
        let files = std::fs::read_dir(self.dir.path()).expect("the directory of the server");
        files
            .map(|file| file.expect("a readable directory").file_name())
            .filter(|name| name.to_string_lossy().contains(".part-"))
            .count()
    }

    /// Returns the path of the file with an object's bytes, to damage or examine it.
    pub fn object_file(&self, key: &str) -> PathBuf {
        self.bucket_dir().join(key)
    }

    /// Returns the directory of the bucket's objects.
    pub fn bucket_dir(&self) -> PathBuf {
        self.dir.path().join(BUCKET)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

struct Files {
    files: FileSystem,
    dir: PathBuf,
    uploads: Arc<Mutex<Uploads>>,
    /// Locked during a conditional write.
    turn: tokio::sync::Mutex<()>,
    /// Whether conditions are enforced.
    is_heedful: bool,
    /// Whether listings contain objects for directories.
    has_folders: bool,
    link: Option<Arc<Link>>,
}

/// Adds the keys of all directories below `dir`, each with a trailing slash.
fn folders_below(dir: &Path, key: &str, found: &mut Vec<String>) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.path().is_dir()) {
        let key = format!("{key}{}/", entry.file_name().to_string_lossy());
        folders_below(&entry.path(), &key, found);
        found.push(key);
    }
}

type Answer<Output> = S3Result<S3Response<Output>>;

impl Files {
    fn uploads(&self) -> std::sync::MutexGuard<'_, Uploads> {
        self.uploads.lock().expect("no panic holds it")
    }

    /// Returns `NoSuchKey` for a directory: s3s-fs returns another error for a prefix of other objects' keys.
    fn refuse_directory(&self, bucket: &str, key: &str) -> S3Result<()> {
        if self.dir.join(bucket).join(key).is_dir() {
            return Err(s3s::s3_error!(NoSuchKey));
        }
        Ok(())
    }

    /// Waits for the latency of the link to the server.
    async fn reach(&self) {
        if let Some(link) = &self.link {
            link.request().await;
        }
    }

    async fn get(&self, request: S3Request<GetObjectInput>) -> Answer<GetObjectOutput> {
        self.reach().await;
        let (bucket, key) = (&request.input.bucket, &request.input.key);
        self.refuse_directory(bucket, key)?;
        let (path, range) = (self.dir.join(bucket).join(key), request.input.range);
        let mut answer = self.files.get_object(request).await?;
        if let Some(link) = &self.link {
            answer.output.body = Some(link::body(Arc::clone(link), &path, range)?);
        }
        Ok(answer)
    }

    async fn head(&self, request: S3Request<HeadObjectInput>) -> Answer<HeadObjectOutput> {
        self.reach().await;
        self.refuse_directory(&request.input.bucket, &request.input.key)?;
        self.files.head_object(request).await
    }

    async fn list(&self, request: S3Request<ListObjectsV2Input>) -> Answer<ListObjectsV2Output> {
        self.reach().await;
        let mut answer = self.files.list_objects_v2(request.clone()).await?;
        if self.has_folders {
            let (input, mut folders) = (&request.input, Vec::new());
            folders_below(&self.dir.join(&input.bucket), "", &mut folders);
            let prefix = input.prefix.as_deref().unwrap_or_default();
            let after = input.start_after.as_deref().unwrap_or_default();
            let is_shown = |key: &String| {
                let is_level = input.delimiter.is_none() || key == prefix;
                key.starts_with(prefix) && key.as_str() > after && is_level
            };
            let folders = folders.into_iter().filter(is_shown).map(|key| Object {
                key: Some(key),
                size: Some(0),
                last_modified: Some(SystemTime::now().into()),
                ..Default::default()
            });
            let contents = answer.output.contents.get_or_insert_default();
            contents.extend(folders);
            contents.sort_by(|a, b| a.key.cmp(&b.key));
        }
        // Listings of S3 contain ETags; those of s3s-fs do not.
        for object in answer.output.contents.iter_mut().flatten() {
            let head = request.clone().map_input(|list| HeadObjectInput {
                bucket: list.bucket,
                key: object.key.clone().unwrap_or_default(),
                ..Default::default()
            });
            // A concurrent request may have removed it.
            if let Ok(head) = self.files.head_object(head).await {
                object.e_tag = head.output.e_tag;
            }
        }
        Ok(answer)
    }

    async fn put(&self, mut request: S3Request<PutObjectInput>) -> Answer<PutObjectOutput> {
        if !self.is_heedful {
            request.input.if_match = None;
            request.input.if_none_match = None;
        }
        let input = &request.input;
        let is_conditional = input.if_match.is_some() || input.if_none_match.is_some();
        // s3s-fs checks the condition and writes in two steps, so a lock makes them atomic.
        let _turn = if is_conditional {
            Some(self.turn.lock().await)
        } else {
            None
        };
        self.files.put_object(request).await
    }

    async fn begin(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> Answer<CreateMultipartUploadOutput> {
        let (bucket, key) = (request.input.bucket.clone(), request.input.key.clone());
        let answer = self.files.create_multipart_upload(request).await?;
        if let Some(id) = &answer.output.upload_id {
            let upload = (bucket, key, SystemTime::now());
            self.uploads().insert(id.clone(), upload);
        }
        Ok(answer)
    }

    async fn complete(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> Answer<CompleteMultipartUploadOutput> {
        let id = request.input.upload_id.clone();
        if !self.uploads().contains_key(&id) {
            return Err(s3s::s3_error!(NoSuchUpload));
        }
        let answer = self.files.complete_multipart_upload(request).await?;
        self.uploads().remove(&id);
        Ok(answer)
    }

    async fn abort(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> Answer<AbortMultipartUploadOutput> {
        let id = request.input.upload_id.clone();
        if self.uploads().remove(&id).is_none() {
            return Err(s3s::s3_error!(NoSuchUpload));
        }
        self.files.abort_multipart_upload(request).await
    }

    async fn list_open(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> Answer<ListMultipartUploadsOutput> {
        let input = request.input;
        let prefix = input.prefix.clone().unwrap_or_default();
        let uploads = self
            .uploads()
            .iter()
            .filter(|(_, (bucket, key, _))| *bucket == input.bucket && key.starts_with(&prefix))
            .map(|(id, (_, key, begun))| MultipartUpload {
                key: Some(key.clone()),
                upload_id: Some(id.clone()),
                initiated: Some((*begun).into()),
                ..Default::default()
            })
            .collect();
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            prefix: input.prefix,
            is_truncated: Some(false),
            uploads: Some(uploads),
            ..Default::default()
        }))
    }
}

/// The methods of the trait, which call `files` or a function above.
macro_rules! answered {
    ($($name:ident: $input:ident -> $output:ident = $($by:ident).+;)*) => {
        $(
            fn $name<'life, 'call>(
                &'life self,
                request: S3Request<$input>,
            ) -> std::pin::Pin<Box<dyn Future<Output = S3Result<S3Response<$output>>> + Send + 'call>>
            where
                'life: 'call,
                Self: 'call,
            {
                Box::pin(self.$($by).+(request))
            }
        )*
    };
}

impl S3 for Files {
    answered! {
        create_bucket: CreateBucketInput -> CreateBucketOutput = files.create_bucket;
        head_bucket: HeadBucketInput -> HeadBucketOutput = files.head_bucket;
        get_bucket_location: GetBucketLocationInput -> GetBucketLocationOutput = files.get_bucket_location;
        list_buckets: ListBucketsInput -> ListBucketsOutput = files.list_buckets;
        get_object: GetObjectInput -> GetObjectOutput = get;
        head_object: HeadObjectInput -> HeadObjectOutput = head;
        put_object: PutObjectInput -> PutObjectOutput = put;
        copy_object: CopyObjectInput -> CopyObjectOutput = files.copy_object;
        delete_object: DeleteObjectInput -> DeleteObjectOutput = files.delete_object;
        delete_objects: DeleteObjectsInput -> DeleteObjectsOutput = files.delete_objects;
        list_objects: ListObjectsInput -> ListObjectsOutput = files.list_objects;
        list_objects_v2: ListObjectsV2Input -> ListObjectsV2Output = list;
        create_multipart_upload: CreateMultipartUploadInput -> CreateMultipartUploadOutput = begin;
        upload_part: UploadPartInput -> UploadPartOutput = files.upload_part;
        list_parts: ListPartsInput -> ListPartsOutput = files.list_parts;
        complete_multipart_upload: CompleteMultipartUploadInput -> CompleteMultipartUploadOutput = complete;
        abort_multipart_upload: AbortMultipartUploadInput -> AbortMultipartUploadOutput = abort;
        list_multipart_uploads: ListMultipartUploadsInput -> ListMultipartUploadsOutput = list_open;
    }
}
