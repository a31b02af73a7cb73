//! The bytes that a server of Redis sends.
#![no_main]

tallygate_fuzz::target!(tallygate_redis::fuzzing::redis_replies);
