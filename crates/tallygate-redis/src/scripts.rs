//! The scripts of a store: the twins, the shells around them, and one run of a script as a command.

#[cfg(tallygate_mutation)]
mod mutant;

use std::borrow::Cow;
use std::sync::OnceLock;

use redis::Cmd;
use tallygate::Algorithm;

use crate::coalesce::Questions;

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

/// The most kinds of states for which a script has its own selection of twins. Any other has all of them.
const MOST_SELECTED: u32 = 2;

/// What the calls of a run need of the shell. A server creates every function of a script on every run, so each set of needs has a
/// script of its own, which has nothing else. It is composed when it is needed first.
///
/// To add a part: give it a file in `lua/` and a placeholder in the shell, a field here, and one in `of` that says which calls need it. Code of
/// the shell that calls a function of the part stands behind a condition that holds only for those calls.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// The twins, one bit for each.
    kinds: usize,
    holds: bool,
    requests: bool,
    /// Whether the calls are those of `reserve.lua`.
    common: bool,
}

impl Needs {
    /// Of common reservations of a state of this kind.
    pub(crate) fn common(kind: &'static str) -> Self {
        Self { kinds: kinds(std::iter::once(kind)), holds: true, requests: false, common: true }
    }

    /// Of calls that are decided in one run.
    pub(crate) fn of(calls: &[&Questions]) -> Self {
        calls.iter().fold(Self::default(), |needs, call| Self {
            kinds: needs.kinds | kinds(call.asked.iter().map(|asked| asked.kind)),
            holds: needs.holds || call.looks_at_holds(),
            requests: needs.requests || call.request().is_some(),
            common: false,
        })
    }

    fn place(self) -> usize {
        self.kinds << 3 | usize::from(self.holds) << 2 | usize::from(self.requests) << 1 | usize::from(self.common)
    }

    #[cfg(test)]
    fn all() -> impl Iterator<Item = Self> {
        let sets = (1..1 << TWINS.len()).map(selected).collect::<std::collections::BTreeSet<usize>>();
        let shells = [(false, false), (false, true), (true, false), (true, true)];
        let shells = sets
            .into_iter()
            .flat_map(move |kinds| shells.map(|(holds, requests)| Self { kinds, holds, requests, common: false }));
        shells.chain(TWINS.iter().map(|(kind, _)| Self::common(kind)))
    }
}

/// The twins of kinds of states.
fn kinds(kinds: impl Iterator<Item = &'static str>) -> usize {
    selected(
        kinds.filter_map(|kind| TWINS.iter().position(|(of, _)| *of == kind)).fold(0, |set, place| set | 1 << place),
    )
}

fn selected(kinds: usize) -> usize {
    if kinds.count_ones() > MOST_SELECTED { (1 << TWINS.len()) - 1 } else { kinds }
}

/// All scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// In the order of the twins.
    checks: Vec<Script>,
    /// Those of `call.lua` and of `resolve.lua`, by what they need.
    calls: Box<[OnceLock<Script>]>,
    resolves: Box<[OnceLock<Script>]>,
    pub(crate) counter: Script,
    pub(crate) overrides: Script,
    pub(crate) check_permissions: Script,
    slack: u32,
    finish: fn(String) -> String,
}

impl Scripts {
    /// The scripts as shipped, on the server's clock.
    pub(crate) fn new() -> Self {
        Self::with(SLACK, std::convert::identity)
    }

    /// The last two arguments are the seconds and microseconds of the manual clock. Keys still expire by the server's
    /// own clock, so they get an extra hour.
    #[cfg(feature = "manual-clock")]
    pub(crate) fn on_manual_clock() -> Self {
        Self::with(3_600_000, |text| text.replace(CLOCK, "{ ARGV[#ARGV - 1], ARGV[#ARGV] }"))
    }

    fn with(slack: u32, finish: fn(String) -> String) -> Self {
        let places = 1 << TWINS.len();
        let mut scripts = Self {
            checks: Vec::new(),
            calls: (0..places << 3).map(|_| OnceLock::new()).collect(),
            resolves: (0..places).map(|_| OnceLock::new()).collect(),
            counter: Script::new(source(lua!(counter))),
            overrides: Script::new(finish(source(lua!(overrides)).to_owned())),
            check_permissions: Script::new(source(lua!(check_permissions))),
            slack,
            finish,
        };
        let check = |twin| source(lua!(check)).replace("--[[twin]]", &whole(twin, lua!(load), lua!(save), ""));
        scripts.checks = TWINS.iter().map(|(_, twin)| scripts.script(&check(twin))).collect();
        scripts
    }

