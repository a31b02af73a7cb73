//! The URL of a store.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

mod error;
pub use error::UrlError;

/// The address of a store: one server, a cluster, or a master found through Sentinel.
///
/// ```text
/// redis://[user:password@]host[:6379][/db]                     one server; rediss:// uses TLS
/// redis+unix:///run/redis.sock[?db=0], unix:///run/redis.sock  one server on a socket
/// redis+cluster://[user:password@]a[:6379],b,c                 a cluster, by one or more of its nodes
/// redis+sentinel://[user:password@]a[:26379],b,c/master[/db]   the master its sentinels name
/// ```
///
/// `rediss+cluster` and `rediss+sentinel` use TLS, which needs a feature (see the [crate](crate#tls)). Certificates are verified against the system's roots, and against
/// `?ca=/path.pem` in addition. `valkey` is an alias of `redis` in every scheme. The credentials of sentinels are
/// `?sentinel_user=…&sentinel_password=…`. Debug and display output contain no password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl {
    pub(crate) place: Place,
    pub(crate) login: Login,
    pub(crate) tls: bool,
    pub(crate) ca: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Single(Address),
    Cluster(Vec<Address>),
    Sentinel { sentinels: Vec<Address>, master: String, login: Login },
}

/// One server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

/// The credentials and the database.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) db: u32,
}

#[derive(Clone, Copy)]
enum Form {
    Single,
    Unix,
    Cluster,
    Sentinel,
}

const SCHEMES: [(&str, Form, bool); 15] = [
    ("redis", Form::Single, false),
    ("rediss", Form::Single, true),
    ("valkey", Form::Single, false),
    ("valkeys", Form::Single, true),
    ("unix", Form::Unix, false),
    ("redis+unix", Form::Unix, false),
    ("valkey+unix", Form::Unix, false),
    ("redis+cluster", Form::Cluster, false),
    ("rediss+cluster", Form::Cluster, true),
    ("valkey+cluster", Form::Cluster, false),
    ("valkeys+cluster", Form::Cluster, true),
    ("redis+sentinel", Form::Sentinel, false),
    ("rediss+sentinel", Form::Sentinel, true),
    ("valkey+sentinel", Form::Sentinel, false),
    ("valkeys+sentinel", Form::Sentinel, true),
];

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl FromStr for StoreUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let (scheme, rest) = text.trim().split_once("://").ok_or(UrlError::NoScheme)?;
        let scheme = scheme.to_ascii_lowercase();
        let (form, tls) = SCHEMES
            .iter()
            .find(|(name, ..)| *name == scheme)
            .map(|&(_, form, tls)| (form, tls))
            .ok_or_else(|| UrlError::Scheme { nearest: nearest_scheme(&scheme), written: scheme.clone() })?;
        if tls && cfg!(not(feature = "tls")) {
            return Err(UrlError::TlsDisabled { scheme });
        }

        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        // Checked first, so that no other message can repeat a part of a password.
        // The path of a socket may have an `@`, if nothing is before it that could be a user.
        if tail.contains('@') && !(matches!(form, Form::Unix) && authority.is_empty()) {
            return Err(UrlError::UnescapedPassword);
        }
        if let Some(at) = tail.find('#') {
            return Err(UrlError::Trailing(tail[at..].to_owned()));
        }
        let (path, query) = tail.split_once('?').unwrap_or((tail, ""));
        let mut login = Login::default();
        let hosts = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => {
                let (user, password) = credentials.split_once(':').ok_or(UrlError::UserWithoutPassword)?;
                login.user = Some(unescape(user)?).filter(|user| !user.is_empty());
                login.password = Some(unescape(password)?);
                hosts
            }
            None => authority,
        };

        let Parameters { ca, db, sentinel } = Parameters::of(query, form, tls)?;
        let place = match form {
            Form::Unix => {
                let path = unescape(&format!("{hosts}{path}"))?;
                if path.trim_matches('/').is_empty() {
                    return Err(UrlError::NoPath);
                }
                login.db = db;
                Place::Single(Address::Unix(PathBuf::from(path)))
            }
            Form::Single => {
                if hosts.contains(',') {
                    return Err(UrlError::ManyHosts);
                }
                login.db = database(path.trim_start_matches('/'))?;
                Place::Single(Address::parse(hosts, REDIS_PORT)?)
            }
            Form::Cluster => {
                if !matches!(path, "" | "/" | "/0") {
                    return Err(UrlError::DatabaseInCluster);
                }
                Place::Cluster(addresses(hosts, REDIS_PORT)?)
            }
            Form::Sentinel => {
                let path = path.trim_start_matches('/');
                let (master, db) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err(UrlError::NoMasterName);
                }
                login.db = database(db)?;
                let (sentinels, master) = (addresses(hosts, SENTINEL_PORT)?, unescape(master)?);
                Place::Sentinel { sentinels, master, login: sentinel }
            }
        };
        Ok(Self { place, login, tls, ca })
    }
}

