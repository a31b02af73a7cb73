//! Makes untrusted text safe to print: no terminal escapes, no forged lines, no reversed reading order.
//!
//! ```
//! use tallygate_http::sanitize;
//!
//! assert_eq!(sanitize::text("a\x1b[2J\nzoë"), r"a\u{1b}[2J\nzoë");
//! assert_eq!(sanitize::lines("a\n\rb"), "a\n\\rb");
//! assert_eq!(sanitize::json("[\"\u{202e}\"]"), r#"["\u202e"]"#);
//! ```

use std::borrow::Cow;

/// Whether a character does not print as itself: control characters, line ends, marks that change the reading order,
/// zero-width characters.
pub fn is_hidden(c: char) -> bool {
    !matches!(c, ' '..='~') && c.escape_debug().len() > 1
}

/// The text on one line, with hidden characters as Rust escapes.
pub fn text(text: &str) -> String {
    escape(text, is_hidden, |written, c| written.extend(c.escape_debug())).into_owned()
}

/// The same, but newlines are kept.
pub fn lines(text: &str) -> String {
    escape(text, |c| c != '\n' && is_hidden(c), |written, c| written.extend(c.escape_debug())).into_owned()
}

/// JSON with hidden characters as `\u` escapes. Only strings and white space contain such characters, so a parser reads
/// the same values.
pub fn json(json: &str) -> Cow<'_, str> {
    let push = |written: &mut String, c: char| {
        for unit in c.encode_utf16(&mut [0; 2]) {
            written.push_str(&format!("\\u{unit:04x}"));
        }
    };
    escape(json, |c| c >= ' ' && is_hidden(c), push)
}

fn escape(text: &str, is_hidden: impl Fn(char) -> bool, push: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(&is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut written = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_hidden(c) { push(&mut written, c) } else { written.push(c) }
    }
    Cow::Owned(written)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    #[test]
    fn text_that_prints_is_left_alone() {
        for plain in ["", "zoë {x} 日本 ✓", r#"C:\a "b" 'c'"#] {
            assert_eq!((text(plain), json(plain)), (plain.to_owned(), Cow::Borrowed(plain)));
        }
    }

    proptest! {
        #[test]
        fn nothing_hidden_is_left(untrusted in any::<String>()) {
            prop_assert!(!text(&untrusted).contains(is_hidden));
            prop_assert!(!lines(&untrusted).replace('\n', "").contains(is_hidden));
        }

        #[test]
        fn escaped_json_means_the_same(untrusted in any::<String>()) {
            let value = Value::from(untrusted);
            let written = value.to_string();
            let written = json(&written);
            prop_assert!(!written.contains(is_hidden));
            prop_assert_eq!(serde_json::from_str::<Value>(&written).unwrap(), value);
        }
    }
}
