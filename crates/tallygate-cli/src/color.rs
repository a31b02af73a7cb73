//! Colours, if the user or the terminal wants them. The text is complete without.

use std::io::IsTerminal;
use std::sync::OnceLock;

use clap::ValueEnum;

/// When to print colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    Auto,
    Always,
    Never,
}

/// What `--color` says.
static CHOICE: OnceLock<When> = OnceLock::new();

/// Sets the choice of the command line, once.
pub(crate) fn choose(when: When) {
    let _ = CHOICE.set(when);
}

/// Puts colour around text, or leaves it as it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Color {
    on: bool,
}

impl Color {
    /// As `--color` says; else as NO_COLOR and CLICOLOR_FORCE say (<https://no-color.org>, <https://bixense.com/clicolors>);
    /// else if stdout is a terminal.
    pub(crate) fn for_stdout() -> Self {
        let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
        let dumb = || std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        let on = match CHOICE.get() {
            Some(When::Always) => true,
            Some(When::Never) => false,
            // NO_COLOR counts whatever its value.
            _ if std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()) => false,
            _ => is_set("CLICOLOR_FORCE") || (std::io::stdout().is_terminal() && !dumb()),
        };
        Self { on }
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
