//! The id of a call: a call that is repeated under its id is answered as before, and not charged again.

use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::call::Call;

/// Names a call, so that it can be repeated: after a timeout, by a client that retries, from a queue that delivers twice.
///
/// An allowed answer is remembered with the charge, in one step. A repeat of the call under the same id gives that answer again, and
/// [says so](crate::Decision::replayed); another call under the same id is an error. Denials are not remembered. An id belongs to the
/// subjects of its call: others may use the same.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use tallygate::{Check, Key, Limit, Limiter};
/// use tallygate::request::RequestId;
///
/// # let limiter = Limiter::default();
/// # let limit: Limit = "3/min".parse()?;
/// let check = Check::new(Key::new("mails", "alice")?, &limit);
/// let id = RequestId::new("mail-4711")?;
/// assert!(!limiter.once(id).check(check).await?.replayed());
///
/// let again = limiter.once(id).check(check).await?;
/// assert!(again.allowed() && again.replayed());
/// assert_eq!(limiter.peek(check).await?.binding().remaining(), 2);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId {
    digest: [u8; 16],
    kept: Duration,
}

/// The error of an invalid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidRequestId {
    /// The id is empty.
    #[error("the request id is empty: leave it out, or choose one for each call")]
    Empty,
    /// The id is too long.
    #[error("the request id has {bytes} bytes; at most {} are allowed: hash it first", RequestId::MAX_BYTES)]
    Long {
        /// The length in bytes.
        bytes: usize,
    },
    /// The answer would be remembered for no time, or for too long.
    #[error("answers are remembered from 1 ms to {:?}, not {kept:?}: choose another time", RequestId::LONGEST)]
    Kept {
        /// The time.
        kept: Duration,
    },
}

impl RequestId {
    /// The maximum length of an id, in bytes.
    pub const MAX_BYTES: usize = 128;
    /// For how long an answer is remembered unless the id says otherwise.
    pub const KEPT: Duration = Duration::from_secs(300);
    /// The shortest time for which an answer is remembered.
    pub const SHORTEST: Duration = Duration::from_millis(1);
    /// The longest time for which an answer is remembered: a day.
    pub const LONGEST: Duration = Duration::from_secs(86_400);

    /// An id: 1 to [`MAX_BYTES`](Self::MAX_BYTES) bytes, whatever they are.
    pub fn new(id: impl AsRef<[u8]>) -> Result<Self, InvalidRequestId> {
        let id = id.as_ref();
        match id.len() {
            0 => Err(InvalidRequestId::Empty),
            bytes if bytes > Self::MAX_BYTES => Err(InvalidRequestId::Long { bytes }),
            _ => Ok(Self { digest: digest([id].into_iter()), kept: Self::KEPT }),
        }
    }

    /// Sets for how long the answer is remembered, from a millisecond to a day. Defaults to [`KEPT`](Self::KEPT).
    pub fn kept_for(self, kept: Duration) -> Result<Self, InvalidRequestId> {
        if !(Self::SHORTEST..=Self::LONGEST).contains(&kept) {
            return Err(InvalidRequestId::Kept { kept });
        }
        Ok(Self { kept, ..self })
    }

    /// For how long the answer is remembered.
    pub fn kept(&self) -> Duration {
        self.kept
    }

    /// That of the call at `place`, if it takes several to answer one question.
    #[must_use]
    pub(crate) fn of_call(self, place: u8) -> Self {
        match place {
            0 => self,
            _ => Self { digest: digest([&self.digest[..], &[place]].into_iter()), ..self },
        }
    }
}

/// What a store knows a call with an id by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    name: [u8; 16],
    fingerprint: [u8; 16],
    kept: Duration,
}

impl Request {
    /// The id belongs to the subjects of the call. What the call asks for is its verb, its keys in order, their costs, the most units
    /// and the time of a hold. The numbers of its limits are not: they may change before it is repeated.
    pub(crate) fn new(id: RequestId, call: &Call<'_>) -> Self {
        let mut subjects: Vec<&[u8]> = Vec::new();
        for check in call.checks() {
            if !subjects.contains(&check.key.subject()) {
                subjects.push(check.key.subject());
            }
        }
        let most = call.takes_at_most().map_or(0, |most| most.get()).to_le_bytes();
        let ttl = call.reservation().map_or(0, |reservation| reservation.ttl_micros()).to_le_bytes();
        let costs: Vec<[u8; 8]> = call.checks().iter().map(|check| check.cost.get().to_le_bytes()).collect();
        let checks = call.checks().iter().zip(&costs);
        let checks = checks.flat_map(|(check, cost)| [check.key.policy().as_bytes(), check.key.subject(), &cost[..]]);
        Self {
            name: digest([&id.digest[..]].into_iter().chain(subjects)),
            fingerprint: digest([call.verb().name().as_bytes(), &most, &ttl].into_iter().chain(checks)),
            kept: id.kept,
        }
    }

