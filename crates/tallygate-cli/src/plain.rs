//! Text that a terminal cannot mistake for a command.

/// `text` on one line: control characters, and those that turn the direction of writing, are written as escapes.
pub(crate) fn text(text: &str) -> String {
    escape(text, |c| is_unsafe(c).then(|| c.escape_unicode().to_string()))
}

/// The same, but lines stay lines.
pub(crate) fn lines(text: &str) -> String {
    escape(text, |c| (c != '\n' && is_unsafe(c)).then(|| c.escape_unicode().to_string()))
}

/// JSON as a terminal can show it. In JSON such characters stand only inside strings, where `\u` means the same.
pub(crate) fn json(json: &str) -> String {
    escape(json, |c| is_unsafe(c).then(|| format!("\\u{:04x}", u32::from(c))))
}

/// All of these lie below U+FFFF, so one `\u` in JSON is enough.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

fn escape(text: &str, replacement: impl Fn(char) -> Option<String>) -> String {
    let mut written = String::with_capacity(text.len());
    for c in text.chars() {
        match replacement(c) {
            Some(escaped) => written.push_str(&escaped),
            None => written.push(c),
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_a_terminal_obeys_gets_through() {
        assert_eq!(text("a\x1b[2J\u{9b}b\u{202e}\n"), "a\\u{1b}[2J\\u{9b}b\\u{202e}\\u{a}");
        assert_eq!(lines("a\n\rb"), "a\n\\u{d}b");
        assert_eq!(text("zoë {x} 日本"), "zoë {x} 日本");
    }

    #[test]
    fn escaped_json_means_the_same() {
        let value = serde_json::json!({ "policy": "a\x1b\u{9b}\u{7f}\u{2028}\"\\" });
        let written = json(&value.to_string());
        assert!(written.is_ascii(), "{written}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&written).unwrap(), value);
    }
}
