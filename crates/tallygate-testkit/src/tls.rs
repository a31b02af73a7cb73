//! A CA and a server certificate, generated for each server.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// The paths of the files.
#[derive(Debug)]
pub(crate) struct Certificates {
    pub(crate) ca: PathBuf,
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificates {
    /// Valid for `127.0.0.1` and `localhost`.
    pub(crate) fn generate(folder: &Path) -> Self {
        let files = Self {
            ca: folder.join("ca.pem"),
            certificate: folder.join("server.pem"),
            key: folder.join("server-key.pem"),
        };
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "tallygate test authority");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(ca, KeyPair::generate().unwrap()).unwrap();

        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let key = KeyPair::generate().unwrap();
        let server = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();

        fs::write(&files.ca, ca.pem()).unwrap();
        fs::write(&files.certificate, server.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        files
    }
}
