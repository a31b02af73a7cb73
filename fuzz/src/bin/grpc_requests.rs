//! Requests to Envoy's rate limit service.
#![no_main]

tallygate_fuzz::target!(tallygate_server::fuzzing::grpc_requests);
