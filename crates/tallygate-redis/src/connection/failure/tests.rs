//! The replies of real servers, Redis 6 to Valkey 9, and what each is taken for.

use super::*;

fn cut() -> Cause {
    std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()
}

fn of(line: &str) -> Failure {
    let (code, text) = line.split_once(' ').unwrap_or((line, ""));
    Failure::of_text(code, text)
}

#[test]
fn redirections_name_slot_and_address() {
    let redirected =
        |slot, address: &str, asking| Failure::Redirected(Redirect { slot, address: address.to_owned(), asking });
    assert_eq!(of("MOVED 3999 127.0.0.1:6381"), redirected(3999, "127.0.0.1:6381", false));
    assert_eq!(of("ASK 1 ::1:7000"), redirected(1, "::1:7000", true));
    assert!(matches!(of("MOVED nonsense"), Failure::Corrupt(_)));
}

#[test]
fn temporary_errors_are_retried() {
    assert_eq!(of("NOSCRIPT No matching script. Please use EVAL."), Failure::NoScript);
    assert_eq!(of("TRYAGAIN Multiple keys request during rehashing of slot"), Failure::TryAgain);
    for line in [
        "LOADING Redis is loading the dataset in memory",
        "CLUSTERDOWN Hash slot not served",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "ERR max number of clients reached",
    ] {
        assert!(matches!(of(line), Failure::NotReady(_)), "{line}");
    }
}

#[test]
fn readonly_is_found_inside_a_script_error_of_redis_6() {
    for line in [
        "READONLY You can't write against a read only replica.",
        "READONLY You can't write against a read only replica. script: 5b1e, on @user_script:1.",
        "ERR Error running script (call to f_5b1e): @user_script:1: @user_script: 1: -READONLY You can't write against \
         a read only replica.",
    ] {
        assert!(matches!(of(line), Failure::ReadOnly(_)), "{line}");
    }
}

#[test]
fn every_refusal_names_its_remedy() {
    for (line, remedy) in [
        ("NOPERM this user has no permissions to run the 'evalsha' command", "+evalsha"),
        ("NOPERM this user has no permissions to run the 'evalsha' command or its subcommand", "+evalsha"),
        ("NOPERM User rl has no permissions to run the 'script|load' command", "+script|load"),
        ("NOPERM User rl has no permissions to access the 'tg:{a}' key", "~tg:*"),
        ("NOPERM No permissions to access a key", "~<prefix>:*"),
        ("NOPERM this user has no permissions to access one of the keys used as arguments", "~<prefix>:*"),
        (
            "ERR The user executing the script can't run this command or subcommand script: 5b1e, on @user_script:1.",
            "+set",
        ),
        (
            "ERR Error running script (call to f_5b1e): @user_script:1: The user executing the script can't run this \
             command or subcommand",
            "+set",
        ),
        (
            "ERR The user executing the script can't access at least one of the keys mentioned in the command \
             arguments script: 5b1e, on @user_script:1.",
            "~<prefix>:*",
        ),
        ("ERR ACL failure in script: User rl has no permissions to run the 'set' command", "+set"),
        ("NOPERM ACL failure in script: User rl has no permissions to run the 'zadd' command", "+zadd"),
        ("NOAUTH Authentication required.", "redis://user:password@host"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "redis://user:password@host"),
        ("OOM command not allowed when used memory > 'maxmemory'. script: 5b1e, on @user_script:1.", "noeviction"),
        (
            "ERR Error running script (call to f_5b1e): @user_script:1: @user_script: 1: -OOM command not allowed when \
             used memory > 'maxmemory'.",
            "noeviction",
        ),
        // Caught by a script of ours, for calls that share a run.
        ("@user_script: 66: -OOM command not allowed when used memory > 'maxmemory'.", "noeviction"),
        ("MISCONF Redis is configured to save RDB snapshots, but…", "disk"),
        ("NOREPLICAS Not enough good replicas to write.", "min-replicas-to-write"),
        ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "wait for it"),
        ("ERR unknown command 'EVALSHA', with args beginning with: ", "allow this command"),
        ("ERR unknown command 'SENTINEL', with args beginning with: 'get", "not a sentinel"),
        ("ERR This instance has cluster support disabled", "redis://"),
    ] {
        let error = of(line).at(&"h:1");
        assert_eq!(error.kind(), StoreErrorKind::Refused, "{line}: {error:?}");
        assert!(error.reason().contains(remedy), "{line}: {error}");
    }
}

/// A server whose EVALSHA was disabled while it was used repeated the key, and with it the caller, in the log.
#[test]
fn no_error_repeats_a_subject() {
    for (line, kept) in [
        (
            "ERR unknown command 'EVALSHA', with args beginning with: '5b1e' '1' 'tallygate:{user=alice}:api:tb' '1' ",
            "'tallygate:{*}:api:tb' '1' ",
        ),
        (
            "ERR unknown command 'EVALSHA', with args beginning with: '5b1e' '1' 'tallygate:{user=alice",
            "'tallygate:{*}…",
        ),
        ("NOPERM No permissions to access the 'tallygate:{user=alice}:a:tb' key", "'tallygate:{*}:a:tb' key"),
        ("STRANGE words of {user=alice} and {user=alice}", "of {*} and {*}"),
    ] {
        let text = of(line).at(&"h:1").to_string();
        assert!(!text.contains("alice") && text.contains(kept), "{text}");
    }
}

#[test]
fn what_may_have_written_is_corrupt() {
    for line in [
        "CROSSSLOT Keys in request don't hash to the same slot",
        "WRONGTYPE Operation against a key holding the wrong kind of value script: 5b1e, on @user_script:1.",
        "ERR user_script:1: attempt to index a nil value script: 5b1e, on @user_script:1.",
        "ERR Error running script (call to f_5b1e): @user_script:1: user_script:1: attempt to perform arithmetic",
        "ERR Error running script (call to f_5b1e): @user_script:1: @user_script: 1: -WRONGTYPE Operation against",
        "TALLYGATE_CORRUPT the state of tallygate:{a}:api:tb",
        "ERR user_script:13: TALLYGATE_CORRUPT script: 5b1e, on @user_script:13.",
        "ERR Error running script (call to f_5b1e): @user_script:13: @user_script: 13: -TALLYGATE_CORRUPT the state of",
        "STRANGE words",
    ] {
        let error = of(line).at(&"h:1");
        assert!(error.kind() == StoreErrorKind::Corrupt, "{line}: {error:?}");
    }
}

#[test]
fn only_what_was_sent_is_ambiguous() {
    let lost = Failure::Lost(cut()).at(&"h:1");
    assert_eq!(lost.kind(), StoreErrorKind::Ambiguous);
    let source = lost.source().and_then(|source| source.downcast_ref::<std::io::Error>());
    assert_eq!(source.map(std::io::Error::kind), Some(std::io::ErrorKind::ConnectionReset), "the cause is kept");
    assert!(Failure::TimedOut { queued: Duration::ZERO }.at(&"h:1").kind() == StoreErrorKind::Ambiguous);
    for failure in [Failure::NotSent(NotSent::Closed(cut())), Failure::NoScript, Failure::TryAgain] {
        assert!(failure.clone().at(&"h:1").kind() == StoreErrorKind::Unavailable, "{failure:?}");
    }
}
