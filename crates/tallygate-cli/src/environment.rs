//! Variables of the environment: empty ones count as unset, mistyped ones are reported.

use std::ffi::OsString;

use clap::builder::Resettable;
use clap::{Arg, Command};

const PREFIX: &str = "TALLYGATE_";
/// Variables without an option.
const OTHERS: [&str; 2] = ["TALLYGATE_TOKEN", "TALLYGATE_LOG"];
/// Variables that Kubernetes sets for a service of this name.
const SERVICE_LINKS: [&str; 2] = ["TALLYGATE_SERVICE_", "TALLYGATE_PORT"];

/// The command, whose options do not read variables that are set to nothing.
pub(crate) fn without_empty(command: Command) -> Command {
    let unset = |arg: Arg| {
        let empty = |name| std::env::var_os(name).is_some_and(|value| value.is_empty());
        if arg.get_env().is_some_and(empty) { arg.env(Resettable::Reset) } else { arg }
    };
    command.mut_args(unset).mut_subcommands(without_empty)
}

/// The value of a variable, unless it is empty.
pub(crate) fn value(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The variable that gave the option of `usage`, such as `--http <ADDRESS>`, its value; none if the arguments did.
pub(crate) fn source(usage: &str, value: &str, args: &[OsString]) -> Option<String> {
    let option = usage.split([' ', '=']).next()?;
    let is_given = |arg: &OsString| arg.to_string_lossy().split('=').next() == Some(option);
    if args.iter().any(is_given) {
        return None;
    }
    let command = crate::command();
    let verb = args.iter().skip(1).find_map(|arg| command.find_subcommand(arg))?;
    let arg = verb.get_arguments().find(|arg| arg.get_long() == option.strip_prefix("--"))?;
    let name = arg.get_env()?.to_str()?;
    (self::value(name).as_deref() == Some(value)).then(|| name.to_owned())
}

/// A variable that nothing reads, and the one that was probably meant.
#[derive(Debug)]
pub(crate) struct Unknown {
    pub(crate) name: String,
    pub(crate) near: Option<String>,
}

impl std::fmt::Display for Unknown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "unknown environment variable {}", self.name)?;
        self.near.as_ref().map_or(Ok(()), |near| write!(f, ": did you mean {near}?"))
    }
}

/// The variables with our prefix that no option of `command` reads.
pub(crate) fn unknown(command: &Command) -> Vec<Unknown> {
    let mut known: Vec<String> = OTHERS.map(str::to_owned).to_vec();
    collect(command, &mut known);
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let mut unknown: Vec<Unknown> = names
        .filter(|name| name.starts_with(PREFIX) && !known.contains(name))
        .filter(|name| !SERVICE_LINKS.iter().any(|link| name.starts_with(link)))
        .map(|name| Unknown { near: near(&name, &known), name })
        .collect();
    unknown.sort_by(|one, other| one.name.cmp(&other.name));
    unknown
}

fn collect(command: &Command, known: &mut Vec<String>) {
    let variables = command.get_arguments().filter_map(Arg::get_env);
    known.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|command| collect(command, known));
}

/// Compared without the prefix, which all of them have.
fn near(name: &str, known: &[String]) -> Option<String> {
    let known: Vec<&str> = known.iter().filter_map(|name| name.strip_prefix(PREFIX)).collect();
    let near = tallygate::words::nearest(name.strip_prefix(PREFIX)?, &known)?;
    Some(format!("{PREFIX}{near}"))
}
