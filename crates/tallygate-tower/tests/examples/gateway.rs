//! The gateway in front of a language model, with callers that leave and a model that dies.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use tallygate_testkit::http::Response;
use tallygate_testkit::wait::{PATIENCE, until};
use tallygate_testkit::{Server, random::Random};

use super::process::Listening;

const TOKENS: u64 = 20_000;
/// Of the prompt `abcdefgh`, the role `user`, and a model of five to eight letters.
const PROMPT: u64 = 5;

fn gateway(store: &[(&str, &str)]) -> Listening {
    let limits = [("REQUESTS", "100000/day fixed_window"), ("TOKENS", "20000/day fixed_window")];
    Listening::start("llm_gateway", &[&limits, store].concat())
}

fn body(model: &str, caps: &str) -> String {
    format!("{{\"model\": \"{model}\", \"messages\": [{{\"role\": \"user\", \"content\": \"abcdefgh\"}}]{caps}}}")
        .replace(' ', "")
}

const HEADERS: [(&str, &str); 2] = [("x-api-key", "alice"), ("content-type", "application/json")];

fn ask(gateway: &Listening, model: &str, caps: &str) -> Response {
    gateway.call("POST", "/v1/chat/completions", &HEADERS, &body(model, caps))
}

/// The tokens that are left, of which there are fewer than requests: a request that the model refuses is reserved, and costs nothing.
fn left(gateway: &Listening) -> u64 {
    let answer = ask(gateway, "broken", ",\"max_tokens\":1");
    assert_eq!(answer.status, 503, "{answer:?}");
    let (_, rest) = answer.header("ratelimit").unwrap().split_once("\"tokens\";r=").unwrap();
    rest.split(';').next().unwrap().parse::<u64>().unwrap() + PROMPT + 1
}

fn words(answer: &Response) -> u64 {
    answer.text().matches("word ").count() as u64
}

#[test]
fn a_stream_costs_its_request_and_its_tokens() {
    let gateway = gateway(&[]);
    let answer = ask(&gateway, "pretend", ",\"max_tokens\":40");
    assert_eq!((answer.status, words(&answer)), (200, 40));
    assert!(answer.text().ends_with("data: [DONE]\n\n"));
    assert_eq!(left(&gateway), TOKENS - PROMPT - 40);
    // What was reserved and not used comes back: a brief answer takes two tokens of a thousand.
    assert_eq!(words(&ask(&gateway, "brief", ",\"max_tokens\":1000")), 2);
    assert_eq!(left(&gateway), TOKENS - 2 * PROMPT - 42);
}

#[test]
fn requests_are_counted_beside_tokens() {
    let gateway = Listening::start("llm_gateway", &[("REQUESTS", "3/day fixed_window")]);
    let models = ["brief", "broken", "brief", "broken", "brief", "brief"];
    let statuses = models.map(|model| ask(&gateway, model, "").status);
    assert_eq!(statuses, [200, 503, 200, 503, 200, 429]);
}

/// LiteLLM#37001, #34223: the smallest of several caps was reserved, and the largest obeyed.
#[test]
fn the_largest_declared_cap_is_reserved() {
    let gateway = gateway(&[]);
    let answer = ask(&gateway, "pretend", ",\"max_tokens\":1,\"max_completion_tokens\":900");
    assert_eq!(words(&answer), 900);
    assert_eq!(left(&gateway), TOKENS - PROMPT - 900);
    // A request for more than is left is made smaller, and the next one is refused.
    let all = ask(&gateway, "pretend", ",\"max_tokens\":1,\"max_output_tokens\":1000000");
    assert_eq!((all.status, words(&all)), (200, TOKENS - 2 * PROMPT - 900));
    assert_eq!(ask(&gateway, "brief", "").status, 429);
}

#[test]
fn a_model_that_does_not_stop_is_cut() {
    let gateway = gateway(&[]);
    let answer = ask(&gateway, "endless", ",\"max_tokens\":100");
    assert_eq!(words(&answer), 100);
    assert!(answer.text().contains("token_budget"), "the caller learns that it was cut");
    assert_eq!(left(&gateway), TOKENS - PROMPT - 100);
}

#[test]
fn a_caller_that_hangs_up_has_used_what_it_got() {
    let gateway = gateway(&[]);
    let text = body("thinking", ",\"max_tokens\":15000");
    let mut stream = TcpStream::connect(gateway.address).unwrap();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\nx-api-key: alice\r\ncontent-type: application/json";
    write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{text}", text.len()).unwrap();
    let mut read = String::new();
    while read.matches("word ").count() < 5 {
        let mut some = [0; 1000];
        let bytes = stream.read(&mut some).unwrap();
        read.push_str(&String::from_utf8_lossy(&some[..bytes]));
    }
    assert_eq!(left(&gateway), TOKENS - PROMPT - 15_000, "it is held while the model thinks");
    drop(stream);
    // What was reserved comes back, and what has passed stays charged.
    until("the hold to be settled", PATIENCE, || (left(&gateway) == TOKENS - PROMPT - 5).then_some(()));
}

#[test]
fn a_model_that_dies_has_used_what_it_wrote() {
    let gateway = gateway(&[]);
    let failed = std::panic::catch_unwind(|| ask(&gateway, "mortal", ",\"max_tokens\":1000"));
    assert!(failed.is_err(), "the response is not whole");
    // Its last words may have died with it.
    let left = left(&gateway);
    assert!((TOKENS - PROMPT - 5..TOKENS - PROMPT).contains(&left), "{left}");
}

/// Streams at once, from two gateways on one store: never more tokens than the limit, and in the end exactly those that were used.
#[test]
fn parallel_streams_never_use_more_than_the_limit() {
    let redis = Server::redis().start();
    let url = redis.url();
    let gateways = [gateway(&[("TALLYGATE_STORE", &url)]), gateway(&[("TALLYGATE_STORE", &url)])];
    let used: u64 = std::thread::scope(|scope| {
        let stream = |caller: u64| {
            let gateway = &gateways[usize::try_from(caller % 2).unwrap()];
            scope.spawn(move || {
                let mut random = Random::new(caller);
                let mut used = 0;
                for _ in 0..6 {
                    let cap = format!(",\"max_tokens\":{}", random.between(100, 2000));
                    let answer = ask(gateway, random.pick(&["pretend", "brief", "endless"]), &cap);
                    assert!(answer.status == 200 || answer.status == 429, "{answer:?}");
                    used += if answer.status == 200 { PROMPT + words(&answer) } else { 0 };
                }
                used
            })
        };
        let streams: Vec<_> = (0..8).map(stream).collect();
        streams.into_iter().map(|stream| stream.join().unwrap()).sum()
    });
    assert!((TOKENS / 2..=TOKENS).contains(&used), "{used}");
    until("the last holds to be settled", PATIENCE, || {
        // Nothing may be left for the request that asks.
        let spent = ask(&gateways[0], "broken", ",\"max_tokens\":1").status == 429;
        (spent && TOKENS - used < 20 || !spent && left(&gateways[0]) == TOKENS - used).then_some(())
    });
}
