//! The bodies of the fuzz targets whose parsers are private. Compiled for tests and by `cargo xtask fuzz` only.

use redis::Value;
use tallygate::call::Verb;
use tallygate::store::StoreErrorKind;
use tallygate::{Check, Decision, Key, Limit, StoreError};

use crate::coalesce::Questions;
use crate::connection::{Failure, Replies, slot_ranges};
use crate::url::Address;
use crate::wire::{Asked, read_call, read_check};

/// The bytes of a server: the same replies however they are cut, or an error; never more memory than they justify.
///
/// The first byte is where the rest is cut.
pub fn redis_replies(input: &[u8]) {
    let Some((&cut, stream)) = input.split_first() else { return };
    let whole = replies(&[stream]);
    let (first, second) = stream.split_at(usize::from(cut).min(stream.len()));
    same(&replies(&[first, second]), &whole);
    if stream.len() <= 256 {
        let bytes: Vec<&[u8]> = stream.chunks(1).collect();
        same(&replies(&bytes), &whole);
    }
    let (values, _) = whole;
    let size: usize = values.iter().map(size).sum();
    assert!(size <= 256 + 64 * stream.len(), "{} bytes became {size}", stream.len());
    for value in &values {
        understood(value);
    }
}

/// The replies of a stream that was cut. What is wrong with a reply may be noticed later, once as many bytes are there as it must have.
fn same(cut: &(Vec<Value>, Option<String>), whole: &(Vec<Value>, Option<String>)) {
    assert_eq!(cut.0, whole.0);
    assert!(cut.1.is_none() || cut.1 == whole.1, "{:?} instead of {:?}", cut.1, whole.1);
}

/// All replies of a stream that comes in these parts, and how it ended.
fn replies(parts: &[&[u8]]) -> (Vec<Value>, Option<String>) {
    let (mut replies, mut values) = (Replies::default(), Vec::new());
    for part in parts {
        replies.push(part);
        loop {
            match replies.next() {
                Ok(Some(value)) => values.push(value),
                Ok(None) => break,
                Err(error) => return (values, Some(error.to_string())),
            }
        }
    }
    (values, None)
}

/// The memory that a value holds.
fn size(value: &Value) -> usize {
    size_of::<Value>()
        + match value {
            Value::BulkString(bytes) => bytes.len(),
            Value::SimpleString(text) => text.len(),
            Value::Array(items) => items.iter().map(size).sum(),
            _ => 0,
        }
}

/// Whatever a server says instead of what it was asked for is read as far as it makes sense.
fn understood(value: &Value) {
    let from = Address::Tcp { host: "seed".to_owned(), port: 6379 };
    let ranges: Vec<_> = slot_ranges(value, &from).collect();
    assert!(ranges.iter().all(|(_, _, address)| address.to_string().len() <= 16 + size(value)));
    if let Value::ServerError(error) = value {
        let said = Failure::of_reply(error).at(&"the server").to_string();
        assert!(!said.is_empty() && said.len() <= 2048 + 4 * size(value), "{said}");
    }
    if let Value::SimpleString(text) = value {
        let _ = Failure::of_error(text).at(&"the server").to_string();
        let _ = Address::named(text, &from).map(|address| address.to_string());
    }
    if let Value::Array(items) = value {
        items.iter().for_each(understood);
    }
}

/// The answers of the scripts: numbers that a limit can have, or `Corrupt`; and what is read is what was written.
///
/// The first byte chooses the verb, and how many checks were asked.
pub fn script_replies(input: &[u8]) {
    let Some((&choice, answer)) = input.split_first() else { return };
    let limits: [Limit; 3] =
        ["5/min", "1000000000/s fixed_window", "7/97ms sliding_log"].map(|text| text.parse().expect("a limit"));
    let checks: Vec<Check<'_>> =
        limits.iter().map(|limit| Check::new(Key::new("p", "s").expect("a key"), limit)).collect();
    let verb = Verb::ALL[usize::from(choice & 3) % Verb::ALL.len()];
    let count = 1 + usize::from(choice >> 2) % checks.len();
    let asked = checks[..count].iter().map(|check| Asked::new(check, "t")).collect();
    let reply = Value::BulkString(answer.to_vec());

    let one = read_check(&reply, &checks[0]);
    if let Ok(decision) = &one {
        assert_eq!(answer.len(), 1 + 4 * 8);
        let status = decision.binding();
        assert_eq!(decision.allowed(), answer[0] == 1);
        assert_eq!(status.units(), u64::from(decision.allowed()));
    }
    sound(&one, answer);
    let all = read_call(&reply, &Questions::new(verb, asked));
    if let Ok(decision) = &all {
        assert_eq!(decision.statuses().len(), count);
        assert!((0..count).any(|place| decision.failure(place).is_none()), "an answer without one status is an error");
    }
    sound(&all, answer);
}

fn sound(answer: &Result<Decision, StoreError>, bytes: &[u8]) {
    match answer {
        Ok(decision) => {
            assert!(decision.decided_at().is_none_or(|at| at.as_micros() <= 1 << 53));
            for status in decision.statuses() {
                assert!(status.remaining() <= 1 << 53 && status.units() <= 1 << 53, "{status:?}");
            }
        }
        Err(error) => {
            let known = matches!(
                error.kind(),
                StoreErrorKind::Corrupt
                    | StoreErrorKind::NewerFormat
                    | StoreErrorKind::Refused
                    | StoreErrorKind::Unavailable
                    | StoreErrorKind::Ambiguous
            );
            assert!(known, "{error:?}");
            assert!(error.to_string().len() <= 2048 + 4 * bytes.len(), "{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use tallygate_testkit::corpus::replay;

    #[test]
    fn replies_are_the_same_however_they_are_cut() {
        replay("redis_replies", super::redis_replies);
    }

    #[test]
    fn answers_of_scripts_are_sound_or_corrupt() {
        replay("script_replies", super::script_replies);
    }
}
