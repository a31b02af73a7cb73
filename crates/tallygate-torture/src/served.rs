//! A server process, its policies, and a small asynchronous HTTP client.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tallygate_testkit::{Daemon, Port, Ready};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::schedule::{SPENT, Schedule};

/// More than one call may have.
pub const MANY: usize = 40;
/// Shadows beside a call.
pub const SHADOWS: usize = 8;
/// What a flood may have in all.
pub const FLOOD_LIMIT: u64 = 100;

/// `tallygate serve` on free ports.
#[derive(Debug)]
pub struct Served {
    /// The process.
    pub daemon: Daemon,
    http: Port,
    grpc: Port,
    _admin: Port,
}

impl Served {
    /// Starts it over this store.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn start(store: &str, schedule: &Schedule) -> Self {
        Self::with_policies(store, &policies(schedule), schedule.load.deadline)
    }

    /// The same with a policy file of its own.
    ///
    /// # Panics
    /// When it does not come up.
    #[must_use]
    pub fn with_policies(store: &str, policies: &str, deadline: Duration) -> Self {
        let folder = tempfile::Builder::new().prefix("tallygate-torture-").tempdir().expect("a temp folder");
        let config = folder.path().join("policies.yaml");
        fs::write(&config, policies).expect("the folder is writable");
        let [http, grpc, admin] = [Port::reserve(), Port::reserve(), Port::reserve()];
        let local = |port: &Port| format!("127.0.0.1:{}", port.number());
        let mut command = Command::new(binary());
        command.arg("serve").arg("--config").arg(&config).args(["--store", store]);
        command.args(["--http", &local(&http), "--grpc", &local(&grpc), "--admin", &local(&admin)]);
        let deadline = format!("{}ms", deadline.as_millis());
        command.args(["--store-deadline", &deadline, "--log-format", "json"]);
        let daemon = Daemon::start(command, folder, &[Ready::Http(http.number(), "/readyz")]);
        Self { daemon, http, grpc, _admin: admin }
    }

    /// Where its HTTP API listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.http.number()).into()
    }

    /// Where Envoy's service listens.
    #[must_use]
    pub fn grpc(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.grpc.number()).into()
    }

    /// How long each thread was ready to run and waited for a processor, in microseconds since it began. Empty where the kernel does
    /// not say.
    #[must_use]
    pub fn run_delays(&self) -> Vec<(OsString, u64)> {
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", self.daemon.pid())) else { return Vec::new() };
        let delay = |thread: fs::DirEntry| {
            let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
            let nanos: u64 = text.split_whitespace().nth(1)?.parse().ok()?;
            Some((thread.file_name(), nanos / 1000))
        };
        threads.flatten().filter_map(delay).collect()
    }

    /// Resident memory in MiB, and open descriptors.
    #[must_use]
    pub fn usage(&self) -> (u64, usize) {
        let folder = PathBuf::from(format!("/proc/{}", self.daemon.pid()));
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib = line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0);
        (kib / 1024, fs::read_dir(folder.join("fd")).map_or(0, Iterator::count))
    }
}

/// `TALLYGATE_BINARY`, or the one that was built beside this program.
fn binary() -> PathBuf {
    if let Some(path) = env::var_os("TALLYGATE_BINARY") {
        return path.into();
    }
    let this = env::current_exe().expect("this program has a path");
    let beside = this.ancestors().skip(1).take(2).map(|folder| folder.join("tallygate")).find(|path| path.is_file());
    beside.expect(
        "no `tallygate` beside this program: build it with `cargo build -p tallygate-cli`, or set TALLYGATE_BINARY",
    )
}

fn policies(schedule: &Schedule) -> String {
    let mut text = "policies:\n".to_owned();
    let mut policy = |name: &str, matching: &str, partition: &str, limit: &str, rest: &str| {
        writeln!(
            text,
            "  - {{name: {name}, domain: t, match: {{{matching}}}, partition: [{partition}], limit: {limit}{rest}}}"
        )
        .expect("a string");
    };
    for (index, limit) in schedule.load.limits.iter().enumerate() {
        let on_error = ["local", "deny", "allow"][index % 3];
        let window = limit.window().as_millis();
        let rest = format!(", algorithm: {}, on_error: {on_error}", limit.algorithm());
        policy(
            &format!("p{index}"),
            &format!("m{index}: \"1\""),
            "u",
            &format!("{}/{window}ms", limit.amount()),
            &rest,
        );
    }
    let day = ", algorithm: fixed_window_from_first_call";
    policy(SPENT, "", "a", "1/day", &format!("{day}, on_error: deny"));
    policy("shared", "", "tenant", "1000000/day", &format!("{day}, on_error: deny"));
    policy("shared_quota", "", "tenant", "1000000/day", &format!("{day}, on_error: deny, mode: quota"));
    policy("flood_allow", "flood: allow", "f", &format!("{FLOOD_LIMIT}/day"), &format!("{day}, on_error: allow"));
    policy("flood_local", "flood: local", "f", &format!("{FLOOD_LIMIT}/day"), &format!("{day}, on_error: local"));
    policy("flood_deny", "flood: deny", "f", &format!("{FLOOD_LIMIT}/day"), &format!("{day}, on_error: deny"));
    for index in 0..SHADOWS {
        policy(&format!("shadow{index}"), "shadow: \"1\"", "u", "1000000/day", ", mode: shadow");
    }
    for index in 0..MANY {
        policy(&format!("many{index:02}"), &format!("ua: \"*tok{index:02}*\""), "ip", "1000/day", "");
    }
    text
}

/// A kept connection.
#[derive(Debug)]
pub struct HttpClient {
    stream: TcpStream,
}

/// A response: the status and the body.
pub type Response = (u16, Vec<u8>);

impl HttpClient {
    /// Connects.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn open(addr: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream })
    }

    /// Sends a request, and reads the response.
    ///
    /// # Errors
    /// Those of the socket, and an answer that is not HTTP.
    pub async fn post(&mut self, path: &str, body: &str) -> io::Result<Response> {
        self.send(path, body).await?;
        self.receive().await
    }

    /// Asks for a page.
    ///
    /// # Errors
    /// Those of the socket, and an answer that is not HTTP.
    pub async fn get(&mut self, path: &str) -> io::Result<Response> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n");
        self.stream.write_all(request.as_bytes()).await?;
        self.receive().await
    }

    /// Sends a request.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn send(&mut self, path: &str, body: &str) -> io::Result<()> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.stream.write_all(request.as_bytes()).await
    }

    /// Sends only a part of a request, and leaves the rest to come.
    ///
    /// # Errors
    /// Those of the socket.
    pub async fn send_part(&mut self) -> io::Result<()> {
        let head = "POST /v1/check HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n{";
        self.stream.write_all(head.as_bytes()).await
    }

    async fn receive(&mut self) -> io::Result<Response> {
        let mut bytes = Vec::with_capacity(1024);
        let mut expected = None;
        loop {
            if let Some((head, length)) = expected
                && bytes.len() >= head + length
            {
                let status = std::str::from_utf8(&bytes[9..12]).ok().and_then(|text| text.parse().ok());
                let status = status.ok_or(io::ErrorKind::InvalidData)?;
                return Ok((status, bytes[head..head + length].to_vec()));
            }
            if self.stream.read_buf(&mut bytes).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if expected.is_none()
                && let Some(head) = bytes.windows(4).position(|four| four == b"\r\n\r\n")
            {
                let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
                let length = text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
                expected = Some((head + 4, length.unwrap_or(0)));
            }
        }
    }
}
