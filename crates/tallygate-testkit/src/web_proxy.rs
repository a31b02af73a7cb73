//! A web proxy as used in production, in front of anything its configuration names.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};

use tempfile::TempDir;

use crate::daemon::{Daemon, Ready};
use crate::tool::Tool;

/// Our own route, which answers by itself: Traefik listens before it has read its routes.
const TRAEFIK_READY: &str = r#"
http:
  routers:
    testkit-ready:
      rule: Path(`/testkit-ready`)
      priority: 1000000
      service: noop@internal
      middlewares: [testkit-ready]
  middlewares:
    testkit-ready:
      redirectRegex: { regex: ".*", replacement: "/ready" }
"#;

/// A running proxy. The caller supplies the configuration, including the ports; each should be held by a
/// [`crate::Port`].
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    daemon: Daemon,
}

impl Proxy {
    /// Envoy with this bootstrap, YAML or JSON, once all these ports listen.
    ///
    /// # Panics
    /// When it does not come up, with its log.
    #[must_use]
    #[track_caller]
    pub fn envoy(config: &str, ports: &[u16]) -> Self {
        let folder = folder(&[("envoy.yaml", config)]);
        let mut command = Tool::Envoy.command();
        // Hot restarts share memory by number, so two tests would collide.
        command.args(["--config-path", "envoy.yaml", "--disable-hot-restart", "--concurrency", "1"]);
        Self::start(Daemon::start(command, folder, &listening(ports)), ports)
    }

    /// nginx with this `nginx.conf`, once all these ports listen. `daemon`, `master_process` and `pid` are set here;
    /// relative paths are in its folder.
    ///
    /// # Panics
    /// When it does not come up, with its log.
    #[must_use]
    #[track_caller]
    pub fn nginx(conf: &str, ports: &[u16]) -> Self {
        let folder = folder(&[("nginx.conf", conf)]);
        let mut command = Tool::Nginx.command();
        // One process: workers would outlive a master that is killed.
        let directives = "daemon off; master_process off; pid nginx.pid;";
        command.arg("-p").arg(folder.path()).args(["-c", "nginx.conf", "-e", "stderr", "-g", directives]);
        Self::start(Daemon::start(command, folder, &listening(ports)), ports)
    }

    /// Caddy with this Caddyfile, once all these ports listen.
    ///
    /// # Panics
    /// When it does not come up, with its log.
    #[must_use]
    #[track_caller]
    pub fn caddy(caddyfile: &str, ports: &[u16]) -> Self {
        let folder = folder(&[("Caddyfile", caddyfile)]);
        let mut command = Tool::Caddy.command();
        command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
        // The defaults are a port that all of them share, and files in the user's home.
        command.env("CADDY_ADMIN", format!("unix/{}", folder.path().join("admin.sock").display()));
        for variable in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
            command.env(variable, folder.path());
        }
        Self::start(Daemon::start(command, folder, &listening(ports)), ports)
    }

    /// Traefik with this static configuration (YAML), which has to take its dynamic one from `directory: dynamic`,
    /// once its routes answer at all these ports.
    ///
    /// # Panics
    /// When it does not come up, with its log.
    #[must_use]
    #[track_caller]
    pub fn traefik(fixed: &str, dynamic: &str, ports: &[u16]) -> Self {
        assert!(fixed.contains("directory: dynamic"), "the file provider reads `directory: dynamic`:\n{fixed}");
        let files =
            [("traefik.yaml", fixed), ("dynamic/routes.yaml", dynamic), ("dynamic/testkit-ready.yaml", TRAEFIK_READY)];
        let folder = folder(&files);
        let mut command = Tool::Traefik.command();
        command.arg("--configFile=traefik.yaml");
        let ready: Vec<_> = ports.iter().map(|port| Ready::Http(*port, "/testkit-ready")).collect();
        Self::start(Daemon::start(command, folder, &ready), ports)
    }

    fn start(daemon: Daemon, ports: &[u16]) -> Self {
        Self { port: *ports.first().expect("a proxy listens somewhere"), daemon }
    }

    /// The address for clients: the first of its ports.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The process.
    #[must_use]
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }
}

fn listening(ports: &[u16]) -> Vec<Ready<'static>> {
    ports.iter().map(|port| Ready::Port(*port)).collect()
}

fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}
