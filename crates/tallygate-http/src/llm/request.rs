//! A request to a large language model.

use serde_json::{Map, Value};

/// A request to a large language model, as JSON: what it may use at most, and how to make it use less.
///
/// ```
/// use tallygate_http::llm::LlmRequest;
///
/// let body = br#"{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1, "max_completion_tokens": 500}"#;
/// let mut request = LlmRequest::read(body).expect("an object");
/// // The prompt has 10 bytes of text: 3 tokens.
/// assert_eq!((request.prompt(), request.cap(), request.estimate(4096)), (3, Some(500), 503));
///
/// request.limit_to(200);
/// assert_eq!((request.cap(), request.estimate(4096)), (Some(200), 203));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct LlmRequest {
    body: Map<String, Value>,
}

/// The names of caps, in all interfaces. A request may have several, and nobody knows which of them a model obeys.
const CAPS: [&str; 10] = [
    "max_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "maxOutputTokens",
    "maxTokens",
    "max_new_tokens",
    "max_tokens_to_sample",
    "maxTokenCount",
    "max_gen_len",
    "num_predict",
];

/// The names of how many answers are generated.
const CHOICES: [&str; 5] = ["n", "best_of", "candidateCount", "num_generations", "num_return_sequences"];

/// The objects in which both may be, beside the request itself.
const PLACES: [&str; 6] =
    ["generationConfig", "generation_config", "inferenceConfig", "textGenerationConfig", "parameters", "options"];

impl LlmRequest {
    /// Reads the body of a request: `None` if it is not a JSON object. Send on what [`to_body`](Self::to_body) writes, not what was
    /// read: of a name that is written twice, others may read the other.
    pub fn read(body: &[u8]) -> Option<Self> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(body)) => Some(Self { body }),
            _ => None,
        }
    }

    /// The body, as it was understood.
    pub fn to_body(&self) -> Vec<u8> {
        serde_json::to_vec(&self.body).unwrap_or_default()
    }

    /// A text of the request, such as its `model`.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name)?.as_str()
    }

    /// The largest cap that the request declares, in tokens. One that is not a number, or is negative, is no cap: it counts as endless.
    pub fn cap(&self) -> Option<u64> {
        self.largest(&CAPS)
    }

    /// How many answers it asks for, at least one.
    pub fn choices(&self) -> u64 {
        self.largest(&CHOICES).unwrap_or(1).max(1)
    }

    /// The size of the prompt: a token for four bytes of all texts. Languages differ; a response says what it was.
    pub fn prompt(&self) -> u64 {
        self.body.values().map(bytes).fold(0_u64, u64::saturating_add).div_ceil(4)
    }

    /// What the request may use: the prompt, and for each answer the largest cap, or `default` if it declares none.
    pub fn estimate(&self, default: u64) -> u64 {
        self.prompt().saturating_add(self.cap().unwrap_or(default).saturating_mul(self.choices()))
    }

    /// Lowers every cap above `tokens`. A request without a cap gets `max_tokens`.
    pub fn limit_to(&mut self, tokens: u64) {
        if self.cap().is_none() {
            self.body.insert("max_tokens".to_owned(), tokens.into());
        }
        let lower = |object: &mut Map<String, Value>| {
            for name in CAPS {
                if let Some(cap) = object.get_mut(name).filter(|cap| number(cap).is_some_and(|cap| cap > tokens)) {
                    *cap = tokens.into();
                }
            }
        };
        lower(&mut self.body);
        PLACES.iter().for_each(|place| {
            if let Some(Value::Object(object)) = self.body.get_mut(*place) {
                lower(object);
            }
        });
    }

    fn largest(&self, names: &[&str]) -> Option<u64> {
        let inner = PLACES.iter().filter_map(|place| self.body.get(*place)?.as_object());
        let objects = inner.chain([&self.body]);
        objects.flat_map(|object| names.iter().filter_map(|name| number(object.get(*name)?))).max()
    }
}

