//! The scripts of a store: the twins, the shells around them, and one run of a script as a command.

#[cfg(tallygate_mutation)]
mod mutant;

use std::borrow::Cow;

use redis::Cmd;
use tallygate::Algorithm;

macro_rules! lua {
    ($name:ident) => {
        include_str!(concat!("../lua/", stringify!($name), ".lua"))
    };
}

macro_rules! twins {
    ($($module:ident $state:ident $kind:literal { $($rest:tt)* })+) => {
        /// The kind of each state, and its twin.
        const TWINS: &[(&str, &str)] = &[$(($kind, lua!($module))),+];
    };
}

tallygate::algorithm::algorithms!(twins);

/// The source of a script, as shipped. Only `cargo xtask mutation lua` builds with another one.
#[cfg(not(tallygate_mutation))]
pub(crate) fn source(shipped: &'static str) -> &'static str {
    shipped
}

#[cfg(tallygate_mutation)]
pub(crate) use mutant::source;

#[cfg(any(test, feature = "manual-clock"))]
const CLOCK: &str = "redis.call('TIME')";
/// Milliseconds that a state is kept after it has expired, to allow for the rounding of clocks: an expired state means
/// the same as none.
const SLACK: u32 = 1000;
/// The return values of a twin, in order.
const OUTPUTS: &str = "allowed, remaining, retry_after, reset_after, changed, given, debt";
/// Microseconds for which it is remembered what became of a hold.
const RETENTION: u128 = tallygate::hold::RETENTION.as_micros();

/// All scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// In the order of the twins.
    checks: Vec<Script>,
    pub(crate) call: Script,
    pub(crate) resolve: Script,
    pub(crate) counter: Script,
    pub(crate) check_permissions: Script,
}

impl Scripts {
    /// The scripts as shipped, on the server's clock.
    pub(crate) fn new() -> Self {
        Self::with(SLACK, str::to_owned)
    }

    /// The last two arguments are the seconds and microseconds of the manual clock. Keys still expire by the server's
    /// own clock, so they get an extra hour.
    #[cfg(feature = "manual-clock")]
    pub(crate) fn on_manual_clock() -> Self {
        Self::with(3_600_000, |text| text.replace(CLOCK, "{ ARGV[#ARGV - 1], ARGV[#ARGV] }"))
    }

    fn with(slack: u32, finish: impl Fn(&str) -> String) -> Self {
        let script = |text: &str| Script::new(finish(&format!("local SLACK = {slack}\n{text}")));
        let checks = TWINS
            .iter()
            .map(|(_, twin)| script(&source(lua!(check)).replace("--[[twin]]", &whole(twin, lua!(load), lua!(save)))));
        let functions: String = TWINS.iter().map(|(kind, twin)| function(kind, twin)).collect();
        let holds = source(lua!(holds));
        let shell = |text: &str| {
            let text = text.replace("--[[twins]]", &functions).replace("--[[holds]]", holds);
            let text = text.replace("--[[requests]]", source(lua!(requests)));
            script(&format!("local RETENTION = {RETENTION}\n{text}"))
        };
        Self {
            checks: checks.collect(),
            call: shell(source(lua!(call))),
            resolve: shell(source(lua!(resolve))),
            counter: Script::new(source(lua!(counter))),
            check_permissions: Script::new(source(lua!(check_permissions))),
        }
    }

    /// The script that charges one check.
    pub(crate) fn check(&self, algorithm: Algorithm) -> &Script {
        let place = TWINS.iter().position(|(kind, _)| *kind == algorithm.kind());
        &self.checks[place.expect("every algorithm has a twin: both are generated from one list")]
    }
}

/// A twin with what loads and saves its state, if the state is packed.
fn whole(twin: &'static str, load: &'static str, save: &'static str) -> String {
    source(twin).replace("--[[load]]\n", source(load)).replace("--[[save]]\n", source(save))
}

/// A twin as a function, by the kind of its state.
fn function(kind: &str, twin: &'static str) -> String {
    format!(
        "twins.{kind} = function(key, packed, now, verb, charged_at)\n\
         local {OUTPUTS} = false, 0, 0, 0, false, 0, 0\n\
         local head = heads[key]\n\
         if head and not aware then return '!\\2' end\n\
         if verb ~= 'peek' then looked[key] = nil end\n{}return {OUTPUTS}\nend\n",
        whole(twin, lua!(load_once), lua!(save_later))
    )
}

/// A Lua script and its SHA-1 digest.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) text: Cow<'static, str>,
    sha: String,
}

impl Script {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        let sha = sha1_smol::Sha1::from(text.as_bytes()).digest().to_string();
        Self { text, sha }
    }
}

/// One run of a script as a command: by digest, or by text for a server that does not have the script.
pub(crate) struct ScriptRun<'a> {
    script: &'a Script,
    command: Cmd,
    by_text: bool,
}

impl<'a> ScriptRun<'a> {
    pub(crate) fn new<K: AsRef<[u8]>, A: AsRef<[u8]>>(script: &'a Script, keys: &[K], args: &[A]) -> Self {
        let bytes = keys.iter().map(|key| key.as_ref().len()).sum::<usize>()
            + args.iter().map(|arg| arg.as_ref().len()).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), 60 + bytes);
        command.arg("EVALSHA").arg(&script.sha).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        for arg in args {
            command.arg(arg.as_ref());
        }
        Self { script, command, by_text: false }
    }

    pub(crate) fn command(&self) -> &Cmd {
        &self.command
    }

    /// Sends the text from now on. Returns false if it already did.
    pub(crate) fn switch_to_text(&mut self) -> bool {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.text.as_bytes());
        for arg in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        self.command = command;
        !std::mem::replace(&mut self.by_text, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_scripts_decide_by_one_reading_of_the_servers_clock() {
        let scripts = Scripts::new();
        for script in scripts.checks.iter().chain([&scripts.call, &scripts.resolve]) {
            assert_eq!(script.text.matches(CLOCK).count(), 1);
            assert!(!script.text.contains("ARGV[#ARGV"));
            assert!(!script.text.contains("--[["), "a placeholder is left");
        }
    }

    #[test]
    fn twins_of_packed_states_do_not_call_the_server() {
        for (kind, twin) in TWINS.iter().filter(|(_, twin)| twin.contains("--[[load]]")) {
            assert!(!twin.contains("redis.") && twin.contains("--[[save]]"), "{kind}");
        }
    }
}
