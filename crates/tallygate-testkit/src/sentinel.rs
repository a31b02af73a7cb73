//! A master, a replica and three sentinels that monitor them.

use std::time::Duration;

use crate::find::Flavour;
use crate::server::Server;
use crate::wait::{PATIENCE, until};

/// The name of the master in the sentinels.
pub const NAME: &str = "tallygate";

/// Quorum 2, down after 1 s.
#[derive(Debug)]
pub struct Sentinel {
    /// Either may be the master.
    servers: [Server; 2],
    sentinels: Vec<Server>,
}

impl Sentinel {
    /// Starts all five, and waits until the sentinels know each other and the replica.
    ///
    /// # Panics
    /// When they do not come up.
    #[must_use]
    pub fn start(flavour: Flavour) -> Self {
        let master = Server::of(flavour).start();
        let replica = Server::of(flavour).replica_of(&master).start();
        let sentinels: Vec<_> = (0..3).map(|_| Server::of(flavour).sentinel_of(master.port()).start()).collect();
        for sentinel in &sentinels {
            until("the sentinels to find each other", PATIENCE, || {
                let known = |what: &str| Some(sentinel.command(&["SENTINEL", what, NAME]).items().len());
                (known("SENTINELS")? == 2 && known("REPLICAS")? == 1).then_some(())
            });
        }
        Self { servers: [master, replica], sentinels }
    }

    /// `redis+sentinel://host:port,host:port,host:port/tallygate`
    #[must_use]
    pub fn url(&self) -> String {
        let addrs: Vec<_> = self.sentinels.iter().map(|one| one.addr().to_string()).collect();
        format!("redis+sentinel://{}/{NAME}", addrs.join(","))
    }

    /// The two servers, in the order of their start.
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
        let names = |sentinel: &&Server| {
            let reply = sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
            reply.is_ok_and(|reply| reply.items().get(1).is_some_and(|named| named.int() == i64::from(port)))
        };
        let alive = self.sentinels.iter().filter(|sentinel| sentinel.is_alive());
        alive.filter(names).count()
    }

    /// Requests a failover and waits for it. Returns the new master.
    ///
    /// # Panics
    /// When it does not happen.
    pub fn failover(&self) -> &Server {
        let old = self.master().port();
        until("a sentinel to accept the failover", PATIENCE, || {
            let reply = self.sentinels[0].command(&["SENTINEL", "FAILOVER", NAME]);
            let accepted = !reply.is_error() || reply.text().starts_with("INPROG");
            if !accepted {
                // NOGOODSLAVE: it does not yet know enough about the replica.
                std::thread::sleep(Duration::from_millis(100));
            }
            accepted.then_some(())
        });
        self.wait_for_new_master(old)
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
        until("a new master", PATIENCE, || {
            let server = self.master();
            let promoted = server.port() != old && server.info("role")? == "master";
            promoted.then_some(server)
        })
    }
}
