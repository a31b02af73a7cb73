//! A network that loses, cuts or delays replies: a call is charged once or not at all, never twice.

use std::pin::pin;
use std::time::{Duration, Instant};

use tallygate::call::{Call, Verb};
use tallygate::request::RequestId;
use tallygate::store::StoreErrorKind;
use tallygate::{Algorithm, Check, CheckError, Key, Limit, Limiter};
use tallygate_redis::RedisStore;
use tallygate_testkit::random::Random;
use tallygate_testkit::wait::PATIENCE;
use tallygate_testkit::{FaultProxy, Mode, Server};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::support::{
    Answers, Load, RedisLimiter, calls_of, every_key_expires, flavours, patient, units, used, within, within_bound,
    yearly,
};

const DEADLINE: Duration = Duration::from_millis(120);

/// On a busy machine, or to a distant server, a store with a short deadline could not be connected to.
#[tokio::test]
async fn connecting_is_not_bound_by_the_deadline_of_a_call() {
    let server = Server::redis().start();
    let proxy = FaultProxy::start(server.addr());
    proxy.set(Mode::Delay(Duration::from_millis(30)));
    let connected = RedisStore::builder(&proxy.url()).deadline(Duration::from_millis(20)).connect().await;
    assert!(connected.is_ok(), "{:?}", connected.err());
}

/// A server, a client behind the proxy, and a direct one to verify.
struct Path {
    server: Server,
    proxy: FaultProxy,
    judge: RedisLimiter,
    limit: Limit,
}

impl Path {
    async fn to(server: Server) -> Self {
        let proxy = FaultProxy::start(server.addr());
        let judge = patient(&server.url()).await;
        let limit = yearly(Algorithm::TokenBucket, 1000);
        // From here on the server has the script: each call is one EVALSHA.
        judge.check(Check::new(Key::new("wire", "warm").unwrap(), &limit)).await.unwrap();
        Self { server, proxy, judge, limit }
    }

    async fn used(&self, subject: &str) -> u64 {
        used(&self.judge, "wire", subject.as_bytes(), &self.limit).await
    }

    async fn ask(&self, limiter: &RedisLimiter, subject: &str, calls: usize) -> Answers {
        let mut answers = Answers::default();
        for _ in 0..calls {
            answers.ask(limiter, Check::new(Key::new("wire", subject).unwrap(), &self.limit)).await;
        }
        answers
    }

