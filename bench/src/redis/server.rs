//! A redis-server that lives as long as the measurement.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client};

pub struct Server {
    process: Child,
    client: Client,
    pub version: String,
    pub url: String,
}

impl Server {
    /// Starts `$TALLYGATE_REDIS_SERVER`, or the one in `PATH`, on a free port, keeping nothing on disk.
    pub async fn start() -> Result<Self> {
        let binary = std::env::var("TALLYGATE_REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let process = Command::new(&binary)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("no {binary}: install redis-server, or set TALLYGATE_REDIS_SERVER"))?;
        let url = format!("redis://127.0.0.1:{port}");
        let client = Client::open(url.as_str())?;
        let mut server = Self { process, client, version: String::new(), url };
        for _ in 0..100 {
            if let Ok(mut connection) = server.connect().await {
                server.version = field(&info(&mut connection, "server").await?, "redis_version")?;
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        bail!("{binary} does not answer on port {port}")
    }

    pub async fn connect(&self) -> Result<MultiplexedConnection> {
        // On a busy machine an answer may take longer than the half second that is usual.
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(30)));
        Ok(self.client.get_multiplexed_async_connection_with_config(&patient).await?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What the main thread has used so far; the whole process before Redis 6.2, which did not tell the two apart.
pub async fn cpu_seconds(connection: &mut MultiplexedConnection) -> Result<f64> {
    let text = info(connection, "cpu").await?;
    let mut seconds = 0.0;
    for name in ["used_cpu_user", "used_cpu_sys"] {
        let used = field(&text, &format!("{name}_main_thread")).or_else(|_| field(&text, name))?;
        seconds += used.parse::<f64>()?;
    }
    Ok(seconds)
}

pub async fn used_memory(connection: &mut MultiplexedConnection) -> Result<u64> {
    Ok(field(&info(connection, "memory").await?, "used_memory")?.parse()?)
}

async fn info(connection: &mut MultiplexedConnection, section: &str) -> Result<String> {
    Ok(redis::cmd("INFO").arg(section).query_async(connection).await?)
}

fn field(info: &str, name: &str) -> Result<String> {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("INFO has no {name}"))?.trim().to_owned())
}
