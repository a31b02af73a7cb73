use super::*;

fn url(text: &str) -> StoreUrl {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_form_is_understood_and_printed_without_its_password() {
    for (written, printed) in [
        ("redis://localhost", "redis://localhost:6379"),
        ("redis://localhost/", "redis://localhost:6379"),
        ("REDIS://h:1/3", "redis://h:1/3"),
        ("valkey://h", "redis://h:6379"),
        ("valkeys://h", "rediss://h:6379"),
        ("redis://:secret@h", "redis://:***@h:6379"),
        ("redis://me:secret@h:7/1", "redis://me:***@h:7/1"),
        ("redis://me:s%40c%2Fr%25t@h", "redis://me:***@h:6379"),
        ("redis://me:p@ss@h", "redis://me:***@h:6379"),
        ("redis://[::1]:7000", "redis://[::1]:7000"),
        ("redis://[::1]", "redis://[::1]:6379"),
        ("rediss://h:6380?ca=/etc/ca.pem", "rediss://h:6380"),
        ("unix:///run/r.sock", "redis+unix:///run/r.sock"),
        ("redis+unix:///run/r.sock?db=2", "redis+unix:///run/r.sock?db=2"),
        ("valkey+unix:///run/r%20r.sock", "redis+unix:///run/r r.sock"),
        ("redis+cluster://a:1,b:2,c", "redis+cluster://a:1,b:2,c:6379"),
        ("rediss+cluster://u:p@a,b/0", "rediss+cluster://u:***@a:6379,b:6379"),
        ("redis+sentinel://a:1,b,c/main", "redis+sentinel://a:1,b:26379,c:26379/main"),
        (
            "rediss+sentinel://u:p@a/main/4?sentinel_user=s&sentinel_password=q",
            "rediss+sentinel://u:***@a:26379/main/4",
        ),
    ] {
        let url = url(written);
        assert_eq!(url.to_string(), printed, "{written}");
        assert_eq!(format!("{url:?}"), format!("StoreUrl({printed})"), "{written}");
    }
}

#[test]
fn user_and_password_are_unescaped() {
    let login = url("redis://m%3Ae:s%40c%2Fr%25t@h/9").login;
    assert_eq!((login.user.as_deref(), login.password.as_deref(), login.db), (Some("m:e"), Some("s@c/r%t"), 9));
    let login = url("redis://:only@h").login;
    assert_eq!((login.user, login.password.as_deref()), (None, Some("only")));
}

#[test]
fn sentinels_have_separate_credentials() {
    let url = url("redis+sentinel://u:p@a/main?sentinel_user=s&sentinel_password=q%26");
    assert_eq!((url.login.user.as_deref(), url.login.password.as_deref()), (Some("u"), Some("p")));
    let Place::Sentinel { login, master, .. } = url.place else { panic!("not a sentinel URL") };
    assert_eq!((login.user.as_deref(), login.password.as_deref(), master.as_str()), (Some("s"), Some("q&"), "main"));
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    for (written, words) in [
        ("localhost:6379", "redis://host:6379"),
        ("reddis://h", "did you mean redis://"),
        ("rediss+clustr://h", "did you mean rediss+cluster://"),
        ("http://h", "unknown scheme http://: did you mean redis://"),
        ("redis://", "host is missing"),
        ("redis://:6379", "host is missing"),
        ("redis+cluster://a,,b", "host is missing"),
        ("redis://a,b", "redis+cluster://a,b,c"),
        ("redis://h:port", "invalid port `port`"),
        ("redis://h:0", "invalid port `0`"),
        ("redis://h:70000", "1 to 65535"),
        ("redis://[::1]6379", "invalid port"),
        ("redis://h/zero", "invalid database number `zero`"),
        ("redis+cluster://a/1", "only has database 0"),
        ("redis+sentinel://a", "/master-name"),
        ("redis+sentinel://a/", "/master-name"),
        ("redis+sentinel://a/main/x", "invalid database number `x`"),
        ("redis://user@h", "redis://user:password@host"),
        ("redis+sentinel://a/m?sentinel_user=x", "no password"),
        ("redis://u:100%@h", "%25"),
        ("redis://u:pa/ss@h", "%2F"),
        ("redis://u:pa#ss@h", "%23"),
        ("redis://h?ca=/x", "unknown parameter `ca`: this scheme has no parameters"),
        ("rediss://h?cq=/x", "this scheme has ca"),
        ("redis+sentinel://a/m?timeout=3", "sentinel_password"),
        ("redis://h#insecure", "`#insecure`"),
        ("unix://", "path of the socket"),
    ] {
        let error = written.parse::<StoreUrl>().expect_err(written).to_string();
        assert!(error.contains(words), "{written}: {error}");
    }
}

#[test]
fn no_error_contains_a_password() {
    for written in ["redis://u:hunter/2@h", "redis://u:hunter2%@h", "redis://u:hun?ter2@h:x", "reddis://u:hunter2@h"] {
        let error = written.parse::<StoreUrl>().expect_err(written);
        assert!(!format!("{error} {error:?}").contains("hun"), "{written}: {error}");
    }
}

/// The path of a socket may have an `@`, so the check for an unescaped password was left out for all socket URLs.
#[test]
fn no_error_about_a_socket_contains_a_password() {
    for written in ["unix://u:hun#ter2@/r.sock", "unix://u:hun?ter2@/r.sock", "unix://u:hun/ter2@/r.sock"] {
        assert_eq!(written.parse::<StoreUrl>(), Err(UrlError::UnescapedPassword), "{written}");
    }
    let read: StoreUrl = "unix:///run/r@2.sock".parse().unwrap();
    assert_eq!(read.to_string(), "redis+unix:///run/r@2.sock");
}

#[test]
fn an_address_without_a_host_is_that_of_the_server_that_named_it() {
    let seed = Address::Tcp { host: "seed".into(), port: 1 };
    for (text, printed) in
        [("10.0.0.1:7", "10.0.0.1:7"), (":7", "seed:7"), ("?:7", "seed:7"), ("::1:7", "[::1]:7"), ("h:7@17", "h:7")]
    {
        assert_eq!(Address::named(text, &seed).map(|a| a.to_string()).as_deref(), Some(printed), "{text}");
    }
    assert_eq!(Address::named("nonsense", &seed), None);
}
