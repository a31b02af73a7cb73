//! Text of strangers, made harmless: no line can be forged, no terminal steered, no reading order turned round.

/// Appends `text` with everything that does not print as itself written as an escape: control characters, escape
/// sequences, line ends of any script, marks that turn the reading order, characters of no width.
pub(crate) fn push_text(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '"' | '\'' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
}

/// As [`push_text`], in quotes unless it is one plain word, so that no value can pass for two fields.
pub(crate) fn push_value(out: &mut String, text: &str) {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        out.push_str(text);
        return;
    }
    out.push('"');
    for c in text.chars() {
        match c {
            '\'' => out.push(c),
            _ => out.extend(c.escape_debug()),
        }
    }
    out.push('"');
}

/// Appends a JSON document in the same spirit. JSON itself lets most of these characters pass; outside of strings there
/// are none of them, and inside `\u` means the same, so whoever parses it reads the very text.
pub(crate) fn push_json(out: &mut String, json: &str) {
    if json.bytes().all(|byte| byte.is_ascii() && byte != 0x7f) {
        return out.push_str(json);
    }
    for c in json.chars() {
        let prints = matches!(c, '"' | '\'' | '\\') || c.escape_debug().len() == 1;
        if prints {
            out.push(c);
            continue;
        }
        for unit in c.encode_utf16(&mut [0; 2]) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether a terminal or a reader of lines could be misled by it.
    pub(crate) fn hostile(c: char) -> bool {
        let turns =
            matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}');
        c.is_control() || turns
    }

    /// Any text, with more of what does harm than chance would bring.
    pub(crate) fn text() -> impl Strategy<Value = String> {
        let nasty = prop::sample::select(
            "\n\r\t\0\u{1b}\u{7f}\u{85}\u{9b}\u{202e}\u{2028}\u{200b}\"'\\{= ".chars().collect::<Vec<_>>(),
        );
        prop::collection::vec(prop_oneof![nasty, any::<char>()], 0..40).prop_map(String::from_iter)
    }

    proptest! {
        #[test]
        fn nothing_hostile_passes(text in text()) {
            let mut out = String::new();
            push_text(&mut out, &text);
            push_value(&mut out, &text);
            push_json(&mut out, &serde_json::to_string(&text).unwrap());
            prop_assert!(!out.chars().any(hostile), "{out:?}");
        }

        #[test]
        fn escaped_json_reads_as_the_same_text(text in text()) {
            let mut out = String::new();
            push_json(&mut out, &serde_json::to_string(&text).unwrap());
            prop_assert_eq!(serde_json::from_str::<String>(&out).unwrap(), text);
        }

        #[test]
        fn a_value_is_one_word_or_in_quotes_that_it_cannot_close(text in text()) {
            let mut out = String::new();
            push_value(&mut out, &text);
            match out.strip_prefix('"') {
                None => prop_assert!(!out.contains([' ', '=', '"'])),
                Some(rest) => {
                    let mut escaped = false;
                    let end = rest.find(|c| { let ends = c == '"' && !escaped; escaped = c == '\\' && !escaped; ends });
                    prop_assert_eq!(end, Some(rest.len() - 1));
                }
            }
        }
    }
}
