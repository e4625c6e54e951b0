//! Loads certificates and keys from files and builds TLS configurations.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Size limit of a certificate or key file; chains are smaller.
const MAX_FILE: u64 = 4 << 20;

/// An error while loading a TLS configuration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An unreadable file.
    #[error("cannot read {what} {}: {source}", .path.display())]
    Read {
        /// The expected content.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file with other content.
    #[error("{} holds no {what}: {found}", .path.display())]
    Content {
        /// The expected content.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// The actual content.
        found: String,
    },
    /// A key that does not match its certificate, or an unsupported kind of key.
    #[error(
        "certificate {} and key {} cannot be used: {reason}", .cert.display(), .key.display()
    )]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Invalid certificates of authorities.
    #[error("the certificates in {} cannot be used: {reason}", .path.display())]
    Authorities {
        /// Path of the file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A system without root certificates.
    #[error(
        "this system has no root certificates that could be read ({reason}): name a file with the certificate of the server's authority"
    )]
    NoRoots {
        /// The error when reading them.
        reason: String,
    },
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// Certificate and key of a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// PEM file: the server's certificate, followed by the intermediate certificates.
    pub cert: PathBuf,
    /// PEM file: the key of the certificate.
    pub key: PathBuf,
    /// PEM file: authorities, one of which must have signed each client's certificate. `None`: no
    /// client certificates are required.
    pub client_ca: Option<PathBuf>,
}

/// Trusted certificates of a client, and its own certificate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientTls {
    /// PEM file: authorities that sign servers' certificates, or the servers' own certificates.
    /// `None`: the system's root certificates.
    pub ca: Option<PathBuf>,
    /// PEM files: certificate and key of the client, for servers that require them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

fn provider() -> Arc<CryptoProvider> {
    let mut provider = ring::default_provider();
    use ring::cipher_suite as suites;
    provider.cipher_suites = vec![
        suites::TLS13_AES_128_GCM_SHA256,
        suites::TLS13_AES_256_GCM_SHA384,
        suites::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

impl ServerTls {
    /// Reads the files and builds the TLS configuration.
    ///
    /// # Errors
    ///
    /// A missing file, or one with other content or that does not match the others.
    pub fn load(&self) -> Result<Arc<ServerConfig>> {
        let chain = certificates(&self.cert)?;
        let key = private_key(&self.key)?;
        let builder = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3");
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(authorities(path)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .build()
                    .map_err(|e| Error::Authorities {
                        path: path.clone(),
                        reason: e.to_string(),
                    })?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder
            .with_single_cert(chain, key)
            .map_err(|e| Error::Pair {
                cert: self.cert.clone(),
                key: self.key.clone(),
                reason: reason(&e),
            })?;
        config.ignore_client_order = true;
        // Connections last for hours, so session resumption gains nothing.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// Returns the files to read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }
}

impl ClientTls {
    /// Reads the files, or the system's certificates, and builds the TLS configuration.
    ///
    /// # Errors
    ///
    /// A missing file, or one with other content or that does not match the others; a system
    /// without root certificates.
    pub fn load(&self) -> Result<Arc<ClientConfig>> {
        let roots = match &self.ca {
            Some(path) => authorities(path)?,
            None => system_roots()?,
        };
        let builder = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("the provider has suites of TLS 1.3")
            .with_root_certificates(roots);
        let config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => builder
                .with_client_auth_cert(certificates(cert)?, private_key(key)?)
                .map_err(|e| Error::Pair {
                    cert: cert.clone(),
                    key: key.clone(),
                    reason: reason(&e),
                })?,
        };
        Ok(Arc::new(config))
    }
}

/// Returns whether users outside of the key's group can read it, which its permissions should
/// prevent.
///
/// # Errors
///
/// Errors of the system.
pub fn key_is_readable_by_others(path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o007 != 0)
}

fn reason(e: &rustls::Error) -> String {
    match e {
        rustls::Error::InconsistentKeys(_) => {
            "the key is not that of the (first) certificate".to_owned()
        }
        e => e.to_string(),
    }
}

fn read(what: &'static str, path: &Path) -> Result<Vec<u8>> {
    let failed = |source| Error::Read {
        what,
        path: path.to_owned(),
        source,
    };
    let file = crate::open_input(path).map_err(failed)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, MAX_FILE + 1), &mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(Error::Content {
            what,
            path: path.to_owned(),
            found: format!("it has more than {MAX_FILE} bytes"),
        });
    }
    Ok(bytes)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>> {
    const WHAT: &str = "certificate";
    let bytes = read(WHAT, path)?;
    let found = |found: String| Error::Content {
        what: "certificate in PEM",
        path: path.to_owned(),
        found,
    };
    let all = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| found(e.to_string()))?;
    if all.is_empty() {
        return Err(found(describe(&bytes)));
    }
    Ok(all)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>> {
    let bytes = read("key", path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|e| Error::Content {
        what: "private key in PEM (PKCS#8, PKCS#1 or SEC1, without a password)",
        path: path.to_owned(),
        found: match e {
            rustls::pki_types::pem::Error::NoItemsFound => describe(&bytes),
            // Never include the content itself.
            e => e.to_string(),
        },
    })
}

/// Describes a file without the expected PEM section.
fn describe(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(64 << 10)]);
    let label = text
        .lines()
        .find_map(|line| line.strip_prefix("-----BEGIN ")?.strip_suffix("-----"))
        .filter(|label| {
            label.len() < 64 && label.chars().all(|c| c.is_ascii_uppercase() || c == ' ')
        });
    match label {
        _ if bytes.is_empty() => "it is empty".to_owned(),
        Some(label) => format!("found a {}", label.to_lowercase()),
        None => "nothing in it begins with -----BEGIN".to_owned(),
    }
}

fn authorities(path: &Path) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|e| Error::Authorities {
            path: path.to_owned(),
            reason: e.to_string(),
        })?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    // A single invalid certificate in the system's store is ignored.
    let (added, _) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let reason = found
            .errors
            .first()
            .map_or_else(|| "none is installed".to_owned(), ToString::to_string);
        return Err(Error::NoRoots { reason });
    }
    Ok(roots)
}
