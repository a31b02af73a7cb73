//! Counters: one script for all operations.

use std::time::Duration;

use tallygate::counter::{CounterError, CounterName, CounterOp, CounterValue, Counters};
use tallygate::{Key, StoreError};

use crate::store::RedisStore;
use crate::wire::corrupt;

impl Counters for RedisStore {
    async fn count(&self, name: &CounterName, op: CounterOp) -> Result<CounterValue, CounterError> {
        let millis =
            |ttl: Option<Duration>| ttl.map_or(String::new(), |ttl| ttl.as_micros().div_ceil(1000).to_string());
        let (verb, delta, ttl) = match op {
            CounterOp::Add { delta, ttl } => ("add", delta.to_string(), millis(ttl)),
            CounterOp::AddFloat { delta, ttl } => ("add_float", format!("{delta:e}"), millis(ttl)),
            CounterOp::Get => ("get", String::new(), String::new()),
            CounterOp::Delete => ("delete", String::new(), String::new()),
            _ => {
                let remedy = "use versions of tallygate and tallygate-redis that belong together";
                return Err(StoreError::refused("this store does not know the operation", remedy).into());
            }
        };
        let too_long = |_| CounterError::Name(name.as_str().len());
        let key = Key::new("counter", name.as_str()).map_err(too_long)?;
        let engine = &self.engine;
        let (key, deadline) = (key.encode(&engine.prefix, "n"), engine.client.default_deadline());
        let reply = engine.client.run(&engine.scripts.counter, &[key], &[verb, &delta, &ttl], deadline).await?;
        let strange = || CounterError::from(corrupt(&format!("the reply is {reply:?}")));
        let (outcome, text): (String, Vec<u8>) = redis::from_redis_value_ref(&reply).map_err(|_| strange())?;
        let text = String::from_utf8_lossy(&text);
        // In the format of the embedded store, which formats fractions differently.
        let value = || match CounterValue::from_text(&text) {
            Ok(CounterValue::Float(value)) => value.to_string(),
            _ => text.to_string(),
        };
        let delta = if let CounterOp::AddFloat { delta, .. } = op { delta.to_string() } else { delta };
        match outcome.as_str() {
            // A deleted value need not have been a number.
            "ok" if op == CounterOp::Delete => Ok(CounterValue::from_text(&text).unwrap_or(CounterValue::Integer(0))),
            "ok" => CounterValue::from_text(&text),
            "overflow" => Err(CounterError::Overflow { value: value(), delta }),
            "not_an_integer" => Err(CounterError::NotAnInteger(value())),
            "not_a_number" => Err(CounterError::NotANumber(text.into_owned())),
            _ => Err(strange()),
        }
    }
}
