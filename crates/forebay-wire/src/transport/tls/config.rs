//! Certificates and keys from files, and what is made of them.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// More than any chain of certificates: larger files are something else.
const MAX_FILE: u64 = 4 << 20;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read {what} {}: {source}", .path.display())]
    Read {
        /// What it should hold.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file that holds something else.
    #[error("{} holds no {what}: {found}", .path.display())]
    Content {
        /// What it should hold.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What was found.
        found: String,
    },
    /// A key and a certificate that do not belong together, or are of a kind that is not known.
    #[error(
        "certificate {} and key {} cannot be used: {reason}", .cert.display(), .key.display()
    )]
    Pair {
        /// The certificate.
        cert: PathBuf,
        /// The key.
        key: PathBuf,
        /// Why.
        reason: String,
    },
    /// Certificates of authorities that cannot be used.
    #[error("the certificates in {} cannot be used: {reason}", .path.display())]
    Authorities {
        /// Where they are.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A system that trusts nobody.
    #[error(
        "this system has no root certificates that could be read ({reason}): name a file with the certificate of the server's authority"
    )]
    NoRoots {
        /// What was found instead.
        reason: String,
    },
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// What a server proves itself with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerTls {
    /// PEM: its certificate, then those between it and the authority.
    pub cert: PathBuf,
    /// PEM: the key of the certificate.
    pub key: PathBuf,
    /// PEM: authorities, one of which must have signed each client's certificate. None: clients need none.
    pub client_ca: Option<PathBuf>,
}

/// Whom a client trusts, and what it proves itself with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ClientTls {
    /// PEM: the authorities that servers' certificates may be signed by, or the servers' own certificates. None: those
    /// of the system.
    pub ca: Option<PathBuf>,
    /// PEM: certificate and key of the client, for servers that want them.
    pub identity: Option<(PathBuf, PathBuf)>,
}

fn provider() -> Arc<CryptoProvider> {
    let mut provider = aws_lc_rs::default_provider();
    use aws_lc_rs::cipher_suite as suites;
    provider.cipher_suites = vec![
        suites::TLS13_AES_128_GCM_SHA256,
        suites::TLS13_AES_256_GCM_SHA384,
        suites::TLS13_CHACHA20_POLY1305_SHA256,
    ];
    Arc::new(provider)
}

impl ServerTls {
    /// Reads the files, and makes of them what connections need.
    ///
    /// # Errors
    ///
    /// A file that is missing, holds something else or does not fit the others.
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
        // A connection lasts for hours: there is nothing to be gained by resuming one.
        config.send_tls13_tickets = 0;
        Ok(Arc::new(config))
    }

    /// The files that are read.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.cert), Some(&self.key), self.client_ca.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }
}

impl ClientTls {
    /// Reads the files, or the system's certificates, and makes of them what connections need.
    ///
    /// # Errors
    ///
    /// A file that is missing, holds something else or does not fit the others; a system without root certificates.
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

/// Whether anybody on this machine may read a key, which its permissions should not allow. Its group may.
///
/// # Errors
///
/// When the system does not say.
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
            // Never the bytes themselves.
            e => e.to_string(),
        },
    })
}

/// What a file without the right section seems to be.
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
    // One odd certificate among a hundred is not this program's business.
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