    /// Makes calls on a separate key until one is answered.
    async fn recovers(&self, limiter: &RedisLimiter) {
        self.proxy.set(Mode::Pass);
        let start = Instant::now();
        while !self.ask(limiter, "again", 1).await.errors.is_empty() {
            assert!(start.elapsed() < PATIENCE, "it does not recover");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until everything that was sent has run.
    async fn settles_at(&self, subject: &str, expected: u64) {
        let start = Instant::now();
        while self.used(subject).await != expected {
            let used = self.used(subject).await;
            assert!(used <= expected && start.elapsed() < PATIENCE, "{subject}: {used} in use, not {expected}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// The whole reply: `$33`, the payload, and two line ends.
const REPLY: usize = 5 + 33 + 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_cut_anywhere_is_charged_once_and_not_asked_again() {
    let path = Path::to(Server::redis().start()).await;
    let limiter = patient(&path.proxy.url()).await;
    for cut in 0..=REPLY {
        path.recovers(&limiter).await;
        let (subject, before) = (format!("cut {cut}"), calls_of(&path.server, "evalsha"));
        path.proxy.set(Mode::CutAfter(cut));
        let answers = path.ask(&limiter, &subject, 1).await;
        path.proxy.set(Mode::Pass);
        assert_eq!(calls_of(&path.server, "evalsha") - before, 1, "cut after {cut} bytes");
        assert_eq!(path.used(&subject).await, 1, "cut after {cut} bytes");
        match answers.errors.as_slice() {
            [] => assert_eq!(cut, REPLY),
            [error] if error.kind() == StoreErrorKind::Ambiguous => {
                let reason = error.reason();
                assert!(cut < REPLY && reason.contains("cut after sending"), "cut after {cut} bytes: {reason}");
            }
            other => panic!("cut after {cut} bytes: {other:?}"),
        }
    }
    every_key_expires(&path.server);
}

/// The reply to a call with an id, of one check.
const ANSWER: usize = 5 + 42 + 2;

/// The client repeats it itself, within its deadline. Without an id it is still an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_call_with_an_id_is_repeated_and_charged_once() {
    for flavour in flavours() {
        let path = Path::to(Server::of(flavour).start()).await;
        let limiter = patient(&path.proxy.url()).await;
        let (id, warm) = (RequestId::new("id").unwrap(), Key::new("wire", "warm").unwrap());
        path.judge.once(id).check(Check::new(warm, &path.limit)).await.unwrap();
        for cut in [0, 1, ANSWER / 2, ANSWER - 1] {
            for repeatable in [true, false] {
                path.recovers(&limiter).await;
                let subject = format!("cut {cut} {repeatable}");
                let check = Check::new(Key::new("wire", &subject).unwrap(), &path.limit);
                let accepted = path.proxy.accepted();
                path.proxy.set(Mode::CutAfter(cut.min(if repeatable { ANSWER } else { REPLY } - 1)));
                let ask = async {
                    match repeatable {
                        true => limiter.once(id).check(check).await,
                        false => limiter.check(check).await,
                    }
                };
                let heal = async {
                    while path.proxy.accepted() == accepted {
                        sleep(Duration::from_millis(1)).await;
                    }
                    path.proxy.set(Mode::Pass);
                };
                // The network heals when the client connects again.
                let mut ask = pin!(ask);
                let answer = tokio::select! {
                    answer = &mut ask => answer,
                    () = heal => ask.await,
                };
                path.proxy.set(Mode::Pass);
                match answer {
                    Ok(decision) => assert!(repeatable && decision.allowed() && decision.replayed(), "{subject}"),
                    Err(CheckError::Store(error)) if !repeatable => {
                        assert_eq!(error.kind(), StoreErrorKind::Ambiguous, "{subject}");
                    }
                    Err(error) => panic!("{subject}: {error}"),
                }
                assert_eq!(path.used(&subject).await, 1, "{subject}");
            }
        }
        every_key_expires(&path.server);
    }
}

/// What it gives back is forgotten with its answer, so a second run would give back what others have used.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_refund_with_an_id_is_not_repeated() {
    let path = Path::to(Server::redis().start()).await;
    let limiter = patient(&path.proxy.url()).await;
    let check = Check::new(Key::new("wire", "refund").unwrap(), &path.limit);
    let id = RequestId::new("id").unwrap();
    path.judge.once(id).check(check.cost(units(5))).await.unwrap();
    let of_two = [check.cost(units(2))];
    let refund = |id| Call::new(Verb::Refund, &of_two).unwrap().with_request_id(Some(id));
    // From here on the server has the script of refunds, too.
    refund(RequestId::new("other").unwrap()).ask(path.judge.store()).await.unwrap();
    let refund = refund(id);
    path.recovers(&limiter).await;
    path.proxy.set(Mode::CutAfter(1));
    let accepted = path.proxy.accepted();
    let heal = async {
        while path.proxy.accepted() == accepted {
            sleep(Duration::from_millis(1)).await;
        }
        path.proxy.set(Mode::Pass);
    };
    let mut ask = pin!(refund.ask(limiter.store()));
    let answer = tokio::select! {
        answer = &mut ask => answer,
        () = heal => ask.await,
    };
    assert_eq!(answer.map_err(|error| error.kind()), Err(StoreErrorKind::Ambiguous));
    assert_eq!(path.used("refund").await, 1);
}

/// Replies that never come or come too late: what was sent is charged once, and nothing is sent again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unanswered_call_is_charged_once_and_not_asked_again() {
    for flavour in flavours() {
        let path = Path::to(Server::of(flavour).start()).await;
        let limiter = within(&path.proxy.url(), DEADLINE).await;
        for (subject, mode) in [("dropped", Mode::DropReplies), ("delayed", Mode::Delay(4 * DEADLINE))] {
            path.recovers(&limiter).await;
            let before = calls_of(&path.server, "evalsha");
            path.proxy.set(mode);
            let answers = path.ask(&limiter, subject, 6).await;
            answers.only_outages();
            assert!(answers.ambiguous() >= 1);
            let sent = answers.allowed() + answers.ambiguous();
            path.settles_at(subject, sent).await;
            // Each peek of the direct client is one too: at least the one above.
            assert!(calls_of(&path.server, "evalsha") > before + sent);
        }

        path.recovers(&limiter).await;
        path.proxy.set(Mode::BlackHole);
        let answers = path.ask(&limiter, "swallowed", 6).await;
        answers.only_outages();
        assert!(answers.allowed() == 0 && answers.ambiguous() >= 1);
        path.recovers(&limiter).await;
        assert_eq!(path.used("swallowed").await, 0);
        every_key_expires(&path.server);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_connection_is_replaced_and_a_slow_one_waited_for() {
    let path = Path::to(Server::redis().start()).await;
    let hasty = within(&path.proxy.url(), DEADLINE).await;
    for round in 0..5 {
        path.recovers(&hasty).await;
        let subject = format!("reset {round}");
        path.proxy.set(Mode::Reset);
        let mut answers = path.ask(&hasty, &subject, 3).await;
        path.proxy.set(Mode::Pass);
        answers.merge(path.ask(&hasty, &subject, 3).await);
        answers.only_outages();
        let used = path.used(&subject).await;
        assert!(used >= answers.allowed() && used <= answers.allowed() + answers.ambiguous(), "{used}: {answers:?}");
    }
    let limiter = patient(&path.proxy.url()).await;
    path.proxy.set(Mode::Trickle);
    let answers = path.ask(&limiter, "trickle", 5).await;
    answers.no_errors();
    assert_eq!(path.used("trickle").await, 5);
}

/// All faults at random, under load, on every algorithm.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_fails_at_random_charges_no_call_twice() {
    let path = Path::to(Server::redis().start()).await;
    let limiter = within(&path.proxy.url(), Duration::from_millis(60)).await;
    let limits: Vec<Limit> = Algorithm::OVER_TIME.iter().map(|&algorithm| yearly(algorithm, 400)).collect();
    let load = |limit: &Limit| Load::start(&limiter, limit, "random", limit.algorithm().name(), 3);
    let loads: Vec<Load> = limits.iter().map(load).collect();
    let mut random = Random::new(0x0077_6972_6521);
    for _ in 0..80 {
        path.proxy.set(match random.between(0, 7) {
            0 => Mode::DropReplies,
            1 => Mode::Delay(Duration::from_millis(random.between(1, 150))),
            2 => Mode::BlackHole,
            3 => Mode::CutAfter(usize::try_from(random.between(0, 400)).unwrap()),
            4 => Mode::Reset,
            5 => Mode::Trickle,
            _ => Mode::Pass,
        });
        sleep(Duration::from_millis(random.between(5, 50))).await;
    }
    path.proxy.set(Mode::Pass);
    for load in &loads {
        load.serves(20).await;
    }
    for (load, limit) in loads.into_iter().zip(&limits) {
        let answers = load.finish().await;
        answers.only_outages();
        within_bound(limit, &answers.records);
        let used = used(&path.judge, "random", limit.algorithm().name().as_bytes(), limit).await;
        let most = answers.allowed() + answers.ambiguous();
        assert!(used >= answers.allowed() && used <= most, "{limit}: {used} of {} to {most}", answers.allowed());
    }
    every_key_expires(&path.server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beyond_in_flight_are_refused_unsent() {
    let path = Path::to(Server::redis().start()).await;
    let builder = RedisStore::builder(&path.server.url()).deadline(Duration::from_secs(2)).in_flight(2);
    let limiter = Limiter::new(builder.connect().await.unwrap());
    path.server.stop();
    let mut calls = JoinSet::new();
    for _ in 0..10 {
        let (limiter, limit) = (limiter.clone(), path.limit.clone());
        calls.spawn(async move { limiter.check(Check::new(Key::new("wire", "many").unwrap(), &limit)).await });
    }
    let (mut ambiguous, mut unsent) = (0, 0);
    for answer in calls.join_all().await {
        match answer.unwrap_err() {
            CheckError::Store(error) if error.kind() == StoreErrorKind::Ambiguous => ambiguous += 1,
            CheckError::Store(error) if error.is_late() && !error.may_have_charged() => unsent += 1,
            other => panic!("{other}"),
        }
    }
    assert!(unsent >= 1, "all ten were sent");
    path.server.cont();
    assert!(path.used("many").await <= ambiguous);
    path.recovers(&limiter).await;
}
