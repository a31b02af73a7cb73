//! TLS: who gets in, and certificates that change.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tallygate_server::listen::{ListenSettings, Tls, TlsSettings};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::client::{Raw, connect, http2, request, send};
use super::server::{Server, brief, within};
use crate::support::certificates::Folder;

impl Folder {
    /// A caller that trusts the authority as it is now.
    fn caller(&self, certified: bool, alpn: &[&str]) -> Caller {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.file("ca")).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
        let mut config = if certified {
            let chain = vec![CertificateDer::from_pem_file(self.file("client")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(self.file("client-key")).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        } else {
            builder.with_no_client_auth()
        };
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Caller(TlsConnector::from(Arc::new(config)))
    }
}

struct Caller(TlsConnector);

impl Caller {
    async fn connect(&self, server: &Server) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = connect(server.addr).await.0;
        within(self.0.connect("127.0.0.1".try_into().unwrap(), stream)).await
    }

    /// The answer to a request, if it gets one. With TLS 1.3 a caller learns only then that it is refused.
    async fn peer(&self, server: &Server) -> Option<String> {
        use tokio::io::AsyncWriteExt as _;
        let mut raw = Raw(self.connect(server).await.ok()?);
        raw.0.write_all(b"GET /peer HTTP/1.1\r\nhost: test\r\n\r\n").await.ok()?;
        raw.try_answer().await.map(|answer| answer.body)
    }
}

fn start(settings: TlsSettings) -> (Server, Tls) {
    let tls = Tls::load(settings).unwrap();
    (Server::start_with(ListenSettings::default(), Some(tls.clone())), tls)
}

#[tokio::test]
async fn both_versions_are_spoken_over_tls_and_nothing_in_the_clear() {
    let folder = Folder::new();
    let (server, _) = start(folder.settings(false));
    let peer = folder.caller(false, &["http/1.1"]).peer(&server).await.unwrap();
    assert!(peer.starts_with("127.0.0.1:"), "{peer}");

    let stream = folder.caller(false, &["h2", "http/1.1"]).connect(&server).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (mut sender, _) = http2(stream).await;
    assert_eq!(send(&mut sender, request("GET", "/livez", "")).await.status(), 200);

    let requests = server.stats.requests.load(Relaxed);
    let mut plain = connect(server.addr).await;
    plain.send("GET /livez HTTP/1.1\r\nhost: test\r\n\r\n").await;
    assert!(!plain.rest().await.starts_with(b"HTTP"));
    assert_eq!(server.stats.requests.load(Relaxed), requests);
}

#[tokio::test]
async fn a_silent_handshake_is_cut() {
    let folder = Folder::new();
    let server = Server::start_with(brief(), Some(Tls::load(folder.settings(false)).unwrap()));
    assert!(connect(server.addr).await.rest().await.is_empty());
    server.until_connections_are(0).await;
}

#[tokio::test]
async fn with_an_authority_for_callers_only_its_own_get_in() {
    let (folder, stranger) = (Folder::new(), Folder::new());
    let (server, _) = start(folder.settings(true));
    assert_eq!(folder.caller(false, &[]).peer(&server).await, None);
    // Trusts the server, yet shows a certificate of another authority.
    fs::copy(folder.file("ca"), stranger.file("ca")).unwrap();
    assert_eq!(stranger.caller(true, &[]).peer(&server).await, None);
    assert_eq!(server.stats.requests.load(Relaxed), 0);
    assert!(folder.caller(true, &[]).peer(&server).await.is_some());
}

#[tokio::test]
async fn new_certificates_are_used_once_reloaded_and_bad_ones_never() {
    let folder = Folder::new();
    let (server, tls) = start(folder.settings(true));
    let old = folder.caller(true, &[]);
    let mut open = Raw(old.connect(&server).await.unwrap());
    assert_eq!(open.get("/livez").await.status, 200);

    folder.renew();
    let new = folder.caller(true, &[]);
    assert!(new.peer(&server).await.is_none() && old.peer(&server).await.is_some(), "not reloaded yet");
    tls.reload().unwrap();
    assert!(new.peer(&server).await.is_some() && old.peer(&server).await.is_none());
    assert_eq!(open.get("/livez").await.status, 200, "an open connection goes on");

    fs::write(folder.file("server"), "half writ").unwrap();
    assert!(tls.reload().is_err());
    assert!(new.peer(&server).await.is_some(), "the last good one stays");
}

#[test]
fn what_is_wrong_is_named_with_its_file_and_remedy() {
    let folder = Folder::new();
    let refused = |change: &dyn Fn(&mut TlsSettings)| {
        let mut settings = folder.settings(true);
        change(&mut settings);
        Tls::load(settings).unwrap_err().to_string()
    };
    let (empty, garbled) = (folder.file("empty"), folder.file("garbled"));
    fs::write(&empty, "").unwrap();
    fs::write(&garbled, "-----BEGIN CERTIFICATE-----\n!!\n-----END CERTIFICATE-----\n").unwrap();
    let missing = folder.file("missing");
    let says = |error: String, file: &Path, words: &[&str]| {
        assert!(error.starts_with(file.to_str().unwrap()), "{error}");
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    says(refused(&|s| s.certificate = missing.clone()), &missing, &["cannot be read", "certificate"]);
    says(refused(&|s| s.certificate = empty.clone()), &empty, &["holds no certificate"]);
    says(refused(&|s| s.certificate = garbled.clone()), &garbled, &["not PEM"]);
    says(refused(&|s| s.key = missing.clone()), &missing, &["cannot be read", "private key"]);
    says(refused(&|s| s.key = folder.file("server")), &folder.file("server"), &["holds no private key"]);
    let other = folder.file("client-key");
    says(refused(&|s| s.key = other.clone()), &other, &["not the key of the certificate", "server.pem"]);
    says(refused(&|s| s.client_ca = Some(empty.clone())), &empty, &["holds no certificate", "authorities"]);
    says(refused(&|s| s.client_ca = Some(missing.clone())), &missing, &["cannot be read", "authorities"]);
}

#[test]
fn no_key_is_ever_printed() {
    let folder = Folder::new();
    let shown = format!("{:?}", Tls::load(folder.settings(true)).unwrap());
    assert!(shown.contains("server-key.pem") && shown.len() < 600, "{shown}");
}
