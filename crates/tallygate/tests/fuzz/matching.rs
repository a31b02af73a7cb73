//! Rules and descriptors: what applies is what the definition says, each subject is counted apart, and no value of a caller makes
//! the evaluation panic or take long.

use std::collections::HashMap;

use tallygate::call::Verb;
use tallygate::clock::{ManualClock, Timestamp};
use tallygate::policy::{Action, Ask, Descriptor, Domain, Mode, Pattern, Policy, Rule, Stores, Want};
use tallygate::{Cost, MemoryStore};

/// What a call may have at the edges of the server, or fewer.
const MAX_RULES: usize = 8;
const MAX_DESCRIPTORS: usize = 8;
const MAX_ENTRIES: usize = 16;

/// What was read, kept beside the rule itself for the comparison.
#[derive(Default)]
struct Written<'t> {
    wants: Vec<(&'t str, Option<&'t str>)>,
    partition: Vec<&'t str>,
    limit: &'t str,
    mode: usize,
}

/// Each line begins with what it is: `r` begins a rule, with its limit; `=` is a condition, `key pattern`; `!` an entry that must be
/// absent; `p` a key of the partition; `m` another mode; `d` begins a descriptor; `e` is an entry, `key value`.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (mut rules, mut descriptors) = (Vec::<Written>::new(), Vec::<Vec<(&str, &str)>>::new());
    for line in text.split('\n') {
        let Some(kind) = line.chars().next() else { continue };
        let rest = &line[kind.len_utf8()..];
        let (key, value) = rest.split_once(' ').unwrap_or((rest, ""));
        match kind {
            'r' if rules.len() < MAX_RULES => rules.push(Written { limit: rest, ..Written::default() }),
            'd' if descriptors.len() < MAX_DESCRIPTORS => descriptors.push(Vec::new()),
            _ => match (kind, rules.last_mut(), descriptors.last_mut()) {
                ('=', Some(rule), _) if rule.wants.len() < MAX_ENTRIES => rule.wants.push((key, Some(value))),
                ('!', Some(rule), _) if rule.wants.len() < MAX_ENTRIES => rule.wants.push((rest, None)),
                ('p', Some(rule), _) if rule.partition.len() < MAX_ENTRIES => rule.partition.push(rest),
                ('m', Some(rule), _) => rule.mode += 1,
                ('e', _, Some(entries)) if entries.len() < MAX_ENTRIES => entries.push((key, value)),
                _ => {}
            },
        }
    }
    let policies: Vec<(Policy, Rule)> = rules.iter().enumerate().map(|(at, written)| policy(at, written)).collect();
    let Ok(domain) = Domain::new("fuzz", policies) else { return };
    let read: Vec<Descriptor> = descriptors
        .iter()
        .map(|entries| entries.iter().fold(Descriptor::new(), |read, (key, value)| read.with(*key, *value)))
        .collect();

    let all: Vec<&Descriptor> = read.iter().collect();
    let found = domain.matcher().find(&all);
    let reasons = domain.matcher().explain(&all);
    assert_eq!(reasons.len(), rules.len() * read.len());
    assert_eq!(reasons.iter().filter(|reason| reason.matched).count(), found.len());
    let mut subjects: HashMap<(String, String), Vec<&str>> = HashMap::new();
    for (at, rule) in rules.iter().enumerate() {
        for (place, entries) in descriptors.iter().enumerate() {
            let first = |key: &str| entries.iter().find(|(other, _)| *other == key).map(|(_, value)| *value);
            let met = rule.wants.iter().all(|(key, want)| match (want, first(key)) {
                (None, value) => value.is_none(),
                (Some(pattern), Some(value)) => is_match(pattern, value),
                (Some(_), None) => false,
            });
            let values: Option<Vec<&str>> = rule.partition.iter().map(|key| first(key)).collect();
            let name = format!("p{at}");
            let is_found = |found: &&tallygate::policy::Match| found.policy.name() == name && found.descriptor == place;
            let applied = found.iter().find(is_found);
            assert_eq!(met && values.is_some(), applied.is_some(), "rule {at}, descriptor {place}");
            if let (Some(values), Some(applied)) = (values, applied) {
                let subject = applied.subject.as_str().to_owned();
                assert!(!subject.is_empty() && subject.len() <= 512, "{subject}");
                let counted = subjects.entry((name, subject)).or_insert_with(|| values.clone());
                assert_eq!(*counted, values, "two callers are counted as one");
            }
        }
    }
    decide(&domain, &read);
}

fn policy(at: usize, written: &Written<'_>) -> (Policy, Rule) {
    let name = format!("p{at}");
    let policy = Policy::new(&*name, "fuzz", written.limit);
    let policy = policy.unwrap_or_else(|_| Policy::new(&*name, "fuzz", "3/min fixed_window").expect("a policy"));
    let policy = policy.with_mode([Mode::Enforce, Mode::Shadow, Mode::Quota][written.mode % 3]);
    let rule = written.wants.iter().fold(Rule::new(), |rule, (key, want)| {
        rule.when(*key, want.map_or(Want::Absent, |pattern| Want::one_of([pattern])))
    });
    (policy, written.partition.iter().fold(rule, |rule, key| rule.partition(*key)))
}

/// Asked again and again at one instant, a key never gets more than its limit holds, and a peek charges nothing.
fn decide(domain: &Domain, descriptors: &[Descriptor]) {
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    let stores = Stores::new(MemoryStore::builder().clock(clock).build());
    let asks = |verb| -> Vec<Ask> {
        descriptors.iter().map(|one| Ask::new(one.clone(), Action::new(verb, Cost::ONE))).collect()
    };
    let mut used: HashMap<(String, String), (u64, u64)> = HashMap::new();
    for verb in [Verb::Check, Verb::Peek, Verb::Check, Verb::Check] {
        let verdict = domain.evaluate(&asks(verb)).decide_now(&stores).expect("the embedded store answers at once");
        for ruling in verdict.states() {
            let Some(limit) = ruling.limit() else { continue };
            let key = (ruling.policy().name().to_owned(), ruling.subject().to_owned());
            let (charged, capacity) = used.entry(key).or_insert((0, limit.capacity()));
            *charged += ruling.charged();
            assert!(*charged <= *capacity, "{}: {charged} of {capacity}", ruling.policy().name());
            assert!(verb == Verb::Check || ruling.charged() == 0);
        }
    }
}

/// The definition of a pattern, in quadratic time.
fn is_match(pattern: &str, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut reached = vec![false; text.len() + 1];
    reached[0] = true;
    for wanted in pattern.chars() {
        if wanted == '*' {
            let first = reached.iter().position(|reached| *reached).unwrap_or(reached.len());
            reached[first..].fill(true);
        } else {
            for at in (0..text.len()).rev() {
                reached[at + 1] = reached[at] && text[at] == wanted;
            }
            reached[0] = false;
        }
    }
    let whole: String = text.iter().collect();
    assert_eq!(Pattern::new(pattern).to_string(), pattern);
    assert_eq!(Pattern::new(pattern).matches(&whole), reached[text.len()], "`{pattern}` on {whole:?}");
    reached[text.len()]
}
