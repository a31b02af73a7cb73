//! The master that sentinels watch: found through them, and left for its successor when they name another.

use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use redis::{Cmd, PushInfo, PushKind, Value};
use tallygate::StoreError;
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::fault::{Fault, PASSWORD_REMEDY, none_of};
use crate::lookout::Lookout;
use crate::node::{Node, jitter};
use crate::url::Address;
use crate::wire::{Dial, Wire};

/// How often the sentinels are asked when nothing happens: bounds how long a deposed master that still takes writes is used.
const POLL: Duration = Duration::from_secs(1);
const BETWEEN_LOOKS: Duration = Duration::from_millis(20);
/// Sentinels may go on naming a server that is gone, or no master yet, for seconds: asking faster does not help.
const BETWEEN_FAILED_LOOKS: Duration = Duration::from_millis(250);
const LOOK: Duration = Duration::from_millis(300);

pub(crate) struct Sentinel {
    shared: Arc<Shared>,
    tasks: Vec<AbortHandle>,
}

struct Shared {
    watchers: Vec<Arc<Node>>,
    name: String,
    /// How to reach a master, but for its address.
    servers: Dial,
    master: RwLock<Arc<Node>>,
    lookout: Lookout,
}

impl Sentinel {
    pub(crate) async fn connect(watchers: Vec<Dial>, name: String, servers: Dial) -> Result<Self, StoreError> {
        let lookout = Lookout::new();
        let listeners = watchers.clone();
        let watchers: Vec<Arc<Node>> = watchers.into_iter().map(|dial| Node::new(dial, None)).collect();
        let address = named_by(&watchers, &name, servers.timeout).await?;
        let node = Node::new(Dial { address, ..servers.clone() }, Some(lookout.wanted()));
        let patience = Instant::now() + servers.timeout + LOOK;
        node.wire(patience).await.map_err(|fault| fault.into_store_error(node.address()))?;

        let shared = Arc::new(Shared { watchers, name, servers, master: RwLock::new(node), lookout });
        let mut tasks =
            vec![tokio::spawn(watch_master(Arc::downgrade(&shared), shared.lookout.wanted())).abort_handle()];
        for dial in listeners {
            let listener = listen(dial, shared.name.clone(), shared.lookout.wanted());
            tasks.push(tokio::spawn(listener).abort_handle());
        }
        Ok(Self { shared, tasks })
    }

