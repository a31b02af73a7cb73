//! `tallygate`, the command line: parses arguments, runs a command, and turns its outcome into an exit code.

mod cmd;

mod policies;
mod store;

mod color;
mod duration;
mod environment;
mod output;
mod progress;
mod table;

use std::error::Error;
use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::LazyLock;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tallygate::counter::CounterError;
use tallygate::limit::LimitError;
use tallygate::store::StoreErrorKind;
use tallygate::{CheckError, StoreError};
use tallygate_http::sanitize;
use tallygate_redis::ConnectError;

use cmd::{
    audit, call, completions, counter, demo, doctor, explain, health, hold, holds, live, man, schema, serve, validate,
    verify,
};
use output::Outcome;
use policies::Unusable;

/// Rate limits, quotas and atomic counters: serve, try, verify and audit them.
#[derive(Debug, Parser)]
#[command(name = "tallygate", version = VERSION.as_str(), propagate_version = true, max_term_width = 100, after_help = EXAMPLES)]
struct Cli {
    /// When to print colours; `auto` asks NO_COLOR, CLICOLOR_FORCE and the terminal
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value = "auto")]
    color: color::When,
    #[command(subcommand)]
    command: Command,
}

/// The version, and the commit if the build was given it in `TALLYGATE_COMMIT`.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let version = env!("CARGO_PKG_VERSION");
    match option_env!("TALLYGATE_COMMIT").filter(|commit| !commit.is_empty()) {
        Some(commit) => format!("{version} ({commit})"),
        None => version.to_owned(),
    }
});

const EXAMPLES: &str = "\
Examples:
  tallygate serve                                      limits over HTTP and gRPC, with a curl to try
  tallygate demo                                       see what each algorithm admits
  tallygate check alice --limit 3/min --repeat 5       try a limit
  tallygate check alice --limit 10/s --limit 100/day   two limits, one decision
  tallygate counter incr-by visits 5                   count
  tallygate verify --store redis://127.0.0.1:6379      verify the limits on your own server
  tallygate override list --store redis://127.0.0.1:6379   see which callers have another limit, and why
  tallygate audit --store redis://127.0.0.1:6379       find keys without a TTL, and memory by policy
  tallygate doctor --store redis://127.0.0.1:6379      find settings that could break a guarantee
  tallygate validate tallygate.yaml                    check policy files
  tallygate explain --config tallygate.yaml user=42    see which policies apply to a call, and why
  tallygate serve --config tallygate.yaml              serve them; reloaded when the file changes

A limit is written AMOUNT/WINDOW [burst N] [ALGORITHM]:
  100/min    10/s burst 50    5 per 2h    1000/day sliding_log

Exit codes: 0 allowed or done, 1 denied, 2 error, 3 the store is unreachable.";

#[derive(Debug, Subcommand)]
enum Command {
    Serve(Box<serve::Args>),
    Demo(demo::Args),
    /// Charge a call if every limit allows it
    #[command(after_help = call::CHECK_EXAMPLES)]
    Check(call::Args<call::CheckArgs>),
    /// Print what `check` would answer, and charge nothing
    #[command(after_help = call::PEEK_EXAMPLES)]
    Peek(call::Args<call::CostArg>),
    /// Give back units that a call was charged
    #[command(after_help = call::REFUND_EXAMPLES)]
    Refund(call::Args<call::RefundArgs>),
    /// Forget what a subject has used
    #[command(after_help = call::RESET_EXAMPLES)]
    Reset(call::Args<()>),
    /// Charge a call if every limit allows it, and hold its units until they are settled
    #[command(after_help = call::RESERVE_EXAMPLES)]
    Reserve(call::Args<call::ReserveArgs>),
    /// Charge what was used of a hold, and give back the rest
    #[command(after_help = hold::SETTLE_EXAMPLES)]
    Settle(hold::Args<hold::SettleArgs>),
    /// Give back everything that is held
    #[command(after_help = hold::CANCEL_EXAMPLES)]
    Cancel(hold::Args<()>),
    /// Let a hold last longer
    #[command(after_help = hold::EXTEND_EXAMPLES)]
    Extend(hold::Args<hold::ExtendArgs>),
    /// Let a hold last longer, and change its token
    #[command(after_help = hold::RENEW_EXAMPLES)]
    Renew(hold::Args<hold::RenewArgs>),
    Holds(holds::Args),
    Counter(counter::Args),
    Override(live::Args),
    Verify(verify::Args),
    #[command(hide = true)]
    VerifyWorker(verify::worker::Args),
    Audit(audit::Args),
    Doctor(doctor::Args),
    Validate(validate::Args),
    Explain(explain::Args),
    Schema(schema::Args),
    Health(health::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// The definition of the command line.
fn command() -> clap::Command {
    environment::without_empty(Cli::command())
}

fn parse<A: Into<OsString> + Clone>(args: impl IntoIterator<Item = A>) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&command().try_get_matches_from(args)?)
}

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let cli = match parse(&args) {
        Ok(cli) => cli,
        Err(error) => return report_usage(&error, &args),
    };
    color::choose(cli.color);
    match run(cli.command) {
        Ok(Outcome::Allowed) => ExitCode::SUCCESS,
        Ok(Outcome::Denied) => ExitCode::from(1),
        Err(error) => report(&error),
    }
}

