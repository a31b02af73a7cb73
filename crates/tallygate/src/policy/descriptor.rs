//! What is known about a request, in Envoy's form: ordered key/value entries.

/// What is known about a request: ordered entries such as `user=42`, `path=/v1/items`.
///
/// ```
/// let descriptor = tallygate::policy::Descriptor::new().with("user", "42").with("plan", "pro");
/// assert_eq!(descriptor.get("plan"), Some("pro"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Descriptor {
    entries: Vec<(String, String)>,
}

impl Descriptor {
    /// Creates an empty descriptor.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an entry at the end.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.push(key, value);
        self
    }

    /// Adds an entry at the end.
    pub fn push(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.entries.push((key.into(), value.into()));
    }

    /// The value of the first entry with this key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|(own, _)| own == key).map(|(_, value)| value.as_str())
    }

    /// All entries, in order.
    pub fn entries(&self) -> &[(String, String)] {
        &self.entries
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Descriptor {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self { entries: entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect() }
    }
}
