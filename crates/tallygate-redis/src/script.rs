//! A Lua script, and one run of it as a command.

use std::borrow::Cow;

use redis::Cmd;

/// A Lua script and the digest a server knows it by.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) text: Cow<'static, str>,
    sha: String,
}

impl Script {
    pub(crate) fn new(text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        let sha = sha1_smol::Sha1::from(text.as_bytes()).digest().to_string();
        Self { text, sha }
    }
}

/// One run of a script as a command: by digest, or by text for a server that does not have the script.
pub(crate) struct ScriptRun<'a> {
    script: &'a Script,
    command: Cmd,
    by_text: bool,
}

impl<'a> ScriptRun<'a> {
    pub(crate) fn new<K: AsRef<[u8]>, A: AsRef<[u8]>>(script: &'a Script, keys: &[K], args: &[A]) -> Self {
        let bytes = keys.iter().map(|key| key.as_ref().len()).sum::<usize>()
            + args.iter().map(|arg| arg.as_ref().len()).sum::<usize>();
        let mut command = Cmd::with_capacity(3 + keys.len() + args.len(), 60 + bytes);
        command.arg("EVALSHA").arg(&script.sha).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        for arg in args {
            command.arg(arg.as_ref());
        }
        Self { script, command, by_text: false }
    }

    pub(crate) fn command(&self) -> &Cmd {
        &self.command
    }

    /// Sends the text from now on; false if it did so already.
    pub(crate) fn switch_to_text(&mut self) -> bool {
        let mut command = Cmd::new();
        command.arg("EVAL").arg(self.script.text.as_bytes());
        for arg in self.command.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                command.arg(arg);
            }
        }
        self.command = command;
        !std::mem::replace(&mut self.by_text, true)
    }
}
