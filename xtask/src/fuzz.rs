//! Fuzzing with libFuzzer on the stable compiler: no sanitizer, as there is no unsafe code.

use anyhow::{Result, bail};

use crate::run;

/// The flags of `cargo fuzz`, without those that need a nightly compiler.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
     -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1";

/// `[seconds]`
pub fn run(args: &[String]) -> Result<()> {
    let seconds: u32 = match args {
        [] => 60,
        [seconds] if seconds.parse::<u32>().is_ok() => seconds.parse()?,
        _ => bail!("expected `fuzz [seconds]`"),
    };
    let target = run::target().join("fuzz");
    let corpus = target.join("corpus/client_address");
    std::fs::create_dir_all(&corpus)?;
    // Named, so that the flags do not reach build scripts.
    let host = run::output(std::process::Command::new("rustc").args(["--print", "host-tuple"]))?;
    let mut command =
        run::cargo(&["run", "--release", "--manifest-path", "crates/tallygate-http/fuzz/Cargo.toml", "--target"]);
    command.arg(host.trim()).arg("--target-dir").arg(&target);
    command.args(["--bin", "client_address", "--"]).arg(corpus);
    command.args(["-max_len=512", "-print_final_stats=1"]).arg(format!("-max_total_time={seconds}"));
    command.arg(format!("-artifact_prefix={}/", target.display()));
    run::run(command.env("RUSTFLAGS", COVERAGE))
}
