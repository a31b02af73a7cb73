//! What a response of a large language model says that it used.

/// Counts the tokens of a response while its bytes pass, however they are cut.
///
/// Until the response says what it used, each event of a stream counts as one token, on top of the prompt. As soon as it does, that is
/// what counts. What a model writes cannot pass for it: within its texts, quotation marks are escaped.
///
/// ```
/// use tallygate_http::llm::LlmUsage;
///
/// let mut usage = LlmUsage::new(10);
/// assert_eq!(usage.read(b"data: {\"choices\": [{\"delta\": {\"content\": \"Hel"), 11);
/// assert_eq!(usage.read(b"lo\"}}]}\n\ndata: {\"choices\": [{\"delta\": {\"content\": \"!\"}}]}\n\n"), 12);
/// assert_eq!(usage.read(b"data: {\"usage\": {\"prompt_tokens\": 8, \"completion_tokens\": 3}}\n\n"), 11);
/// ```
#[derive(Debug, Clone)]
pub struct LlmUsage {
    prompt: u64,
    events: u64,
    /// The end of what was read, in which a name or a number may not be whole.
    rest: Vec<u8>,
    /// The prompt, the answer, and both, as far as they were said.
    said: [Option<u64>; 3],
}

/// The longest thing that is looked for: a name in quotation marks, a colon, a space, and twenty digits.
const LONGEST: usize = 64;

/// Which of the numbers a name says.
const NAMES: [(&[u8], usize); 8] = [
    (b"\"prompt_tokens\"", 0),
    (b"\"input_tokens\"", 0),
    (b"\"promptTokenCount\"", 0),
    (b"\"completion_tokens\"", 1),
    (b"\"output_tokens\"", 1),
    (b"\"candidatesTokenCount\"", 1),
    (b"\"total_tokens\"", 2),
    (b"\"totalTokenCount\"", 2),
];

impl LlmUsage {
    /// Nothing was read yet, of the answer to a prompt of this estimated size.
    pub fn new(prompt: u64) -> Self {
        // As if a line had ended before.
        Self { prompt, events: 0, rest: vec![b'\n'], said: [None; 3] }
    }

    /// Reads on. Answers the tokens used so far.
    pub fn read(&mut self, bytes: &[u8]) -> u64 {
        let before = self.rest.len();
        self.rest.extend_from_slice(bytes);
        let text = &self.rest[..];
        // An event is counted with its last byte.
        let data = b"\ndata:";
        let events =
            text.windows(data.len()).enumerate().filter(|(at, window)| window == data && at + data.len() > before);
        self.events = self.events.saturating_add(events.count() as u64);
        for (at, _) in text.iter().enumerate().filter(|(_, byte)| **byte == b'"') {
            if let Some((place, units)) = said(&text[at..]) {
                self.said[place] = Some(units);
            }
        }
        let keep = text.len().saturating_sub(LONGEST);
        self.rest.drain(..keep);
        self.used()
    }

    /// The tokens used so far.
    pub fn used(&self) -> u64 {
        match self.said {
            [prompt, Some(answer), total] => {
                total.unwrap_or(0).max(prompt.unwrap_or(self.prompt).saturating_add(answer))
            }
            [_, None, Some(total)] => total,
            [prompt, None, None] => prompt.unwrap_or(self.prompt).saturating_add(self.events),
        }
    }
}

/// A name and its number, if the text begins with both.
fn said(text: &[u8]) -> Option<(usize, u64)> {
    let &(name, place) = NAMES.iter().find(|(name, _)| text.starts_with(name))?;
    let number = text[name.len()..].trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
    let digits = number.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // The rest of the number may still come.
    let digits = number.get(digits).and(std::str::from_utf8(&number[..digits]).ok())?;
    Some((place, digits.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STREAM: &str = "data: {\"a\": \"x\"}\n\ndata: {\"a\": \"\\\"total_tokens\\\": 7 \\\"output_tokens\\\":9\"}\n\n\
                          data: {\"message\": {\"usage\": {\"input_tokens\": 25, \"output_tokens\": 1}}}\n\n\
                          data: {\"usage\": {\"output_tokens\": 15}}\n\n";

    proptest! {
        /// However a stream is cut into pieces, the same is read.
        #[test]
        fn pieces_change_nothing(cuts in prop::collection::vec(0..STREAM.len(), 0..12)) {
            let mut usage = LlmUsage::new(3);
            let mut cuts = cuts;
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            for piece in cuts.windows(2) {
                usage.read(&STREAM.as_bytes()[piece[0]..piece[1]]);
            }
            prop_assert_eq!((usage.events, usage.used()), (4, 40));
        }
    }

    #[test]
    fn what_a_model_writes_is_not_its_usage() {
        let mut usage = LlmUsage::new(3);
        let (third, _) = STREAM.match_indices("data:").nth(2).unwrap();
        assert_eq!(usage.read(&STREAM.as_bytes()[..third]), 5, "two events");
    }

    #[test]
    fn a_whole_answer_says_what_it_used() {
        let mut usage = LlmUsage::new(100);
        assert_eq!(usage.read(br#"{"choices": [], "usage": {"prompt_tokens":9,"completion_tokens":12,"#), 21);
        assert_eq!(usage.read(br#""total_tokens":21}}"#), 21);
        // One that says nothing used its prompt, as far as anybody knows.
        assert_eq!(LlmUsage::new(100).read(b"{}"), 100);
    }
}
