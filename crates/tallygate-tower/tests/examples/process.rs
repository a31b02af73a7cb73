//! Running an example.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use tallygate_testkit::http::{Response, request};
use tallygate_testkit::{Daemon, wait};

/// Longer than any start takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The program that `cargo test` has built next to this test.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(program.exists(), "no {}: run `cargo build -p tallygate-tower --examples`", program.display());
    program
}

/// An example that listens.
#[derive(Debug)]
pub struct Listening {
    pub address: SocketAddr,
    process: Daemon,
}

impl Listening {
    /// Starts it on a free port.
    pub fn start(name: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program(name));
        command.arg("127.0.0.1:0").env_remove("TALLYGATE_STORE").envs(environment.iter().copied());
        let process = Daemon::start(command, tempfile::tempdir().unwrap(), &[]);
        let address = wait::until(&format!("the address of {name}"), PATIENCE, || {
            assert!(process.is_alive(), "{name} ended:\n{}", process.log());
            let log = process.log();
            let (_, rest) = log.split_once("listening on ")?;
            let (address, _) = rest.split_once('\n')?;
            Some(address.parse().unwrap())
        });
        Self { address, process }
    }

    /// The status of a call.
    pub fn status(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> u16 {
        self.call(method, path, headers, body).status
    }

    /// A call.
    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Response {
        request(self.address, method, path, headers, body.as_bytes())
    }

    /// Whatever it wrote.
    pub fn log(&self) -> String {
        self.process.log()
    }
}