/// The query parameters.
#[derive(Default)]
struct Parameters {
    ca: Option<PathBuf>,
    db: u32,
    sentinel: Login,
}

impl Parameters {
    fn of(query: &str, form: Form, tls: bool) -> Result<Self, UrlError> {
        let mut all = Self::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = unescape(value)?;
            match (name, form) {
                ("ca", _) if tls => all.ca = Some(PathBuf::from(value)),
                ("db", Form::Unix) => all.db = database(&value)?,
                ("sentinel_user", Form::Sentinel) => all.sentinel.user = Some(value),
                ("sentinel_password", Form::Sentinel) => all.sentinel.password = Some(value),
                _ => {
                    let known = match (form, tls) {
                        (Form::Unix, _) => "db",
                        (Form::Sentinel, true) => "ca, sentinel_user and sentinel_password",
                        (Form::Sentinel, false) => "sentinel_user and sentinel_password (ca needs rediss)",
                        (_, true) => "ca",
                        (_, false) => "",
                    };
                    return Err(UrlError::Parameter { written: name.to_owned(), known });
                }
            }
        }
        if all.sentinel.user.is_some() && all.sentinel.password.is_none() {
            return Err(UrlError::UserWithoutPassword);
        }
        Ok(all)
    }
}

impl Address {
    /// `host`, `host:port`, `[v6]`, `[v6]:port`.
    fn parse(text: &str, default_port: u16) -> Result<Self, UrlError> {
        let (host, port) = match text.strip_prefix('[') {
            Some(v6) => v6.split_once(']').ok_or(UrlError::NoHost)?,
            None => text.split_at(text.find(':').unwrap_or(text.len())),
        };
        if host.is_empty() {
            return Err(UrlError::NoHost);
        }
        let wrong = || UrlError::Port(port.trim_start_matches(':').to_owned());
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => default_port,
            None => return Err(wrong()),
            Some(number) => number.parse().ok().filter(|port| *port != 0).ok_or_else(wrong)?,
        };
        Ok(Self::Tcp { host: host.to_owned(), port })
    }

    /// An address as named by a cluster or sentinel: `host:port`, IPv6 without brackets. An empty host means the server
    /// that named it.
    pub(crate) fn named(text: &str, said_by: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        // Redis 7 may append `,hostname`; the cluster bus appends `@port`.
        let port = port.split(['@', ',']).next()?.parse().ok()?;
        Some(Self::beside(host.trim_matches(['[', ']']), port, said_by))
    }

    /// `host` at `port`; an empty or unknown host is that of `said_by`.
    pub(crate) fn beside(host: &str, port: u16, said_by: &Self) -> Self {
        let host = match (host, said_by) {
            ("" | "?", Self::Tcp { host, .. }) => host,
            _ => host,
        };
        Self::Tcp { host: host.to_owned(), port }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl fmt::Display for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.user, &self.password) {
            (user, Some(_)) => write!(f, "{}:***@", user.as_deref().unwrap_or_default()),
            (_, None) => Ok(()),
        }
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}/{}", self.db)
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (s, login) = (if self.tls { "s" } else { "" }, &self.login);
        let db = if login.db == 0 { String::new() } else { format!("/{}", login.db) };
        match &self.place {
            Place::Single(Address::Unix(path)) => {
                write!(f, "redis+unix://{login}{}", path.display())?;
                if login.db == 0 { Ok(()) } else { write!(f, "?db={}", login.db) }
            }
            Place::Single(address) => write!(f, "redis{s}://{login}{address}{db}"),
            Place::Cluster(nodes) => write!(f, "redis{s}+cluster://{login}{}", list(nodes)),
            Place::Sentinel { sentinels, master, .. } => {
                write!(f, "redis{s}+sentinel://{login}{}/{master}{db}", list(sentinels))
            }
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreUrl({self})")
    }
}

fn addresses(hosts: &str, default_port: u16) -> Result<Vec<Address>, UrlError> {
    hosts.split(',').map(|host| Address::parse(host.trim(), default_port)).collect()
}

pub(crate) fn list(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn database(text: &str) -> Result<u32, UrlError> {
    let text = text.trim_end_matches('/');
    if text.is_empty() { Ok(0) } else { text.parse().map_err(|_| UrlError::Database(text.to_owned())) }
}

fn unescape(text: &str) -> Result<String, UrlError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(if byte == b'%' {
            let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16)).ok_or(UrlError::Escape);
            u8::try_from(digit()? * 16 + digit()?).map_err(|_| UrlError::Escape)?
        } else {
            byte
        });
    }
    String::from_utf8(bytes).map_err(|_| UrlError::Escape)
}

/// The closest scheme; `redis` if none is close.
fn nearest_scheme(written: &str) -> &'static str {
    let distances = SCHEMES.iter().map(|(name, ..)| (tallygate::words::edit_distance(written, name), *name));
    let alike = |(distance, name): &(usize, &str)| 2 * distance <= name.len();
    distances.filter(alike).min_by_key(|(distance, _)| *distance).map_or("redis", |(_, name)| name)
}

#[cfg(test)]
mod tests;
