//! A TCP port that no other test, in this process or another, will choose while it is held.

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::{env, process};

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FlockOperation, flock};

/// Below the kernel's range for outgoing connections (32768 and up), so that a killed server can get its port back.
const FIRST: u32 = 12_000;
const COUNT: u32 = 20_000;

/// Reserved until dropped, by a lock that the kernel releases even if this process is killed.
#[derive(Debug)]
pub struct Port {
    number: u16,
    _lock: File,
}

impl Port {
    /// A free port.
    ///
    /// # Panics
    /// When none is.
    #[must_use]
    pub fn reserve() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let folder = env::temp_dir().join(format!("tallygate-ports-{}", rustix::process::getuid().as_raw()));
        fs::create_dir_all(&folder).expect("the temp folder is writable");
        // Processes start far apart, so that they rarely collide.
        let start = process::id().wrapping_mul(7919);
        for _ in 0..COUNT {
            let step = NEXT.fetch_add(1, Ordering::Relaxed);
            let number = u16::try_from(FIRST + start.wrapping_add(step) % COUNT).expect("the range ends below 65536");
            let lock = File::create(folder.join(number.to_string())).expect("the lock folder is ours");
            let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
            if locked && TcpListener::bind((Ipv4Addr::LOCALHOST, number)).is_ok() {
                return Self { number, _lock: lock };
            }
        }
        panic!("no free TCP port from {FIRST} to {}", FIRST + COUNT);
    }

    /// The port number.
    #[must_use]
    pub fn number(&self) -> u16 {
        self.number
    }
}
