//! A hold as a text.

use std::fmt;
use std::fmt::Write as _;
use std::str::FromStr;

use super::{Hold, HoldId, Place, Turn};
use crate::algorithm::Algorithm;
use crate::call::Call;
use crate::key::Key;

/// The version of the form of a token.
const VERSION: u8 = 1;
/// That of a hold that was renewed: the turn follows the id.
const RENEWED: u8 = 2;

/// The error of a text that is not a hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is not a hold: pass on the `hold` of the answer to a reservation, as it is")]
#[non_exhaustive]
pub struct InvalidHold;

/// The token: hexadecimal digits.
impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        let mut write = |bytes: &[u8]| bytes.iter().for_each(|byte| _ = write!(text, "{byte:02x}"));
        let renewed = self.turn != Turn::FIRST;
        write(&[if renewed { RENEWED } else { VERSION }]);
        write(self.id.as_bytes());
        if renewed {
            write(self.turn.as_bytes());
        }
        let mut last: &[u8] = &[];
        for Place { policy, subject, algorithm } in &self.parts {
            let at = Algorithm::ALL.iter().position(|known| known == algorithm).unwrap_or(0);
            write(&[low_byte(at), low_byte(policy.len())]);
            write(policy.as_bytes());
            // No subject is empty: a length of zero repeats the last one.
            let subject = if subject == last { &[][..] } else { subject };
            write(&u16::try_from(subject.len()).unwrap_or(u16::MAX).to_be_bytes());
            write(subject);
            last = if subject.is_empty() { last } else { subject };
        }
        f.write_str(&text)
    }
}

/// No list of algorithms and no policy name is longer.
fn low_byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

impl FromStr for Hold {
    type Err = InvalidHold;

    fn from_str(text: &str) -> Result<Self, InvalidHold> {
        /// Longer than any call can be.
        const LONGEST: usize = 2 * (25 + Call::MAX_CHECKS * (4 + Key::MAX_POLICY + Key::MAX_SUBJECT));
        let (digits, odd) = text.as_bytes().as_chunks::<2>();
        if !odd.is_empty() || text.len() > LONGEST || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(InvalidHold);
        }
        let byte = |pair: &[u8; 2]| pair.iter().fold(0, |byte, digit| byte << 4 | nibble(*digit));
        let bytes: Vec<u8> = digits.iter().map(byte).collect();
        read(&bytes).ok_or(InvalidHold)
    }
}

fn nibble(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

fn read(bytes: &[u8]) -> Option<Hold> {
    let (&version, bytes) = bytes.split_first()?;
    let (id, mut rest) = bytes.split_first_chunk::<16>().filter(|_| matches!(version, VERSION | RENEWED))?;
    let mut turn = Turn::FIRST;
    if version == RENEWED {
        let (bytes, more) = rest.split_first_chunk::<8>()?;
        (turn, rest) = (Turn(*bytes), more);
        // There is one way to write each hold.
        if turn == Turn::FIRST {
            return None;
        }
    }
    let mut parts: Vec<Place> = Vec::new();
    while let Some((&[algorithm, length], more)) = rest.split_first_chunk::<2>() {
        // Before another subject is copied: a part may be a few bytes that repeat a long one.
        if parts.len() == Call::MAX_CHECKS {
            return None;
        }
        let algorithm = *Algorithm::ALL.get(usize::from(algorithm))?;
        let (policy, more) = more.split_at_checked(usize::from(length))?;
        let (&length, more) = more.split_first_chunk::<2>()?;
        let (subject, more) = more.split_at_checked(usize::from(u16::from_be_bytes(length)))?;
        let subject = if subject.is_empty() { parts.last()?.subject.clone() } else { subject.to_owned() };
        let policy = String::from_utf8(policy.to_owned()).ok()?;
        Key::new(&policy, &subject).ok()?;
        parts.push(Place { policy, subject, algorithm });
        rest = more;
    }
    rest.is_empty().then_some(Hold { id: HoldId::from_bytes(*id), turn, parts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hold(parts: &[(&str, &[u8])]) -> Hold {
        let place = |&(policy, subject): &(&str, &[u8])| Place {
            policy: policy.to_owned(),
            subject: subject.to_owned(),
            algorithm: Algorithm::SlidingLog,
        };
        Hold { id: HoldId::from_bytes([7; 16]), turn: Turn::FIRST, parts: parts.iter().map(place).collect() }
    }

    #[test]
    fn a_token_is_read_as_it_was_written() {
        let several: [(&str, &[u8]); 4] = [("requests", b"a"), ("tokens", b"a"), ("team", b"b"), ("all", b"a")];
        for parts in 0..=4 {
            let hold = hold(&several[..parts]);
            assert_eq!(hold.to_string().parse::<Hold>(), Ok(hold.clone()));
            assert_eq!(hold.to_string().to_uppercase().parse::<Hold>(), Ok(hold.clone()));
            let renewed = hold.clone().at_turn(Turn::named("1"));
            assert!(renewed != hold && renewed.to_string() != hold.to_string());
            assert_eq!(renewed.to_string().parse::<Hold>(), Ok(renewed));
        }
        assert_eq!(hold(&[("p", b"s"), ("q", b"s")]).to_string().len(), 2 * (17 + 6 + 5));
    }

    #[test]
    fn nothing_else_is_a_token() {
        let token = hold(&[("p", b"s")]).to_string();
        let cut = (0..token.len()).filter(|&end| end != 2 * 17).map(|end| token[..end].to_owned());
        let longer = (0..40).map(|_| &token[34..]).fold(token.clone(), |all, part| all + part);
        let others = [format!("{token}0"), format!("{token}zz"), token.replacen("01", "03", 1), longer, "é".repeat(20)];
        for wrong in cut.chain(others) {
            assert_eq!(wrong.parse::<Hold>(), Err(InvalidHold), "{wrong}");
        }
    }

    #[test]
    fn debug_output_does_not_reveal_it() {
        let hold = hold(&[("p", b"alice")]);
        assert_eq!(format!("{hold:?} {:?}", hold.id()), "Hold { parts: 1, .. } HoldId(..)");
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_back(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            for version in [VERSION, RENEWED] {
                let bytes = [&[version], &bytes[..]].concat();
                if let Some(hold) = read(&bytes) {
                    prop_assert_eq!(hold.to_string().parse::<Hold>(), Ok(hold));
                }
            }
        }
    }
}
