//! Phrases that the vocabulary replaces.

use super::Findings;
use super::files::TextFile;

/// History keeps its words; the others are not prose of ours.
const EXEMPT: [&str; 5] = ["CHANGELOG.md", "docs/adr/", "LICENSE", "Cargo.lock", "xtask/src/hygiene/phrases.rs"];

/// Each with what to write instead.
const PHRASES: &[(&str, &str)] = &[
    ("unless said", "by default"),
    ("will do", "waiting does not help"),
    ("whoever", "name who it is"),
    ("without an end", "without a TTL"),
    ("amiss", "wrong"),
    ("its affair", "say what happens"),
    ("by hand", "manual, manually"),
    ("for want of", "for lack of"),
    ("of its own accord", "automatically"),
    ("at length", "say which"),
    // For what cannot be reached.
    ("is away", "is unreachable"),
    ("are away", "are unreachable"),
    ("was away", "was unreachable"),
    ("be away", "be unreachable"),
    ("goes away", "becomes unreachable"),
    ("store away", "store unreachable"),
    ("redis away", "Redis unreachable"),
    // For what is reported or sent.
    ("is told", "is reported"),
    ("are told", "are reported"),
    ("was told", "was reported"),
    ("were told", "were reported"),
    ("be told", "be reported"),
    ("been told", "been reported"),
    ("told otherwise", "configured otherwise"),
    // Sentences that readers stumbled over.
    ("after a hundred calls at once", "the 101st call"),
    ("callers are their addresses", "callers are identified by address"),
    ("wait for their turn", "are throttled"),
    ("tries the promise", "stress-tests the guarantees"),
    ("before there is a store", "without a store"),
    ("mostly of one", "optimised for one element"),
    ("who waited longest may come last", "instants can arrive out of order"),
    ("nothing is never enough", "a zero limit"),
    ("more than any limit holds is", "above the maximum"),
    ("nothing is nothing", "a zero limit needs no unit"),
    ("could empty them without the token", "could refund them without the token"),
    ("told to belong together", "correlate"),
    ("each may have freed a caller", "each eviction resets a limit"),
    ("by what became of them", "by outcome"),
    ("nobody is trusted to say so", "no proxy is trusted"),
    ("tries to pass for others", "may be spoofing its address"),
    ("which is all the same", "say what happens"),
    ("was not foreseen by", "unknown"),
    ("how long that takes tells nothing", "constant time"),
    ("the first that fits holds", "the first that matches applies"),
    ("such a one has easier ways", "an attacker has easier options"),
];

pub fn check(file: &TextFile, findings: &mut Findings) {
    if EXEMPT.iter().any(|exempt| file.path.starts_with(exempt) || file.path.ends_with(exempt)) {
        return;
    }
    for (number, what) in hits(&file.text) {
        findings.fail(format!("{}:{number}: {what}", file.path));
    }
}

/// Also across the ends of lines, with their comment signs.
fn hits(text: &str) -> Vec<(usize, String)> {
    let mut words: Vec<(usize, &str, String)> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        for word in line.split_whitespace() {
            let plain = word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
            let comment = word.chars().all(|c| matches!(c, '/' | '!' | '#' | '-' | '*' | '|' | '>'));
            if !comment {
                words.push((number, word, plain));
            }
        }
    }
    let mut found = Vec::new();
    for at in 0..words.len() {
        let number = words[at].0;
        for (phrase, instead) in PHRASES {
            let mut rest = words[at..].iter().map(|(_, _, plain)| plain.as_str());
            if phrase.split(' ').all(|wanted| rest.next() == Some(wanted)) {
                found.push((number, format!("\"{phrase}\": write \"{instead}\"")));
            }
        }
        // `x` is no mode
        if let [(_, subject, _), (_, _, is), (_, _, no), (_, _, noun), ..] = &words[at..]
            && subject.ends_with('`')
            && (is.as_str(), no.as_str()) == ("is", "no")
            && !["longer", "more"].contains(&noun.as_str())
        {
            found.push((number, format!("\"is no {noun}\": write \"unknown {noun}\" or \"invalid {noun}\"")));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_in_any_case_and_across_lines() {
        let found = |text| hits(text).len();
        assert_eq!(found("One unless said."), 1);
        assert_eq!(found("/// Whoever reads this, unless\n/// said otherwise"), 2);
        assert_eq!(found("`x` is no mode"), 1);
        assert_eq!(found("`x` is no longer read; it is nowhere; an island; said unless"), 0);
        assert_eq!(hits("fine\nthe store is\n    // away.")[0].0, 2);
    }
}
