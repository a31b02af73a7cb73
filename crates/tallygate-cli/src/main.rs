//! `tallygate`, the command line: parses, dispatches, and turns the outcome into an exit code.

mod cmd;

mod policies;
mod store;

mod color;
mod duration;
mod output;
mod progress;
mod table;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Parser, Subcommand};
use tallygate::LimitError;
use tallygate_http::sanitize;

use cmd::{audit, call, counter, demo, explain, schema, serve, validate, verify};
use output::Outcome;
use policies::Unusable;

/// Rate limits, quotas and atomic counters: try them, prove them, look after them.
#[derive(Debug, Parser)]
#[command(name = "tallygate", version, max_term_width = 100, after_help = EXAMPLES, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tallygate serve                                      limits over HTTP and gRPC, with a line to try
  tallygate demo                                       see what each algorithm admits
  tallygate check alice --limit 3/min --repeat 5       try a limit
  tallygate check alice --limit 10/s --limit 100/day   two limits, one decision
  tallygate counter incr-by visits 5                   count
  tallygate verify --store redis://127.0.0.1:6379      prove the limits on your own server
  tallygate audit --store redis://127.0.0.1:6379       look through what it holds
  tallygate validate tallygate.yaml                     check policies before they are served
  tallygate explain --config tallygate.yaml user=42     see which policies a call falls under, and why
  tallygate serve --config tallygate.yaml               serve them; read again when the file changes

A limit is written AMOUNT/WINDOW [burst N] [ALGORITHM]:
  100/min    10/s burst 50    5 per 2h    1000/day sliding_log

Exit codes: 0 allowed or done, 1 denied, 2 error.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Demo(demo::Args),
    /// Charge a call if every limit has room for it
    #[command(after_help = call::CHECK_EXAMPLES)]
    Check(call::Args<call::CheckArgs>),
    /// Say what `check` would answer, and charge nothing
    #[command(after_help = call::PEEK_EXAMPLES)]
    Peek(call::Args<call::CostArg>),
    /// Give back units that a call was charged, and say how many counted
    #[command(after_help = call::REFUND_EXAMPLES)]
    Refund(call::Args<call::RefundArgs>),
    /// Forget what a subject has used, and say whether there was anything to forget
    #[command(after_help = call::RESET_EXAMPLES)]
    Reset(call::Args<()>),
    Counter(counter::Args),
    Verify(verify::Args),
    #[command(hide = true)]
    VerifyWorker(verify::worker::Args),
    Audit(audit::Args),
    Validate(validate::Args),
    Explain(explain::Args),
    Schema(schema::Args),
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return report_usage(&error, &args),
    };
    match run(cli.command) {
        Ok(Outcome::Allowed) => ExitCode::SUCCESS,
        Ok(Outcome::Denied) => ExitCode::from(1),
        Err(error) => {
            report(&error);
            ExitCode::from(2)
        }
    }
}

fn run(command: Command) -> anyhow::Result<Outcome> {
    let mut runtime = match command {
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.enable_all().build();
    let runtime = runtime.context("cannot start: the system refused what the event loop needs")?;
    if let Command::Serve(args) = command {
        return runtime.block_on(serve::run(*args));
    }
    let mut out = io::stdout().lock();
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(_) => unreachable!("it has gone its own way"),
            Command::Demo(args) => demo::run(&args, &mut out),
            Command::Check(args) => call::check(args, &mut out).await,
            Command::Peek(args) => call::peek(args, &mut out).await,
            Command::Refund(args) => call::refund(args, &mut out).await,
            Command::Reset(args) => call::reset(args, &mut out).await,
            Command::Counter(args) => counter::run(args, &mut out).await,
            Command::Verify(args) => verify::run(args, &mut out).await,
            Command::VerifyWorker(args) => verify::worker::run(args, &mut out).await,
            Command::Audit(args) => audit::run(args, &mut out).await,
            Command::Validate(args) => validate::run(&args, &mut out),
            Command::Explain(args) => explain::run(args, &mut out).await,
            Command::Schema(args) => schema::run(&args, &mut out),
        }
    })?;
    out.flush()?;
    Ok(outcome)
}

/// Prints the error, except when the reader of our output has stopped early (`| head`).
fn report(error: &anyhow::Error) {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return;
    }
    let message = format!("{error:#}");
    // A limit's error draws a caret below the text, which the library has sanitized, and files have a line for each
    // finding. Nothing else may break the line.
    let lines = error.is::<LimitError>() || error.is::<Unusable>();
    let message = if lines { sanitize::lines(&message) } else { sanitize::text(&message) };
    let _ = writeln!(io::stderr(), "error: {message}");
}

/// The parser repeats what it was given, so on an error it is given safe text instead.
fn report_usage(error: &clap::Error, args: &[OsString]) -> ExitCode {
    let safe_args = args.iter().map(|arg| sanitize::text(&arg.to_string_lossy()));
    let printed = match Cli::try_parse_from(safe_args) {
        Err(same) if same.kind() == error.kind() => same.print(),
        _ => writeln!(io::stderr(), "{}", sanitize::lines(&error.to_string())),
    };
    let failed = error.use_stderr() || printed.is_err();
    ExitCode::from(if failed { 2 } else { 0 })
}
