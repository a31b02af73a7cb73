//! `tallygate health`: whether a server is alive or ready, for health checks of containers.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use tallygate_http::sanitize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::duration;
use crate::output::Outcome;

/// Ask a running server whether it is alive, or ready
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The HTTP or admin listener of the server, as `serve` was given it
    #[arg(long, value_name = "ADDRESS", env = "TALLYGATE_HTTP", default_value = "127.0.0.1:8080")]
    server: String,
    /// Ask /readyz, which fails if the store is unreachable, instead of /livez
    #[arg(long)]
    ready: bool,
    /// How long to wait for an answer
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration::parse)]
    timeout: Duration,
}

const EXAMPLES: &str = "\
Examples:
  tallygate health
  tallygate health --ready --server 127.0.0.1:6070

It speaks plain HTTP, not TLS. Exit codes: 0 healthy, 1 not, 2 error in the arguments.";

/// More than the server answers.
const MAX_ANSWER: u64 = 64 * 1024;

pub(crate) async fn run(args: Args, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let address = address(&args.server)?;
    let path = if args.ready { "/readyz" } else { "/livez" };
    let answer = timeout(args.timeout, ask(&address, path)).await;
    let answer = answer.unwrap_or_else(|_| bail!("no answer within {}", duration::render(args.timeout)));
    let (state, outcome) = match answer {
        Ok((200, _)) => (if args.ready { "ready".to_owned() } else { "alive".to_owned() }, Outcome::Allowed),
        Ok((status, body)) => (format!("status {status}: {body}"), Outcome::Denied),
        Err(error) => (format!("{error:#}"), Outcome::Denied),
    };
    writeln!(out, "{}", sanitize::text(&format!("{address}: {state}")))?;
    Ok(outcome)
}

/// Where to connect. A listener on all interfaces is asked on this machine.
fn address(server: &str) -> anyhow::Result<String> {
    ensure!(server != "off", "the HTTP listener is off: name the admin listener with --server 127.0.0.1:6070");
    ensure!(!server.starts_with("https://"), "`health` speaks plain HTTP, not TLS");
    let address = server.trim_start_matches("http://").trim_end_matches('/');
    Ok(address.replacen("0.0.0.0:", "127.0.0.1:", 1).replacen("[::]:", "[::1]:", 1))
}

/// The status and the body.
async fn ask(address: &str, path: &str) -> anyhow::Result<(u16, String)> {
    let refused = |error| anyhow!("cannot connect: {error}; is the server running?");
    let mut stream = TcpStream::connect(address).await.map_err(refused)?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.strip_prefix("HTTP/1.").and_then(|rest| rest.split_whitespace().nth(1)?.parse().ok());
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body.trim());
    Ok((status.context("the answer is not HTTP: does this listener use TLS?")?, body.to_owned()))
}
