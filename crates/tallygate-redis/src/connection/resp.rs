//! Replies of a server, from the bytes it sends (RESP2).

use redis::{Value, parse_redis_value};

/// The longest line: a status, a number, or an error with its text.
const MAX_LINE: usize = 64 * 1024;
/// The longest string: far above any reply to our commands.
const MAX_STRING: usize = 64 * 1024 * 1024;
/// The most elements of an array.
const MAX_ELEMENTS: usize = 1024 * 1024;
/// Arrays within arrays: `CLUSTER SLOTS` needs four.
const MAX_DEPTH: usize = 16;

/// What was received and not yet read.
#[derive(Default)]
pub(crate) struct Replies {
    bytes: Vec<u8>,
    /// The first byte that belongs to no reply read so far.
    start: usize,
    /// Bytes that the next reply has at least, as far as known: it is not looked at before they are there.
    needs: usize,
}

/// The server sent what is not RESP2, or more than any reply of ours.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the server sent an invalid reply: {0}")]
pub(crate) struct InvalidReply(&'static str);

/// A reply and its length, or how many bytes are missing at least.
type Read = Result<(Value, usize), usize>;

impl Replies {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start * 2 >= self.bytes.len() {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next reply, if it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Value>, InvalidReply> {
        let rest = &self.bytes[self.start..];
        if rest.len() < self.needs.max(1) {
            return Ok(None);
        }
        match read(rest, 0)? {
            Ok((value, length)) => {
                (self.start, self.needs) = (self.start + length, 0);
                Ok(Some(value))
            }
            Err(missing) => {
                self.needs = rest.len() + missing;
                Ok(None)
            }
        }
    }
}

/// Reads the reply at the start of `bytes`.
fn read(bytes: &[u8], depth: usize) -> Result<Read, InvalidReply> {
    let Some(line) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.len() > MAX_LINE { Err(InvalidReply("a line is too long")) } else { Ok(Err(1)) };
    };
    let [kind, text @ ..] = &bytes[..line] else { return Err(InvalidReply("an empty line")) };
    let mut end = line + 2;
    let value = match kind {
        b'+' if text == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(String::from_utf8_lossy(text).into_owned()),
        // Rare, and the only value that cannot be made here.
        b'-' => parse_redis_value(&bytes[..end]).map_err(|_| InvalidReply("an error is not text"))?,
        b':' => {
            let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
            Value::Int(number.ok_or(InvalidReply("a number is invalid"))?)
        }
        b'$' => match length(text, MAX_STRING)? {
            None => Value::Nil,
            Some(length) => {
                let start = end;
                end += length + 2;
                if bytes.len() < end {
                    return Ok(Err(end - bytes.len()));
                }
                if &bytes[end - 2..end] != b"\r\n" {
                    return Err(InvalidReply("a string has no end"));
                }
                Value::BulkString(bytes[start..end - 2].to_vec())
            }
        },
        b'*' if depth == MAX_DEPTH => return Err(InvalidReply("arrays are nested too deeply")),
        b'*' => match length(text, MAX_ELEMENTS)? {
            None => Value::Nil,
            Some(count) => {
                let mut elements = Vec::new();
                for place in 0..count {
                    // Each of those that follow has at least three bytes: `+\r\n`.
                    let others = 3 * (count - place - 1);
                    if end == bytes.len() {
                        return Ok(Err(3 + others));
                    }
                    match read(&bytes[end..], depth + 1)? {
                        Ok((element, length)) => {
                            elements.push(element);
                            end += length;
                        }
                        Err(missing) => return Ok(Err(missing + others)),
                    }
                }
                Value::Array(elements)
            }
        },
        _ => return Err(InvalidReply("an unknown type")),
    };
    Ok(Ok((value, end)))
}

/// A length from 0 to `most`; `None` for -1, which is nil.
fn length(text: &[u8], most: usize) -> Result<Option<usize>, InvalidReply> {
    if text == b"-1" {
        return Ok(None);
    }
    let number = std::str::from_utf8(text).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let number = number.and_then(|text| text.parse().ok()).filter(|number| *number <= most);
    number.map(Some).ok_or(InvalidReply("a length is invalid or too large"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form of reply, as a server writes it.
    const FORMS: [&[u8]; 9] = [
        b"+OK\r\n",
        b"-NOSCRIPT No matching script.\r\n",
        b":-5\r\n",
        b"$-1\r\n",
        b"$0\r\n\r\n",
        b"$5\r\n\r\n\x00\xff$\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*3\r\n:0\r\n*2\r\n$1\r\na\r\n-ERR x\r\n+y\r\n",
    ];

    fn all(replies: &mut Replies) -> Vec<Value> {
        std::iter::from_fn(|| replies.next().unwrap()).collect()
    }

    #[test]
    fn replies_are_the_same_however_they_are_cut() {
        let stream = FORMS.concat();
        let whole: Vec<Value> = FORMS.iter().map(|form| parse_redis_value(form).unwrap()).collect();
        for first in 0..=stream.len() {
            for second in first..=stream.len() {
                let mut replies = Replies::default();
                let mut read = Vec::new();
                for part in [&stream[..first], &stream[first..second], &stream[second..]] {
                    replies.push(part);
                    read.extend(all(&mut replies));
                }
                assert_eq!(read, whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn a_long_array_is_not_looked_at_again_for_every_byte() {
        let mut replies = Replies::default();
        replies.push(b"*1000\r\n");
        assert_eq!(replies.next(), Ok(None));
        assert!(replies.needs >= 3000, "{}", replies.needs);
    }

    /// The shortest element was taken to have four bytes, so the reply was found only when more arrived.
    #[test]
    fn an_array_that_ends_in_an_empty_text_is_complete() {
        for array in ["*1\r\n+\r\n", "*2\r\n:0\r\n+\r\n", "*3\r\n+\r\n+\r\n+\r\n"] {
            let mut replies = Replies::default();
            for byte in array.as_bytes() {
                assert_eq!(replies.next(), Ok(None), "{array:?}");
                replies.push(&[*byte]);
            }
            assert!(matches!(replies.next(), Ok(Some(Value::Array(_)))), "{array:?}");
        }
    }

    #[test]
    fn what_is_not_a_reply_is_an_error_and_bounded() {
        let deep = "*1\r\n".repeat(MAX_DEPTH + 1);
        let long = "x".repeat(MAX_LINE + 1);
        for wrong in ["?\r\n", "$-2\r\n", "$x\r\n", "$99999999999\r\n", "*9999999\r\n", "$1\r\nab\r\n", &deep, &long] {
            let mut replies = Replies::default();
            replies.push(wrong.as_bytes());
            assert!(replies.next().is_err(), "{wrong:.20}");
        }
    }
}
