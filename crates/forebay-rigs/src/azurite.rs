//! `Azurite`: a Node emulator of Azure Blob Storage.

use crate::BUCKET;
use crate::child::{Server, find, skipped};
use crate::http::{Message, ask};
use object_store::azure::{AzureAccessKey, AzureAuthorizer, AzureCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use std::net::SocketAddr;

/// Azurite's account, with its well-known key.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// A running Azurite server.
#[derive(Debug)]
pub struct Azurite {
    server: Server,
    _dir: tempfile::TempDir,
}

impl Azurite {
    /// Starts Azurite and creates the container; `None` if Azurite is not installed.
    pub fn start() -> Option<Self> {
        let Some(program) = find("azurite-blob") else {
            skipped("azurite-blob");
            return None;
        };
        let dir = tempfile::tempdir().expect("a directory for Azurite");
        let location = dir.path().display().to_string();
        let server = Server::start(&program, |port| {
            let port = port.to_string();
            let arguments = [
                "--silent",
                "--disableTelemetry",
                "--skipApiVersionCheck",
                "--blobHost",
                "127.0.0.1",
                "--blobPort",
                &port,
                "--location",
                &location,
            ];
            arguments.map(str::to_owned).to_vec()
        });
        let Some(server) = server else {
            eprintln!("skipped: azurite-blob did not start");
            return None;
        };
        let azurite = Self { server, _dir: dir };
        azurite.make_container();
        Some(azurite)
    }

    fn make_container(&self) {
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = "PUT".parse().expect("a method");
        *request.uri_mut() = format!("{}/{BUCKET}?restype=container", self.url())
            .parse()
            .expect("a URL");
        let key = AzureAccessKey::try_new(KEY).expect("a key in base64");
        AzureAuthorizer::new(&AzureCredential::AccessKey(key), ACCOUNT)
            .try_authorize(&mut request)
            .expect("a request can be signed");
        let target = request.uri().path_and_query().expect("a path");
        let mut message = Message {
            first: format!("{} {target} HTTP/1.1", request.method()),
            ..Message::default()
        }
        .with("Host", self.server.address);
        for (name, value) in request.headers() {
            message.set(name.as_str(), value.to_str().expect("text"));
        }
        let answer = ask(self.server.address, message).expect("Azurite answers");
        assert_eq!(answer.status(), 201, "the container is made");
    }

    /// Returns the address of the server.
    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Returns the endpoint, which contains the account.
    pub fn url(&self) -> String {
        self.url_at(self.server.address)
    }

    /// Returns the endpoint for a proxy that listens on `address`.
    pub fn url_at(&self, address: SocketAddr) -> String {
        format!("http://{address}/{ACCOUNT}")
    }

    /// Returns the storage options for this server, without the endpoint.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("azure_storage_account_name", ACCOUNT.to_owned()),
            ("azure_storage_account_key", KEY.to_owned()),
        ]
    }
}
