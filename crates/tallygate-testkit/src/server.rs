//! One throwaway server: a real process on a free port of 127.0.0.1, killed when dropped.

mod builder;

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::clock_shim::ClockShim;
use crate::find::Flavour;
use crate::port::Port;
use crate::resp::{Connection, Reply};
use crate::wait::PATIENCE;
use crate::watchdog;

pub use builder::Builder;

/// For commands of the control connection.
const CONTROL_TIMEOUT: Duration = Duration::from_secs(10);

/// A running server. All methods take `&self`, so that one thread can break it while others use it.
#[derive(Debug)]
pub struct Server {
    flavour: Flavour,
    args: Vec<String>,
    /// The arguments of `AUTH` for the control connection.
    control_auth: Vec<String>,
    password: Option<String>,
    port: Port,
    tls: Option<(Port, PathBuf)>,
    socket: Option<PathBuf>,
    bus: Option<Port>,
    clock: Option<ClockShim>,
    child: Mutex<Option<Child>>,
    /// Last, so that the folder outlives the process.
    folder: TempDir,
}

/// The reason why a server did not come up.
enum Failure {
    PortTaken,
    Other(String),
}

impl Server {
    /// Builds a `redis-server`.
    pub fn redis() -> Builder {
        Builder::new(Flavour::Redis)
    }

    /// Builds a `valkey-server`.
    pub fn valkey() -> Builder {
        Builder::new(Flavour::Valkey)
    }

    /// Builds a server of this kind.
    pub fn of(flavour: Flavour) -> Builder {
        Builder::new(flavour)
    }

