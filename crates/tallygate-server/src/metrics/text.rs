//! Prometheus' text format.

use std::fmt::{Display, Write as _};

use crate::histogram::Histogram;

/// A page in the making: families one after the other, each with its samples.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    text: String,
    family: &'static str,
}

impl Exposition {
    pub(super) fn counter(&mut self, name: &'static str, help: &str) {
        self.open(name, "counter", help);
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &str) {
        self.open(name, "gauge", help);
    }

    pub(super) fn histogram(&mut self, name: &'static str, help: &str) {
        self.open(name, "histogram", help);
    }

    fn open(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample of the family opened last.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, None, value);
    }

    pub(super) fn distribution(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let (buckets, sum, count) = histogram.snapshot();
        for (bound, below) in buckets {
            self.line("_bucket", labels, Some(&bound.to_string()), below);
        }
        self.line("_bucket", labels, Some("+Inf"), count);
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], bound: Option<&str>, value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.family);
        let labels = labels.iter().copied().chain(bound.map(|bound| ("le", bound)));
        for (at, (name, value)) in labels.clone().enumerate() {
            let _ = write!(self.text, "{}{name}=\"", if at == 0 { '{' } else { ',' });
            self.push_escaped(value);
            self.text.push('"');
        }
        let _ = writeln!(self.text, "{} {value}", if labels.count() == 0 { "" } else { "}" });
    }

    fn push_escaped(&mut self, value: &str) {
        for c in value.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                c if c.is_ascii_graphic() || c == ' ' => self.text.push(c),
                // Nobody's terminal should obey a name, and the format has no escapes but those above.
                c if c.escape_debug().next() == Some('\\') => {
                    self.text.push('\\');
                    self.text.extend(c.escape_unicode());
                }
                c => self.text.push(c),
            }
        }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_escaped_and_histograms_end_in_infinity() {
        let mut page = Exposition::default();
        page.gauge("g", "A gauge.");
        page.sample(&[("a", "quote\" back\\ line\n bell\u{7}"), ("b", "")], 1.5);
        page.sample(&[], 2);
        page.histogram("h", "A histogram.");
        page.distribution(&[("a", "b")], &Histogram::default());
        let text = page.into_text();
        assert!(text.contains("g{a=\"quote\\\" back\\\\ line\\n bell\\\\u{7}\",b=\"\"} 1.5\ng 2\n"), "{text}");
        assert!(text.contains("h_bucket{a=\"b\",le=\"+Inf\"} 0\nh_sum{a=\"b\"} 0\nh_count{a=\"b\"} 0\n"), "{text}");
    }
}