    /// The name under which the answer is remembered: 32 hexadecimal digits.
    pub fn name(&self) -> String {
        self.name.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The same in bytes.
    pub fn name_bytes(&self) -> &[u8; 16] {
        &self.name
    }

    /// A digest of what the call asks for.
    pub fn fingerprint(&self) -> &[u8; 16] {
        &self.fingerprint
    }

    /// For how long the answer is remembered, in microseconds.
    pub fn kept_micros(&self) -> u64 {
        u64::try_from(self.kept.as_micros()).unwrap_or(u64::MAX)
    }

    /// That of a part of the call, for a store that cannot decide all of it in one step.
    #[must_use]
    pub fn of_part(&self, part: &[u8]) -> Self {
        Self { name: digest([&self.name[..], part].into_iter()), ..self.clone() }
    }
}

/// A digest of parts that cannot run into each other.
pub(crate) fn digest<'p>(parts: impl Iterator<Item = &'p [u8]>) -> [u8; 16] {
    let mut hasher = Sha256::new();
    for part in parts {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let mut digest = [0; 16];
    digest.copy_from_slice(&hasher.finalize()[..16]);
    digest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{UpTo, Verb};
    use crate::hold::Reservation;
    use crate::{Check, Cost, Key, Limit};

    #[test]
    fn ids_and_their_times_are_bounded() {
        assert_eq!(RequestId::new(""), Err(InvalidRequestId::Empty));
        assert_eq!(RequestId::new([0; 129]), Err(InvalidRequestId::Long { bytes: 129 }));
        let id = RequestId::new([0; 128]).unwrap();
        assert_eq!(id.kept(), RequestId::KEPT);
        for wrong in [Duration::ZERO, Duration::from_micros(999), RequestId::LONGEST + Duration::from_nanos(1)] {
            assert_eq!(id.kept_for(wrong), Err(InvalidRequestId::Kept { kept: wrong }));
        }
        assert!([RequestId::SHORTEST, RequestId::LONGEST].into_iter().all(|kept| id.kept_for(kept).is_ok()));
        assert_ne!(id, RequestId::new([0; 127]).unwrap());
        assert_ne!(id, id.of_call(1));
    }

    #[test]
    fn a_call_is_known_by_its_id_and_subjects_and_by_what_it_asks_for() {
        let (limit, other): (Limit, Limit) = ("9/s".parse().unwrap(), "500/h".parse().unwrap());
        let check = |policy, subject| Check::new(Key::new(policy, subject).unwrap(), &limit);
        let id = RequestId::new("id").unwrap();
        let of = |id, checks: &[Check<'_>]| Request::new(id, &Call::new(Verb::Check, checks).unwrap());
        let (a, b) = (check("p", "a"), check("q", "b"));
        let first = of(id, &[a, b]);
        assert_eq!(first, of(id, &[a.under(&other), b]), "the numbers of a limit");
        for (same_name, same_fingerprint, request) in [
            (false, true, of(RequestId::new("di").unwrap(), &[a, b])),
            (false, false, of(id, &[a, check("q", "c")])),
            (false, false, of(id, &[b, a])),
            (true, false, of(id, &[check("r", "a"), b])),
            (true, false, of(id, &[a, b, check("s", "a")])),
            (true, false, of(id, &[a.cost(Cost::new(2).unwrap()), b])),
            (true, false, Request::new(id, &Call::check_up_to(&[a, b], UpTo::new(Cost::new(1).unwrap())).unwrap())),
            (true, false, Request::new(id, &Call::reserve(&[a, b], Reservation::new(id.kept())).unwrap())),
        ] {
            assert_eq!(
                (first.name == request.name, first.fingerprint == request.fingerprint),
                (same_name, same_fingerprint)
            );
        }
        let seconds = |ttl| {
            Call::reserve(std::slice::from_ref(&a), Reservation::new(Duration::from_secs(ttl)))
                .map(|call| Request::new(id, &call))
        };
        assert_eq!(seconds(7), seconds(7));
        assert_ne!(seconds(7), seconds(8));
        assert_ne!(first.of_part(b"x").name, first.of_part(b"y").name);
    }
}
