//! Colours, if the terminal wants them. The text says the same without.

use std::io::IsTerminal;

/// Puts colour around text, or leaves it as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Color {
    on: bool,
}

impl Color {
    /// Colour if stdout is a terminal and nobody asked for none (<https://no-color.org>).
    pub(crate) fn for_stdout() -> Self {
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        Self { on: std::io::stdout().is_terminal() && !refused }
    }

    pub(crate) fn title(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub(crate) fn offered(self, text: &str) -> String {
        self.wrap("36", text)
    }

    pub(crate) fn admitted(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub(crate) fn refused(self, text: &str) -> String {
        self.wrap("2;31", text)
    }

    /// What is as promised.
    pub(crate) fn good(self, text: &str) -> String {
        self.wrap("32", text)
    }

    /// What is not.
    pub(crate) fn bad(self, text: &str) -> String {
        self.wrap("1;31", text)
    }

    /// What went over the limit.
    pub(crate) fn over(self, text: &str) -> String {
        self.wrap("1;33", text)
    }

    pub(crate) fn faint(self, text: &str) -> String {
        self.wrap("2", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on && !text.trim().is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}
