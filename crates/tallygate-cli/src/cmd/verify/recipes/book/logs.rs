//! Recipes that keep a log in a sorted set.

use crate::cmd::verify::recipes::recipe::{Code, Recipe, Step};

pub(crate) fn all() -> Vec<Recipe> {
    vec![
        Recipe {
            letter: "c1",
            name: "log that also keeps the refused calls",
            flaw: "who goes on calling is never let in again",
            limits: &["5/300ms sliding_log"],
            code: Code::Script(
                "local t = redis.call('TIME')
                 local now, window = t[1] * 1000000 + t[2], ARGV[2] * 1000
                 redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - window)
                 redis.call('ZADD', KEYS[1], now, ARGV[4])
                 redis.call('PEXPIRE', KEYS[1], ARGV[2])
                 local allowed = redis.call('ZCARD', KEYS[1]) <= tonumber(ARGV[1])
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Paced(60, 20)],
        },
        Recipe {
            letter: "c2",
            name: "log, refusals removed by their timestamp",
            flaw: "the admitted calls of the same millisecond are removed along with them",
            limits: &["5/min sliding_log"],
            code: Code::Script(
                // The millisecond is the caller's, as it usually is: so all calls of the drive have the same.
                "local t = redis.call('TIME')
                 local now = math.floor(ARGV[6] / 1000)
                 redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[2])
                 redis.call('ZADD', KEYS[1], now, ARGV[4])
                 redis.call('PEXPIRE', KEYS[1], ARGV[2])
                 local allowed = redis.call('ZCARD', KEYS[1]) <= tonumber(ARGV[1])
                 if not allowed then redis.call('ZREMRANGEBYSCORE', KEYS[1], now, now) end
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Calls(500)],
        },
        Recipe {
            letter: "c3",
            name: "log whose members are milliseconds",
            flaw: "all calls of one millisecond are one member and count once",
            limits: &["5/min sliding_log"],
            code: Code::Script(
                // The millisecond is the caller's, as it usually is: so all calls of the drive have the same.
                "local t = redis.call('TIME')
                 local now = math.floor(ARGV[6] / 1000)
                 redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[2])
                 local allowed = redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[1])
                 if allowed then
                   redis.call('ZADD', KEYS[1], now, now)
                   redis.call('PEXPIRE', KEYS[1], ARGV[2])
                 end
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Calls(500)],
        },
        Recipe {
            letter: "c4",
            name: "log whose members are µs joined with ..",
            flaw: "Lua writes 14 digits: all calls of 100 µs are one member and count once",
            limits: &["5/min sliding_log"],
            code: Code::Script(
                "local t = redis.call('TIME')
                 local now = t[1] * 1000000 + t[2]
                 redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[2] * 1000)
                 local allowed = redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[1])
                 if allowed then
                   redis.call('ZADD', KEYS[1], now, now .. '')
                   redis.call('PEXPIRE', KEYS[1], ARGV[2])
                 end
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Calls(500)],
        },
        Recipe {
            letter: "d",
            name: "buckets of a sorted set, the score is the count",
            flaw: "trimming by time compares counts with timestamps and removes everything",
            limits: &["5/min sliding_log"],
            code: Code::Script(
                "local t = redis.call('TIME')
                 local now = tonumber(t[1])
                 redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[2] / 1000)
                 local count = 0
                 local all = redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES')
                 for i = 2, #all, 2 do count = count + all[i] end
                 local allowed = count < tonumber(ARGV[1])
                 if allowed then
                   redis.call('ZINCRBY', KEYS[1], 1, t[1])
                   redis.call('PEXPIRE', KEYS[1], ARGV[2])
                 end
                 return { allowed and 1 or 0, t[1], t[2] }",
            ),
            drive: &[Step::Calls(500)],
        },
    ]
}
