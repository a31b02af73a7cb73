//! The files in `examples/policies` do what their comments say.

use std::path::{Path, PathBuf};

use tallygate_config::Config;

use crate::scene::Scene;

pub fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/policies").join(name)
}

fn scene(name: &str) -> Scene {
    let scene = Scene::of(Config::load(&example(name)).unwrap_or_else(|findings| panic!("{findings}")));
    assert_eq!(scene.warnings, [""; 0], "an example is beyond doubt");
    scene
}

#[test]
fn our_own() {
    let scene = scene("tallygate.yaml");
    assert_eq!(scene.passing("default", &["user=42,plan=free"]), Some(20));
    assert_eq!(scene.passing("default", &["user=43,plan=pro"]), Some(200));
    assert_eq!(scene.passing("default", &["user=1"]), None);
    assert_eq!(scene.passing("default", &["user=44,path=/v1/eu/search"]), Some(10));
    assert_eq!(scene.passing("default", &["ip=192.0.2.1"]), Some(20));
    assert_eq!(scene.policies_of("default", &["user=45,tenant=t"]), ["per-user", "per-tenant-next"]);
    assert!(!scene.verdict("llm", &["api_key=k,model=m"], 150_000).rulings().is_empty());
    assert!(!scene.verdict("llm", &["api_key=k,model=m"], 150_000).allowed());
    assert!(!scene.call("llm", &["api_key=k,model=m"]));
}

#[test]
fn of_envoyproxy_ratelimit() {
    let scene = scene("envoy.yaml");
    assert_eq!(scene.passing("edge", &["remote_address=192.0.2.1"]), Some(100));
    assert_eq!(scene.passing("edge", &["remote_address=192.0.2.66"]), Some(0));
    assert_eq!(scene.passing("edge", &["remote_address=198.51.100.7"]), None);
    assert_eq!(scene.passing("edge", &["remote_address=203.0.113.1"]), Some(500));
    assert_eq!(scene.passing("edge", &["remote_address=203.0.113.2"]), Some(0));
    assert_eq!(scene.passing("edge", &["method=DELETE,user=1"]), None);
    assert_eq!(scene.passing("edge", &["method=POST,user=1", "route=/upload/a,user=1"]), Some(1000));
    assert_eq!(scene.passing("edge", &["method=POST,user=1"]), Some(200));
}

#[test]
fn of_limitador() {
    let scene = scene("limitador.yaml");
    assert_eq!(scene.passing("shop.example.org", &["req.method=POST,path=/buy,user_id=1"]), Some(5));
    assert_eq!(scene.passing("shop.example.org", &["req.method=GET"]), Some(995));
}
