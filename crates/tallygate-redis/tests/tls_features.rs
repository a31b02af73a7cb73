//! TLS is optional: a project of its own, built without it and with it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must stop")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tallygate_testkit::Server;

const MANIFEST: &str = r#"
[package]
name = "tls-features"
edition = "2024"

[features]
tls = ["tallygate-redis/tls", "dep:rustls"]

[dependencies]
rustls = { version = "0.23", default-features = false, features = ["ring"], optional = true }
tallygate-redis = { path = "PATH" }
tokio = { version = "1", features = ["macros", "rt"] }

[workspace]

[profile.dev]
debug = false
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

/// A project outside the workspace, so that no other crate enables features.
fn project() -> PathBuf {
    let project = Path::new(env!("CARGO_TARGET_TMPDIR")).join("tls-features");
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let write = |name: &str, text: &str| {
        let path = project.join(name);
        // An unchanged file stays, so that nothing is built again.
        if fs::read_to_string(&path).is_ok_and(|there| there == text) {
            return;
        }
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("Cargo.toml", &MANIFEST.replace("PATH", package.to_str().unwrap()));
    write("src/main.rs", MAIN);
    fs::copy(package.join("../../Cargo.lock"), project.join("Cargo.lock")).unwrap();
    project
}

fn cargo(project: &Path, args: &[&str]) -> String {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(args).arg("--offline").current_dir(project).env("CARGO_TARGET_DIR", project.join("target"));
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "cargo {args:?}:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn run(project: &Path, args: &[&str]) -> String {
    let output = Command::new(project.join("target/debug/tls-features")).args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn tls_is_optional_and_no_provider_is_forced_on_the_process() {
    let project = project();
    let server = Server::redis().tls().start();

    cargo(&project, &["build"]);
    let said = run(&project, &["rediss://127.0.0.1"]);
    assert!(said.contains("rediss:// needs TLS") && said.contains("feature `tls-ring`"), "{said}");
    let tree = cargo(&project, &["tree", "--edges", "normal,build", "--prefix", "none"]);
    assert!(tree.contains("tallygate-redis") && !tree.contains("rustls") && !tree.contains("ring v"), "{tree}");

    cargo(&project, &["build", "--features", "tls"]);
    let said = run(&project, &[&server.url()]);
    assert!(said.contains("no crypto provider") && said.contains("feature `tls-ring`"), "{said}");
    assert!(said.ends_with("false\n"), "a provider was installed: {said}");
    assert_eq!(run(&project, &[&server.url(), "install"]), "connected\ntrue\n");
}
