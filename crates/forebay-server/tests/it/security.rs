//! TLS and tokens: admission, error messages, and that secrets stay secret.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_client::{
    Client, ClientOptions, ClientTls, Credential, Error, RemoteKind, StreamOptions, Token,
    Transport,
};
use forebay_server::{Pixels, Server, ServerHandle, ServerOptions, ServerTls, Synthetic, Tokens};
use forebay_wire::wire;
use support::{Log, Raw, epochs, options, spec};
use tempfile::TempDir;

const MARKED: &str = "marked-0123456789abcdef";
const OTHER: &str = "other-marked-0123456789";

/// A test certificate authority, stored in files.
pub(crate) struct Authority {
    dir: TempDir,
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let dir = tempfile::tempdir().unwrap();
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec![]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let cert = params.self_signed(&key).unwrap();
        std::fs::write(dir.path().join("ca.pem"), cert.pem()).unwrap();
        Authority {
            dir,
            issuer: rcgen::Issuer::new(params, key),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Issues a certificate for these names, as `NAME.pem` and `NAME.key`.
    fn issue(&self, name: &str, names: &[&str]) -> (PathBuf, PathBuf) {
        let key = rcgen::KeyPair::generate().unwrap();
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let params = rcgen::CertificateParams::new(names).unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let cert_path = self.path(&format!("{name}.pem"));
        let key_path = self.path(&format!("{name}.key"));
        std::fs::write(&cert_path, cert.pem()).unwrap();
        std::fs::write(&key_path, key.serialize_pem()).unwrap();
        (cert_path, key_path)
    }

    pub(crate) fn server(&self) -> ServerTls {
        let (cert, key) = self.issue("server", &["127.0.0.1", "localhost"]);
        ServerTls {
            cert,
            key,
            client_ca: None,
        }
    }

    pub(crate) fn client(&self) -> ClientOptions {
        ClientOptions {
            tls: ClientTls {
                ca: Some(self.path("ca.pem")),
                identity: None,
            },
            // Disables shared memory, which this machine would choose.
            transport: Transport::Tcp,
            ..ClientOptions::default()
        }
    }
}

fn start(options: ServerOptions) -> ServerHandle {
    support::start(options, Synthetic::new(100, Pixels::Pattern))
}

/// A server with TLS.
fn secure(tls: ServerTls, log: &Log) -> ServerHandle {
    start(ServerOptions {
        tls: Some(tls),
        ..options(log)
    })
}

fn secure_url(server: &ServerHandle) -> String {
    format!("forebays://{}/set", server.addr())
}

fn plain_url(server: &ServerHandle) -> String {
    format!("forebay://{}/set", server.addr())
}

/// All batches of an epoch, as bytes and digests.
fn epoch(client: &Client) -> Vec<(Vec<u8>, u64)> {
    let mut stream = client.open(epochs(1)).unwrap();
    let mut all = Vec::new();
    while let Some(batch) = stream.next_batch().unwrap() {
        all.push((batch.payload.to_vec(), batch.digest));
    }
    all
}

fn failed(url: &str, options: ClientOptions) -> Error {
    match Client::connect(url, options) {
        Ok(_) => panic!("{url} let a client in"),
        Err(e) => e,
    }
}

#[test]
fn batches_through_tls_are_the_same_bytes() {
    let authority = Authority::new();
    let log = Log::default();
    let server = secure(authority.server(), &log);
    let plain = start(options(&Log::default()));
    let client = Client::connect(&secure_url(&server), authority.client()).unwrap();
    let through_tls = epoch(&client);
    let url = plain_url(&plain);
    let in_clear = epoch(&Client::connect(&url, ClientOptions::default()).unwrap());
    assert_eq!(through_tls.len(), 12);
    assert!(through_tls == in_clear);
    // The certificate is valid for the host name as well as for the address.
    let url = format!("forebays://localhost:{}/set", server.addr().port());
    Client::connect(&url, authority.client()).unwrap();
    drop(client);
    assert_eq!(server.shutdown().failed, 0, "{:#?}", log.all());
}

#[test]
fn large_batches_go_through_tls_while_the_client_speaks() {
    let authority = Authority::new();
    let server = secure(authority.server(), &Log::default());
    // 3 MB per batch, without and with checksums.
    let large = support::given(r#"{"transform": {"kind": "train", "size": 354}}"#).or(&spec());
    for payload_checksum in [None, Some(true)] {
        let client_options = ClientOptions {
            payload_checksum,
            ..authority.client()
        };
        let client = Client::connect(&secure_url(&server), client_options).unwrap();
        let open = StreamOptions {
            epochs: 1,
            ..StreamOptions::from(large.clone())
        };
        let mut stream = client.open(open).unwrap();
        let mut batches = 0;
        while let Some(batch) = stream.next_batch().unwrap() {
            let sample = batch.samples[7];
            let image = &batch.payload[7 * 354 * 354 * 3..];
            let pixel = |i| Synthetic::pixel(sample, i);
            assert!(image.iter().enumerate().all(|(i, &byte)| byte == pixel(i)));
            batches += 1;
            // The last batches may have arrived before the server ends.
            if batches < 8 {
                assert!(stream.server_stats(support::LONG).is_some());
            }
        }
        assert_eq!(batches, 12);
    }
}

#[test]
fn an_untrusted_certificate_is_a_permanent_error() {
    let authority = Authority::new();
    let server = secure(authority.server(), &Log::default());
    let stranger = Authority::new();
    let e = failed(&secure_url(&server), stranger.client());
    assert!(matches!(e, Error::Tls { .. }) && !e.is_passing(), "{e:?}");
    assert!(e.to_string().contains("is not trusted"), "{e}");
    // A certificate for another name.
    let (cert, key) = authority.issue("elsewhere", &["elsewhere.example"]);
    let tls = ServerTls {
        cert,
        key,
        client_ca: None,
    };
    let elsewhere = secure(tls, &Log::default());
    let e = failed(&secure_url(&elsewhere), authority.client());
    assert!(e.to_string().contains("is not trusted"), "{e}");
}

#[test]
fn servers_can_require_client_certificates() {
    let authority = Authority::new();
    let tls = ServerTls {
        client_ca: Some(authority.path("ca.pem")),
        ..authority.server()
    };
    let server = secure(tls, &Log::default());
    let e = failed(&secure_url(&server), authority.client());
    assert!(e.to_string().contains("client's certificate"), "{e}");
    assert!(!e.is_passing(), "{e:?}");
    let mut known = authority.client();
    known.tls.identity = Some(authority.issue("client", &["trainer"]));
    epoch(&Client::connect(&secure_url(&server), known).unwrap());
    let mut unknown = authority.client();
    unknown.tls.identity =
        Some(Authority::new().issue("client", &["trainer"])).filter(|(cert, _)| cert.exists());
    failed(&secure_url(&server), unknown);
}

#[test]
fn both_sides_see_when_only_one_speaks_tls() {
    let authority = Authority::new();
    let log = Log::default();
    let server = secure(authority.server(), &log);
    let e = failed(&plain_url(&server), ClientOptions::default());
    assert!(e.to_string().contains("use forebays://"), "{e}");
    log.wait_for("it speaks no TLS");
    let plain = start(options(&Log::default()));
    let e = failed(&secure_url(&plain), authority.client());
    assert!(e.to_string().contains("use forebay://"), "{e}");
    assert!(!e.is_passing(), "{e:?}");
}

#[test]
fn broken_tls_handshakes_are_dropped() {
    let authority = Authority::new();
    let log = Log::default();
    let server = start(ServerOptions {
        tls: Some(authority.server()),
        handshake_timeout: Duration::from_millis(400),
        ..options(&log)
    });
    let mut socket = TcpStream::connect(server.addr()).unwrap();
    socket.set_read_timeout(Some(support::LONG)).unwrap();
    socket.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.0 400 "), "{answer:?}");
    let garbage = [&[0x16, 3, 1, 0xff][..], &[0; 5000], b""];
    for bytes in garbage {
        let mut socket = TcpStream::connect(server.addr()).unwrap();
        let _ = socket.write_all(bytes);
        socket.set_read_timeout(Some(support::LONG)).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        // At most a TLS alert, then the end.
        assert!(answer.len() < 100, "{answer:?}");
    }
    log.wait_for("no handshake of TLS within 400ms");
    log.wait_for("the handshake of TLS failed");
    drop(server);
    let server = secure(authority.server(), &log);
    epoch(&Client::connect(&secure_url(&server), authority.client()).unwrap());
}

#[test]
fn certificates_are_replaced_while_the_server_runs() {
    let authority = Authority::new();
    let log = Log::default();
    let tls = authority.server();
    let server = secure(tls.clone(), &log);
    let client = Client::connect(&secure_url(&server), authority.client()).unwrap();
    let mut stream = client.open(epochs(1)).unwrap();
    stream.next_batch().unwrap().unwrap();
    let renewed = Authority::new();
    let new = renewed.server();
    std::fs::write(&tls.cert, "no certificate").unwrap();
    server.reloader().reload();
    log.wait_for("new certificates cannot be used");
    Client::connect(&secure_url(&server), authority.client()).unwrap();
    std::fs::copy(&new.cert, &tls.cert).unwrap();
    std::fs::copy(&new.key, &tls.key).unwrap();
    server.reloader().reload();
    log.wait_for("certificates were read again");
    Client::connect(&secure_url(&server), renewed.client()).unwrap();
    let e = failed(&secure_url(&server), authority.client());
    assert!(matches!(e, Error::Tls { .. }), "{e:?}");
    // Existing connections stay.
    let mut left = 0;
    while stream.next_batch().unwrap().is_some() {
        left += 1;
    }
    assert_eq!(left, 11);
}

#[test]
fn errors_of_tls_files_describe_their_content() {
    let authority = Authority::new();
    let good = authority.server();
    let bind = |tls: ServerTls| {
        let options = ServerOptions {
            tls: Some(tls),
            ..options(&Log::default())
        };
        match Server::bind(options) {
            Ok(_) => panic!("bound"),
            Err(e) => e.to_string(),
        }
    };
    let with = |cert: &Path, key: &Path| {
        bind(ServerTls {
            cert: cert.to_owned(),
            key: key.to_owned(),
            client_ca: None,
        })
    };
    let e = with(&good.key, &good.key);
    assert!(e.contains("server.key holds no certificate"), "{e}");
    assert!(e.contains("private key"), "{e}");
    let e = with(&good.cert, &good.cert);
    assert!(e.contains("holds no private key"), "{e}");
    assert!(e.contains("found a certificate"), "{e}");
    let e = with(&authority.path("none.pem"), &good.key);
    assert!(e.contains("cannot read certificate"), "{e}");
    let (_, other_key) = authority.issue("other", &["x"]);
    let e = with(&good.cert, &other_key);
    assert!(e.contains("the key is not that of"), "{e}");
    let empty = authority.path("empty");
    std::fs::write(&empty, "").unwrap();
    assert!(with(&empty, &good.key).contains("it is empty"));
    let e = bind(ServerTls {
        client_ca: Some(empty),
        ..good
    });
    assert!(e.contains("it is empty"), "{e}");
}

#[test]
fn addresses_that_others_reach_need_tls_and_tokens() {
    let authority = Authority::new();
    let tokens = Tokens {
        fixed: vec![Token::new(MARKED, "a test").unwrap()],
        file: None,
    };
    let bind = |tls: bool, token: bool, allow_remote: bool| {
        let tokens = if token {
            tokens.clone()
        } else {
            Tokens::default()
        };
        let options = ServerOptions {
            listen: "0.0.0.0:0".parse().unwrap(),
            tls: tls.then(|| authority.server()),
            tokens,
            allow_remote,
            ..options(&Log::default())
        };
        Server::bind(options).map(drop).map_err(|e| e.to_string())
    };
    for (tls, token, missing) in [
        (false, false, "without TLS and tokens"),
        (true, false, "without tokens"),
        (false, true, "without TLS,"),
    ] {
        let e = bind(tls, token, false).unwrap_err();
        assert!(e.contains(missing) && !e.contains("marked"), "{e}");
        bind(tls, token, true).unwrap();
    }
    bind(true, true, false).unwrap();
}

/// A server with a token file.
struct Guarded {
    _dir: TempDir,
    file: PathBuf,
    log: Log,
    server: ServerHandle,
}

fn guarded(tokens: &str) -> Guarded {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    std::fs::write(&file, tokens).unwrap();
    let log = Log::default();
    let mut server = Server::bind(ServerOptions {
        tokens: Tokens {
            fixed: Vec::new(),
            file: Some(file.clone()),
        },
        ..options(&log)
    })
    .unwrap();
    for name in ["set", "hidden"] {
        let source = Synthetic::new(100, Pixels::Pattern);
        server.add_source(name, Arc::new(source)).unwrap();
    }
    let server = server.spawn().unwrap();
    Guarded {
        _dir: dir,
        file,
        log,
        server,
    }
}

fn with_token(token: &str) -> ClientOptions {
    ClientOptions {
        credential: Some(Credential::Token(Token::new(token, "a test").unwrap())),
        ..ClientOptions::default()
    }
}

#[track_caller]
fn unauthorized(e: &Error) -> String {
    let Error::Remote { kind, message, .. } = e else {
        panic!("{e:?}")
    };
    assert_eq!(*kind, RemoteKind::Unauthorized, "{message}");
    assert!(!e.is_passing());
    message.clone()
}

#[test]
fn tokens_admit_clients_and_are_never_shown() {
    let guarded = guarded(&format!("{MARKED} set\n"));
    let url = plain_url(&guarded.server);
    let client = Client::connect(&url, with_token(MARKED)).unwrap();
    epoch(&client);
    let none = failed(&url, ClientOptions::default());
    assert!(unauthorized(&none).contains("FOREBAY_TOKEN"));
    let unknown = failed(&url, with_token(OTHER));
    assert!(unauthorized(&unknown).contains("does not know the token"));
    // A client without access cannot find out whether a name exists.
    let hidden = failed(&url.replace("/set", "/hidden"), with_token(MARKED));
    let missing = failed(&url.replace("/set", "/missing"), with_token(MARKED));
    let same = unauthorized(&hidden).replace("hidden", "missing");
    assert_eq!(same, unauthorized(&missing));
    let stats = guarded.server.stats();
    assert_eq!(stats.unauthorized, 4);
    drop(client);
    guarded.server.shutdown();
    let mut said = guarded.log.all();
    said.push(format!("{none:?} {unknown} {unknown:?} {hidden:?}"));
    said.push(format!("{:?} {stats:?}", with_token(MARKED)));
    for line in said {
        assert!(!line.contains("marked"), "{line}");
    }
}

#[test]
fn tokens_are_checked_first() {
    let guarded = guarded(&format!("{MARKED}\n"));
    let mut raw = Raw::connect(guarded.server.addr());
    raw.send(wire::Hello {
        version_min: 90,
        version_max: 99,
        dataset: "x".repeat(5000),
        token: OTHER.to_owned(),
        ..wire::Hello::default()
    });
    let (kind, message) = raw.last_word();
    assert_eq!(kind, wire::error::Kind::Unauthorized);
    assert!(!message.contains("xxx") && !message.contains("version"));
}

#[test]
fn tokens_are_replaced_while_the_server_runs() {
    let guarded = guarded(&format!("{MARKED}\n"));
    let url = plain_url(&guarded.server);
    let dir = tempfile::tempdir().unwrap();
    let mine = dir.path().join("mine");
    std::fs::write(&mine, MARKED).unwrap();
    let from_file = || ClientOptions {
        credential: Some(Credential::File(mine.clone())),
        ..ClientOptions::default()
    };
    Client::connect(&url, from_file()).unwrap();
    // Both tokens are valid during a rotation.
    std::fs::write(&guarded.file, format!("{MARKED}\n{OTHER}\n")).unwrap();
    guarded.server.reloader().reload();
    let held = Client::connect(&url, from_file()).unwrap();
    std::fs::write(&mine, OTHER).unwrap();
    std::fs::write(&guarded.file, format!("{OTHER}\n")).unwrap();
    guarded.server.reloader().reload();
    Client::connect(&url, from_file()).unwrap();
    unauthorized(&failed(&url, with_token(MARKED)));
    epoch(&held);
    // If the file is removed, the previous tokens stay valid.
    std::fs::remove_file(&guarded.file).unwrap();
    guarded.server.reloader().reload();
    guarded.log.wait_for("new tokens cannot be used");
    Client::connect(&url, from_file()).unwrap();
}

#[test]
fn an_unusable_token_file_prevents_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tokens");
    for (text, part) in [("# none\n", "no token"), ("marked\n", "line 1")] {
        std::fs::write(&file, text).unwrap();
        let tokens = Tokens {
            fixed: Vec::new(),
            file: Some(file.clone()),
        };
        let options = ServerOptions {
            tokens,
            ..options(&Log::default())
        };
        let e = match Server::bind(options) {
            Ok(_) => panic!("bound"),
            Err(e) => format!("{e} {e:?}"),
        };
        assert!(e.contains(part) && !e.contains("marked"), "{e}");
    }
}
