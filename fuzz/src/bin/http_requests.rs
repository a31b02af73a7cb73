//! Requests to the HTTP listener: JSON, counters, forward-auth.
#![no_main]

tallygate_fuzz::target!(tallygate_server::fuzzing::http_requests);
