//! Prometheus' text format.

use std::fmt::{Display, Write as _};

use tallygate_http::sanitize;

use crate::histogram::Histogram;

/// A page under construction: families with their samples.
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

    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.line("", labels, None, value);
    }

    /// A gauge without labels.
    pub(super) fn number(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.gauge(name, help);
        self.sample(&[], value);
    }

    /// Samples of the current family.
    pub(super) fn samples<'l, const N: usize, V: Display>(
        &mut self,
        samples: impl IntoIterator<Item = ([(&'l str, &'l str); N], V)>,
    ) {
        samples.into_iter().for_each(|(labels, value)| self.sample(&labels, value));
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
            // The format has three escapes. Terminal escapes are removed.
            let value = sanitize::lines(value).replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{name}=\"{value}\"", if at == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.text, "{} {value}", if labels.count() == 0 { "" } else { "}" });
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
