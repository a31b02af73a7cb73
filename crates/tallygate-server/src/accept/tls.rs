//! TLS, optionally with client certificates. The files can be replaced at any time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use arc_swap::ArcSwap;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject as _};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{self, InconsistentKeys, RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// The PEM files of the certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsSettings {
    /// The server's certificate, followed by its intermediates.
    pub certificate: PathBuf,
    /// The private key of that certificate.
    pub key: PathBuf,
    /// Certificate authorities of clients. If set, only clients with a certificate of one of them are served.
    pub client_ca: Option<PathBuf>,
}

/// Why the certificates cannot be used: the file, the reason, the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}; {remedy}", file.display())]
pub struct TlsError {
    file: PathBuf,
    reason: String,
    remedy: &'static str,
}

const CERTIFICATE: &str = "name the PEM file with the server's certificate, followed by its intermediates";
const KEY: &str = "name the PEM file with the private key that belongs to the certificate";
const CLIENT_CA: &str =
    "name the PEM file with the certificates of the authorities your callers' certificates come from";

impl TlsError {
    fn new(file: &Path, reason: impl fmt::Display, remedy: &'static str) -> Self {
        Self { file: file.to_owned(), reason: reason.to_string(), remedy }
    }
}

/// Certificates in use, shared by all listeners.
#[derive(Clone)]
pub struct Tls {
    settings: TlsSettings,
    config: Arc<ArcSwap<ServerConfig>>,
}

/// Prints the names of the files only, never a key.
impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.settings).finish()
    }
}

impl Tls {
    /// Reads and checks the files.
    pub fn load(settings: TlsSettings) -> Result<Self, TlsError> {
        let config = Arc::new(ArcSwap::from_pointee(read(&settings)?));
        Ok(Self { settings, config })
    }

    /// Reads the files again, for new connections. If they are invalid, the old certificates stay in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        self.config.store(Arc::new(read(&self.settings)?));
        Ok(())
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        TlsAcceptor::from(self.config.load_full()).accept(stream).await
    }
}

fn read(settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
    let TlsSettings { certificate, key, client_ca } = settings;
    let chain = certificates(certificate, CERTIFICATE)?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| match error {
        pem::Error::NoItemsFound => TlsError::new(key, "holds no private key", KEY),
        error => TlsError::new(key, unreadable(&error), KEY),
    })?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
    // TLS 1.2 and 1.3.
    let builder = builder.with_safe_default_protocol_versions().expect("ring has suites for both");
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for root in certificates(file, CLIENT_CA)? {
                roots.add(root).map_err(|error| TlsError::new(file, error, CLIENT_CA))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            builder.with_client_cert_verifier(verifier.map_err(|error| TlsError::new(file, error, CLIENT_CA))?)
        }
    };
    let mut config = builder.with_single_cert(chain, private).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let reason = format!("is not the key of the certificate in {}", certificate.display());
            TlsError::new(key, reason, KEY)
        }
        rustls::Error::InvalidCertificate(_) => TlsError::new(certificate, error, CERTIFICATE),
        error => TlsError::new(key, error, KEY),
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(file: &Path, remedy: &'static str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| TlsError::new(file, unreadable(&error), remedy))?;
    if found.is_empty() {
        return Err(TlsError::new(file, "holds no certificate", remedy));
    }
    Ok(found)
}

/// The error of the system, never bytes of the file.
fn unreadable(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot be read: {error}"),
        _ => "is not PEM".to_owned(),
    }
}
