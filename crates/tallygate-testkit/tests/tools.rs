//! The external programs run, do what tests rely on, and leave nothing behind.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tallygate_testkit::http::{Client, request};
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Daemon, Port, Prometheus, Proxy, Ready, Tool, Upstream};

const ENVOY: &str = r#"
static_resources:
  listeners:
  - address: { socket_address: { address: 127.0.0.1, port_value: LISTEN } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: test
          route_config:
            virtual_hosts:
            - { name: all, domains: ["*"], routes: [{ match: { prefix: / }, route: { cluster: upstream } }] }
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: upstream
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: UPSTREAM } } }
"#;

const NGINX: &str = "
events {}
http {
  access_log off;
  server {
    listen 127.0.0.1:LISTEN;
    location / { proxy_pass http://127.0.0.1:UPSTREAM; }
  }
}
";

const CADDY: &str = "
http://127.0.0.1:LISTEN {
  reverse_proxy 127.0.0.1:UPSTREAM
}
";

const TRAEFIK: &str = "
entryPoints: { web: { address: 127.0.0.1:LISTEN } }
providers: { file: { directory: dynamic } }
";

const TRAEFIK_ROUTES: &str = "
http:
  routers: { all: { rule: PathPrefix(`/`), service: upstream } }
  services: { upstream: { loadBalancer: { servers: [{ url: http://127.0.0.1:UPSTREAM }] } } }
";

/// Starts it, sends requests through it over one connection, and checks that it is gone.
fn carries(tool: Tool, start: impl Fn(&dyn Fn(&str) -> String, u16) -> Proxy) {
    if !tool.available() {
        return;
    }
    let upstream = Upstream::start("from behind");
    let port = Port::reserve();
    let fill = |text: &str| {
        let text = text.replace("LISTEN", &port.number().to_string());
        text.replace("UPSTREAM", &upstream.port().to_string())
    };
    let proxy = start(&fill, port.number());
    assert_eq!(upstream.requests(), [], "waiting for the proxy asks nothing of what is behind it");

    let mut client = Client::open(proxy.addr()).unwrap();
    for number in 0..3 {
        let path = format!("/some/path?number={number}");
        let response = client.request("POST", &path, &[("X-Test", "yes")], b"body").unwrap();
        assert_eq!((response.status, response.text()), (200, "from behind"), "{}", proxy.daemon().log());
        let requests = upstream.take();
        assert_eq!(requests.len(), 1);
        let got = &requests[0];
        assert_eq!((got.method.as_str(), &got.path, got.body.as_slice()), ("POST", &path, &b"body"[..]));
        assert_eq!(got.header("x-test"), Some("yes"));
    }

    let (pid, folder) = (proxy.daemon().pid(), proxy.daemon().folder().to_owned());
    drop(proxy);
    assert!(!process_exists(pid) && !folder.exists());
    Client::open(SocketAddr::from(([127, 0, 0, 1], port.number()))).unwrap_err();
}

fn process_exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn envoy_carries_requests() {
    carries(Tool::Envoy, |fill, port| Proxy::envoy(&fill(ENVOY), &[port]));
}

#[test]
fn nginx_carries_requests() {
    carries(Tool::Nginx, |fill, port| Proxy::nginx(&fill(NGINX), &[port]));
}

#[test]
fn caddy_carries_requests() {
    carries(Tool::Caddy, |fill, port| Proxy::caddy(&fill(CADDY), &[port]));
}

#[test]
fn traefik_carries_requests() {
    carries(Tool::Traefik, |fill, port| Proxy::traefik(&fill(TRAEFIK), &fill(TRAEFIK_ROUTES), &[port]));
}

#[test]
fn two_of_a_kind_run_side_by_side() {
    if !Tool::Caddy.available() {
        return;
    }
    let start = || {
        let port = Port::reserve();
        let answer = format!("http://127.0.0.1:{} {{\n  respond \"from {}\"\n}}\n", port.number(), port.number());
        (Proxy::caddy(&answer, &[port.number()]), port)
    };
    for (proxy, port) in [start(), start()] {
        assert_eq!(request(proxy.addr(), "GET", "/", &[], b"").text(), format!("from {}", port.number()));
    }
}

#[test]
fn prometheus_scrapes_and_answers() {
    if !Tool::Prometheus.available() {
        return;
    }
    let target = Upstream::start("# TYPE cars gauge\ncars{colour=\"red & blue\"} 2.5\n");
    let (up, port) = (target.port(), Port::reserve());
    let down = port.number();
    let prometheus = Prometheus::start(&format!(
        "global: {{ scrape_interval: 100ms, scrape_timeout: 100ms }}\nscrape_configs:\n\
         - {{ job_name: test, static_configs: [{{ targets: ['127.0.0.1:{up}', '127.0.0.1:{down}'] }}] }}\n"
    ));
    // With a wait, because a scrape may be late on a busy machine.
    let seen = |expression: &str, label: &str, wanted: &[(&str, f64)]| {
        until(expression, PATIENCE, || {
            let samples = prometheus.query(expression);
            let seen: Vec<_> = samples.iter().map(|sample| (sample.label(label), sample.value)).collect();
            (seen == wanted).then_some(())
        });
    };
    seen("sort(up)", "instance", &[(&format!("127.0.0.1:{down}"), 0.0), (&format!("127.0.0.1:{up}"), 1.0)]);
    seen("cars{colour=\"red & blue\"} * 2", "colour", &[("red & blue", 5.0)]);
    assert_eq!(prometheus.query("absent_metric"), []);
    assert_eq!(prometheus.query("1 + 1")[0].value, 2.0);
    assert_eq!(target.requests()[0].path, "/metrics");
}

#[test]
fn every_tool_prints_its_version() {
    for tool in Tool::ALL.into_iter().filter(|tool| tool.available()) {
        let argument = match tool {
            Tool::Nginx => "-v",
            Tool::Caddy | Tool::Traefik => "version",
            _ => "--version",
        };
        let output = tool.command().arg(argument).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        assert!(output.status.success() && text.iter().any(u8::is_ascii_digit), "{tool:?}");
    }
}

#[test]
fn a_daemon_that_fails_to_come_up_shows_its_log() {
    let start = || {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such luck; exit 3"]);
        let port = Port::reserve();
        let _ = Daemon::start(command, tempfile::tempdir().unwrap(), &[Ready::Port(port.number())]);
    };
    let panic = std::thread::spawn(start).join().unwrap_err();
    let message = panic.downcast::<String>().unwrap();
    assert!(message.contains("did not come up") && message.contains("no such luck"), "{message}");
}

#[test]
fn a_daemon_gets_signals_and_is_waited_for() {
    let script = "trap 'echo again' HUP; trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done";
    // A shell cannot trap a signal that was ignored when it started, as SIGHUP is under `nohup`.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP,TERM", "sh", "-c", script]);
    let daemon = Daemon::start(command, tempfile::tempdir().unwrap(), &[]);
    let logged = |text: &str| until(text, PATIENCE, || daemon.log().contains(text).then_some(()));
    logged("up");
    daemon.hangup();
    logged("again");
    assert!(daemon.is_alive());
    daemon.terminate();
    assert_eq!(daemon.wait().code(), Some(7));
    assert!(daemon.log().ends_with("bye\n") && !daemon.is_alive());
}
