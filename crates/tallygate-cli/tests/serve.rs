//! `tallygate serve`, the binary, as a stranger starts it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tallygate_testkit::{http, wait};

use crate::binary;

/// On free ports, unless `args` say otherwise.
pub(crate) fn serve(args: &[&str], environment: &[(&str, &str)]) -> Command {
    let mut command = binary();
    for listener in ["TALLYGATE_HTTP", "TALLYGATE_GRPC", "TALLYGATE_ADMIN"] {
        command.env(listener, "127.0.0.1:0");
    }
    command.arg("serve").args(args).envs(environment.iter().copied());
    command
}

/// A server that was started and has said where it listens.
pub(crate) struct Serving {
    child: Child,
    said: String,
}

impl Serving {
    pub(crate) fn start(args: &[&str], environment: &[(&str, &str)]) -> Self {
        let mut child = serve(args, environment).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = String::new();
        while !said.contains("Ctrl-C") {
            let Some(line) = lines.next() else {
                let mut error = String::new();
                child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
                panic!("it ended: {said}{error}");
            };
            said += &line.unwrap();
            said.push('\n');
        }
        Self { child, said }
    }

    /// The address behind a name of the banner.
    pub(crate) fn address(&self, name: &str) -> SocketAddr {
        let line = self.said.lines().find(|line| line.trim_start().starts_with(name)).unwrap();
        let address = line.split_whitespace().nth(1).unwrap();
        address.trim_start_matches("http://").parse().unwrap()
    }

    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Lets it end, and says with which code and what it logged.
    pub(crate) fn end(mut self) -> (Option<i32>, String) {
        let mut log = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        (self.child.wait().unwrap().code(), log)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An address that nobody listens on.
fn free_port() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// What `serve` says when it cannot start.
fn refused(args: &[&str], environment: &[(&str, &str)]) -> String {
    let output = serve(args, environment).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// The printed line, taken apart as a shell would: address, path, header, body.
fn printed_question(said: &str) -> (String, String) {
    let line = said.lines().find(|line| line.trim_start().starts_with("curl -i ")).unwrap();
    let url = line.split_whitespace().nth(2).unwrap();
    let body = line.split(" -d '").nth(1).unwrap().trim_end_matches('\'');
    assert!(line.contains("-H 'content-type: application/json'"), "{line}");
    (url.to_owned(), body.to_owned())
}

#[test]
fn the_printed_line_is_answered_until_it_is_denied_and_again_after_the_wait() {
    let server = Serving::start(&[], &[]);
    let (url, question) = printed_question(&server.said);
    let path = url.strip_prefix(&format!("http://{}", server.address("http"))).unwrap();
    let ask = || {
        let headers = [("content-type", "application/json")];
        http::request(server.address("http"), "POST", path, &headers, question.as_bytes())
    };
    for left in (0..10).rev() {
        let allowed = ask();
        assert_eq!(allowed.status, 200, "{}", allowed.text());
        let reported: Value = serde_json::from_slice(&allowed.body).unwrap();
        assert_eq!(reported["remaining"], left);
    }
    let denied = ask();
    assert_eq!((denied.status, denied.header("content-type")), (429, Some("application/problem+json")));
    let reported: Value = serde_json::from_slice(&denied.body).unwrap();
    let exact = Duration::from_millis(reported["retry_after_ms"].as_u64().unwrap());
    let seconds: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(seconds, exact.as_secs_f64().ceil() as u64);
    std::thread::sleep(Duration::from_secs(seconds));
    assert_eq!(ask().status, 200);
}

#[test]
fn sigterm_ends_it_quietly_and_sighup_reads_the_policies_again() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policies.yaml");
    std::fs::write(&file, "policies: [{name: p, domain: api, limit: 5/min}]").unwrap();
    let server = Serving::start(&["--config", file.to_str().unwrap()], &[]);
    let limit = || {
        let page = http::request(server.address("admin"), "GET", "/v1/config", &[], b"");
        let config: Value = serde_json::from_slice(&page.body).unwrap();
        config["policies"][0]["limit"].as_str().unwrap().to_owned()
    };
    assert_eq!(limit(), "5/min");
    std::fs::write(&file, "policies: [{name: p, domain: api, limit: 7/min}]").unwrap();
    server.signal("-HUP");
    wait::until("the new policies", Duration::from_secs(10), || (limit() == "7/min").then_some(()));
    server.signal("-TERM");
    let (code, log) = server.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("policies reloaded") && log.contains("all requests were finished"), "{log}");
}

#[test]
fn settings_come_from_the_environment_too_and_logs_can_be_json() {
    let [http, admin] = [free_port(), free_port()];
    let (http_text, admin_text) = (http.to_string(), admin.to_string());
    let environment = [
        ("TALLYGATE_HTTP", http_text.as_str()),
        ("TALLYGATE_ADMIN", &admin_text),
        ("TALLYGATE_HEADERS", "draft6"),
        ("TALLYGATE_LOG_FORMAT", "json"),
        ("TALLYGATE_TOKEN", "0123456789abcdef"),
    ];
    let child = serve(&[], &environment).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut server = Serving { child, said: String::new() };
    let health = || crate::run(["health", "--server", http_text.as_str()]).code;
    wait::until("a server", Duration::from_secs(10), || (health() == 0).then_some(()));
    let headers = [("content-type", "application/json")];
    let answer = http::request(http, "POST", "/v1/check", &headers, br#"{"key":"a","limit":"5/s"}"#);
    assert_eq!(answer.header("ratelimit-limit"), Some("5"));
    assert_eq!(http::request(admin, "GET", "/metrics", &[], b"").status, 401);
    server.signal("-TERM");
    let mut stdout = server.child.stdout.take().unwrap();
    let (_, log) = server.end();
    assert!(!log.is_empty());
    let mut banner = String::new();
    stdout.read_to_string(&mut banner).unwrap();
    assert_eq!(banner, "", "with JSON nothing but the log is printed");
    for line in log.lines() {
        let _: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    }
}

#[test]
fn what_cannot_be_started_says_why_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policies.yaml");
    std::fs::write(&file, "policies: [{name: p, limit: 5/min, moed: shadow}]").unwrap();
    let error = refused(&["--config", file.to_str().unwrap()], &[]);
    assert!(error.contains("policies.yaml:1:36: error:") && error.contains("`mode`"), "{error}");
    let error = refused(&["--config", "/nowhere/at-all.yaml"], &[]);
    assert!(error.contains("/nowhere/at-all.yaml") && error.contains("No such file"), "{error}");
    let error = refused(&["--admin", "0.0.0.0:0"], &[]);
    assert!(error.contains("--token-file") && error.contains("127.0.0.1"), "{error}");
    let error = refused(&[], &[("TALLYGATE_TOKEN", "short")]);
    assert!(error.contains("at least 16") && error.contains("openssl"), "{error}");
    let error = refused(&["--store", "redi://example"], &[]);
    assert!(error.contains("redis://"), "{error}");
    let error = refused(&["--headers", "draft11"], &[]);
    assert!(error.contains("draft10"), "{error}");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = refused(&["--http", &taken.local_addr().unwrap().to_string()], &[]);
    assert!(error.contains("cannot listen on") && error.contains("another port"), "{error}");
    assert!(error.contains("--http: ") && error.matches("Address already in use").count() == 1, "{error}");
    let error = refused(&["--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem"], &[]);
    assert!(error.contains("/nowhere/cert.pem"), "{error}");
}

#[test]
fn an_unreachable_store_does_not_keep_it_from_starting() {
    let server = Serving::start(&["--store", "redis://127.0.0.1:1"], &[]);
    let ready = http::request(server.address("http"), "GET", "/readyz", &[], b"");
    assert_eq!(ready.status, 503);
    assert_eq!(http::request(server.address("http"), "GET", "/livez", &[], b"").status, 200);
    assert!(server.said.contains("127.0.0.1:1"), "{}", server.said);
}

#[test]
fn listeners_that_cannot_be_served_are_refused() {
    let error = refused(&["--http", "off", "--grpc", "off", "--admin", "off"], &[]);
    assert!(error.contains("there is nothing to serve"), "{error}");
    let port = free_port().to_string();
    let error = refused(&["--http", &port, "--grpc", &port], &[]);
    assert!(error.contains("--http and --grpc are both"), "{error}");
    let error = refused(&["--http", ":8080"], &[]);
    assert!(error.contains("127.0.0.1:8080") && error.contains("0.0.0.0:8080"), "{error}");
}

#[test]
fn empty_variables_count_as_unset() {
    let names = ["STORE", "CONFIG", "TOKEN", "TRUSTED_PROXIES", "OTLP", "TLS_CERT", "LOG", "LOG_LEVEL", "HEADERS"];
    let names = names.map(|name| format!("TALLYGATE_{name}"));
    let environment: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let server = Serving::start(&[], &environment);
    let headers = [("x-forwarded-for", "192.0.2.1"), ("x-forwarded-uri", "/"), ("x-forwarded-method", "GET")];
    let answer = http::request(server.address("http"), "GET", "/v1/forward-auth", &headers, b"");
    assert_ne!(answer.status, 421, "loopback is still trusted: {}", answer.text());
}

#[test]
fn mistyped_variables_and_skipped_files_are_logged_each_on_one_line() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.yaml"), "policies: [{name: p, domain: api, limit: 5/min}]").unwrap();
    std::fs::write(folder.path().join("c"), "").unwrap();
    let server = Serving::start(&["--config", folder.path().to_str().unwrap()], &[("TALLYGATE_CONFG", "x")]);
    server.signal("-TERM");
    let (_, log) = server.end();
    assert!(log.contains("TALLYGATE_CONFG: did you mean TALLYGATE_CONFIG?"), "{log}");
    assert!(log.contains("/c: warning: this file is skipped"), "{log}");
    assert!(log.contains("all callers share one count file="), "{log}");
    assert!(log.contains(r#"help="name the entries"#), "{log}");
    assert!(!log.contains("\\n"), "{log}");
}

#[test]
fn the_printed_line_falls_under_the_first_policy_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policies.yaml");
    let text = "policies: [{name: p, domain: api, match: {plan: free}, partition: [user], limit: 2/h}]";
    std::fs::write(&file, text).unwrap();
    let server = Serving::start(&["--config", file.to_str().unwrap()], &[]);
    let (_, question) = printed_question(&server.said);
    let headers = [("content-type", "application/json")];
    let ask = || http::request(server.address("http"), "POST", "/v1/check", &headers, question.as_bytes()).status;
    assert_eq!([ask(), ask(), ask()], [200, 200, 429], "{question}");
}

#[test]
fn a_refused_collector_is_not_printed_with_its_query() {
    let error = refused(&["--otlp", "http://127.0.0.1:4318/?key=hunter2"], &[]);
    assert!(error.contains("--otlp") && !error.contains("hunter2"), "{error}");
}

#[test]
fn the_level_of_the_log_is_an_option() {
    let server = Serving::start(&["--log-level", "error"], &[("TALLYGATE_LOG", "debug")]);
    server.signal("-TERM");
    assert_eq!(server.end().1, "");
    let error = refused(&["--log-level", "verbose"], &[]);
    assert!(error.contains("verbose"), "{error}");
}

/// The message named the option only, which nobody had given.
#[test]
fn an_invalid_variable_is_reported_by_its_name() {
    let tip = "tip: the value is from the environment variable TALLYGATE_HTTP";
    let error = refused(&[], &[("TALLYGATE_HTTP", "80x")]);
    assert!(error.contains("--http") && error.contains(tip), "{error}");
    for args in [&["--http", "80x"][..], &["--http=80x"]] {
        let error = refused(args, &[("TALLYGATE_HTTP", "80x")]);
        assert!(error.contains("--http") && !error.contains("TALLYGATE_HTTP"), "{error}");
    }
}

/// The printed line was refused with 401.
#[test]
fn the_printed_line_has_the_header_of_the_token_if_checks_need_one() {
    let printed = |token| Serving::start(&[], &[("TALLYGATE_TOKEN", token)]).said.clone();
    let header = " -H 'Authorization: Bearer <token>' -d '";
    assert!(printed("api:check:0123456789abcdef").contains(header));
    assert!(!printed("0123456789abcdef").contains(header));
}

/// The message named `TALLYGATE_LOG` whatever was used.
#[test]
fn an_unknown_log_level_is_reported_with_the_option_or_variable_that_it_is_from() {
    let refused = |args: &[&str], environment: &[(&str, &str)]| {
        let error = refused(args, environment);
        let (from, rest) = error.strip_prefix("error: ").unwrap().split_once(": ").unwrap();
        assert!(rest.starts_with("unknown log level \"inof\" (did you mean `info`?); "), "{error}");
        from.to_owned()
    };
    let (level, older) = (("TALLYGATE_LOG_LEVEL", "inof"), ("TALLYGATE_LOG", "inof"));
    assert_eq!(refused(&["--log-level", "inof"], &[]), "--log-level");
    assert_eq!(refused(&["--log-level", "inof"], &[("TALLYGATE_LOG_LEVEL", "info"), older]), "--log-level");
    assert_eq!(refused(&[], &[level, ("TALLYGATE_LOG", "info")]), "TALLYGATE_LOG_LEVEL");
    assert_eq!(refused(&[], &[older]), "TALLYGATE_LOG");
}

/// What the help of `serve` prints, on one line.
fn help() -> String {
    crate::run(["serve", "--help"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The variables in the help of `serve`.
fn variables(help: &str) -> BTreeSet<&str> {
    help.split("[env: ").skip(1).map(|rest| rest.split(['=', ']']).next().unwrap()).collect()
}

/// It said so of every option.
#[test]
fn every_option_of_serve_but_color_has_a_variable() {
    let help = help();
    assert!(help.contains("Every option but --color has a variable"), "{help}");
    let options = help.split(" Options: ").nth(1).unwrap().split(" Examples: ").next().unwrap();
    let without = ["--color <WHEN>", "--help", "--version"];
    for option in without {
        assert!(options.contains(option), "{options}");
    }
    // Its value is in angle brackets: an option, not a mention of one.
    let names = options.split(" --").filter(|rest| rest.split(' ').nth(1).is_some_and(|word| word.starts_with('<')));
    assert_eq!(names.count(), variables(&help).len() + 1, "{options}");
}

/// Its lines were invitations to set variables to nothing, and some variables were missing.
#[test]
fn the_default_file_of_the_package_has_every_variable_and_none_that_is_empty_or_unknown() {
    let file = include_str!("../../../deploy/debian/tallygate.default");
    let lines = file.lines().filter_map(|line| line.strip_prefix('#')?.split_once('='));
    let lines: Vec<(&str, &str)> = lines.filter(|(name, _)| name.starts_with("TALLYGATE_")).collect();
    for (name, value) in &lines {
        assert!(!value.is_empty(), "{name}");
    }
    let mut listed: BTreeSet<&str> = lines.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed.len(), lines.len(), "a variable is listed twice");
    let (help, unit) = (help(), include_str!("../../../deploy/systemd/tallygate.service"));
    let mut known = variables(&help);
    // The unit sets these.
    known.retain(|name| !unit.contains(&format!("{name}=")));
    // The package has the default features.
    listed.retain(|name| cfg!(feature = "otlp") || !name.starts_with("TALLYGATE_OTLP"));
    assert_eq!(listed, known, "left: the file, right: `tallygate serve --help`");
}
