//! Policies that change while calls come in.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::json;
use tallygate_testkit::http::{Client, request};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

use crate::support::certificates::Folder;
use crate::support::served::{Served, bearer, body, until};

fn policies(limit: u64) -> String {
    format!("policies: [{{name: per-user, domain: api, partition: [user], limit: {limit}/h, algorithm: fixed_window}}]")
}

fn generation(server: &Served) -> f64 {
    server.metric("tallygate_config_generation").unwrap()
}

#[test]
fn a_changed_file_takes_force_and_counts_go_on() {
    let server = Served::with(&policies(3));
    for _ in 0..3 {
        assert_eq!(server.check("1").status, 200);
    }
    assert_eq!(server.check("1").status, 429);
    std::fs::write(server.policy_file(), policies(5)).unwrap();
    until("the new limit", || generation(&server) == 2.0);
    let allowed = body(&server.check("1"));
    assert_eq!((&allowed["limit"], &allowed["remaining"]), (&json!(5), &json!(1)));
    assert_eq!(server.metric("tallygate_config_reloads_total{outcome=\"applied\"}"), Some(1.0));
    // The counts of the policy are those of before, too.
    let denied = "tallygate_decisions_total{domain=\"api\",policy=\"per-user\",outcome=\"denied\",source=\"store\"}";
    assert_eq!(server.metric(denied), Some(1.0));
}

#[test]
fn a_broken_file_changes_nothing_and_says_why() {
    let server = Served::with(&policies(3));
    std::fs::write(server.policy_file(), "policies: [{name: per-user, domain: api, limit: many}]").unwrap();
    until("the refusal", || server.metric("tallygate_config_reloads_total{outcome=\"refused\"}") == Some(1.0));
    assert_eq!(server.metric("tallygate_config_last_reload_successful"), Some(0.0));
    assert_eq!((generation(&server), &body(&server.check("1"))["limit"]), (1.0, &json!(3)));
    let asked = request(server.admin, "POST", "/-/reload", &[bearer()], b"");
    assert_eq!(asked.status, 409);
    let why = body(&asked)["detail"].as_str().unwrap().to_owned();
    assert!(why.contains("policies.yaml:1:49: error:") && why.contains("many"), "{why}");
    std::fs::write(server.policy_file(), policies(3)).unwrap();
    until("peace", || server.metric("tallygate_config_last_reload_successful") == Some(1.0));
}

#[test]
fn a_mounted_config_map_is_followed_through_its_links() {
    let server = Served::start(&policies(3), |settings| {
        let folder = settings.policies.as_ref().unwrap().parent().unwrap().join("mounted");
        let version = folder.join("..v1");
        std::fs::create_dir_all(&version).unwrap();
        std::fs::write(version.join("api.yaml"), policies(3)).unwrap();
        std::os::unix::fs::symlink("..v1", folder.join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/api.yaml", folder.join("api.yaml")).unwrap();
        settings.policies = Some(folder);
    });
    assert_eq!(body(&server.check("1"))["limit"], 3);
    // As the kubelet does it: a new folder, and one link swapped.
    let folder = server.folder().join("mounted");
    std::fs::create_dir(folder.join("..v2")).unwrap();
    std::fs::write(folder.join("..v2/api.yaml"), policies(8)).unwrap();
    std::os::unix::fs::symlink("..v2", folder.join("..data_tmp")).unwrap();
    std::fs::rename(folder.join("..data_tmp"), folder.join("..data")).unwrap();
    until("the swapped link", || body(&server.check("2"))["limit"] == 8);
}

#[test]
fn no_call_fails_and_no_count_is_lost_when_policies_change_under_load() {
    const CALLERS: usize = 4;
    let server = Arc::new(Served::with(&policies(1_000_000)));
    let (done, counted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (addr, done, counted) = (server.http, Arc::clone(&done), Arc::clone(&counted));
            std::thread::spawn(move || {
                let mut client = Client::open(addr).unwrap();
                let question = json!({"domain": "api", "descriptors": [{"user": "1"}]}).to_string();
                while !done.load(Ordering::Relaxed) {
                    let headers = [("content-type", "application/json")];
                    let answer = client.request("POST", "/v1/check", &headers, question.as_bytes()).unwrap();
                    assert_eq!(answer.status, 200, "{}", answer.text());
                    counted.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for turn in 0..6 {
        std::fs::write(server.policy_file(), policies(1_000_001 + turn)).unwrap();
        let asked = request(server.admin, "POST", "/-/reload", &[bearer()], b"");
        assert_eq!(asked.status, 200, "{}", asked.text());
    }
    assert!(generation(&server) >= 7.0);
    done.store(true, Ordering::Relaxed);
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    let left = body(&server.post("/v1/peek", &json!({"domain": "api", "descriptors": [{"user": "1"}]})));
    let used = left["limit"].as_u64().unwrap() - left["remaining"].as_u64().unwrap();
    assert_eq!(used, counted.load(Ordering::Relaxed));
}

/// `GET` over TLS, with the authority that the folder has now.
fn get(folder: &Folder, addr: SocketAddr, path: &str) -> Option<String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.file("ca")).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
    let client = ClientConnection::new(Arc::new(config.with_no_client_auth()), "127.0.0.1".try_into().unwrap());
    let mut stream = StreamOwned::new(client.unwrap(), TcpStream::connect(addr).unwrap());
    let (name, value) = bearer();
    let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n{name}: {value}\r\n\r\n");
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// The policies were marked as tried before the certificate was refused, so they were not tried again.
#[test]
fn a_bad_certificate_does_not_keep_changed_policies_from_being_applied() {
    let folder = Folder::new();
    let server = Served::start(&policies(3), |settings| settings.tls = Some(folder.settings(false)));
    let has =
        |line: &str| get(&folder, server.admin, "/metrics").is_some_and(|page| page.contains(&format!("\n{line}\n")));
    assert!(has("tallygate_config_generation 1"));

    std::fs::write(folder.file("server"), "half writ").unwrap();
    for (generation, limit) in [(2, 5), (3, 7)] {
        std::fs::write(server.policy_file(), policies(limit)).unwrap();
        until("the new policies", || has(&format!("tallygate_config_generation {generation}")));
        assert!(has("tallygate_config_last_reload_successful 0"), "the certificate is still invalid");
    }
    assert!(get(&folder, server.admin, "/v1/config").unwrap().contains("\"7/h"), "the last policies are in force");

    folder.renew();
    until("the repaired certificate", || has("tallygate_config_last_reload_successful 1"));
    // One attempt for each change, not one for each poll.
    for line in ["{outcome=\"applied\"} 2", "{outcome=\"unchanged\"} 1", "{outcome=\"refused\"} 0"] {
        assert!(has(&format!("tallygate_config_reloads_total{line}")), "{line}");
    }
}

#[test]
fn bad_policies_do_not_keep_a_renewed_certificate_from_being_used() {
    let folder = Folder::new();
    let server = Served::start(&policies(3), |settings| settings.tls = Some(folder.settings(false)));
    assert!(get(&folder, server.admin, "/livez").is_some());
    folder.renew();
    std::fs::write(server.policy_file(), "policies: [{name: per-user, domain: api, limit: many}]").unwrap();
    until("the renewed certificate", || get(&folder, server.admin, "/livez").is_some());
}
