//! Verified TLS to a server: the system's roots, and one more from the store URL.

use std::path::Path;
use std::sync::Arc;

use tallygate::StoreError;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

use super::failure::{Failure, NotSent, Refusal};
use crate::builder::ConnectError;

#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    /// Reads the roots once; all connections share them.
    pub(crate) fn new(ca: Option<&Path>) -> Result<Self, ConnectError> {
        let provider = provider().ok_or(ConnectError::NoCryptoProvider)?;
        let refused = |reason: String, remedy: &str| StoreError::refused(reason, remedy.to_owned());
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = ca {
            let remedy = "specify a readable PEM file with the certificate of your CA: ?ca=/path/ca.pem";
            let unusable = |error: &dyn std::fmt::Display| {
                refused(format!("cannot use the certificates in {}: {error}", path.display()), remedy)
            };
            let mut found = false;
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unusable(&error))? {
                let certificate = certificate.map_err(|error| unusable(&error))?;
                roots.add(certificate).map_err(|error| unusable(&error))?;
                found = true;
            }
            if !found {
                return Err(unusable(&"it contains none").into());
            }
        }
        if roots.is_empty() {
            return Err(refused(
                "the system has no root certificates to verify the server with".into(),
                "install ca-certificates, or specify a CA: ?ca=/path/ca.pem",
            )
            .into());
        }
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| refused(error.to_string(), "please report this bug"))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(crate) async fn wrap(&self, host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, Failure> {
        let name = ServerName::try_from(host.to_owned())
            .map_err(|error| Failure::Refused(Refusal::Certificate { error: error.into() }))?;
        self.0.connect(name, stream).await.map_err(|error| {
            match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
                Some(invalid @ rustls::Error::InvalidCertificate(_)) => {
                    Failure::Refused(Refusal::Certificate { error: invalid.clone().into() })
                }
                Some(rustls::Error::InvalidMessage(_)) => Failure::Refused(Refusal::NotTls),
                _ => Failure::NotSent(NotSent::TlsHandshake(error.into())),
            }
        })
    }
}

/// The provider that the application has installed, or else that of the enabled feature. Installs none.
fn provider() -> Option<Arc<CryptoProvider>> {
    CryptoProvider::get_default().cloned().or_else(|| provider_of_feature().map(Arc::new))
}

fn provider_of_feature() -> Option<CryptoProvider> {
    #[cfg(feature = "tls-aws-lc-rs")]
    {
        Some(rustls::crypto::aws_lc_rs::default_provider())
    }
    #[cfg(all(feature = "tls-ring", not(feature = "tls-aws-lc-rs")))]
    {
        Some(rustls::crypto::ring::default_provider())
    }
    #[cfg(not(any(feature = "tls-ring", feature = "tls-aws-lc-rs")))]
    {
        None
    }
}
