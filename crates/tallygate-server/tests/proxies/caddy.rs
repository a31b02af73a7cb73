//! Caddy and `forward_auth`.

use tallygate_testkit::{Proxy, Tool};

use super::caller::Caller;
use super::forward_auth;
use super::rig::{Rig, changed};

fn start() -> Option<Rig> {
    start_with(&[])
}

fn start_with(changes: &[(&str, &str)]) -> Option<Rig> {
    let caddy = || {
        forward_auth::start(|filler, port| Proxy::caddy(&changed(filler.example("caddy/Caddyfile"), changes), &[port]))
    };
    Tool::Caddy.available().then(caddy)
}

#[test]
fn caddy_passes_a_refusal_on_as_it_is() {
    let Some(rig) = start() else { return };
    let refused = forward_auth::each_address_has_its_limit(&rig);
    forward_auth::tells_when_to_come_again(&refused);
    forward_auth::has_tallygates_body(&refused);
}

#[test]
fn caddy_tells_callers_what_is_left() {
    let Some(rig) = start() else { return };
    forward_auth::tells_what_is_left(&rig);
    assert!(rig.service.take().iter().all(|request| request.header("ratelimit").is_none()));
    forward_auth::the_service_may_refuse(&rig);
}

#[test]
fn caddy_tells_who_calls_and_for_what_and_callers_cannot() {
    let Some(rig) = start() else { return };
    forward_auth::callers_cannot_pose_as_others(&rig);
    forward_auth::callers_cannot_hide_what_they_do(&rig);
    forward_auth::each_key_has_its_limit(&rig);
}

#[test]
fn caddy_refuses_while_tallygate_is_away() {
    let Some(mut rig) = start() else { return };
    rig.tallygate.stop();
    assert_eq!(Caller::new(2).get(rig.addr(), "/").status, 502);
    assert_eq!(rig.served(), [""; 0]);
}

#[test]
fn caddy_believes_a_proxy_in_front_that_it_knows() {
    let known = ("\t\t\tcopy_headers", "\t\t\ttrusted_proxies 127.0.0.9/32\n\t\t\tcopy_headers");
    let Some(rig) = start_with(&[known]) else { return };
    forward_auth::a_proxy_in_front_is_believed(&rig);
}