    /// The master, as far as we know.
    pub(crate) fn master(&self) -> Arc<Node> {
        Arc::clone(&self.shared.master.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn look_again(&self) {
        self.shared.lookout.look_again();
    }

    /// Has the sentinels asked and waits for their answer; false if the deadline comes first.
    pub(crate) async fn renew(&self, deadline: Instant) -> bool {
        self.shared.lookout.renew(deadline).await
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn watch_master(shared: Weak<Shared>, wanted: Arc<Notify>) {
    let mut pause = BETWEEN_LOOKS;
    loop {
        drop(timeout(POLL, wanted.notified()).await);
        let Some(shared) = shared.upgrade() else { return };
        pause = if shared.look().await { BETWEEN_LOOKS } else { (pause * 2).min(BETWEEN_FAILED_LOOKS) };
        drop(shared);
        sleep(jitter(pause / 2, pause)).await;
    }
}

impl Shared {
    /// Moves to the master the sentinels name, once it has said itself that it is one. Until then callers keep the old.
    async fn look(&self) -> bool {
        let found = match named_by(&self.watchers, &self.name, LOOK).await {
            Ok(address) => self.adopt(address).await,
            Err(_) => false,
        };
        self.lookout.has_looked();
        found
    }

    async fn adopt(&self, address: Address) -> bool {
        if *self.master.read().unwrap_or_else(PoisonError::into_inner).address() == address {
            return true;
        }
        let node = Node::new(Dial { address, ..self.servers.clone() }, Some(self.lookout.wanted()));
        let is_master = node.wire(Instant::now() + self.servers.timeout + LOOK).await.is_ok();
        if is_master {
            *self.master.write().unwrap_or_else(PoisonError::into_inner) = node;
        }
        is_master
    }
}

/// The master that the best informed of the sentinels names: all are asked, because one that was cut off from the others
/// may still name a master long deposed, and the epoch of its configuration gives it away.
async fn named_by(watchers: &[Arc<Node>], name: &str, patience: Duration) -> Result<Address, StoreError> {
    let deadline = Instant::now() + patience;
    let asked: Vec<_> =
        watchers.iter().map(|watcher| tokio::spawn(opinion(Arc::clone(watcher), name.to_owned(), deadline))).collect();
    let mut best: Option<(u64, Address)> = None;
    let mut failed = Vec::new();
    for (asked, watcher) in asked.into_iter().zip(watchers) {
        match asked.await {
            Ok(Ok(found)) => {
                if best.as_ref().is_none_or(|best| found.0 > best.0) {
                    best = Some(found);
                }
            }
            // The user and password before the `@` are for the master.
            Ok(Err(Fault::Refused { reason, remedy })) if remedy == PASSWORD_REMEDY => {
                let remedy =
                    "put the password of the sentinels in the store URL: ?sentinel_password=… (and sentinel_user=…)";
                let fault = Fault::Refused { reason, remedy: remedy.into() };
                failed.push(fault.into_store_error(watcher.address()));
            }
            Ok(Err(fault)) => failed.push(fault.into_store_error(watcher.address())),
            Err(_) => {}
        }
    }
    best.map(|(_, address)| address).ok_or_else(|| none_of("sentinel", failed))
}

/// The master one sentinel names, and the epoch in which it was appointed.
async fn opinion(watcher: Arc<Node>, name: String, deadline: Instant) -> Result<(u64, Address), Fault> {
    let command = |verb: &str| -> Cmd {
        let mut command = redis::cmd("SENTINEL");
        command.arg(verb).arg(&name);
        command
    };
    let reply = watcher.ask(&command("get-master-addr-by-name"), deadline).await?;
    let words = words(&reply);
    let [host, port] = words.as_slice() else {
        return Err(Fault::Refused {
            reason: format!("that it watches no master named `{name}`"),
            remedy: "write the name from `sentinel monitor` in its configuration after the hosts: \
                     redis+sentinel://host:26379/master-name"
                .into(),
        });
    };
    let port = port.parse().map_err(|_| Fault::Broken(format!("a master at port `{port}`")))?;
    let address = Address::beside(host, port, watcher.address());
    // In the middle of a failover this reply still has the old address, but already the new epoch: only that is taken.
    let details = watcher.ask(&command("master"), deadline).await.unwrap_or(Value::Nil);
    let epoch = self::words(&details)
        .chunks_exact(2)
        .find(|pair| pair[0] == "config-epoch")
        .and_then(|pair| pair[1].parse().ok());
    Ok((epoch.unwrap_or(0), address))
}

/// Hears of a switch at once instead of at the next poll.
async fn listen(dial: Dial, name: String, wanted: Arc<Notify>) {
    let mut failures = 0_u32;
    loop {
        let (heard, mut messages) = mpsc::unbounded_channel::<PushInfo>();
        if let Ok(_wire) = Wire::listen(&dial, heard, "+switch-master").await {
            failures = 0;
            // What was said before we listened is lost.
            wanted.notify_one();
            while let Some(message) = messages.recv().await {
                match message.kind {
                    PushKind::Disconnection => break,
                    PushKind::Message if concerns(&message, &name) => wanted.notify_one(),
                    _ => {}
                }
            }
        }
        failures = failures.saturating_add(1);
        let most = POLL * failures.min(10);
        sleep(jitter(most / 2, most)).await;
    }
}

/// `master-name old-host old-port new-host new-port`.
fn concerns(message: &PushInfo, name: &str) -> bool {
    message.data.iter().any(|part| match part {
        Value::BulkString(text) => String::from_utf8_lossy(text).split(' ').next() == Some(name),
        _ => false,
    })
}

fn words(reply: &Value) -> Vec<String> {
    let Value::Array(parts) = reply else { return Vec::new() };
    parts
        .iter()
        .map(|part| match part {
            Value::BulkString(text) => String::from_utf8_lossy(text).into_owned(),
            _ => String::new(),
        })
        .collect()
}
