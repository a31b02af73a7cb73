//! The number of processes that share a store, counted by the store.

use std::sync::LazyLock;
use std::time::Duration;

use tallygate::{Key, StoreError};

use crate::scripts::{Script, source};
use crate::store::RedisStore;
use crate::wire::corrupt;

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(source(include_str!("../lua/instances.lua"))));

impl RedisStore {
    /// Says that the process `id` is alive, and returns how many are: those that said so within `ttl`. A `ttl` of zero
    /// removes this one from the count.
    ///
    /// The count is one key, `prefix:{instances}:instances:i`, which expires after `ttl`.
    pub async fn count_instances(&self, id: &str, ttl: Duration) -> Result<u32, StoreError> {
        let engine = &self.engine;
        let key = Key::new("instances", "instances").map_err(|error| corrupt(&error.to_string()))?;
        let (keys, ttl) = ([key.encode(&engine.prefix, "i")], ttl.as_millis().to_string());
        let reply = engine.client.run(&SCRIPT, &keys, &[id, &ttl], engine.client.default_deadline()).await?;
        redis::from_redis_value(reply).map_err(|error| corrupt(&format!("the reply is invalid: {error}")))
    }
}
