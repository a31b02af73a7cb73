//! The recipes, as they are found in blog posts, forum answers and libraries.

use crate::recipe::Step::{Calls, Costs, Dies, LastOnly, Paced, Rest, Resume, Stall, Wait, WindowsAhead};
use crate::recipe::{Call, Code, Recipe, Step};

pub(crate) static RECIPES: [Recipe; 16] = [
    Recipe {
        letter: "a",
        name: "INCR, then EXPIRE as a second command",
        flaw: "a client dies between the two: the counter never expires and locks everybody out",
        limits: &["5/300ms fixed_window_from_first_call"],
        code: Code::Commands {
            first: |call| vec![format!("INCR {}", call.key)],
            then: |call, count| match count {
                1 => vec![format!("PEXPIRE {} {}", call.key, call.window_ms)],
                _ => Vec::new(),
            },
        },
        drive: &[Dies, Wait(400), Calls(5), Wait(400), Calls(5)],
    },
    Recipe {
        letter: "b",
        name: "INCR, and DECR to undo a refusal",
        flaw: "slow clients undo after the window is over: a negative counter without a TTL",
        limits: &["5/300ms fixed_window_from_first_call"],
        code: Code::Commands {
            first: create_and_incr,
            then: |call, count| match call.amounts[0] {
                amount if count > amount => vec![format!("DECR {}", call.key)],
                _ => Vec::new(),
            },
        },
        drive: &[Calls(5), Stall(100), Wait(400), Resume, Calls(120)],
    },
    Recipe {
        letter: "c1",
        name: "log that also keeps the refused calls",
        flaw: "a caller that keeps calling is never allowed again",
        limits: &["5/300ms sliding_log"],
        code: Code::Script(
            "local now = t[1] * 1000000 + t[2]
             redis.call('ZREMRANGEBYSCORE', key, 0, now - window_ms * 1000)
             redis.call('ZADD', key, now, id)
             redis.call('PEXPIRE', key, window_ms)
             allowed = redis.call('ZCARD', key) <= amount",
        ),
        drive: &[Paced(60, 20)],
    },
    Recipe {
        letter: "c2",
        name: "log, refusals removed by their timestamp",
        flaw: "the admitted calls of the same millisecond are removed along with them",
        limits: &["5/min sliding_log"],
        // The clock is the client's, as it usually is: all calls have the same millisecond.
        code: Code::Script(
            "local now = math.floor(client_us / 1000)
             redis.call('ZREMRANGEBYSCORE', key, 0, now - window_ms)
             redis.call('ZADD', key, now, id)
             redis.call('PEXPIRE', key, window_ms)
             allowed = redis.call('ZCARD', key) <= amount
             if not allowed then redis.call('ZREMRANGEBYSCORE', key, now, now) end",
        ),
        drive: &[Calls(500)],
    },
    Recipe {
        letter: "c3",
        name: "log whose members are milliseconds",
        flaw: "all calls of one millisecond are one member and count once",
        limits: &["5/min sliding_log"],
        // The clock is the client's, as it usually is: all calls have the same millisecond.
        code: Code::Script(
            "local now = math.floor(client_us / 1000)
             redis.call('ZREMRANGEBYSCORE', key, 0, now - window_ms)
             allowed = redis.call('ZCARD', key) < amount
             if allowed then
               redis.call('ZADD', key, now, now)
               redis.call('PEXPIRE', key, window_ms)
             end",
        ),
        drive: &[Calls(500)],
    },
    Recipe {
        letter: "c4",
        name: "log whose members are µs joined with ..",
        flaw: "Lua writes 14 digits: all calls of 100 µs are one member and count once",
        limits: &["5/min sliding_log"],
        // The clock is the client's: each call comes a microsecond after the last, however slow the server is.
        code: Code::Script(
            "local now = client_us + id
             redis.call('ZREMRANGEBYSCORE', key, 0, now - window_ms * 1000)
             allowed = redis.call('ZCARD', key) < amount
             if allowed then
               redis.call('ZADD', key, now, now .. '')
               redis.call('PEXPIRE', key, window_ms)
             end",
        ),
        drive: &[Calls(500)],
    },
    Recipe {
        letter: "d",
        name: "buckets of a sorted set, the score is the count",
        flaw: "trimming by time compares counts with timestamps and removes everything",
        limits: &["5/min sliding_log"],
        code: Code::Script(
            "redis.call('ZREMRANGEBYSCORE', key, 0, t[1] - window_ms / 1000)
             local count = 0
             local all = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
             for i = 2, #all, 2 do count = count + all[i] end
             allowed = count < amount
             if allowed then
               redis.call('ZINCRBY', key, 1, t[1])
               redis.call('PEXPIRE', key, window_ms)
             end",
        ),
        drive: &[Calls(500)],
    },
    Recipe {
        letter: "e",
        name: "bucket with EXPIRE of twice the capacity",
        flaw: "it expires long before it has refilled, and comes back full",
        limits: &["1/h"],
        code: Code::Script(
            "local now = tonumber(t[1])
             local tokens = tonumber(redis.call('HGET', key, 'tokens') or capacity)
             local last = tonumber(redis.call('HGET', key, 'last') or now)
             tokens = math.min(capacity, tokens + (now - last) * amount * 1000 / window_ms)
             allowed = tokens >= cost
             if allowed then tokens = tokens - cost end
             redis.call('HSET', key, 'tokens', tokens, 'last', now)
             redis.call('EXPIRE', key, 2 * capacity)",
        ),
        drive: &[Calls(2), Wait(2050), Calls(2)],
    },
    Recipe {
        letter: "f",
        name: "bucket in float seconds, kept with tostring",
        flaw: "the time is rounded to 100 µs: a busy key gains tokens from the rounding",
        limits: &["1000/s burst 20"],
        code: Code::Script(
            "local now = t[1] + t[2] / 1000000
             local tokens = tonumber(redis.call('HGET', key, 'tokens') or capacity)
             local last = tonumber(redis.call('HGET', key, 'last') or now)
             tokens = math.min(capacity, tokens + math.max(0, now - last) * amount * 1000 / window_ms)
             allowed = tokens >= cost
             if allowed then tokens = tokens - cost end
             redis.call('HSET', key, 'tokens', tostring(tokens), 'last', tostring(now))
             redis.call('PEXPIRE', key, window_ms)",
        ),
        drive: &[Calls(10_000)],
    },
    Recipe {
        letter: "g",
        name: "windows by the clock of the client",
        flaw: "clients with different clocks count in different windows",
        limits: &["5/min fixed_window"],
        code: Code::Commands {
            first: |call| vec![format!("INCR {}", window_key(call))],
            then: |call, _| vec![format!("PEXPIRE {} {}", window_key(call), call.window_ms)],
        },
        drive: &[Calls(10), WindowsAhead(1), Calls(10), WindowsAhead(2), Calls(10), WindowsAhead(3), Calls(10)],
    },
    Recipe {
        letter: "h1",
        name: "INCRBY first, compare afterwards",
        flaw: "a large call is refused and counted: small ones that have room are refused too",
        limits: &["100/min fixed_window_from_first_call"],
        code: Code::Commands { first: create_and_incr, then: nothing },
        drive: &[Costs(2, 60), Calls(40)],
    },
    Recipe {
        letter: "h2",
        name: "INCRBY with a cost the caller may choose",
        flaw: "a negative cost allows any number of calls",
        limits: &["5/min fixed_window_from_first_call"],
        code: Code::Commands { first: create_and_incr, then: nothing },
        drive: &[Calls(10), Costs(1, -1000), Calls(500)],
    },
    Recipe {
        letter: "i",
        name: "TTL is the rest of the client's window",
        flaw: "a clock near the end of the window lets the counter expire while others still use it",
        limits: &["5/min fixed_window"],
        code: Code::Commands {
            first: |call| {
                let (key, rest) = (window_key(call), call.window_ms - call.client_us / 1000 % call.window_ms);
                vec![format!("SET {key} 0 PX {rest} NX"), format!("INCR {key}")]
            },
            then: nothing,
        },
        drive: &[Rest(20), Calls(10), Wait(30), Calls(10), Wait(30), Calls(10)],
    },
    Recipe {
        letter: "j",
        name: "several limits, one after the other",
        flaw: "what the second limit denies is still charged to the first",
        limits: &["2/min fixed_window_from_first_call", "10/min fixed_window_from_first_call"],
        code: Code::Commands { first: incr_each, then: nothing },
        drive: &[Calls(10), LastOnly(8)],
    },
    Recipe {
        letter: "k",
        name: "bucket with a whole number of µs per token",
        flaw: "the interval is rounded down; above a million per second it is 0: no limit at all",
        limits: &["3000000/s burst 5000"],
        code: Code::Script(
            "local now = t[1] * 1000000 + t[2]
             local interval = math.floor(window_ms * 1000 / amount)
             local full_at = math.max(tonumber(redis.call('GET', key) or 0), now) + cost * interval
             allowed = full_at - now <= capacity * interval
             if allowed then redis.call('SET', key, string.format('%.0f', full_at), 'PX', window_ms) end",
        ),
        drive: &[Costs(500, 1000)],
    },
    Recipe {
        letter: "l",
        name: "bucket that trusts a clock set back",
        flaw: "with two clients whose clocks differ, every step forward refills it",
        limits: &["1/s burst 10"],
        code: Code::Script(
            "local now = client_us
             local tokens = tonumber(redis.call('HGET', key, 'tokens') or capacity)
             local last = tonumber(redis.call('HGET', key, 'last') or now)
             tokens = math.min(capacity, tokens + math.max(0, now - last) * amount / (window_ms * 1000))
             allowed = tokens >= cost
             if allowed then tokens = tokens - cost end
             redis.call('HSET', key, 'tokens', tokens, 'last', now)
             redis.call('PEXPIRE', key, 60000)",
        ),
        drive: &[Calls(12), AHEAD, Calls(12), BACK, Calls(12), AHEAD, Calls(12), BACK, Calls(12), AHEAD, Calls(12)],
    },
];

/// The two clocks of the last recipe.
const AHEAD: Step = WindowsAhead(5);
const BACK: Step = WindowsAhead(0);

fn nothing(_: &Call, _: i64) -> Vec<String> {
    Vec::new()
}

/// The TTL is set by the command that creates the counter: the flaw is elsewhere.
fn create_and_incr(call: &Call) -> Vec<String> {
    let Call { key, window_ms, cost, .. } = call;
    vec![format!("SET {key} 0 PX {window_ms} NX"), format!("INCRBY {key} {cost}")]
}

fn window_key(call: &Call) -> String {
    format!("{}/{}", call.key, call.client_us / 1000 / call.window_ms)
}

/// The wider limit first, as is common: by the day, then by the second.
fn incr_each(call: &Call) -> Vec<String> {
    let asked = if call.last_only { 1 } else { call.amounts.len() };
    let commands = |place| {
        let key = format!("{}/{place}", call.key);
        [format!("SET {key} 0 PX {} NX", call.window_ms), format!("INCR {key}")]
    };
    (0..call.amounts.len()).rev().take(asked).flat_map(commands).collect()
}
