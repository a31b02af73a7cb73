//! A master, its replicas and three sentinels that monitor them.

use std::time::Duration;

use crate::find::Flavour;
use crate::server::Server;
use crate::wait::{PATIENCE, until};

/// The name of the master in the sentinels.
pub const NAME: &str = "tallygate";

/// Quorum 2, down after 1 s.
#[derive(Debug)]
pub struct Sentinel {
    /// Any of them may be the master.
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Sentinel {
    /// Starts a master, a replica and the sentinels, and waits until the sentinels know each other and the replica.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn start(flavour: Flavour) -> Self {
        Self::with_replicas(flavour, 1)
    }

    /// The same with more replicas.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn with_replicas(flavour: Flavour, replicas: usize) -> Self {
        let master = Server::of(flavour).start();
        let mut servers: Vec<_> = (0..replicas).map(|_| Server::of(flavour).replica_of(&master).start()).collect();
        let sentinels: Vec<_> = (0..3).map(|_| Server::of(flavour).sentinel_of(master.port()).start()).collect();
        for sentinel in &sentinels {
            until("the sentinels to find each other", PATIENCE, || {
                let known = |what: &str| Some(sentinel.command(&["SENTINEL", what, NAME]).items().len());
                (known("SENTINELS")? == 2 && known("REPLICAS")? == replicas).then_some(())
            });
        }
        servers.insert(0, master);
        Self { servers, sentinels }
    }

    /// `redis+sentinel://host:port,host:port,host:port/tallygate`
    #[must_use]
    pub fn url(&self) -> String {
        let addrs: Vec<_> = self.sentinels.iter().map(|one| one.addr().to_string()).collect();
        format!("redis+sentinel://{}/{NAME}", addrs.join(","))
    }

    /// The servers: the first master, then its replicas.
    #[must_use]
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The three sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The server that most sentinels currently name as the master.
    ///
    /// # Panics
    /// When no majority forms.
    #[must_use]
    pub fn master(&self) -> &Server {
        until("most sentinels to agree on a master", PATIENCE, || {
            self.servers.iter().find(|server| self.votes(server.port()) >= 2)
        })
    }

    fn votes(&self, port: u16) -> usize {
        self.sentinels.iter().filter(|sentinel| sentinel.is_alive() && names(sentinel, port)).count()
    }

    /// How often two of the three have switched to another master, whether that was requested or not.
    #[must_use]
    pub fn switches(&self) -> usize {
        let mut counts: Vec<_> =
            self.sentinels.iter().map(|sentinel| sentinel.log().matches("+switch-master").count()).collect();
        counts.sort_unstable();
        counts[1]
    }

    /// Requests a failover and waits for it. Returns the new master.
    ///
    /// # Panics
    /// When it does not happen.
    pub fn failover(&self) -> &Server {
        let old = self.master().port();
        until("a failover on request", PATIENCE, || {
            // Requested again: a sentinel gives a failover up that takes too long. It refuses another while one is in progress, and while it
            // knows too little about the replica.
            if names(&self.sentinels[0], old) {
                drop(self.sentinels[0].command(&["SENTINEL", "FAILOVER", NAME]));
            }
            std::thread::sleep(Duration::from_millis(100));
            self.promoted(old)
        })
    }

    /// Kills the master. Returns its port, for [`Sentinel::wait_for_new_master`].
    pub fn kill_master(&self) -> u16 {
        let master = self.master();
        master.kill();
        master.port()
    }

    /// Waits until most sentinels name another master than the one on port `old`, and it accepts writes.
    ///
    /// # Panics
    /// When that does not come.
    pub fn wait_for_new_master(&self, old: u16) -> &Server {
        until("a new master", PATIENCE, || self.promoted(old))
    }

    fn promoted(&self, old: u16) -> Option<&Server> {
        let server = self.master();
        (server.port() != old && server.info("role")? == "master").then_some(server)
    }
}

/// Whether a sentinel names the server on this port as the master.
fn names(sentinel: &Server, port: u16) -> bool {
    let reply = sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    reply.is_ok_and(|reply| reply.items().get(1).is_some_and(|named| named.int() == i64::from(port)))
}
