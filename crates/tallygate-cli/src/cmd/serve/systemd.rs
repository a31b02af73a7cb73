//! Notifies systemd, if it started this process.

use sd_notify::NotifyState;
use tallygate_server::Event;

/// Does nothing if systemd did not start this process.
pub(super) fn notify(event: &Event<'_>) {
    let sent = match event {
        Event::Ready => {
            feed_watchdog();
            sd_notify::notify(&[NotifyState::Ready])
        }
        Event::Reloading => match NotifyState::monotonic_usec_now() {
            Ok(now) => sd_notify::notify(&[NotifyState::Reloading, now]),
            Err(error) => Err(error),
        },
        Event::Reloaded(Ok(())) => sd_notify::notify(&[NotifyState::Ready, NotifyState::Status("serving")]),
        Event::Reloaded(Err(why)) => {
            let first = why.lines().next().unwrap_or_default();
            sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(&format!("reload refused: {first}"))])
        }
        Event::Draining => sd_notify::notify(&[NotifyState::Stopping]),
        _ => Ok(()),
    };
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot notify systemd");
    }
}

/// Notifies the watchdog in time, as long as the event loop runs.
fn feed_watchdog() {
    let Some(period) = sd_notify::watchdog_enabled() else { return };
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval(period / 2);
        loop {
            ticks.tick().await;
            let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        }
    });
}