/// A number of tokens or answers, rounded up. Texts are read as numbers, because some models do so. `null` counts as absent; anything
/// else is endless.
fn number(value: &Value) -> Option<u64> {
    let number = match value {
        Value::Null => return None,
        Value::Number(number) => number.clone(),
        Value::String(text) => match text.trim().parse() {
            Ok(number) => number,
            Err(_) => return Some(u64::MAX),
        },
        _ => return Some(u64::MAX),
    };
    match (number.as_u64(), number.as_f64()) {
        (Some(whole), _) => Some(whole),
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is within the range")]
        (None, Some(part)) if (0.0..1e15).contains(&part) => Some(part.ceil() as u64),
        _ => Some(u64::MAX),
    }
}

/// The bytes of all texts in a value.
fn bytes(value: &Value) -> u64 {
    match value {
        Value::String(text) => text.len() as u64,
        Value::Array(values) => values.iter().map(bytes).fold(0, u64::saturating_add),
        Value::Object(values) => values.values().map(bytes).fold(0, u64::saturating_add),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> LlmRequest {
        LlmRequest::read(body.as_bytes()).unwrap()
    }

    /// LiteLLM#37001: a request with `max_tokens: 1` and `max_completion_tokens: 10000` was reserved 2 tokens and used 10,000.
    #[test]
    fn the_largest_of_all_declared_caps_counts() {
        for (body, cap) in [
            (r#"{}"#, None),
            (r#"{"max_tokens": null}"#, None),
            (r#"{"max_tokens": 1, "max_completion_tokens": 10000}"#, Some(10_000)),
            (r#"{"max_completion_tokens": 1, "max_tokens": 10000}"#, Some(10_000)),
            (r#"{"max_output_tokens": 7}"#, Some(7)),
            (r#"{"generationConfig": {"maxOutputTokens": 9}, "max_tokens": 3}"#, Some(9)),
            (r#"{"inferenceConfig": {"maxTokens": 8}}"#, Some(8)),
            (r#"{"options": {"num_predict": -1}, "max_tokens": 3}"#, Some(u64::MAX)),
            (r#"{"max_tokens": "10000", "max_output_tokens": 3}"#, Some(10_000)),
            (r#"{"max_tokens": 99.5}"#, Some(100)),
            (r#"{"max_tokens": 1e4}"#, Some(10_000)),
            (r#"{"max_tokens": 1e400}"#, None),
            (r#"{"max_tokens": [5]}"#, Some(u64::MAX)),
            (r#"{"max_tokens": 18446744073709551616}"#, Some(u64::MAX)),
        ] {
            let Some(mut request) = LlmRequest::read(body.as_bytes()) else {
                assert!(body.contains("1e400"), "{body}");
                continue;
            };
            assert_eq!(request.cap(), cap, "{body}");
            request.limit_to(2);
            assert_eq!(request.cap(), Some(2), "{body}");
            assert_eq!(LlmRequest::read(&request.to_body()).unwrap().cap(), Some(2), "{body}");
        }
    }

    #[test]
    fn every_answer_takes_the_cap() {
        assert_eq!(read(r#"{"max_tokens": 100, "n": 3}"#).estimate(5), 300);
        assert_eq!(read(r#"{"max_tokens": 100, "n": 3, "best_of": 5}"#).estimate(5), 500);
        assert_eq!(read(r#"{"generationConfig": {"candidateCount": 2}}"#).estimate(50), 100);
        assert_eq!(read(r#"{"max_tokens": 100, "n": -1}"#).estimate(5), u64::MAX);
        assert_eq!(read(r#"{"prompt": "éé", "messages": [{"content": "four"}], "n": 0}"#).estimate(10), 12);
    }

    /// What is written twice is sent on once, as it was counted.
    #[test]
    fn a_repeated_name_is_sent_on_as_it_was_counted() {
        let request = read(r#"{"max_tokens": 10000, "max_tokens": 1}"#);
        assert_eq!((request.cap(), &request.to_body()[..]), (Some(1), &br#"{"max_tokens":1}"#[..]));
    }

    #[test]
    fn what_is_no_object_is_no_request() {
        for body in ["", "[]", "7", "{", "null", &"[".repeat(100_000)] {
            assert_eq!(LlmRequest::read(body.as_bytes()), None);
        }
    }
}
