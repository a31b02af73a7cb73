//! The client against simulated servers, on a clock that only moves while everybody waits: every reply, every cut of a
//! connection, and every point at which the caller can leave.
//!
//! What must hold in each run, whatever happens in it:
//! - a call takes effect at most once; once, if it is answered; never, if its error says that it was not charged;
//! - each call gets its own reply, also behind and ahead of one that was dropped;
//! - a call ends by its deadline;
//! - afterwards the store answers, and every place in flight is free.
//!
//! The retry table is compared with what each kind of reply leads to.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tallygate::StoreError;
use tallygate::call::Effect;
use tallygate::store::StoreErrorKind as Kind;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use self::network::drive;
use self::servers::{Form, Servers, Step, reply_for};
use super::client::{Calls, Client, Settings};
use super::cluster::slot_of;
use crate::scripts::{Script, ScriptRun};

pub(super) mod network;
mod servers;

const SCRIPT: &str = "return KEYS[1]";
const WATCHED: &[u8] = b"{1}w";
const OTHER: &[u8] = b"{1}o";
/// Of both keys.
const SLOT: u16 = 9842;
const SETTINGS: fn() -> Settings = Settings::default;
/// Longer than any server may be taken for down after it answers again.
const SETTLED: Duration = Duration::from_secs(5);

/// Another call on the same connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Neighbour {
    None,
    Ahead,
    Behind,
}

/// One run.
#[derive(Debug, Clone)]
struct Case {
    form: Form,
    steps: Vec<Step>,
    neighbour: Neighbour,
    /// Whether the watched call has an id, by which the servers know a repetition.
    repeatable: bool,
}

/// What a run showed.
struct Seen {
    /// None if the caller left.
    result: Option<Result<Value, StoreError>>,
    charged: u32,
    attempts: u32,
    /// Points at which the caller could leave.
    points: usize,
}

impl Case {
    fn new(form: Form, steps: &[Step]) -> Self {
        Self { form, steps: steps.to_vec(), neighbour: Neighbour::None, repeatable: false }
    }

    /// Runs it with a caller that leaves at a point, and checks what must hold.
    fn run(&self, leaves_at: usize) -> Seen {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let seen = runtime.block_on(self.simulate(leaves_at));
        network::remove();
        seen
    }

