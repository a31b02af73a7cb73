//! The servers of the simulation: as much of Redis, its cluster and its Sentinels as the client can tell apart.

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::task::{Context, Poll, Waker};

use tokio::io::ReadBuf;
use tokio::time::Duration;

/// What happens to one attempt of the call that is watched, or on the way to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// The server has forgotten its scripts.
    NoScript,
    /// The slot has moved to the other server.
    Moved,
    /// The slot is on its way to the other server, and its keys are there.
    Ask,
    /// The other server has become the master, and this one is its replica.
    Demoted,
    /// An error reply. Nothing was run.
    Error(&'static str),
    /// An error reply of a script that has written before.
    HalfDone(&'static str),
    /// It was run, and these bytes are the reply.
    Reply(&'static [u8]),
    /// The connection is reset after so many bytes of what is sent from now on. They have arrived, or not.
    CutRequest { after: usize, arrived: bool },
    /// It was run, and the connection ends after so many bytes of the reply.
    CutReply { after: usize, reset: bool },
    /// No reply ever comes on this connection.
    Hang { run: bool },
    /// The reply comes later: all of it, or byte by byte, each after so many milliseconds.
    Late { millis: u64, bytewise: bool },
    /// All connections were closed while they were idle.
    ClosedIdle,
    /// The next connection is refused.
    RefusedConnection,
    /// The next connection ends after so many bytes of the replies to its handshake.
    CutHandshake { after: usize },
}

impl Step {
    /// Whether it happens to the bytes, whatever they say.
    fn is_of_the_network(self) -> bool {
        matches!(self, Self::CutRequest { .. } | Self::RefusedConnection | Self::CutHandshake { .. })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Single,
    Cluster,
    Sentinel,
}

/// Bytes that arrive later, or the end of the connection.
pub(super) struct Delivery {
    connection: usize,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Connection {
    host: String,
    received: Vec<u8>,
    replies: VecDeque<u8>,
    ended: Option<io::ErrorKind>,
    hung: bool,
    asking: bool,
    /// How many bytes of replies still leave, if they are counted.
    room: Option<usize>,
    /// Parts of a reply that are on their way; what follows waits for them.
    on_the_way: usize,
    behind: Vec<u8>,
    reader: Option<Waker>,
}

pub(super) struct Servers {
    form: Form,
    watched: Vec<u8>,
    /// Whether it is charged once, however often it arrives.
    remembers: bool,
    /// What happens to the attempts of the watched call, in this order; then nothing does.
    plan: VecDeque<Step>,
    connections: Vec<Connection>,
    /// Who has the slots, or is the master.
    owner: &'static str,
    importing: Option<&'static str>,
    has_script: HashSet<String>,
    /// How often each key was charged.
    pub(super) charged: HashMap<Vec<u8>, u32>,
    /// How often the watched call arrived as a whole.
    pub(super) attempts: u32,
    deliveries: Vec<(Duration, Delivery)>,
}

const HOSTS: [&str; 2] = ["a", "b"];
const SENTINEL: &str = "s";

/// The reply to a script: its key, so that a reply that went to another call shows.
pub(super) fn reply_for(key: &[u8]) -> Vec<u8> {
    let mut reply = format!("*2\r\n:1\r\n${}\r\n", key.len()).into_bytes();
    reply.extend_from_slice(key);
    reply.extend_from_slice(b"\r\n");
    reply
}

impl Servers {
    pub(super) fn new(form: Form, watched: &[u8], remembers: bool) -> Self {
        Self {
            form,
            watched: watched.to_vec(),
            remembers,
            plan: VecDeque::new(),
            connections: Vec::new(),
            owner: HOSTS[0],
            importing: None,
            has_script: HOSTS.map(str::to_owned).into(),
            charged: HashMap::new(),
            attempts: 0,
            deliveries: Vec::new(),
        }
    }

    pub(super) fn url(&self) -> &'static str {
        match self.form {
            Form::Single => "redis://a:1",
            Form::Cluster => "redis+cluster://a:1,b:1",
            Form::Sentinel => "redis+sentinel://s:1/main",
        }
    }

    /// What happens from now on.
    pub(super) fn plan(&mut self, steps: &[Step]) {
        self.plan = steps.iter().copied().collect();
        self.begin_step();
    }

    /// Some steps need no attempt to happen.
    fn begin_step(&mut self) {
        if self.plan.front() == Some(&Step::ClosedIdle) {
            self.plan.pop_front();
            for connection in &mut self.connections {
                connection.end(io::ErrorKind::UnexpectedEof);
            }
            self.begin_step();
        }
    }

    fn next_step(&mut self) {
        self.plan.pop_front();
        self.begin_step();
    }

    pub(super) fn accept(&mut self, host: &str) -> io::Result<usize> {
        let mut connection = Connection { host: host.to_owned(), ..Connection::default() };
        match self.plan.front().copied() {
            Some(Step::RefusedConnection) => {
                self.next_step();
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            Some(Step::CutHandshake { after }) => {
                self.next_step();
                connection.room = Some(after);
            }
            _ => {}
        }
        self.connections.push(connection);
        Ok(self.connections.len() - 1)
    }

    /// The client has closed the connection.
    pub(super) fn hang_up(&mut self, connection: usize) {
        self.connections[connection].end(io::ErrorKind::UnexpectedEof);
    }

    pub(super) fn take_deliveries(&mut self) -> Vec<(Duration, Delivery)> {
        std::mem::take(&mut self.deliveries)
    }

    pub(super) fn arrives(&mut self, Delivery { connection, bytes }: Delivery) {
        let connection = &mut self.connections[connection];
        connection.on_the_way -= 1;
        connection.pass(&bytes);
        if connection.on_the_way == 0 {
            let behind = std::mem::take(&mut connection.behind);
            connection.send(&behind);
        }
    }

    pub(super) fn read(&mut self, number: usize, cx: &Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = &mut self.connections[number];
        if !connection.replies.is_empty() {
            let count = buf.remaining().min(connection.replies.len());
            let bytes: Vec<u8> = connection.replies.drain(..count).collect();
            buf.put_slice(&bytes);
            return Poll::Ready(Ok(()));
        }
        match connection.ended {
            Some(io::ErrorKind::UnexpectedEof) => Poll::Ready(Ok(())),
            Some(kind) => Poll::Ready(Err(kind.into())),
            None => {
                connection.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(super) fn write(&mut self, number: usize, bytes: &[u8]) -> io::Result<usize> {
        if self.connections[number].ended.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let mut count = bytes.len();
        if let Some(Step::CutRequest { after, arrived }) = self.plan.front_mut() {
            count = count.min(*after);
            *after -= count;
            let (cut, arrived) = (*after == 0, *arrived);
            if arrived {
                self.receive(number, &bytes[..count]);
            }
            if cut {
                self.next_step();
                self.connections[number].end(io::ErrorKind::ConnectionReset);
            }
            return if count == 0 { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(count) };
        }
        self.receive(number, bytes);
        Ok(count)
    }

    fn receive(&mut self, number: usize, bytes: &[u8]) {
        self.connections[number].received.extend_from_slice(bytes);
        while let Some((words, length)) = command(&self.connections[number].received) {
            self.connections[number].received.drain(..length);
            if !self.connections[number].hung {
                self.run(number, &words);
            }
        }
    }

    fn run(&mut self, number: usize, words: &[Vec<u8>]) {
        let host = self.connections[number].host.clone();
        let asking = std::mem::take(&mut self.connections[number].asking);
        let reply = match words[0].as_slice() {
            b"EVALSHA" | b"EVAL" if words.len() > 3 => return self.script(number, &host, asking, words),
            b"EVAL" | b"SUBSCRIBE" => b":1\r\n".to_vec(),
            b"ASKING" => {
                self.connections[number].asking = true;
                b"+OK\r\n".to_vec()
            }
            b"ROLE" if self.form == Form::Sentinel && host != self.owner => b"*1\r\n$5\r\nslave\r\n".to_vec(),
            b"ROLE" => b"*1\r\n$6\r\nmaster\r\n".to_vec(),
            b"CLUSTER" => {
                format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n${}\r\n{}\r\n:1\r\n", self.owner.len(), self.owner).into()
            }
            b"SENTINEL" if words[1] == b"get-master-addr-by-name" => {
                format!("*2\r\n${}\r\n{}\r\n$1\r\n1\r\n", self.owner.len(), self.owner).into()
            }
            b"SENTINEL" => b"*0\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        };
        debug_assert!(host == SENTINEL || HOSTS.contains(&host.as_str()), "unknown host {host}");
        self.connections[number].send(&reply);
    }

    /// `EVALSHA digest 1 key`, or `EVAL text 1 key`.
    fn script(&mut self, number: usize, host: &str, asking: bool, words: &[Vec<u8>]) {
        let (by_text, key) = (words[0] == b"EVAL", words[3].clone());
        let watched = key == self.watched;
        if watched {
            self.attempts += 1;
        }
        // A cluster that has redirected a call does so before it runs anything.
        if let Some(reply) = self.redirection(host, asking) {
            return self.connections[number].send(reply.as_bytes());
        }
        let step = if watched { self.plan.front().copied() } else { None };
        let step = step.filter(|step| !step.is_of_the_network());
        if step.is_some() {
            self.next_step();
        }
        match step {
            Some(Step::NoScript) => drop(self.has_script.remove(host)),
            Some(Step::Moved) => (self.owner, self.importing) = (other(self.owner), None),
            Some(Step::Ask) => self.importing = Some(other(self.owner)),
            Some(Step::Demoted) => {
                self.owner = other(self.owner);
                return self.connections[number].send(b"-READONLY You can't write against a read only replica.\r\n");
            }
            Some(Step::Error(text)) => return self.connections[number].send(format!("-{text}\r\n").as_bytes()),
            _ => {}
        }
        if let Some(reply) = self.redirection(host, asking) {
            return self.connections[number].send(reply.as_bytes());
        }
        if step == Some(Step::Hang { run: false }) {
            self.connections[number].hung = true;
            return;
        }
        if by_text {
            self.has_script.insert(host.to_owned());
        } else if !self.has_script.contains(host) {
            return self.connections[number].send(b"-NOSCRIPT No matching script. Please use EVAL.\r\n");
        }
        let charged = self.charged.entry(key.clone()).or_default();
        *charged = if self.remembers && key == self.watched { 1 } else { *charged + 1 };
        let reply = reply_for(&key);
        let connection = &mut self.connections[number];
        match step {
            Some(Step::HalfDone(text)) => connection.send(format!("-{text}\r\n").as_bytes()),
            Some(Step::Reply(bytes)) => connection.send(bytes),
            Some(Step::CutReply { after, reset }) => {
                connection.send(&reply[..after]);
                connection.end(if reset { io::ErrorKind::ConnectionReset } else { io::ErrorKind::UnexpectedEof });
            }
            Some(Step::Hang { .. }) => connection.hung = true,
            Some(Step::Late { millis, bytewise }) => {
                let parts = if bytewise { reply.chunks(1) } else { reply.chunks(reply.len()) };
                for (bytes, place) in parts.zip(1..) {
                    let delivery = Delivery { connection: number, bytes: bytes.to_vec() };
                    connection.on_the_way += 1;
                    self.deliveries.push((Duration::from_millis(millis) * place, delivery));
                }
            }
            _ => connection.send(&reply),
        }
    }

    fn redirection(&self, host: &str, asking: bool) -> Option<String> {
        const SLOT: u16 = super::SLOT;
        if self.form != Form::Cluster {
            return None;
        }
        match self.importing {
            Some(importing) if host == self.owner => Some(format!("-ASK {SLOT} {importing}:1\r\n")),
            Some(importing) if host == importing && asking => None,
            _ if host == self.owner => None,
            _ => Some(format!("-MOVED {SLOT} {}:1\r\n", self.owner)),
        }
    }
}

impl Connection {
    /// Replies leave in order.
    fn send(&mut self, bytes: &[u8]) {
        if self.on_the_way > 0 {
            self.behind.extend_from_slice(bytes);
        } else {
            self.pass(bytes);
        }
    }

    fn pass(&mut self, bytes: &[u8]) {
        if self.ended.is_some() || self.hung {
            return;
        }
        let count = self.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        self.replies.extend(&bytes[..count]);
        if let Some(room) = &mut self.room {
            *room -= count;
            if *room == 0 {
                self.end(io::ErrorKind::UnexpectedEof);
            }
        }
        self.wake();
    }

    fn end(&mut self, how: io::ErrorKind) {
        self.ended.get_or_insert(how);
        // A reset also loses what was not read yet.
        if how == io::ErrorKind::ConnectionReset {
            self.replies.clear();
        }
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

fn other(host: &str) -> &'static str {
    if host == HOSTS[0] { HOSTS[1] } else { HOSTS[0] }
}

/// The first complete command, and its length.
fn command(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let mut at = 0;
    let number = |mark: u8, at: &mut usize| -> Option<usize> {
        let line = bytes.get(*at..)?.windows(2).position(|pair| pair == b"\r\n")?;
        let text = &bytes[*at..*at + line];
        assert_eq!(text[0], mark, "the client sent something else than a command");
        *at += line + 2;
        std::str::from_utf8(&text[1..]).ok()?.parse().ok()
    };
    let count = number(b'*', &mut at)?;
    let mut words = Vec::new();
    for _ in 0..count {
        let length = number(b'$', &mut at)?;
        words.push(bytes.get(at..at + length)?.to_vec());
        at += length + 2;
    }
    (at <= bytes.len()).then_some((words, at))
}
