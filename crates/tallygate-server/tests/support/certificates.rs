//! Certificates for one test.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tallygate_server::listen::TlsSettings;
use tempfile::TempDir;

/// An authority, with a certificate of it for a server and one for a caller.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.renew();
        folder
    }

    pub fn renew(&self) {
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "tallygate test authority");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();
        fs::write(self.file("ca"), ca.pem()).unwrap();
        for name in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let names = vec!["127.0.0.1".to_owned()];
            let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
            fs::write(self.file(name), certificate.pem()).unwrap();
            fs::write(self.file(&format!("{name}-key")), key.serialize_pem()).unwrap();
        }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(format!("{name}.pem"))
    }

    pub fn settings(&self, mutual: bool) -> TlsSettings {
        TlsSettings {
            certificate: self.file("server"),
            key: self.file("server-key"),
            client_ca: mutual.then(|| self.file("ca")),
        }
    }
}