    async fn simulate(&self, leaves_at: usize) -> Seen {
        let context = || format!("{self:?}, left at {leaves_at}");
        let servers = Servers::new(self.form, WATCHED, self.repeatable);
        let url = servers.url().parse().unwrap();
        let servers = network::install(servers);
        let client = Arc::new(Client::connect(&url, SETTINGS()).await.unwrap());
        servers.lock().unwrap().plan(&self.steps);

        let neighbour =
            (self.neighbour != Neighbour::None).then(|| tokio::spawn(call(Arc::clone(&client), OTHER, false)));
        if self.neighbour == Neighbour::Ahead {
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        let (result, points) = drive(Box::pin(call(Arc::clone(&client), WATCHED, self.repeatable)), leaves_at).await;
        // A millisecond is the resolution of timers.
        assert!(began.elapsed() <= SETTINGS().deadline + Duration::from_millis(1), "late: {}", context());
        if let Some(neighbour) = neighbour {
            let result = neighbour.await.unwrap();
            let charged = servers.lock().unwrap().charged.get(OTHER).copied().unwrap_or(0);
            judge(&result, OTHER, charged, &context());
            let harmless = |step: &Step| matches!(step, Step::NoScript | Step::Moved | Step::Ask | Step::Error(_));
            assert!(result.is_ok() || !self.steps.iter().all(harmless), "{result:?} of the neighbour: {}", context());
        }

        // Whatever is still on its way arrives, and what is broken is found.
        sleep(SETTLED).await;
        let settled = Instant::now();
        while call(Arc::clone(&client), b"{1}later", false).await.is_err() {
            assert!(settled.elapsed() < SETTLED, "no answer any more: {}", context());
            sleep(Duration::from_millis(10)).await;
        }
        sleep(SETTLED).await;
        assert_eq!(client.free_places(), SETTINGS().in_flight, "places in flight: {}", context());
        let servers = servers.lock().unwrap();
        let charged = servers.charged.get(WATCHED).copied().unwrap_or(0);
        match &result {
            Some(result) => judge(result, WATCHED, charged, &context()),
            None => assert!(charged <= 1, "charged {charged} times: {}", context()),
        }
        Seen { result, charged, attempts: servers.attempts, points }
    }

    /// Runs it with a caller that waits, then with one that leaves at each point. Returns the number of runs.
    fn run_all(&self) -> usize {
        let points = self.run(usize::MAX).points;
        for leaves_at in 0..points {
            self.run(leaves_at);
        }
        points + 1
    }
}

/// What an answer says must be true.
fn judge(result: &Result<Value, StoreError>, key: &[u8], charged: u32, context: &str) {
    match result {
        Ok(value) => {
            assert_eq!(charged, 1, "an answered call: {context}");
            assert_eq!(*value, redis::parse_redis_value(&reply_for(key)).unwrap(), "another reply: {context}");
        }
        Err(error) if error.may_have_charged() => assert!(charged <= 1, "charged {charged} times: {context}"),
        Err(error) => assert_eq!(charged, 0, "charged, but `{error}`: {context}"),
    }
}

async fn call(client: Arc<Client>, key: &'static [u8], repeatable: bool) -> Result<Value, StoreError> {
    let (script, calls) = (Script::new(SCRIPT), Calls { repeatable, ..Calls::one(Effect::Charges) });
    client.run_of(calls, &script, &[key], &[] as &[&[u8]], client.default_deadline()).await
}

const TRY_AGAIN: Step = Step::Error("TRYAGAIN Multiple keys request during rehashing of slot");
const LOADING: Step = Step::Error("LOADING Redis is loading the dataset in memory");
const READ_ONLY: Step = Step::Error("READONLY You can't write against a read only replica.");

/// Replies that prove that nothing was run, and what is temporary: the call is sent again.
const TEMPORARY: [Step; 7] = [
    Step::NoScript,
    TRY_AGAIN,
    LOADING,
    READ_ONLY,
    Step::Error("CLUSTERDOWN Hash slot not served"),
    Step::Error("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."),
    Step::Error("ERR max number of clients reached"),
];
/// Those that no second attempt would change.
const PERMANENT: [Step; 7] = [
    Step::Error("NOPERM User x has no permissions to run the 'evalsha' command"),
    Step::Error("NOAUTH Authentication required."),
    Step::Error("OOM command not allowed when used memory > 'maxmemory'."),
    Step::Error("MISCONF Redis is configured to save RDB snapshots"),
    Step::Error("NOREPLICAS Not enough good replicas to write."),
    Step::Error("BUSY Redis is busy running a script."),
    Step::Error("ERR unknown command 'EVALSHA'"),
];
/// Error replies of scripts that stopped half way, or that are not ours.
const BROKEN: [Step; 2] = [
    Step::HalfDone("ERR user_script:1: attempt to index a nil value"),
    Step::HalfDone("WRONGTYPE Operation against a key holding the wrong kind of value"),
];
/// What leaves the client without an answer after it has sent the call.
const UNANSWERED: [Step; 6] = [
    Step::Reply(b"?what\r\n"),
    Step::Reply(b"*2\r\n:1\r\n$99999999999\r\n"),
    Step::Hang { run: true },
    Step::Hang { run: false },
    Step::Late { millis: 51, bytewise: false },
    Step::Late { millis: 5, bytewise: true },
];
/// The bytes of a call by its digest, and of its reply. A call by its text is a little shorter.
const LENGTH_OF_REQUEST: usize = 81;
const LENGTH_OF_REPLY: usize = 18;

/// Every way in which one attempt can go, with a cut at every `stride`th byte.
fn attempts(form: Form, stride: usize) -> Vec<Step> {
    let mut steps: Vec<Step> = [&TEMPORARY[..], &PERMANENT, &BROKEN, &UNANSWERED].concat();
    for after in (0..LENGTH_OF_REQUEST + 10).step_by(stride).chain([LENGTH_OF_REQUEST - 1, LENGTH_OF_REQUEST]) {
        steps.extend([true, false].map(|arrived| Step::CutRequest { after, arrived }));
    }
    for after in (0..LENGTH_OF_REPLY).step_by(stride).chain([LENGTH_OF_REPLY - 1, LENGTH_OF_REPLY]) {
        steps.extend([true, false].map(|reset| Step::CutReply { after, reset }));
    }
    steps.extend([1, 49, 50, 300].map(|millis| Step::Late { millis, bytewise: false }));
    steps.extend([1, 3].map(|millis| Step::Late { millis, bytewise: true }));
    steps.extend([Step::ClosedIdle, Step::RefusedConnection]);
    steps.extend([0, 7].map(|after| Step::CutHandshake { after }));
    steps.extend(of_the_form(form));
    steps
}

/// What can be met in this form of a store only.
fn of_the_form(form: Form) -> &'static [Step] {
    match form {
        Form::Single => &[Step::Error("MOVED 9842 b:1")],
        Form::Cluster => &[Step::Moved, Step::Ask],
        Form::Sentinel => &[Step::Demoted],
    }
}

