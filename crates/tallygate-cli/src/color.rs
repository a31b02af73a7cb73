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

    pub(crate) fn plain(self, text: &str) -> String {
        text.to_owned()
    }

    fn wrap(self, code: &str, text: &str) -> String {
        if self.on && !text.trim().is_empty() { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// A method for each tone: its name and its code.
macro_rules! tones {
    ($($tone:ident $code:literal,)+) => {
        impl Color {
            $(pub(crate) fn $tone(self, text: &str) -> String {
                self.wrap($code, text)
            })+
        }
    };
}

tones! { title "1", faint "2", good "32", bad "1;31", offered "36", refused "2;31", over "1;33", }
