//! The task that hands spans to the collector, in batches.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::otlp::Endpoint;
use super::traces::{Counts, Span};
use super::{OtlpSettings, Traces, encode, http_client};

/// The most spans in one request.
pub(super) const MOST: usize = 512;
/// The longest a span waits for others.
pub(super) const EVERY: Duration = Duration::from_secs(2);
/// How long the end of the process waits for the collector.
pub(super) const FLUSH: Duration = Duration::from_secs(3);
/// How often it is said that the collector does not take spans.
const QUIET: Duration = Duration::from_secs(60);

/// A task that sends spans.
#[derive(Debug)]
pub(super) struct Exporter {
    traces: Traces,
    task: JoinHandle<()>,
    /// Whoever lets go of the exporter ends the task, after what waits was sent.
    stop: DropGuard,
}

impl Exporter {
    pub(super) fn start(settings: OtlpSettings) -> Self {
        let (sender, queue) = mpsc::channel(settings.queue);
        let counts = Arc::new(Counts::default());
        let stop = CancellationToken::new();
        let sending = Sending { endpoint: settings.endpoint, counts: Arc::clone(&counts), said: Said::default() };
        let task = tokio::spawn(run(queue, sending, stop.clone()));
        Self { traces: Traces::new(sender, settings.ratio, counts), task, stop: stop.drop_guard() }
    }

    pub(super) fn traces(&self) -> Traces {
        self.traces.clone()
    }

    pub(super) async fn finish(mut self) {
        drop(self.stop);
        if timeout(FLUSH, &mut self.task).await.is_err() {
            self.task.abort();
            tracing::warn!("the OTLP collector did not take the last spans in time: they are lost");
        }
        let (exported, dropped, refused) = (self.traces.exported(), self.traces.dropped(), self.traces.refused());
        if dropped + refused > 0 {
            tracing::warn!(exported, dropped, refused, "not all spans reached the OTLP collector");
        }
    }
}

async fn run(mut queue: mpsc::Receiver<Span>, mut sending: Sending, stop: CancellationToken) {
    let mut batch = Vec::with_capacity(MOST);
    let mut due = Instant::now();
    loop {
        let (had, room) = (batch.len(), MOST - batch.len());
        tokio::select! {
            biased;
            () = stop.cancelled() => break,
            // Before the queue: a steady trickle must not keep a batch waiting.
            () = sleep_until(due), if had > 0 => sending.send(&mut batch).await,
            received = queue.recv_many(&mut batch, room) => match received {
                0 => break,
                _ if batch.len() == MOST => sending.send(&mut batch).await,
                _ if had == 0 => due = Instant::now() + EVERY,
                _ => {}
            },
        }
    }
    // What comes from now on is dropped, and counted as such.
    queue.close();
    loop {
        let room = MOST - batch.len();
        if room == 0 || queue.recv_many(&mut batch, room).await == 0 {
            if batch.is_empty() {
                return;
            }
            sending.send(&mut batch).await;
        }
    }
}

struct Sending {
    endpoint: Endpoint,
    counts: Arc<Counts>,
    said: Said,
}

/// What was last said of the collector.
#[derive(Default)]
struct Said {
    failing_at: Option<Instant>,
    dropping_at: Option<Instant>,
    dropped: u64,
}

impl Sending {
    /// Hands the batch over once. A collector that cannot take it now is not asked again: by then there are newer ones.
    async fn send(&mut self, batch: &mut Vec<Span>) {
        let count = batch.len() as u64;
        let posted = http_client::post(&self.endpoint, encode::request(batch)).await;
        batch.clear();
        let rejected = posted.as_ref().map_or(count, |rejected| (*rejected).min(count));
        self.counts.exported.fetch_add(count - rejected, Relaxed);
        self.counts.refused.fetch_add(rejected, Relaxed);
        let (collector, now) = (&self.endpoint.authority, Instant::now());
        match posted {
            Err(error) if is_time(self.said.failing_at, now) => {
                self.said.failing_at = Some(now);
                tracing::warn!(%collector, spans = count, reason = %error, "the OTLP collector took no spans: all lost");
            }
            Ok(0) if self.said.failing_at.take().is_some() => {
                tracing::info!(%collector, "the OTLP collector takes spans again")
            }
            Ok(1..) if is_time(self.said.failing_at, now) => {
                self.said.failing_at = Some(now);
                tracing::warn!(%collector, spans = rejected, "the OTLP collector rejected spans: they are lost");
            }
            _ => {}
        }
        let dropped = self.counts.dropped.load(Relaxed);
        if dropped > self.said.dropped && is_time(self.said.dropping_at, now) {
            let spans = dropped - self.said.dropped;
            (self.said.dropped, self.said.dropping_at) = (dropped, Some(now));
            tracing::warn!(
                spans,
                "spans came faster than the OTLP collector took them: they were dropped; lower the ratio"
            );
        }
    }
}

fn is_time(said_at: Option<Instant>, now: Instant) -> bool {
    said_at.is_none_or(|at| now - at >= QUIET)
}
