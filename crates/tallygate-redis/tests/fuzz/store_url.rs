//! The URL of a store: read or refused, and no message ever shows a part of a password.

use tallygate_redis::StoreUrl;

const SECRET: &str = "hunter2";

/// Three lines: a scheme, what surrounds the password, and the rest. Then the whole input once more, as it is.
pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Ok(url) = text.parse::<StoreUrl>() {
        assert!(!url.to_string().is_empty());
        assert_eq!(text.trim().parse::<StoreUrl>().as_ref(), Ok(&url));
    }
    let mut lines = text.splitn(3, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (scheme, around, rest) = (line(), line(), line());
    let (before, after) = around.split_once('*').unwrap_or((around, ""));
    // A user that begins the path of a socket is one.
    if scheme.contains("://") || before.contains(['/', '?', '#']) {
        return;
    }
    let url = format!("{scheme}://{before}:{after}{SECRET}{after}@{rest}");
    let said = match url.parse::<StoreUrl>() {
        Ok(read) => format!("{read} {read:?}"),
        Err(error) => format!("{error} {error:?}"),
    };
    assert!(!said.contains(SECRET), "{url}: {said}");
    assert!(said.len() <= 1024 + 16 * url.len(), "{said}");
}
