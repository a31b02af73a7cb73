//! One throwaway process of any program: started in its own folder, killed when dropped.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::wait::{PATIENCE, until};
use crate::{http, watchdog};

/// How to tell that it is up, on 127.0.0.1.
#[derive(Debug, Clone, Copy)]
pub enum Ready<'a> {
    /// This port accepts connections.
    Port(u16),
    /// A GET of this path at this port is answered with 2xx or 3xx.
    Http(u16, &'a str),
}

impl Ready<'_> {
    fn holds(self) -> bool {
        match self {
            Self::Port(port) => TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok(),
            Self::Http(port, path) => {
                let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                let response = http::try_request(addr, "GET", path, &[("Connection", "close")], b"");
                response.is_ok_and(|response| (200..400).contains(&response.status))
            }
        }
    }
}

/// A running process. All methods take `&self`, so that one thread can kill it while others use it.
#[derive(Debug)]
pub struct Daemon {
    name: String,
    child: Mutex<Option<Child>>,
    /// Last, so that the folder outlives the process.
    folder: TempDir,
}

impl Daemon {
    /// Runs the command in the folder, with its output in a log there, and waits until it is up. It must not fork,
    /// because only the process itself is killed.
    ///
    /// # Panics
    /// When it exits or does not come up in time, with its log.
    #[must_use]
    #[track_caller]
    pub fn start(mut command: Command, folder: TempDir, ready: &[Ready<'_>]) -> Self {
        let program = Path::new(command.get_program()).file_name().unwrap_or_default();
        let name = program.to_string_lossy().into_owned();
        let log = File::create(log_path(&folder)).unwrap();
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        let child = command.spawn().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        watchdog::began(child.id(), folder.path());
        let daemon = Self { name, child: Mutex::new(Some(child)), folder };

        let start = Instant::now();
        for ready in ready {
            while !ready.holds() {
                if !daemon.is_alive() || start.elapsed() > PATIENCE {
                    daemon.kill();
                    panic!("{command:?} did not come up ({ready:?}):\n{}", daemon.log());
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        daemon
    }

    /// Its folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its standard output and error so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read(log_path(&self.folder)).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// The process id.
    ///
    /// # Panics
    /// When it was killed or waited for.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child().as_ref().expect("it runs").id()
    }

    /// Whether it is still running.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.child().as_mut().is_some_and(|child| child.try_wait().unwrap().is_none())
    }

    /// Sends SIGTERM.
    ///
    /// # Panics
    /// When it has ended already.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGHUP, on which many programs reload their configuration.
    ///
    /// # Panics
    /// When it has ended.
    pub fn hangup(&self) {
        self.signal(Signal::HUP);
    }

    /// Stops it (SIGSTOP), as if the machine gave it no time.
    ///
    /// # Panics
    /// When it has ended.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues it (SIGCONT).
    ///
    /// # Panics
    /// When it has ended.
    pub fn cont(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let mut child = self.child();
        let child = child.as_mut().expect("it runs");
        assert!(child.try_wait().unwrap().is_none(), "{} has ended", self.name);
        kill_process(Pid::from_child(child), signal).expect("it is our child and has not been waited for");
    }

    /// Waits until it exits, possibly after [`Daemon::terminate`].
    ///
    /// # Panics
    /// When it does not, in time, or was waited for already.
    pub fn wait(&self) -> ExitStatus {
        let what = format!("{} to end", self.name);
        let status = until(&what, PATIENCE, || self.child().as_mut().expect("it runs").try_wait().unwrap());
        self.kill();
        status
    }

    /// Kills it with SIGKILL, like a crash.
    pub fn kill(&self) {
        if let Some(mut child) = self.child().take() {
            // Fails only if it has already exited.
            let _ = child.kill();
            let _ = child.wait();
            watchdog::ended(child.id());
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.lines().rev().take(20).collect::<Vec<_>>();
            eprintln!("last lines of {}:", self.name);
            tail.iter().rev().for_each(|line| eprintln!("  {line}"));
        }
    }
}

fn log_path(folder: &TempDir) -> PathBuf {
    folder.path().join("daemon.log")
}
