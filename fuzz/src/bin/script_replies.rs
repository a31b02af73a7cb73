//! The answers of the scripts.
#![no_main]

tallygate_fuzz::target!(tallygate_redis::fuzzing::script_replies);
