//! Licences we accept, in SPDX's notation.

const ALLOWED: [&str; 14] = [
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

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
        return ALLOWED.contains(&format!("{name} WITH {exception}").as_str());
    }
    ALLOWED.contains(name)
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
