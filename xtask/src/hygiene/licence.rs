//! Licences we accept, as SPDX expressions.

/// The list that `cargo deny` uses too, which needs a network: one place says which licences we accept.
const DENY: &str = include_str!("../../../deny.toml");

fn is_listed(name: &str) -> bool {
    let list = DENY.split_once("allow = [").and_then(|(_, rest)| rest.split_once(']'));
    list.is_some_and(|(list, _)| list.split('"').skip(1).step_by(2).any(|listed| listed == name))
}

/// Whether one of the choices an expression leaves is allowed.
pub fn allowed(expression: &str) -> bool {
    // Crates from before SPDX write `MIT/Apache-2.0`.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest) && rest.is_empty()
}

fn any(words: &mut &[&str]) -> bool {
    let mut result = all(words);
    while take(words, "OR") {
        result |= all(words);
    }
    result
}

fn all(words: &mut &[&str]) -> bool {
    let mut result = one(words);
    while take(words, "AND") {
        result &= one(words);
    }
    result
}

fn one(words: &mut &[&str]) -> bool {
    if take(words, "(") {
        let result = any(words);
        return take(words, ")") && result;
    }
    let Some((name, rest)) = words.split_first() else {
        return false;
    };
    *words = rest;
    if let ["WITH", exception, rest @ ..] = *words {
        *words = rest;
        return is_listed(&format!("{name} WITH {exception}"));
    }
    is_listed(name)
}

fn take(words: &mut &[&str], wanted: &str) -> bool {
    match words.split_first() {
        Some((first, rest)) if *first == wanted => {
            *words = rest;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::allowed;

    #[test]
    fn expressions() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR GPL-2.0",
        ] {
            assert!(allowed(good), "{good}");
        }
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "(MIT", "MIT MIT", "MIT WITH Odd-exception"] {
            assert!(!allowed(bad), "{bad}");
        }
    }
}
