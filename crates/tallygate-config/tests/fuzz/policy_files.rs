//! Policy files of all three formats: read or refused, everything that is wrong with a place, and what was read can decide any call.

use tallygate::clock::{ManualClock, Timestamp};
use tallygate::policy::{Ask, Descriptor, Stores};
use tallygate::{Cost, MemoryStore};
use tallygate_config::Config;

pub fn run(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let read = Config::from_texts(&[("f.yaml", text)]);
    let findings = match &read {
        Ok(config) => {
            decides(config, text);
            config.warnings.as_slice()
        }
        Err(findings) => {
            assert!(findings.errors().next().is_some());
            findings.as_slice()
        }
    };
    // In YAML, a carriage return alone ends a line as well.
    let lines = text.replace("\r\n", "\n").split(['\n', '\r']).count() + 1;
    let mut said = 0;
    for finding in findings {
        assert_eq!(finding.file, "f.yaml");
        assert!(finding.line >= 1 && finding.column >= 1 && finding.line as usize <= lines, "{finding}");
        let written = format!("{finding:#}");
        assert!(!finding.message.is_empty(), "{finding:?}");
        assert!(!written.replacen("\n  help: ", "", 1).contains(|c: char| c.is_control()), "{finding:?}");
        said += written.len();
    }
    assert!(said <= 16 * 1024 + 64 * text.len(), "{said} bytes of findings about {} bytes", text.len());
}

/// A caller may send any entries: here, those words of the file that most likely mean something.
fn decides(config: &Config, text: &str) {
    let is_part = |c: char| c.is_whitespace() || matches!(c, ':' | '"' | '\'' | '[' | ']' | '{' | '}' | ',');
    let words: Vec<&str> = text.split(is_part).filter(|word| !word.is_empty()).take(64).collect();
    let keyed =
        words.chunks(16).map(|words| words.windows(2).fold(Descriptor::new(), |d, pair| d.with(pair[0], pair[1])));
    let descriptors: Vec<Descriptor> = keyed.chain([Descriptor::new()]).collect();
    let all: Vec<&Descriptor> = descriptors.iter().collect();
    let clock = ManualClock::new(Timestamp::from_micros(1_700_000_000_000_000));
    let stores = Stores::new(MemoryStore::builder().clock(clock).build());
    for policy in config.policies.policies() {
        assert!(!policy.name().is_empty() && !policy.key_name().is_empty());
    }
    for domain in config.policies.domains() {
        let matched = domain.matcher().find(&all).len();
        let explained = domain.matcher().explain(&all).iter().filter(|reason| reason.matched).count();
        assert_eq!(matched, explained, "of `{}`", domain.name());
        for one in &descriptors {
            let verdict = domain.evaluate(&[Ask::check(one.clone(), Cost::ONE)]).decide_now(&stores);
            assert!(verdict.is_some(), "the embedded store answers at once");
        }
    }
}
