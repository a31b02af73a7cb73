//! Bytes per key: what the process grows by, measured in a fresh process for each contender.

use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::rivals::{Quota, Rival};
use crate::traffic;

pub const VERB: &str = "embedded-memory";

/// Starts a process that fills `rival` with `keys` live keys and reports how much its resident memory grew for each.
pub fn bytes_per_key(rival: usize, keys: usize) -> Result<f64> {
    let own = std::env::current_exe()?;
    let output = Command::new(own).args([VERB, &rival.to_string(), &keys.to_string()]).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

/// In that process: `<index of the rival> <keys>`.
pub fn measure_here(args: &[String]) -> Result<()> {
    let number = |at: usize| args.get(at).and_then(|arg| arg.parse::<usize>().ok()).context("expected a number");
    let (rival, keys) = (Rival::ALL[number(0)?], number(1)?);
    let subjects = traffic::subjects(&traffic::shuffled(keys));
    let before = resident_bytes()?;
    let decide = rival.build(Quota::Ample, keys)?;
    let allowed = decide(&subjects);
    let grown = resident_bytes()?.saturating_sub(before);
    ensure!(allowed == keys as u64, "{allowed} of {keys} were allowed");
    println!("{}", grown as f64 / keys as f64);
    Ok(())
}

fn resident_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024)
}
