//! The scripts of a store: the twins, and the shells around them.

use tallygate::Algorithm;

use crate::script::Script;

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

tallygate::algorithms!(twins);

#[cfg(any(test, feature = "manual-clock"))]
const CLOCK: &str = "redis.call('TIME')";
/// Milliseconds a state is kept beyond its end, for the rounding of clocks: a spent state means the same as none.
const SLACK: u32 = 1000;
/// What a twin gives back, in order.
const OUTPUTS: &str = "allowed, remaining, retry_after, reset_after, changed, given";

/// All scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// In the order of the twins.
    checks: Vec<Script>,
    pub(crate) call: Script,
    pub(crate) counter: Script,
    pub(crate) check_permissions: Script,
}

impl Scripts {
    /// The scripts as shipped, deciding by the server's clock.
    pub(crate) fn new() -> Self {
        Self::with(SLACK, str::to_owned)
    }

    /// The last two arguments are the seconds and microseconds of a clock that a test moves. Keys expire by the server's own
    /// clock all the same, so they get an hour more.
    #[cfg(feature = "manual-clock")]
    pub(crate) fn on_manual_clock() -> Self {
        Self::with(3_600_000, |text| text.replace(CLOCK, "{ ARGV[#ARGV - 1], ARGV[#ARGV] }"))
    }

    fn with(slack: u32, finish: impl Fn(&str) -> String) -> Self {
        let script = |text: &str| Script::new(finish(&format!("local SLACK = {slack}\n{text}")));
        let checks = TWINS.iter().map(|(_, twin)| script(&lua!(check).replace("--[[twin]]", &whole(twin))));
        let functions: String = TWINS.iter().map(|(kind, twin)| function(kind, twin)).collect();
        Self {
            checks: checks.collect(),
            call: script(&lua!(call).replace("--[[twins]]", &functions)),
            counter: Script::new(lua!(counter)),
            check_permissions: Script::new(lua!(check_permissions)),
        }
    }

    /// The script that charges one check.
    pub(crate) fn check(&self, algorithm: Algorithm) -> &Script {
        let place = TWINS.iter().position(|(kind, _)| *kind == algorithm.kind());
        &self.checks[place.expect("every algorithm has a twin: both are made from one list")]
    }
}

/// A twin with the commands that read and write its state, if it is a packed one.
fn whole(twin: &str) -> String {
    twin.replace("--[[load]]\n", lua!(load)).replace("--[[save]]\n", lua!(save))
}

/// A twin as a function, by the kind of its state.
fn function(kind: &str, twin: &str) -> String {
    format!(
        "twins.{kind} = function(key, packed, now, verb, charged_at)\n\
         local {OUTPUTS} = false, 0, 0, 0, false, 0\n{}return {OUTPUTS}\nend\n",
        whole(twin)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_scripts_decide_by_one_reading_of_the_servers_clock() {
        let scripts = Scripts::new();
        for script in scripts.checks.iter().chain([&scripts.call]) {
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
