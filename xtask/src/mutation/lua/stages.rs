//! Which tests judge the mutants of which script.

/// One run of a test program, for the mutants of a script.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The unit tests, or those on real servers.
    pub unit: bool,
    pub filters: &'static [&'static str],
    pub steps: usize,
    pub algorithm: Option<&'static str>,
    /// Whether Valkey judges too. Twice as slow, and needed only where the servers differ.
    pub valkey: bool,
}

/// The tests that judge the mutants of a script, the quickest first.
pub fn stages(script: &str) -> Vec<Stage> {
    let tests = |filters| Stage { unit: false, filters, steps: 5_000, algorithm: None, valkey: false };
    let twins = |steps, algorithm| Stage {
        steps,
        algorithm,
        ..tests(&["twins::memory_and_redis", "refusals::layout::", "logs::"])
    };
    let states = tests(&["refusals::state::", "regressions::", "calendar::"]);
    let algorithm = match script {
        "counter" => return vec![tests(&["counters::", "refusals::state::a_full"])],
        "instances" => return vec![tests(&["instances::"])],
        "check_permissions" => {
            let named = tests(&["refusals::acl::each", "refusals::acl::a_user"]);
            return vec![Stage { valkey: true, ..named }];
        }
        "token_bucket" => Some("token_bucket"),
        "fixed_window" => Some("fixed_window"),
        "sliding_window" => Some("sliding_window"),
        "sliding_counter" => Some("sliding_counter"),
        "sliding_log" => Some("sliding_log"),
        "calendar_window" => Some("calendar_window"),
        _ => None,
    };
    let several = Stage { unit: true, ..tests(&["coalesce::"]) };
    let replaced = tests(&["fuzz::states::"]);
    let properties = tests(&["conformance::every_property_holds_on_redis"]);
    // The traces of any algorithm have some of the others too.
    let short = twins(5_000, algorithm.or(Some("token_bucket")));
    let long = twins(if algorithm.is_some() { 50_000 } else { 10_000 }, algorithm);
    vec![short, states, several, tests(&["expiry::"]), replaced, properties, long]
}