/// What leads to a second attempt.
fn first_attempts(form: Form) -> Vec<Step> {
    let mut steps = vec![Step::NoScript, TRY_AGAIN, LOADING, READ_ONLY, Step::ClosedIdle];
    steps.push(Step::CutRequest { after: 0, arrived: false });
    steps.extend(of_the_form(form));
    steps
}

/// Every attempt alone, and after each that leads to a second one; every point at which the caller can leave. By default with
/// a few of the cuts; `cargo xtask simulate` has all of them.
fn explore(form: Form) {
    let all = std::env::var_os("TALLYGATE_SIMULATE_ALL").is_some();
    let neighbours = [Neighbour::None, Neighbour::Ahead, Neighbour::Behind];
    let (stride, neighbours) = if all { (1, &neighbours[..]) } else { (40, &neighbours[..2]) };
    let (mut cases, mut runs) = (0, 0);
    for &neighbour in neighbours {
        for step in attempts(form, stride) {
            let alone = Case { neighbour, ..Case::new(form, &[step]) };
            let after = |first: Step| Case { neighbour, ..Case::new(form, &[first, step]) };
            let repeatable = Case { repeatable: true, ..alone.clone() };
            for case in [alone, repeatable].into_iter().chain(first_attempts(form).into_iter().map(after)) {
                (cases, runs) = (cases + 1, runs + case.run_all());
            }
        }
    }
    println!("{form:?}: {runs} runs of {cases} cases");
    assert!(runs > 10 * cases, "callers leave at a few points at least");
}

#[test]
fn every_reply_cut_and_departure_on_one_server() {
    explore(Form::Single);
}

#[test]
fn every_reply_cut_and_departure_on_a_cluster() {
    explore(Form::Cluster);
}

#[test]
fn every_reply_cut_and_departure_under_sentinels() {
    explore(Form::Sentinel);
}

/// The kind of the error, after one attempt.
fn ends(form: Form, step: Step) -> Kind {
    let seen = Case::new(form, &[step]).run(usize::MAX);
    assert_eq!(seen.attempts, 1, "{step:?} in {form:?}: sent again");
    seen.result.unwrap().map(drop).expect_err(&format!("{step:?} in {form:?}")).kind()
}

#[test]
fn what_proves_that_nothing_was_run_is_sent_again() {
    for form in [Form::Single, Form::Cluster, Form::Sentinel] {
        let unsent = [Step::ClosedIdle, Step::CutRequest { after: 0, arrived: false }];
        let elsewhere = of_the_form(form).iter().filter(|_| form != Form::Single);
        for step in TEMPORARY.iter().chain(&unsent).chain(elsewhere) {
            let seen = Case::new(form, &[*step]).run(usize::MAX);
            assert!(matches!(seen.result, Some(Ok(_))), "{step:?} in {form:?}: {:?}", seen.result);
            assert_eq!(seen.charged, 1, "{step:?} in {form:?}");
        }
    }
}

