//! Verified TLS to a server: the system's roots, and one more that the operator names.

use std::path::Path;
use std::sync::Arc;

use tallygate::StoreError;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use crate::fault::Fault;

#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    /// Reads the roots once; every connection shares them.
    pub(crate) fn new(ca: Option<&Path>) -> Result<Self, StoreError> {
        let refused = |reason: String, remedy: &str| StoreError::Refused { reason, remedy: remedy.to_owned() };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = ca {
            let remedy = "name a readable PEM file with the certificate of your authority: ?ca=/path/ca.pem";
            let unread = |error: rustls::pki_types::pem::Error| refused(format!("{}: {error}", path.display()), remedy);
            let mut found = false;
            for certificate in CertificateDer::pem_file_iter(path).map_err(unread)? {
                let added = roots.add(certificate.map_err(unread)?);
                added.map_err(|error| refused(format!("{}: {error}", path.display()), remedy))?;
                found = true;
            }
            if !found {
                return Err(refused(format!("{} holds no certificate", path.display()), remedy));
            }
        }
        if roots.is_empty() {
            return Err(refused(
                "this system has no root certificates to verify a server by".into(),
                "install ca-certificates, or name the authority: ?ca=/path/ca.pem",
            ));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(error.to_string(), "this is a fault of the build"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(crate) async fn wrap(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, Fault> {
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Fault::Refused {
            reason: format!("`{host}` is not a name a certificate can bear"),
            remedy: "write the DNS name or IP address of the server".into(),
        })?;
        self.0.connect(name, stream).await.map_err(|error| {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            match inner {
                Some(rustls::Error::InvalidCertificate(why)) => Fault::Refused {
                    reason: format!("a certificate that does not verify for {host}: {why}"),
                    remedy: "name its authority with ?ca=/path/ca.pem, and connect by a name the certificate bears"
                        .into(),
                },
                Some(rustls::Error::InvalidMessage(_)) => Fault::Refused {
                    reason: format!("{host} does not speak TLS on this port"),
                    remedy: "write redis:// without the second s, or the TLS port".into(),
                },
                _ => Fault::NotSent(format!("TLS with {host} failed: {error}")),
            }
        })
    }
}
