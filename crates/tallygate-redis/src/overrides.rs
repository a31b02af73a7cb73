//! The overrides of live limits, kept beside the states.

use std::time::Duration;

use redis::Value;
use tallygate::clock::Timestamp;
use tallygate::live::{Overrides, Reading, Replaced, Replacement};
use tallygate::{Key, StoreError};

use crate::store::{Engine, RedisStore};
use crate::wire::{Reader, corrupt};

/// What the names of both keys end with. No state has such a kind.
pub(crate) const KIND: &str = "o";
/// For how long the overrides are kept after an instance has last read them all or changed them: 400 days.
const KEPT: Duration = Duration::from_secs(400 * 24 * 60 * 60);

impl Engine {
    async fn about_overrides(&self, args: Vec<Vec<u8>>) -> Result<Value, StoreError> {
        let key = Key::new("overrides", "overrides").map_err(|error| corrupt(&error.to_string()))?;
        let record = key.encode(&self.prefix, KIND);
        let keys = [format!("{record}-revision"), record];
        self.client.run(&self.scripts.overrides, &keys, &self.with_time(args), self.client.default_deadline()).await
    }
}

fn number(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

fn kept() -> Vec<u8> {
    KEPT.as_millis().to_string().into_bytes()
}

impl Overrides for RedisStore {
    async fn read_overrides(&self, known: Option<u64>) -> Result<Reading, StoreError> {
        let known = known.map_or_else(|| b"-".to_vec(), number);
        let reply = self.engine.about_overrides(vec![b"read".to_vec(), kept(), known]).await?;
        let Value::BulkString(bytes) = &reply else { return Err(corrupt(&format!("it answered {reply:?}"))) };
        let mut reader = Reader::bare(bytes);
        let (now, revision) = (Timestamp::from_micros(reader.number()?), reader.number()?);
        Ok(match reader.take(1)? {
            b"=" => Reading::new(now, revision, None),
            _ => Reading::new(now, revision, Some(bytes[17..].to_vec())),
        })
    }

    async fn replace_overrides(&self, replacement: Replacement) -> Result<Replaced, StoreError> {
        let Replacement { of, not_after, record, .. } = replacement;
        let args = vec![b"replace".to_vec(), kept(), number(of), number(not_after.as_micros()), record];
        let reply = self.engine.about_overrides(args).await?;
        let Value::BulkString(bytes) = &reply else { return Err(corrupt(&format!("it answered {reply:?}"))) };
        let mut reader = Reader::bare(bytes);
        let revision = reader.number()?;
        Ok(if revision == 0 { Replaced::NotDone } else { Replaced::Done(revision) })
    }
}
