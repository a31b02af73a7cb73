//! Whatever the names and numbers: headers parse, agree with each other, and never promise too early.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use sfv::{BareItem, Dictionary, Item, List, ListEntry, Parser};
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::{Algorithm, Check, Cost, Key, Limit, Limiter, MemoryStore, Status};
use tallygate_http::{Dialect, Headers, Line, seconds_up};

const NOW: Duration = Duration::from_micros(1_700_000_000_900_000);

fn one(dialect: Dialect, policy: &str, limit: &Limit, status: &Status) -> HeaderMap {
    let mut map = HeaderMap::new();
    let lines = &[Line { policy, limit, status }];
    Headers { dialect, lines, binding: Some(0), allowed: status.allowed(), unix_now: NOW }.apply(&mut map);
    map
}

fn text<'a>(map: &'a HeaderMap, name: &str) -> &'a str {
    map[name].to_str().unwrap()
}

fn written(map: &HeaderMap) -> Vec<String> {
    map.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect()
}

/// The items of a list: their value, and their integer parameters.
fn items(value: &HeaderValue) -> Vec<(BareItem, Vec<(String, i64)>)> {
    let list: List = Parser::new(value.as_bytes()).parse().unwrap_or_else(|error| panic!("{value:?}: {error}"));
    let item = |entry| match entry {
        ListEntry::Item(Item { bare_item, params }) => (bare_item, params.into_iter().map(parameter).collect()),
        ListEntry::InnerList(_) => panic!("{value:?} has an inner list"),
    };
    list.into_iter().map(item).collect()
}

fn parameter((key, value): (sfv::Key, BareItem)) -> (String, i64) {
    (key.as_str().to_owned(), integer(&value))
}

fn integer(value: &BareItem) -> i64 {
    match value {
        BareItem::Integer(integer) => (*integer).into(),
        other => panic!("{other:?} is not an integer"),
    }
}