    fn script(&self, text: &str) -> Script {
        Script::new((self.finish)(format!("local SLACK = {}\n{text}", self.slack)))
    }

    /// The script that charges one check.
    pub(crate) fn check(&self, algorithm: Algorithm) -> &Script {
        let place = TWINS.iter().position(|(kind, _)| *kind == algorithm.kind());
        &self.checks[place.expect("every algorithm has a twin: both are generated from one list")]
    }

    /// The script that decides calls with these needs.
    pub(crate) fn call(&self, needs: Needs) -> &Script {
        self.calls[needs.place()].get_or_init(|| {
            let common = if needs.common { common(source(lua!(reserve)), needs.kinds) } else { String::new() };
            let part = |needed, part| if needed { source(part) } else { "" };
            let text = source(lua!(call))
                .replace("--[[holds]]", part(needs.holds, lua!(holds)))
                .replace("--[[requests]]", part(needs.requests, lua!(requests)));
            self.script(&shell(&text, &common, needs.kinds))
        })
    }

    /// The script that ends a hold of states of these kinds.
    pub(crate) fn resolve(&self, of: impl Iterator<Item = &'static str>) -> &Script {
        let kinds = kinds(of);
        self.resolves[kinds].get_or_init(|| {
            let text = source(lua!(resolve)).replace("--[[holds]]", source(lua!(holds)));
            self.script(&shell(&text, &common(source(lua!(settle)), kinds), kinds))
        })
    }
}

/// A shell with the twins of these kinds, and before them what is common.
fn shell(text: &str, common: &str, kinds: usize) -> String {
    let twins = TWINS.iter().enumerate().filter(|(place, _)| kinds >> place & 1 == 1);
    let functions: String = twins.map(|(_, (kind, twin))| function(kind, twin)).collect();
    let text = text.replace("--[[twins]]", &functions).replace("--[[writes]]", source(lua!(writes)));
    format!("local RETENTION = {RETENTION}\n{}", text.replace("--[[common]]\n", common))
}

/// What is common, for the one kind of states that it decides: not for a log, which cannot be decided before it is written, nor for what is
/// in flight, whose state knows the deadlines of its holds.
fn common(text: &str, kinds: usize) -> String {
    let decides = |kind: &str, twin: &str| twin.contains("--[[load]]") && kind != Algorithm::Concurrency.kind();
    let mut packed =
        TWINS.iter().enumerate().filter(|(place, (kind, twin))| kinds == 1 << place && decides(kind, twin));
    let twin = |twin| whole(twin, lua!(load_local), lua!(save_local), "converted = changed\n");
    packed.next().map_or_else(String::new, |(_, (kind, of))| {
        format!("local KIND = '{kind}'\n{}", text.replace("--[[twin]]\n", &twin(of)))
    })
}

/// A twin with what loads and saves its state, if the state is packed, and with what says whether it was converted.
fn whole(twin: &'static str, load: &'static str, save: &'static str, converted: &'static str) -> String {
    let twin = source(twin).replace("--[[load]]\n", source(load)).replace("--[[save]]\n", source(save));
    twin.replace("--[[converted]]\n", converted)
}

/// A twin as a function, by the kind of its state.
fn function(kind: &str, twin: &'static str) -> String {
    format!(
        "twins.{kind} = function(key, packed, now, verb, charged_at)\n\
         local {OUTPUTS} = false, 0, 0, 0, false, 0, 0\n\
         local head = heads[key]\n\
         if head and not aware then return '!\\2' end\n\
         if verb ~= 'peek' then looked[key] = nil end\n{}return {OUTPUTS}\nend\n",
        whole(twin, lua!(load_once), lua!(save_later), "")
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
        let calls = Needs::all().map(|needs| scripts.call(needs));
        let kinds = TWINS.iter().map(|(kind, _)| *kind);
        let resolves = (0..TWINS.len()).map(|most| scripts.resolve(kinds.clone().take(most + 1)));
        let all: Vec<&Script> = scripts.checks.iter().chain(calls).chain(resolves).collect();
        assert!(all.len() < 160, "Redis keeps 500 scripts, of all that use it: {}", all.len());
        for script in all {
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
