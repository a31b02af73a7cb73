//! Recipes that count with `INCR`.

use redis::Cmd;

use crate::cmd::verify::recipes::recipe::{Call, Code, Recipe, Step, cmd};

pub(crate) fn all() -> Vec<Recipe> {
    vec![
        Recipe {
            letter: "a",
            name: "INCR, then EXPIRE as a second command",
            flaw: "a client dies between the two: the counter never expires and locks everybody out",
            limits: &["5/300ms fixed_window_from_first_call"],
            code: Code::Commands { first: incr, then: expire_if_first },
            drive: &[Step::Dies, Step::Wait(400), Step::Calls(5), Step::Wait(400), Step::Calls(5)],
        },
        Recipe {
            letter: "b",
            name: "INCR, and DECR to undo a refusal",
            flaw: "slow clients undo after the window is over: a negative counter without an end",
            limits: &["5/300ms fixed_window_from_first_call"],
            code: Code::Commands { first: create_and_incr, then: undo },
            drive: &[Step::Calls(5), Step::Stall(100), Step::Wait(400), Step::Resume, Step::Calls(120)],
        },
        Recipe {
            letter: "g",
            name: "windows by the clock of the client",
            flaw: "clocks that are apart count in windows of their own",
            limits: &["5/min fixed_window"],
            code: Code::Commands { first: incr_window, then: expire_window },
            drive: &[
                Step::Calls(10),
                Step::WindowsAhead(1),
                Step::Calls(10),
                Step::WindowsAhead(2),
                Step::Calls(10),
                Step::WindowsAhead(3),
                Step::Calls(10),
            ],
        },
        Recipe {
            letter: "h1",
            name: "INCRBY first, compare afterwards",
            flaw: "a large call is refused and counted: small ones that have room are refused too",
            limits: &["100/min fixed_window_from_first_call"],
            code: Code::Commands { first: create_and_incr, then: compare },
            drive: &[Step::Cost(60), Step::Cost(60), Step::Calls(40)],
        },
        Recipe {
            letter: "h2",
            name: "INCRBY with a cost the caller may choose",
            flaw: "a negative cost buys as many calls as one likes",
            limits: &["5/min fixed_window_from_first_call"],
            code: Code::Commands { first: create_and_incr, then: compare },
            drive: &[Step::Calls(10), Step::Cost(-1000), Step::Calls(500)],
        },
        Recipe {
            letter: "i",
            name: "TTL is the rest of the client's window",
            flaw: "a clock near the end of the window lets the counter expire while others still use it",
            limits: &["5/min fixed_window"],
            code: Code::Commands { first: incr_window_for_the_rest, then: compare },
            drive: &[Step::Rest(20), Step::Calls(10), Step::Wait(30), Step::Calls(10), Step::Wait(30), Step::Calls(10)],
        },
        Recipe {
            letter: "j",
            name: "several limits, one after the other",
            flaw: "what the second limit refuses is charged to the first all the same",
            limits: &["2/min fixed_window_from_first_call", "10/min fixed_window_from_first_call"],
            code: Code::Commands { first: incr_each, then: compare_each },
            drive: &[Step::Calls(10), Step::LastOnly(8)],
        },
    ]
}

fn window_ms(call: &Call) -> String {
    call.window_ms.to_string()
}

fn within(call: &Call, replies: &[i64]) -> bool {
    replies.last().zip(call.amounts.last()).is_some_and(|(count, amount)| count <= amount)
}

fn incr(call: &Call) -> Vec<Cmd> {
    vec![cmd("INCR", &[&call.key])]
}

fn expire_if_first(call: &Call, replies: &[i64]) -> (bool, Vec<Cmd>) {
    let first = replies.last() == Some(&1);
    let expire = cmd("PEXPIRE", &[&call.key, &window_ms(call)]);
    (within(call, replies), if first { vec![expire] } else { Vec::new() })
}

/// With the end set in the same command that creates the counter: the flaw is elsewhere.
fn create_and_incr(call: &Call) -> Vec<Cmd> {
    let create = cmd("SET", &[&call.key, "0", "PX", &window_ms(call), "NX"]);
    vec![create, cmd("INCRBY", &[&call.key, &call.cost.to_string()])]
}

fn undo(call: &Call, replies: &[i64]) -> (bool, Vec<Cmd>) {
    if within(call, replies) { (true, Vec::new()) } else { (false, vec![cmd("DECR", &[&call.key])]) }
}

fn compare(call: &Call, replies: &[i64]) -> (bool, Vec<Cmd>) {
    (within(call, replies), Vec::new())
}

fn window_key(call: &Call) -> String {
    format!("{}/{}", call.key, call.client_us / 1000 / call.window_ms)
}

fn incr_window(call: &Call) -> Vec<Cmd> {
    vec![cmd("INCR", &[&window_key(call)])]
}

fn expire_window(call: &Call, replies: &[i64]) -> (bool, Vec<Cmd>) {
    (within(call, replies), vec![cmd("PEXPIRE", &[&window_key(call), &window_ms(call)])])
}

fn incr_window_for_the_rest(call: &Call) -> Vec<Cmd> {
    let key = window_key(call);
    let rest = call.window_ms - call.client_us / 1000 % call.window_ms;
    vec![cmd("SET", &[&key, "0", "PX", &rest.to_string(), "NX"]), cmd("INCR", &[&key])]
}

/// The wider limit first, as they are mostly written: by the day, then by the second.
fn incr_each(call: &Call) -> Vec<Cmd> {
    let mut commands = Vec::new();
    for (place, _) in call.amounts.iter().enumerate().rev() {
        let key = format!("{}/{place}", call.key);
        commands.push(cmd("SET", &[&key, "0", "PX", &window_ms(call), "NX"]));
        commands.push(cmd("INCR", &[&key]));
        if call.last_only {
            break;
        }
    }
    commands
}

fn compare_each(call: &Call, replies: &[i64]) -> (bool, Vec<Cmd>) {
    (replies.iter().zip(call.amounts.iter().rev()).all(|(count, amount)| count <= amount), Vec::new())
}
