//! What a request to a large language model may use, and what its response says that it used.
//!
//! The requests and responses of OpenAI's, Anthropic's and Google's interfaces are known, and of those that follow them.

mod request;
mod usage;

pub use request::LlmRequest;
pub use usage::LlmUsage;
