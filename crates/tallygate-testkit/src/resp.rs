//! A minimal blocking RESP2 client to control a server. Tests use it so that the client under test does not verify
//! itself.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// A reply of RESP2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// `+OK`
    Simple(String),
    /// `-ERR …`
    Error(String),
    /// `:1`
    Int(i64),
    /// `$3…`
    Bulk(Vec<u8>),
    /// `$-1` or `*-1`
    Nil,
    /// `*2…`
    Array(Vec<Reply>),
}

impl Reply {
    /// The text of a simple string, a bulk string or an error.
    ///
    /// # Panics
    /// On any other reply.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            other => panic!("not a text: {other:?}"),
        }
    }

    /// The number of an integer reply, or of a string that contains one.
    ///
    /// # Panics
    /// On any other reply.
    #[must_use]
    pub fn int(&self) -> i64 {
        match self {
            Self::Int(number) => *number,
            Self::Bulk(_) => self.text().parse().expect("a number"),
            other => panic!("not a number: {other:?}"),
        }
    }

    /// The elements of an array; nil is an empty one.
    ///
    /// # Panics
    /// On any other reply.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        match self {
            Self::Array(items) => items,
            Self::Nil => &[],
            other => panic!("not an array: {other:?}"),
        }
    }

    /// Whether the reply is an error.
    #[must_use]
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The reply itself, unless it is an error.
    ///
    /// # Panics
    /// On an error.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(!self.is_error(), "the server refused: {}", self.text());
        self
    }
}

/// One connection. Commands and replies alternate, unless they are sent and received separately.
#[derive(Debug)]
pub struct Connection(BufReader<TcpStream>);

impl Connection {
    /// Connects. Every later read or write times out after `timeout`.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn open(addr: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&addr, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// Those of the socket, and `InvalidData` when the reply is not RESP2.
    pub fn call(&mut self, args: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends a command without waiting.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn send(&mut self, args: &[impl AsRef<[u8]>]) -> io::Result<()> {
        let mut out = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args.iter().map(AsRef::as_ref) {
            out.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            out.extend_from_slice(arg);
            out.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&out)
    }

    /// Reads one reply.
    ///
    /// # Errors
    /// Those of the socket, and `InvalidData` when the reply is not RESP2.
    pub fn receive(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let rest = line.strip_suffix("\r\n").and_then(|line| line.get(1..)).ok_or_else(|| malformed(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| malformed(&line));
        match line.as_bytes()[0] {
            b'+' => Ok(Reply::Simple(rest.to_owned())),
            b'-' => Ok(Reply::Error(rest.to_owned())),
            b':' => Ok(Reply::Int(number()?)),
            b'$' => self.bulk(number()?),
            b'*' => match usize::try_from(number()?) {
                Ok(count) => (0..count).map(|_| self.receive()).collect::<io::Result<_>>().map(Reply::Array),
                Err(_) => Ok(Reply::Nil),
            },
            _ => Err(malformed(&line)),
        }
    }

    fn bulk(&mut self, length: i64) -> io::Result<Reply> {
        let Ok(length) = usize::try_from(length) else {
            return Ok(Reply::Nil);
        };
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Bulk(bytes))
    }
}

fn malformed(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a RESP2 reply: {line:?}"))
}
