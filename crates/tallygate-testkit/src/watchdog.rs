//! Kills our servers when this process dies without dropping them: killed, aborted, or holding them in a static.

use std::io::Write;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock};

/// Its standard input closes when we die, however we die; then it kills every process that was not reported as ended.
const SCRIPT: &str = r#"
trap '' INT TERM HUP
set -f
IFS='
'
alive=
while IFS=' ' read -r verb pid folder; do
  case $verb in
    began) alive="$alive$pid=$folder
" ;;
    ended)
      kept=
      for one in $alive; do [ "${one%%=*}" = "$pid" ] || kept="$kept$one
"; done
      alive=$kept ;;
  esac
done
for one in $alive; do kill -KILL "${one%%=*}"; rm -rf -- "${one#*=}"; done
"#;

pub(crate) fn began(pid: u32, folder: &Path) {
    report(&format!("began {pid} {}\n", folder.display()));
}

pub(crate) fn ended(pid: u32) {
    report(&format!("ended {pid}\n"));
}

#[allow(clippy::zombie_processes, reason = "it is meant to outlive us")]
fn report(line: &str) {
    static WATCHDOG: OnceLock<Mutex<ChildStdin>> = OnceLock::new();
    let input = WATCHDOG.get_or_init(|| {
        let child = Command::new("sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh is installed");
        Mutex::new(child.stdin.expect("its input is piped"))
    });
    let _ = input.lock().unwrap().write_all(line.as_bytes());
}
