//! TLS is optional: projects of their own, built without it, with it, and beside reqwest with aws-lc-rs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use tallygate_testkit::{Project, Server};

const DEPENDENCIES: &str = r#"
rustls = { version = "0.23", default-features = false, features = ["ring"], optional = true }
tallygate-redis = { path = "CRATES/tallygate-redis" }
tokio = { version = "1", features = ["macros", "rt"] }

[features]
tls = ["tallygate-redis/tls", "dep:rustls"]
"#;

/// Connects to a URL, with `install` after it has installed a provider, and prints the error.
const MAIN: &str = r#"
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap();
    #[cfg(feature = "tls")]
    if args.next().is_some() {
        rustls::crypto::ring::default_provider().install_default().unwrap();
    }
    match tallygate_redis::RedisStore::connect(&url).await {
        Ok(_) => println!("connected"),
        Err(error) => println!("{error}"),
    }
    #[cfg(feature = "tls")]
    println!("{}", rustls::crypto::CryptoProvider::get_default().is_some());
}
"#;

/// reqwest is pinned, so that a release of it does not fail the test. Only it chooses a provider here, aws-lc-rs.
const DEPENDENCIES_BESIDE_REQWEST: &str = r#"
reqwest = { version = "=0.13.5", default-features = false, features = ["rustls"] }
rustls = { version = "0.23", default-features = false, optional = true }
tallygate = { path = "CRATES/tallygate" }
tallygate-redis = { path = "CRATES/tallygate-redis" }
tokio = { version = "1", features = ["macros", "rt"] }

[features]
tls = ["tallygate-redis/tls", "dep:rustls"]
"#;

/// An HTTPS request and decisions in one process. With `install` the provider is installed at startup. Without, rustls installs
/// the only one there is when it is first used without a choice; with two it would panic.
const MAIN_BESIDE_REQWEST: &str = r#"
use tallygate::{Check, Key, Limit, Limiter};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [https, ca, redis, install @ ..] = args.as_slice() else { panic!("HTTPS CA REDIS [install]") };
    #[cfg(feature = "tls")]
    if install.is_empty() {
        let _ = rustls::ClientConfig::builder();
    } else {
        rustls::crypto::aws_lc_rs::default_provider().install_default().unwrap();
    }
    let ca = reqwest::Certificate::from_pem(&std::fs::read(ca).unwrap()).unwrap();
    let client = reqwest::Client::builder().tls_certs_only([ca]).no_proxy().build().unwrap();
    println!("{}", client.get(https).send().await.unwrap().text().await.unwrap());

    let limiter = Limiter::new(tallygate_redis::RedisStore::connect(redis).await.unwrap());
    let limit: Limit = "2/h".parse().unwrap();
    let subject = format!("process {}", std::process::id());
    for _ in 0..3 {
        let key = Key::new("api", &subject).unwrap();
        println!("{}", limiter.check(Check::new(key, &limit)).await.unwrap().allowed());
    }
    println!("{}", client.get(https).send().await.unwrap().text().await.unwrap());
}
"#;

/// The names of the TLS crates in a tree.
fn tls_crates(project: &Project, args: &[&str]) -> Vec<String> {
    let tree = project.cargo(&[&["tree", "--edges", "normal,build", "--prefix", "none"], args].concat());
    let mut names: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains(&"tallygate-redis"), "{tree}");
    names.retain(|name| name.contains("rustls") || name.starts_with("aws-lc") || *name == "ring");
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(str::to_owned).collect()
}

fn run(project: &Project, args: &[&str]) -> String {
    let output = Command::new(project.program()).args(args).output().unwrap();
    [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat()
}

/// Answers every request with `hello`, with the certificate of a Redis server; returns its URL.
fn https(server: &Server) -> String {
    let file = |name| server.ca_path().with_file_name(name);
    let certificate = CertificateDer::from_pem_file(file("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(file("server-key.pem")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate], key).unwrap());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let answer = move |stream: TcpStream| {
        let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            request.extend(byte);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")?;
        stream.conn.send_close_notify();
        stream.flush()
    };
    thread::spawn(move || listener.incoming().for_each(|stream| stream.and_then(&answer).unwrap()));
    url
}

#[test]
fn tls_is_optional_and_no_provider_is_forced_on_the_process() {
    let project = Project::new(env!("CARGO_TARGET_TMPDIR"), "tls-features", DEPENDENCIES, MAIN);
    let server = Server::redis().tls().start();

    project.cargo(&["build", "--offline"]);
    let said = run(&project, &["rediss://127.0.0.1"]);
    assert!(said.contains("rediss:// needs TLS") && said.contains("feature `tls-ring`"), "{said}");
    assert_eq!(tls_crates(&project, &["--offline"]), [""; 0]);

    project.cargo(&["build", "--offline", "--features", "tls"]);
    let said = run(&project, &[&server.url()]);
    assert!(said.contains("no crypto provider") && said.contains("feature `tls-ring`"), "{said}");
    assert!(said.ends_with("false\n"), "a provider was installed: {said}");
    assert_eq!(run(&project, &[&server.url(), "install"]), "connected\ntrue\n");
}

#[test]
fn reqwest_with_aws_lc_rs_and_the_store_work_in_one_process() {
    let project =
        Project::new(env!("CARGO_TARGET_TMPDIR"), "beside-reqwest", DEPENDENCIES_BESIDE_REQWEST, MAIN_BESIDE_REQWEST);
    let server = Server::redis().tls().start();
    let (https, ca, redis) = (https(&server), server.ca_path().to_str().unwrap(), server.url());

    assert_eq!(tls_crates(&project, &["--package", "tallygate-redis"]), [""; 0], "without TLS, those of reqwest only");
    let both = tls_crates(&project, &["--features", "tls"]);
    assert!(both.iter().any(|name| name == "aws-lc-rs") && !both.iter().any(|name| name == "ring"), "{both:?}");

    project.cargo(&["build", "--features", "tls"]);
    let expected = "hello\ntrue\ntrue\nfalse\nhello\n";
    assert_eq!(run(&project, &[&https, ca, &redis]), expected);
    assert_eq!(run(&project, &[&https, ca, &redis, "install"]), expected);
}
