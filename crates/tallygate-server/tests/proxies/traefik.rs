//! Traefik and `forwardAuth`.

use tallygate_testkit::{Proxy, Tool};

use super::caller::Caller;
use super::forward_auth;
use super::rig::{Rig, changed};

fn start() -> Option<Rig> {
    start_with(&[], &[])
}

fn start_with(fixed: &[(&str, &str)], dynamic: &[(&str, &str)]) -> Option<Rig> {
    let traefik = || {
        forward_auth::start(|filler, port| {
            let fixed = changed(filler.example("traefik/traefik.yaml"), fixed);
            let dynamic = changed(filler.example("traefik/dynamic/routes.yaml"), dynamic);
            Proxy::traefik(&fixed, &dynamic, &[port])
        })
    };
    Tool::Traefik.available().then(traefik)
}

#[test]
fn traefik_passes_a_refusal_on_as_it_is() {
    let Some(rig) = start() else { return };
    let refused = forward_auth::each_address_has_its_limit(&rig);
    forward_auth::tells_when_to_come_again(&refused);
    forward_auth::has_tallygates_body(&refused);
    forward_auth::the_service_may_refuse(&rig);
}

#[test]
fn traefik_tells_who_calls_and_for_what_and_callers_cannot() {
    let Some(rig) = start() else { return };
    forward_auth::callers_cannot_pose_as_others(&rig);
    forward_auth::callers_cannot_hide_what_they_do(&rig);
    forward_auth::each_key_has_its_limit(&rig);
}

#[test]
fn traefik_tells_one_path_however_it_is_written() {
    let Some(rig) = start() else { return };
    let login = |last: u8, path: &str| Caller::new(last).send(rig.addr(), "POST", path, &[]).status;
    for (last, path) in (2..).zip(["//login", "/%6Cogin", "/x/../login", "/./login"]) {
        assert_eq!([login(last, path), login(last, "/login")], [200, 429], "{path}");
    }
}

#[test]
fn traefik_refuses_while_tallygate_is_away() {
    let Some(mut rig) = start() else { return };
    rig.tallygate.stop();
    assert_eq!(Caller::new(2).get(rig.addr(), "/").status, 500);
    assert_eq!(rig.served(), [""; 0]);
}

#[test]
fn traefik_believes_a_proxy_in_front_that_it_knows() {
    let known = ("  web:\n", "  web:\n    forwardedHeaders: { trustedIPs: [127.0.0.9] }\n");
    let believed = ("trustForwardHeader: false", "trustForwardHeader: true");
    let Some(rig) = start_with(&[known], &[believed]) else { return };
    forward_auth::a_proxy_in_front_is_believed(&rig);
}
