//! A connection to a server that never gets a call: a sentinel, or a replica.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, Value};

use super::facts::{Known, Missing};
use crate::url::{Address, Login};

const PATIENCE: Duration = Duration::from_secs(1);

pub(super) struct Side {
    address: String,
    connection: MultiplexedConnection,
}

impl Side {
    /// Without TLS only: the store's own connections have it, and they go to masters.
    pub(super) async fn open(address: &Address, login: &Login, tls: bool) -> Known<Self> {
        let failed = |why: String| Missing { why, remedy: String::new(), unreachable: true };
        let Address::Tcp { host, port } = address else {
            return Err(failed(format!("{address} is not a TCP address")));
        };
        if tls {
            let why = format!("{address} is not asked: sentinels and replicas behind TLS cannot be examined yet");
            return Err(Missing { why, remedy: String::new(), unreachable: false });
        }
        let mut user = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(name) = &login.user {
            user = user.set_username(name);
        }
        if let Some(password) = &login.password {
            user = user.set_password(password);
        }
        let opened = async {
            let info = ConnectionAddr::Tcp(host.clone(), *port).into_connection_info()?.set_redis_settings(user);
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(PATIENCE))
                .set_response_timeout(Some(PATIENCE));
            redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
        };
        let connection = opened.await.map_err(|error| failed(format!("cannot connect to {address}: {error}")))?;
        Ok(Self { address: address.to_string(), connection })
    }

    pub(super) async fn ask(&mut self, words: &[&str]) -> Known<Value> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let reply = self.connection.send_packed_command(&command).await;
        let reply = reply.and_then(Value::extract_error);
        reply.map_err(|error| {
            let why = format!("{} did not answer {}: {error}", self.address, words.join(" "));
            Missing { why, remedy: String::new(), unreachable: false }
        })
    }
}
