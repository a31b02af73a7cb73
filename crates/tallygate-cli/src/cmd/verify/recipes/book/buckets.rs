//! Recipes that refill a bucket.

use crate::cmd::verify::recipes::recipe::{Code, Recipe, Step};

pub(crate) fn all() -> Vec<Recipe> {
    vec![
        Recipe {
            letter: "e",
            name: "bucket with EXPIRE of twice the capacity",
            flaw: "it expires long before it has refilled, and comes back full",
            limits: &["1/h"],
            code: Code::Script(
                "local t = redis.call('TIME')
                 local now = tonumber(t[1])
                 local tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens') or ARGV[5])
                 local last = tonumber(redis.call('HGET', KEYS[1], 'last') or now)
                 tokens = math.min(tonumber(ARGV[5]), tokens + (now - last) * ARGV[1] * 1000 / ARGV[2])
                 local allowed = tokens >= tonumber(ARGV[3])
                 if allowed then tokens = tokens - ARGV[3] end
                 redis.call('HSET', KEYS[1], 'tokens', tokens, 'last', now)
                 redis.call('EXPIRE', KEYS[1], 2 * ARGV[5])
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Calls(2), Step::Wait(2050), Step::Calls(2)],
        },
        Recipe {
            letter: "f",
            name: "bucket in float seconds, kept with tostring",
            flaw: "the time is rounded to 100 µs: a busy key gains tokens from the rounding",
            limits: &["1000/s burst 20"],
            code: Code::Script(
                "local t = redis.call('TIME')
                 local now = t[1] + t[2] / 1000000
                 local capacity = tonumber(ARGV[5])
                 local tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens') or capacity)
                 local last = tonumber(redis.call('HGET', KEYS[1], 'last') or now)
                 tokens = math.min(capacity, tokens + math.max(0, now - last) * ARGV[1] * 1000 / ARGV[2])
                 local allowed = tokens >= tonumber(ARGV[3])
                 if allowed then tokens = tokens - ARGV[3] end
                 redis.call('HSET', KEYS[1], 'tokens', tostring(tokens), 'last', tostring(now))
                 redis.call('PEXPIRE', KEYS[1], ARGV[2])
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Calls(10_000)],
        },
        Recipe {
            letter: "k",
            name: "bucket with a whole number of µs per token",
            flaw: "the interval is rounded down; above a million per second it is zero, and so is the limit",
            limits: &["3000000/s burst 5000"],
            code: Code::Script(
                "local t = redis.call('TIME')
                 local now = t[1] * 1000000 + t[2]
                 local interval = math.floor(ARGV[2] * 1000 / ARGV[1])
                 local full_at = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now) + ARGV[3] * interval
                 local allowed = full_at - now <= ARGV[5] * interval
                 if allowed then
                   redis.call('SET', KEYS[1], string.format('%.0f', full_at), 'PX', ARGV[2])
                 end
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Costs(500, 1000)],
        },
        Recipe {
            letter: "l",
            name: "bucket that takes a clock set back at its word",
            flaw: "between two servers whose clocks are apart, every step forward refills it anew",
            limits: &["1/s burst 10"],
            code: Code::Script(
                "local t = redis.call('TIME')
                 local now = tonumber(ARGV[6])
                 local capacity = tonumber(ARGV[5])
                 local tokens = tonumber(redis.call('HGET', KEYS[1], 'tokens') or capacity)
                 local last = tonumber(redis.call('HGET', KEYS[1], 'last') or now)
                 tokens = math.min(capacity, tokens + math.max(0, now - last) * ARGV[1] / (ARGV[2] * 1000))
                 local allowed = tokens >= tonumber(ARGV[3])
                 if allowed then tokens = tokens - ARGV[3] end
                 redis.call('HSET', KEYS[1], 'tokens', tokens, 'last', now)
                 redis.call('PEXPIRE', KEYS[1], 60000)
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Flap { seconds: 60, apart: 5, calls: 12 }],
        },
    ]
}
