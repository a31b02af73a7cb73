//! Tells systemd what happens, if it started us.

use sd_notify::NotifyState;
use tallygate_server::Event;

/// Nothing happens where there is no systemd: then nobody listens.
pub(super) fn tell(event: &Event<'_>) {
    let told = match event {
        Event::Ready => {
            keep_the_watchdog_quiet();
            sd_notify::notify(&[NotifyState::Ready])
        }
        Event::Reloading => match NotifyState::monotonic_usec_now() {
            Ok(now) => sd_notify::notify(&[NotifyState::Reloading, now]),
            Err(error) => Err(error),
        },
        Event::Reloaded(Ok(())) => sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("serving")]),
        Event::Reloaded(Err(why)) => {
            let first = why.lines().next().unwrap_or_default();
            sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&format!("old policies kept: {first}"))])
        }
        Event::Draining => sd_notify::notify(&[NotifyState::Stopping]),
        _ => Ok(()),
    };
    if let Err(error) = told {
        tracing::warn!(%error, "cannot tell systemd what happens");
    }
}

/// While the event loop runs, it says so in time.
fn keep_the_watchdog_quiet() {
    let Some(patience) = sd_notify::watchdog_enabled() else { return };
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(patience / 2);
        loop {
            ticks.tick().await;
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    });
}