fn name(value: &BareItem) -> String {
    let BareItem::String(written) = value else { panic!("{value:?} is not a string") };
    let (mut bytes, mut rest) = (Vec::new(), written.as_str().as_bytes());
    while let [first, others @ ..] = rest {
        rest = others;
        if *first == b'%' {
            let (digits, others) = rest.split_at(2);
            bytes.push(u8::from_str_radix(str::from_utf8(digits).unwrap(), 16).unwrap());
            rest = others;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

fn get(parameters: &[(String, i64)], key: &str) -> Option<u64> {
    let found = parameters.iter().find(|(name, _)| name == key);
    found.map(|(_, value)| u64::try_from(*value).unwrap())
}

fn limits() -> impl Strategy<Value = Limit> {
    let windows = prop_oneof![1_u64..3000, 1000_u64..200_000, Just(31_536_000_000)];
    let algorithms = prop::sample::select(Algorithm::OVER_TIME.to_vec());
    let amounts = prop_oneof![3 => 1_u64..50, 1 => 1_u64..1_000_000];
    (amounts, windows, algorithms, prop::option::of(1_u64..100)).prop_filter_map(
        "a limit",
        |(amount, ms, algorithm, burst)| {
            let builder = Limit::builder(amount, Duration::from_millis(ms)).algorithm(algorithm);
            match burst.filter(|_| algorithm == Algorithm::TokenBucket) {
                Some(burst) => builder.burst(burst).build().ok(),
                None => builder.build().ok(),
            }
        },
    )
}

/// Also such as no store would answer.
fn statuses(limit: &Limit) -> impl Strategy<Value = Status> + use<> {
    let limit = limit.clone();
    let retry = prop_oneof![Just(0), Just(u64::MAX), 0_u64..3_000_000, any::<u64>()];
    let reset = prop_oneof![Just(0), 0_u64..3_000_000, any::<u64>()];
    (any::<bool>(), 0..=limit.capacity(), retry, reset)
        .prop_map(move |(allowed, left, retry, reset)| Status::from_parts(&limit, allowed, left, retry, reset))
}

fn answers() -> impl Strategy<Value = (Limit, Status)> {
    limits().prop_flat_map(|limit| (Just(limit.clone()), statuses(&limit)))
}

#[test]
fn each_dialect_says_it_in_its_own_words() {
    let limit: Limit = "100/min".parse().unwrap();
    let allowed = Status::from_parts(&limit, true, 50, 0, 30_000_000);
    let denied = Status::from_parts(&limit, false, 0, 600_000, 59_600_000);
    let expect = |dialect, status, lines: &[&str]| {
        let mut all = written(&one(dialect, "api", &limit, status));
        all.sort();
        let mut expected: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
        expected.sort();
        assert_eq!(all, expected, "{dialect}");
    };
    use Dialect::{Draft6, Draft7, Draft10, Off, XDelta, XEpoch};
    let policy = r#"ratelimit-policy: "api";q=100;w=60"#;
    expect(Draft10, &allowed, &[policy, r#"ratelimit: "api";r=50;t=30"#]);
    expect(Draft10, &denied, &[policy, r#"ratelimit: "api";r=0;t=1"#, "retry-after: 1"]);
    let policy = "ratelimit-policy: 100;w=60";
    expect(Draft7, &allowed, &[policy, "ratelimit: limit=100, remaining=50, reset=30"]);
    expect(Draft7, &denied, &[policy, "ratelimit: limit=100, remaining=0, reset=1", "retry-after: 1"]);
    let draft6 = ["ratelimit-limit: 100", "ratelimit-remaining: 50", "ratelimit-reset: 30"];
    expect(Draft6, &allowed, &[policy, draft6[0], draft6[1], draft6[2]]);
    let x = ["x-ratelimit-limit: 100", "x-ratelimit-remaining: 50", "x-ratelimit-reset: 30"];
    expect(XDelta, &allowed, &x);
    // 1_700_000_000.9 + 30 ends in the 31st second.
    expect(XEpoch, &allowed, &[x[0], x[1], "x-ratelimit-reset: 1700000031"]);
    expect(Off, &allowed, &[]);
    expect(Off, &denied, &["retry-after: 1"]);
}

#[test]
fn a_bucket_tells_its_burst_and_how_long_that_takes_to_refill() {
    let policy = |limit: &str| {
        let limit: Limit = limit.parse().unwrap();
        let status = Status::from_parts(&limit, true, 1, 0, 0);
        let draft10 = one(Dialect::Draft10, "p", &limit, &status);
        let draft7 = one(Dialect::Draft7, "p", &limit, &status);
        [text(&draft10, "ratelimit-policy").to_owned(), text(&draft7, "ratelimit-policy").to_owned()]
    };
    assert_eq!(policy("10/s burst 50"), [r#""p";q=50;w=5"#, "50;w=5"]);
    assert_eq!(policy("10/s burst 5"), [r#""p";q=5"#, "5;w=1"]);
    assert_eq!(policy("100/1500ms fixed_window"), [r#""p";q=100;w=2"#, "100;w=2"]);
    assert_eq!(policy("100/h sliding_counter"), [r#""p";q=100;w=3600"#, "100;w=3600"]);
    assert_eq!(policy("0/min"), [r#""p";q=0;w=60"#, "0;w=60"]);
}

#[test]
fn all_policies_are_listed_once_and_the_one_that_binds_is_reported() {
    let (minute, day): (Limit, Limit) = ("100/min".parse().unwrap(), "1000/day".parse().unwrap());
    let (some, none) =
        (Status::from_parts(&minute, true, 99, 0, 600_000), Status::from_parts(&day, true, 0, 0, 86_400_000_000));
    let lines = [
        Line { policy: "minute", limit: &minute, status: &some },
        Line { policy: "day", limit: &day, status: &none },
        Line { policy: "minute", limit: &minute, status: &some },
    ];
    let headers = Headers { dialect: Dialect::Draft10, lines: &lines, binding: Some(1), allowed: true, unix_now: NOW };
    let mut map = HeaderMap::new();
    headers.apply(&mut map);
    assert_eq!(text(&map, "ratelimit-policy"), r#""minute";q=100;w=60, "day";q=1000;w=86400"#);
    // Empty to the last part of a unit: the next one comes in a thousandth of a day.
    assert_eq!(text(&map, "ratelimit"), r#""day";r=0;t=87"#);

    for binding in [None, Some(3)] {
        let rendered = Headers { binding, allowed: false, ..headers }.render();
        assert_eq!(rendered.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["ratelimit-policy"]);
    }
    assert!(Headers { lines: &[], ..headers }.render().is_empty());
}

#[test]
fn what_a_service_behind_said_of_its_own_limits_stays() {
    let limit: Limit = "1/min fixed_window".parse().unwrap();
    let status = Status::from_parts(&limit, false, 0, 1, 1);
    let apply = |dialect, map: &mut HeaderMap| {
        let lines = &[Line { policy: "outer", limit: &limit, status: &status }];
        Headers { dialect, lines, binding: Some(0), allowed: false, unix_now: NOW }.apply(map);
    };
    let mut map = HeaderMap::new();
    map.insert("ratelimit", HeaderValue::from_static(r#""inner";r=7"#));
    map.insert("retry-after", HeaderValue::from_static("99"));
    apply(Dialect::Draft10, &mut map);
    let all: Vec<_> = map.get_all("ratelimit").iter().collect();
    assert_eq!(all, [r#""inner";r=7"#, r#""outer";r=0;t=1"#]);
    assert_eq!(map.get_all("retry-after").iter().collect::<Vec<_>>(), ["1"]);
    apply(Dialect::Draft7, &mut map);
    assert_eq!(map.get_all("ratelimit").iter().count(), 1, "a dictionary cannot hold two");
}

/// `reset=0` invited the caller of a closed endpoint to retry at once.
#[test]
fn a_zero_limit_never_resets_at_once() {
    let limit: Limit = "0/min".parse().unwrap();
    let never = Status::from_parts(&limit, false, 0, u64::MAX, 0);
    let header = |dialect, name: &str| text(&one(dialect, "closed", &limit, &never), name).to_owned();
    assert_eq!(header(Dialect::Draft7, "ratelimit"), "limit=0, remaining=0, reset=60");
    assert_eq!(header(Dialect::Draft6, "ratelimit-reset"), "60");
    assert_eq!(header(Dialect::XDelta, "x-ratelimit-reset"), "60");
    assert_eq!(header(Dialect::XEpoch, "x-ratelimit-reset"), (NOW.as_secs() + 61).to_string());
    assert_eq!(header(Dialect::Draft10, "ratelimit"), r#""closed";r=0"#);
}

#[test]
fn exposed_are_exactly_the_headers_that_are_sent() {
    let limit: Limit = "1/min fixed_window".parse().unwrap();
    let denied = Status::from_parts(&limit, false, 0, 1, 1);
    for &dialect in Dialect::ALL {
        let map = one(dialect, "p", &limit, &denied);
        let mut sent: Vec<&str> = map.keys().map(http::HeaderName::as_str).collect();
        let exposed = dialect.expose_headers().to_lowercase();
        let mut exposed: Vec<&str> = exposed.split(", ").collect();
        sent.sort_unstable();
        exposed.sort_unstable();
        assert_eq!(sent, exposed, "{dialect}");
    }
}

proptest! {
    #[test]
    fn draft10_parses_whatever_the_names(
        answers in prop::collection::vec((any::<String>(), answers()), 1..5), pick: prop::sample::Index, allowed: bool,
    ) {
        let lines: Vec<Line<'_>> = answers.iter()
            .map(|(policy, (limit, status))| Line { policy, limit, status }).collect();
        let binding = pick.index(lines.len());
        let mut map = HeaderMap::new();
        let (dialect, binds) = (Dialect::Draft10, Some(binding));
        Headers { dialect, lines: &lines, binding: binds, allowed, unix_now: NOW }.apply(&mut map);

        let policies = items(&map["ratelimit-policy"]);
        for line in &lines {
            let same = |(value, parameters): &(BareItem, Vec<(String, i64)>)| {
                name(value) == line.policy && get(parameters, "q") == Some(line.limit.capacity())
            };
            prop_assert!(policies.iter().any(same), "{:?} is missing in {policies:?}", line.policy);
        }
        prop_assert!(policies.iter().all(|(_, parameters)| get(parameters, "w") != Some(0)));

        let written = items(&map["ratelimit"]);
        prop_assert_eq!(written.len(), 1);
        prop_assert_eq!(name(&written[0].0), lines[binding].policy);
        prop_assert_eq!(get(&written[0].1, "r"), Some(lines[binding].status.remaining()));
        let retry = map.get("retry-after").map(|value| value.to_str().unwrap().parse::<u64>().unwrap());
        let status = lines[binding].status;
        if allowed {
            prop_assert_eq!(retry, None);
        } else {
            prop_assert_eq!(retry, get(&written[0].1, "t"));
            prop_assert_eq!(retry, status.retry_after().map(|wait| seconds_up(wait).max(1)));
        }
    }

    #[test]
    fn the_older_dialects_parse_and_agree((limit, status) in answers(), policy: String) {
        let draft7 = one(Dialect::Draft7, &policy, &limit, &status);
        let written: Dictionary = Parser::new(draft7["ratelimit"].as_bytes()).parse().unwrap();
        let member = |key: &str| match &written[key] {
            ListEntry::Item(item) => u64::try_from(integer(&item.bare_item)).unwrap(),
            ListEntry::InnerList(_) => panic!("an inner list"),
        };
        prop_assert_eq!(written.len(), 3);
        prop_assert_eq!((member("limit"), member("remaining")), (limit.capacity(), status.remaining()));
        let policies = items(&draft7["ratelimit-policy"]);
        prop_assert_eq!(integer(&policies[0].0), i64::try_from(limit.capacity()).unwrap());
        prop_assert!(get(&policies[0].1, "w") >= Some(1));

        let number = |dialect, name: &str| text(&one(dialect, &policy, &limit, &status), name).parse::<u64>().unwrap();
        prop_assert_eq!(member("reset"), number(Dialect::Draft6, "ratelimit-reset"));
        prop_assert_eq!(member("reset"), number(Dialect::XDelta, "x-ratelimit-reset"));
        let at = number(Dialect::XEpoch, "x-ratelimit-reset");
        prop_assert!((member("reset")..=member("reset") + 1).contains(&(at - NOW.as_secs())));
        if let Some(retry) = draft7.get("retry-after") {
            prop_assert_eq!(retry, &HeaderValue::from(member("reset")));
        }
    }

    /// Against a real store: a client that waits as long as the header says gets what it promises.
    #[test]
    fn waits_are_never_rounded_down(
        limit in limits(), trace in prop::collection::vec((0_u64..2_000_000, 1_u64..20), 1..30),
    ) {
        let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_123_457));
        let limiter = Limiter::new(MemoryStore::builder().clock(clock.clone()).build());
        let check = |cost: u64| {
            let check = Check::new(Key::new("p", "s").unwrap(), &limit).cost(Cost::new(cost).unwrap());
            limiter.check_now(check).unwrap()
        };
        for (pause, cost) in trace {
            clock.advance(Duration::from_micros(pause));
            let cost = cost.min(limit.capacity());
            let decision = check(cost);
            let status = &decision.binding();
            let map = one(Dialect::Draft10, "p", &limit, status);
            let written = items(&map["ratelimit"]);
            let wait = get(&written[0].1, "t");
            let at = text(&one(Dialect::XEpoch, "p", &limit, status), "x-ratelimit-reset").parse::<u64>().unwrap();
            match (decision.allowed(), status.remaining()) {
                (false, _) => {
                    prop_assert_eq!(wait, map.get("retry-after").map(|value| value.to_str().unwrap().parse().unwrap()));
                    clock.advance(Duration::from_secs(wait.unwrap()));
                    prop_assert!(check(cost).allowed(), "denied after {wait:?} s");
                }
                (true, 0) => {
                    clock.advance(Duration::from_secs(wait.unwrap()));
                    prop_assert!(check(1).allowed(), "no unit after {wait:?} s");
                }
                (true, _) => prop_assert!(Duration::from_secs(wait.unwrap_or(0)) >= status.reset_after()),
            }
            prop_assert!(Duration::from_secs(at) >= NOW + status.retry_after().unwrap());
        }
    }
}
