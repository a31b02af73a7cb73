//! How to start a server.

use std::fs;
use std::path::Path;
use std::sync::Mutex;

use super::{Failure, Server};
use crate::clock_shim::ClockShim;
use crate::find::Flavour;
use crate::port::Port;
use crate::tls::Certificates;
use crate::wait;

/// The password is not a secret: the server listens on loopback, for the length of a test.
const CONTROL_USER: &str = "testkit";
const CONTROL_PASSWORD: &str = "testkit";

const ATTEMPTS: usize = 10;

/// Builds a server; [`Builder::start`] starts it.
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    flavour: Flavour,
    args: Vec<String>,
    password: Option<String>,
    acl: Vec<String>,
    tls: bool,
    unix_socket: bool,
    skewed_clock: bool,
    cluster: bool,
    replica: bool,
    /// The port of the master to monitor.
    sentinel_of: Option<u16>,
}

impl Builder {
    pub(super) fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            args: Vec::new(),
            password: None,
            acl: Vec::new(),
            tls: false,
            unix_socket: false,
            skewed_clock: false,
            cluster: false,
            replica: false,
            sentinel_of: None,
        }
    }

    /// Adds a setting, as on the command line: `.arg("--maxmemory", "8mb")`. The last one wins.
    pub fn arg(mut self, name: &str, value: &str) -> Self {
        self.args.extend([name.to_owned(), value.to_owned()]);
        self
    }

    /// Sets the password of the default user.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    /// Adds a user, as in an ACL file: `.acl("user alice on >secret ~rl:* -@all +get")`.
    pub fn acl(mut self, line: &str) -> Self {
        self.acl.push(line.to_owned());
        self
    }

    /// Serves TLS with a certificate of a new CA; the control connection stays plain.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Also serves a Unix socket, and `url()` points to it.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Lets its wall clock be moved at run time with [`Server::skew`].
    pub fn skewed_clock(mut self) -> Self {
        self.skewed_clock = true;
        self
    }

    /// Makes it a replica of that server; started when its first synchronisation is done.
    pub fn replica_of(mut self, master: &Server) -> Self {
        self.replica = true;
        let address = format!("127.0.0.1 {}", master.port.number());
        let mut this = self.arg("--replicaof", &address);
        if let [.., password] = master.control_auth.as_slice() {
            this = this.arg("--masterauth", password);
        }
        if let [user, _] = master.control_auth.as_slice() {
            this = this.arg("--masteruser", user);
        }
        this
    }

    /// Makes it a node of a cluster, without other nodes yet.
    pub(crate) fn cluster(mut self) -> Self {
        self.cluster = true;
        self
    }

    /// Makes it a sentinel that monitors the master on this port, under the name `tallygate`.
    pub(crate) fn sentinel_of(mut self, master_port: u16) -> Self {
        self.sentinel_of = Some(master_port);
        self
    }

    /// Starts the server, and waits until it answers.
    ///
    /// # Panics
    /// When there is no binary, or it does not come up: with its log.
    #[must_use]
    pub fn start(self) -> Server {
        for _ in 0..ATTEMPTS {
            let server = self.prepare();
            match server.launch() {
                Ok(()) => {
                    if self.replica {
                        wait::until("the first synchronisation", wait::PATIENCE, || {
                            (server.info("master_link_status")? == "up").then_some(())
                        });
                    }
                    return server;
                }
                Err(Failure::PortTaken) => {}
                Err(Failure::Other(reason)) => panic!("{reason}"),
            }
        }
        panic!("{ATTEMPTS} times the chosen port was taken before the server could bind it");
    }

    fn prepare(&self) -> Server {
        let folder = tempfile::Builder::new().prefix("tallygate-").tempdir();
        let folder = folder.expect("the temp folder is writable");
        let mut server = Server {
            flavour: self.flavour,
            args: Vec::new(),
            control_auth: self.password.iter().cloned().collect(),
            password: self.password.clone(),
            port: Port::reserve(),
            tls: None,
            socket: self.unix_socket.then(|| folder.path().join("socket")),
            bus: self.cluster.then(Port::reserve),
            clock: self.skewed_clock.then(|| ClockShim::compile(folder.path())),
            child: Mutex::new(None),
            folder,
        };
        if let Some(master_port) = self.sentinel_of {
            server.args = sentinel_args(server.folder(), server.port.number(), master_port);
            return server;
        }
        let mut args = Args(Vec::new());
        args.set("--port", server.port.number());
        args.set("--bind", "127.0.0.1");
        args.set("--dir", server.folder().display());
        args.set("--save", "");
        args.set("--appendonly", "no");
        // Otherwise each first synchronisation waits 5 s for more replicas.
        args.set("--repl-diskless-sync-delay", 0);
        if let Some(socket) = &server.socket {
            args.set("--unixsocket", socket.display());
        }
        if let Some(bus) = &server.bus {
            args.set("--cluster-enabled", "yes");
            args.set("--cluster-port", bus.number());
            args.set("--cluster-node-timeout", 2000);
            args.set("--cluster-allow-replica-migration", "no");
        }
        if self.tls {
            let files = Certificates::generate(server.folder());
            let port = Port::reserve();
            args.set("--tls-port", port.number());
            args.set("--tls-ca-cert-file", files.ca.display());
            args.set("--tls-cert-file", files.certificate.display());
            args.set("--tls-key-file", files.key.display());
            args.set("--tls-auth-clients", "no");
            server.tls = Some((port, files.ca));
        }
        if !self.acl.is_empty() {
            args.set("--aclfile", self.write_acl(server.folder()));
            server.control_auth = vec![CONTROL_USER.to_owned(), CONTROL_PASSWORD.to_owned()];
        } else if let Some(password) = &self.password {
            args.set("--requirepass", password);
        }
        args.0.extend(self.args.iter().cloned());
        server.args = args.0;
        server
    }

    /// With an ACL file `requirepass` is ignored, so the default user's password goes in the file too.
    fn write_acl(&self, folder: &Path) -> String {
        let secret = match &self.password {
            Some(password) => format!(">{password}"),
            None => "nopass".to_owned(),
        };
        let mut text = format!("user {CONTROL_USER} on >{CONTROL_PASSWORD} ~* &* +@all\n");
        if !self.acl.iter().any(|line| line.starts_with("user default ")) {
            text += &format!("user default on {secret} ~* &* +@all\n");
        }
        for line in &self.acl {
            text += &format!("{line}\n");
        }
        let path = folder.join("users.acl");
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// A sentinel rewrites its configuration: it needs its own file, and a restart reads what it wrote.
fn sentinel_args(folder: &Path, port: u16, master_port: u16) -> Vec<String> {
    let path = folder.join("sentinel.conf");
    let text = format!(
        "port {port}\nbind 127.0.0.1\ndir {}\n\
         sentinel monitor tallygate 127.0.0.1 {master_port} 2\n\
         sentinel down-after-milliseconds tallygate 1000\n\
         sentinel failover-timeout tallygate 3000\n\
         sentinel parallel-syncs tallygate 1\n",
        folder.display()
    );
    fs::write(&path, text).unwrap();
    vec![path.display().to_string(), "--sentinel".to_owned()]
}

struct Args(Vec<String>);

impl Args {
    fn set(&mut self, name: &str, value: impl ToString) {
        self.0.extend([name.to_owned(), value.to_string()]);
    }
}