    /// The kind of server.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// The URL for clients of `tallygate-redis`: the Unix socket or TLS (with `?ca=`) if it has one, else plain TCP;
    /// with the password, if any.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_for(&self.password.as_deref().map_or_else(String::new, |password| format!(":{}@", encode(password))))
    }

    /// The same for a user created with [`Builder::acl`].
    #[must_use]
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_for(&format!("{}:{}@", encode(user), encode(password)))
    }

    fn url_for(&self, login: &str) -> String {
        match (&self.socket, &self.tls) {
            (Some(socket), _) => format!("redis+unix://{login}{}", socket.display()),
            (None, Some((_, ca))) => format!("rediss://{login}{}?ca={}", self.addr(), ca.display()),
            (None, None) => format!("redis://{login}{}", self.addr()),
        }
    }

    /// The address for clients: the TLS one, if it has one.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The port for clients: the TLS one, if it has one.
    #[must_use]
    pub fn port(&self) -> u16 {
        let port = self.tls.as_ref().map_or(&self.port, |(port, _)| port);
        port.number()
    }

    /// The port of the cluster bus.
    #[must_use]
    pub fn bus_port(&self) -> Option<u16> {
        self.bus.as_ref().map(Port::number)
    }

    /// The path of the CA certificate.
    ///
    /// # Panics
    /// Without [`Builder::tls`].
    #[must_use]
    pub fn ca_path(&self) -> &Path {
        let (_, ca) = self.tls.as_ref().expect("started with .tls()");
        ca
    }

    /// Its folder: data, log, socket, certificates.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its log since the last start.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The process id.
    ///
    /// # Panics
    /// When it was killed.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.lock().unwrap().as_ref().expect("it runs").id()
    }

    /// Whether it was started and not killed since; a stopped server is alive.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let mut child = self.child.lock().unwrap();
        child.as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// A control connection: plain TCP with full permissions, whatever is configured for clients.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn connect(&self) -> io::Result<Connection> {
        let addr = (Ipv4Addr::LOCALHOST, self.port.number()).into();
        let mut connection = Connection::open(addr, CONTROL_TIMEOUT)?;
        if !self.control_auth.is_empty() {
            let mut auth = vec!["AUTH".to_owned()];
            auth.extend_from_slice(&self.control_auth);
            let reply = connection.call(&auth)?;
            if reply.is_error() {
                return Err(io::Error::other(reply.text()));
            }
        }
        Ok(connection)
    }

    /// Runs a command on a new control connection. An error reply is a value: [`Reply::Error`].
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn try_command(&self, args: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.connect()?.call(args)
    }

    /// Runs a command on a new control connection. An error reply is a value: [`Reply::Error`].
    ///
    /// # Panics
    /// When the server does not answer.
    #[track_caller]
    pub fn command(&self, args: &[impl AsRef<[u8]>]) -> Reply {
        match self.try_command(args) {
            Ok(reply) => reply,
            Err(error) => panic!("no answer from {}: {error}", self.addr()),
        }
    }

    /// The value of one line of `INFO`.
    #[must_use]
    pub fn info(&self, name: &str) -> Option<String> {
        field(&self.try_command(&["INFO"]).ok()?.text(), name)
    }

    /// Stops it (SIGSTOP): the kernel still accepts connections, but nothing answers.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it (SIGCONT).
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let child = self.child.lock().unwrap();
        let child = child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).expect("it is our child and has not been waited for");
    }

    /// Kills it with SIGKILL, like a crash.
    pub fn kill(&self) {
        if let Some(mut child) = self.child.lock().unwrap().take() {
            // Fails only if it has already exited.
            let _ = child.kill();
            let _ = child.wait();
            watchdog::ended(child.id());
        }
    }

    /// Starts it again after a kill: same port, same folder, and no data unless persistence was configured.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn restart(&self) {
        self.kill();
        match self.launch() {
            Ok(()) => {}
            Err(Failure::PortTaken) => panic!("port {} was taken in the meantime", self.port.number()),
            Err(Failure::Other(reason)) => panic!("{reason}"),
        }
    }

    /// Sets the offset of its wall clock in microseconds; every later command sees it.
    ///
    /// # Panics
    /// Without [`Builder::skewed_clock`].
    pub fn skew(&self, micros: i64) {
        let clock = self.clock.as_ref();
        clock.expect("started with .skewed_clock()").skew(micros);
        // Valkey 9 reads the clock at most once per millisecond.
        std::thread::sleep(Duration::from_millis(2));
    }

    fn log_path(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }

    fn launch(&self) -> Result<(), Failure> {
        let log = File::create(self.log_path()).unwrap();
        let mut command = Command::new(self.flavour.binary());
        command
            .args(&self.args)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        if let Some(clock) = &self.clock {
            clock.preload(&mut command);
        }
        let child = command.spawn().expect("the binary was found");
        let pid = child.id();
        watchdog::began(pid, self.folder.path());
        *self.child.lock().unwrap() = Some(child);

        let start = Instant::now();
        while !self.answers_as(pid) {
            let exited = !self.is_alive();
            if exited || start.elapsed() > PATIENCE {
                self.kill();
                let log = self.log();
                return Err(if log.contains("Address already in use") {
                    Failure::PortTaken
                } else {
                    let name = self.flavour.binary_name();
                    Failure::Other(format!("{name} {:?} did not come up:\n{log}", self.args))
                });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// By process id, because another server may have the port that ours fails to bind.
    fn answers_as(&self, pid: u32) -> bool {
        let answered = || {
            let mut connection = self.connect()?;
            let pong = connection.call(&["PING"])?;
            Ok::<_, io::Error>((pong, connection.call(&["INFO", "server"])?))
        };
        answered().is_ok_and(|(pong, info)| {
            pong == Reply::Simple("PONG".to_owned()) && field(&info.text(), "process_id") == Some(pid.to_string())
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.lines().rev().take(10).collect::<Vec<_>>();
            eprintln!("last lines of {}:", self.addr());
            tail.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
    }
}

/// One `name:value` line of a text such as `INFO`'s.
pub(crate) fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key == name).then(|| value.trim_end().to_owned())
    })
}

fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}
