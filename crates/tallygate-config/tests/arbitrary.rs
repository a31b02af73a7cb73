//! No file brings the reader down, and whatever is wrong has a place.

use proptest::prelude::*;
use tallygate_config::Config;

const FILES: [&str; 3] = [
    include_str!("../../../examples/policies/tallygate.yaml"),
    include_str!("../../../examples/policies/envoy.yaml"),
    include_str!("../../../examples/policies/limitador.yaml"),
];

/// What a file may be made of where chance would take long to find it.
const PIECES: [&str; 24] = [
    "\n",
    "  ",
    "- ",
    ": ",
    "[",
    "]",
    "{",
    "}",
    "\"",
    "'",
    "&a ",
    "*a",
    "<<: *a",
    "null",
    "~",
    "-1",
    "1e9",
    "|",
    "*",
    "\u{0}",
    "é",
    "!!int ",
    "policies:\n",
    "descriptors:\n",
];

fn holds(text: &str) -> Result<(), TestCaseError> {
    match Config::from_texts(&[("f.yaml", text)]) {
        Ok(config) => prop_assert!(config.policies.policies().all(|policy| !policy.name().is_empty())),
        Err(findings) => {
            prop_assert!(findings.errors().next().is_some());
            let lines = text.lines().count().max(1) + 1;
            for finding in findings.as_slice() {
                prop_assert_eq!(&finding.file, "f.yaml");
                prop_assert!(finding.line >= 1 && finding.column >= 1 && finding.line as usize <= lines, "{}", finding);
                prop_assert!(!finding.message.is_empty() && !finding.message.contains('\n'), "{}", finding);
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC{0,200}") {
        holds(&text)?;
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        holds(&String::from_utf8_lossy(&bytes))?;
    }

    #[test]
    fn any_change_of_a_file_is_read_or_refused(
        file in 0..FILES.len(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0..12_usize, 0..PIECES.len()), 1..6),
    ) {
        let mut chars: Vec<char> = FILES[file].chars().collect();
        for (at, dropped, piece) in changes {
            let at = at.index(chars.len() + 1);
            let end = (at + dropped).min(chars.len());
            chars.splice(at..end, PIECES[piece].chars());
        }
        holds(&chars.into_iter().collect::<String>())?;
    }

    #[test]
    fn a_mistyped_field_is_told_with_what_was_meant(
        field in prop::sample::select(vec!["partition", "algorithm", "on_error", "overrides"]),
        at in any::<prop::sample::Index>(),
    ) {
        let mut typo = field.to_owned();
        typo.remove(at.index(field.len()));
        let text = format!("policies:\n  - name: a\n    limit: 1/s\n    {typo}: x\n");
        let findings = Config::from_texts(&[("f.yaml", text)]).unwrap_err();
        let reported = findings.errors().next().unwrap().to_string();
        prop_assert_eq!(reported, format!("f.yaml:4:5: error: a policy has no field `{typo}`; did you mean `{field}`?"));
    }
}