#[test]
fn what_may_have_been_run_and_what_will_not_change_are_not_sent_again() {
    for form in [Form::Single, Form::Cluster, Form::Sentinel] {
        for step in PERMANENT {
            assert_eq!(ends(form, step), Kind::Refused, "{step:?} in {form:?}");
        }
        for step in BROKEN {
            assert_eq!(ends(form, step), Kind::Corrupt, "{step:?} in {form:?}");
        }
        for step in UNANSWERED {
            assert_eq!(ends(form, step), Kind::Ambiguous, "{step:?} in {form:?}");
        }
        for after in 0..LENGTH_OF_REPLY {
            for reset in [true, false] {
                assert_eq!(
                    ends(form, Step::CutReply { after, reset }),
                    Kind::Ambiguous,
                    "cut after {after} in {form:?}"
                );
            }
        }
        assert_eq!(ends(form, Step::CutRequest { after: LENGTH_OF_REQUEST, arrived: true }), Kind::Ambiguous);
    }
    assert_eq!(ends(Form::Single, Step::Error("MOVED 9842 b:1")), Kind::Refused);
}

/// The servers know it by its id: however often it arrives, it is charged once.
#[test]
fn a_call_with_an_id_is_sent_again_after_a_cut() {
    for form in [Form::Single, Form::Cluster, Form::Sentinel] {
        let replies = (0..LENGTH_OF_REPLY).flat_map(|after| [true, false].map(|reset| Step::CutReply { after, reset }));
        let requests = (1..LENGTH_OF_REQUEST).map(|after| Step::CutRequest { after, arrived: true });
        let cut = replies.map(|step| (step, 2)).chain(requests.map(|step| (step, 1)));
        for (step, attempts) in cut {
            let seen = Case { repeatable: true, ..Case::new(form, &[step]) }.run(usize::MAX);
            assert!(matches!(seen.result, Some(Ok(_))), "{step:?} in {form:?}: {:?}", seen.result);
            assert_eq!((seen.attempts, seen.charged), (attempts, 1), "{step:?} in {form:?}");
        }
    }
}

/// What the repetition is answered proves nothing about the first attempt.
#[test]
fn the_first_attempt_of_a_repeated_call_stays_ambiguous() {
    for step in PERMANENT.into_iter().chain([LOADING, Step::Hang { run: false }]) {
        let cut = Step::CutReply { after: 0, reset: true };
        let steps = [&[cut][..], &[step; 50]].concat();
        let seen = Case { repeatable: true, ..Case::new(Form::Single, &steps) }.run(usize::MAX);
        let error = seen.result.unwrap().expect_err("no second reply");
        assert!(error.may_have_charged() && seen.charged == 1, "{step:?}: {error}");
        assert!(error.to_string().contains("repeated under its id"), "{step:?}: {error}");
    }
}

#[test]
fn a_request_cut_within_is_neither_run_nor_sent_again() {
    for after in 1..LENGTH_OF_REQUEST {
        let seen = Case::new(Form::Single, &[Step::CutRequest { after, arrived: true }]).run(usize::MAX);
        let error = seen.result.unwrap().expect_err("a cut call");
        assert_eq!((error.kind(), seen.attempts, seen.charged), (Kind::Ambiguous, 0, 0), "cut after {after}");
    }
}

#[test]
fn the_constants_of_the_simulation_are_right() {
    assert_eq!([slot_of(WATCHED), slot_of(OTHER)], [SLOT, SLOT]);
    let script = Script::new(SCRIPT);
    let request = ScriptRun::new(&script, &[WATCHED], &[] as &[&[u8]]).command().get_packed_command();
    assert_eq!((request.len(), reply_for(WATCHED).len()), (LENGTH_OF_REQUEST, LENGTH_OF_REPLY));
}
