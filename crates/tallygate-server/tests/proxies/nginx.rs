//! nginx and `auth_request`.

use tallygate_testkit::{Proxy, Tool};

use super::caller::Caller;
use super::forward_auth;
use super::rig::{Rig, changed};

fn start() -> Option<Rig> {
    start_with(&[])
}

fn start_with(changes: &[(&str, &str)]) -> Option<Rig> {
    // A busy machine is not what is tested.
    let patient = [("proxy_connect_timeout 50ms", "proxy_connect_timeout 10s"), ("250ms", "10s")];
    let nginx = || {
        forward_auth::start(|filler, port| {
            let conf = changed(filler.example("nginx/nginx.conf"), &patient);
            Proxy::nginx(&changed(conf, changes), &[port])
        })
    };
    Tool::Nginx.available().then(nginx)
}

#[test]
fn nginx_makes_429_of_a_refusal_with_tallygates_headers() {
    let Some(rig) = start() else { return };
    let refused = forward_auth::each_address_has_its_limit(&rig);
    forward_auth::tells_when_to_come_again(&refused);
}

#[test]
fn nginx_tells_callers_what_is_left() {
    let Some(rig) = start() else { return };
    forward_auth::tells_what_is_left(&rig);
    forward_auth::the_service_may_refuse(&rig);
}

#[test]
fn nginx_tells_who_calls_and_for_what_and_callers_cannot() {
    let Some(rig) = start() else { return };
    forward_auth::callers_cannot_pose_as_others(&rig);
    forward_auth::callers_cannot_hide_what_they_do(&rig);
    forward_auth::each_key_has_its_limit(&rig);
}

#[test]
fn nginx_lets_pass_while_tallygate_is_away() {
    let Some(mut rig) = start() else { return };
    let statuses = |rig: &Rig| [(); 4].map(|()| Caller::new(2).get(rig.addr(), "/").status);
    assert_eq!(statuses(&rig), [200, 200, 200, 429]);
    rig.tallygate.stop();
    assert_eq!(statuses(&rig), [200; 4]);
    assert_eq!(Caller::new(2).get(rig.addr(), "/_tallygate").status, 404, "only nginx asks Tallygate");
}

#[test]
fn nginx_believes_a_proxy_in_front_that_it_knows() {
    let known =
        ("    location / {", "    set_real_ip_from 127.0.0.9;\n    real_ip_header X-Forwarded-For;\n    location / {");
    let Some(rig) = start_with(&[known]) else { return };
    forward_auth::a_proxy_in_front_is_believed(&rig);
}
