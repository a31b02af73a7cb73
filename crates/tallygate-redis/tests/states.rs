//! Which calls share a state, what a state that is lost costs, and how many commands a decision takes.

use std::sync::Arc;

use tallygate::call::Verb;
use tallygate::policy::{Action, Evaluation, Match, Mode, Policy, Stores, Subject};
use tallygate::{Algorithm, Check, Cost, Key, Limit};
use tallygate_redis::RedisStore;
use tallygate_testkit::Server;

use crate::support::{RedisLimiter, calls_of, flavours, patient, yearly};

const AMOUNT: u64 = 20;

/// How many of `calls` are admitted.
async fn admitted(limiter: &RedisLimiter, policy: &str, limit: &Limit, calls: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..calls {
        let check = Check::new(Key::new(policy, "s").unwrap(), limit);
        admitted += u64::from(limiter.check(check).await.unwrap().allowed());
    }
    admitted
}

#[tokio::test]
async fn a_lost_state_admits_one_more_limit_at_most() {
    for flavour in flavours() {
        let server = Server::of(flavour).start();
        let limiter = patient(&server.url()).await;
        for &algorithm in Algorithm::OVER_TIME {
            let limit = yearly(algorithm, AMOUNT);
            assert_eq!(admitted(&limiter, "p", &limit, 2 * AMOUNT).await, AMOUNT, "{algorithm}");
            let key = server.command(&["RANDOMKEY"]).text();
            for loss in [&["DEL", key.as_str()] as &[&str], &["FLUSHALL"]] {
                assert!(!server.command(loss).is_error());
                assert_eq!(admitted(&limiter, "p", &limit, 2 * AMOUNT).await, AMOUNT, "{algorithm}");
            }
            assert!(!server.command(&["FLUSHALL"]).is_error());
        }
    }
}

#[tokio::test]
async fn another_algorithm_policy_or_prefix_is_another_state_but_fixed_windows_share_one() {
    let server = Server::redis().start();
    let limiter = patient(&server.url()).await;
    let prefixed = RedisStore::builder(&server.url()).prefix("other").connect().await.unwrap();
    let prefixed = RedisLimiter::new(prefixed);
    for &algorithm in Algorithm::OVER_TIME {
        let limit = yearly(algorithm, AMOUNT);
        let shared = algorithm == Algorithm::FixedWindowFromFirstCall;
        assert_eq!(admitted(&limiter, "p", &limit, 2 * AMOUNT).await, if shared { 0 } else { AMOUNT }, "{algorithm}");
        assert_eq!(admitted(&limiter, "q", &limit, 1).await, 1, "{algorithm}");
        assert_eq!(admitted(&prefixed, "p", &limit, 1).await, 1, "{algorithm}");
    }
}

/// Eight shadows were eight more calls to the store, one after the other.
#[tokio::test]
async fn shadows_of_one_subject_add_no_command() {
    let server = Server::redis().start();
    let stores = Stores::new(RedisStore::connect(&server.url()).await.unwrap());
    let policies: Vec<Arc<Policy>> = (0..9)
        .map(|at| {
            let policy = Policy::new(format!("p{at}"), "d", "9/h").unwrap();
            Arc::new(if at > 0 { policy.with_mode(Mode::Shadow) } else { policy })
        })
        .collect();
    let decide = async || {
        let subject = Subject::new([("user", "42")]);
        let matches = policies.iter().map(|policy| Match::new(Arc::clone(policy), 0, subject.clone()));
        Evaluation::new(matches, Action::new(Verb::Check, Cost::ONE)).decide(&stores, None).await
    };
    assert!(decide().await.allowed());
    let before = calls_of(&server, "evalsha");
    let verdict = decide().await;
    assert_eq!(calls_of(&server, "evalsha") - before, 1);
    assert!(verdict.rulings().iter().all(|ruling| ruling.charged() == 1 && ruling.status().remaining() == 7));
}