fn run(command: Command) -> anyhow::Result<Outcome> {
    let mut runtime = match command {
        Command::Serve(_) => tokio::runtime::Builder::new_multi_thread(),
        _ => tokio::runtime::Builder::new_current_thread(),
    };
    let runtime = runtime.enable_all().build();
    let runtime = runtime.context("cannot start the event loop")?;
    let unknown = environment::unknown(&Cli::command());
    if let Command::Serve(args) = command {
        return runtime.block_on(serve::run(*args, &unknown));
    }
    // Here only typos: other programs may have variables of this prefix.
    for typo in unknown.iter().filter(|unknown| unknown.near.is_some()) {
        let _ = writeln!(io::stderr(), "warning: {}", sanitize::text(&typo.to_string()));
    }
    let mut out = io::stdout().lock();
    let outcome = runtime.block_on(async {
        match command {
            Command::Serve(_) => unreachable!("it is run above"),
            Command::Demo(args) => demo::run(&args, &mut out),
            Command::Check(args) => call::check(args, &mut out).await,
            Command::Peek(args) => call::peek(args, &mut out).await,
            Command::Refund(args) => call::refund(args, &mut out).await,
            Command::Reset(args) => call::reset(args, &mut out).await,
            Command::Reserve(args) => call::reserve(args, &mut out).await,
            Command::Settle(args) => hold::settle(args, &mut out).await,
            Command::Cancel(args) => hold::cancel(args, &mut out).await,
            Command::Extend(args) => hold::extend(args, &mut out).await,
            Command::Renew(args) => hold::renew(args, &mut out).await,
            Command::Holds(args) => holds::run(args, &mut out).await,
            Command::Counter(args) => counter::run(args, &mut out).await,
            Command::Override(args) => live::run(args, &mut out).await,
            Command::Verify(args) => verify::run(args, &mut out).await,
            Command::VerifyWorker(args) => verify::worker::run(args, &mut out).await,
            Command::Audit(args) => audit::run(args, &mut out).await,
            Command::Doctor(args) => doctor::run(args, &mut out).await,
            Command::Validate(args) => validate::run(&args, &mut out),
            Command::Explain(args) => explain::run(args, &mut out).await,
            Command::Schema(args) => schema::run(&args, &mut out),
            Command::Health(args) => health::run(args, &mut out).await,
            Command::Completions(args) => completions::run(&args, &mut out),
            Command::Man(args) => man::run(&args, &mut out),
        }
    })?;
    out.flush()?;
    Ok(outcome)
}

/// What a shell reports of a program that SIGPIPE ended. It is neither permission nor refusal.
const CLOSED_PIPE: u8 = 141;

/// Prints the error and returns the exit code. A closed pipe (`| head`) is not an error to print.
fn report(error: &anyhow::Error) -> ExitCode {
    if error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::from(CLOSED_PIPE);
    }
    let message = sentence(error);
    // The error of a limit has a caret below the text, which the library has sanitized, and files have a line for each
    // finding. All other errors are one line.
    let lines = error.is::<LimitError>() || error.is::<Unusable>();
    let message = if lines { sanitize::lines(&message) } else { sanitize::text(&message) };
    let _ = writeln!(io::stderr(), "error: {message}");
    ExitCode::from(if error.chain().any(is_unreachable) { 3 } else { 2 })
}

/// The error and its causes, without those that it repeats.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().skip(1).fold(error.to_string(), |message, cause| {
        let cause = cause.to_string();
        if message.contains(&cause) { message } else { format!("{message}: {cause}") }
    })
}

/// Whether the store could not be reached, so that trying again later may help.
fn is_unreachable(error: &(dyn Error + 'static)) -> bool {
    let of_store = error.downcast_ref::<StoreError>();
    let of_check =
        error.downcast_ref().and_then(|error| if let CheckError::Store(error) = error { Some(error) } else { None });
    let of_counter =
        error.downcast_ref().and_then(|error| if let CounterError::Store(error) = error { Some(error) } else { None });
    let of_connect =
        error.downcast_ref().and_then(|error| if let ConnectError::Store(error) = error { Some(error) } else { None });
    let error = of_store.or(of_check).or(of_counter).or(of_connect);
    matches!(
        error.map(StoreError::kind),
        Some(StoreErrorKind::Unavailable | StoreErrorKind::Ambiguous | StoreErrorKind::Overloaded)
    )
}

/// Prints what the parser says. It repeats its arguments, so it is run again with sanitized ones.
fn report_usage(error: &clap::Error, args: &[OsString]) -> ExitCode {
    let safe_args = args.iter().map(|arg| sanitize::text(&arg.to_string_lossy()));
    let printed = match parse(safe_args) {
        Err(same) if same.kind() == error.kind() => with_hint(same, args).print(),
        _ => writeln!(io::stderr(), "{}", sanitize::lines(&error.to_string())),
    };
    match printed {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => ExitCode::from(CLOSED_PIPE),
        Err(_) => ExitCode::from(2),
        Ok(()) => ExitCode::from(if error.use_stderr() { 2 } else { 0 }),
    }
}

/// Adds what was probably meant, or where an invalid value is from.
fn with_hint(mut error: clap::Error, args: &[OsString]) -> clap::Error {
    let Some(ContextValue::String(argument)) = error.get(ContextKind::InvalidArg) else { return error };
    let tip = if is_policy_file(argument) {
        format!("to name a policy file, use '--config {argument}'")
    } else if argument == "--http" && args.get(1).is_some_and(|verb| verb == "health") {
        "to name the listener to ask, use '--server'".to_owned()
    } else if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && let Some(variable) = environment::source(argument, value, args)
    {
        format!("the value is from the environment variable {variable}")
    } else {
        return error;
    };
    error.remove(ContextKind::SuggestedArg);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// Whether an argument looks like a policy file.
fn is_policy_file(argument: &str) -> bool {
    let extension = Path::new(argument).extension();
    !argument.starts_with('-') && extension.is_some_and(|extension| extension == "yaml" || extension == "yml")
}
