//! The breaker: after repeated failures calls are answered at once, and a probe in the background
//! looks when the server is back. No request waits for a server that is known to be away.
//!
//! The probe runs where the call ran that asked for it, and that runtime may stand still: a handler blocks its
//! thread, or a program awaits its calls one by one with `block_on` and nothing between. So a probe gives signs of
//! life; where they stay out, another one is started, and one call is let through in its place. One that succeeds
//! closes the breaker.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, task::JoinHandle, time::Instant};

use super::jitter::with_jitter;

/// Failures in a row that open it.
const FAILURE_THRESHOLD: u32 = 5;

/// They are in a row if no longer than this is between two of them. Reads that go well are no success, and a process that
/// only reads would else count failures over days.
const FAILURE_WINDOW: Duration = Duration::from_secs(60);

/// Pause between two probes, at first.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// How many of them are that short: most outages are over by then.
const FAST_PROBES: u32 = 10;

/// And in the end, about.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct CircuitBreaker {
    consecutive_failures: AtomicU32,
    /// When there was the last one.
    last_failure_at: Mutex<Option<Instant>>,
    open: AtomicBool,
    /// A call is under way that was let through while it was open. Not since another one has failed: what succeeds
    /// then may have been answered before all that, and heard late.
    trial_in_flight: AtomicBool,
    probe_task: Mutex<Option<JoinHandle<()>>>,
    /// When it opened, or a probe last did something, or a call was let through in its place.
    last_probe_at: Arc<Mutex<Instant>>,
    /// How long there may be no sign.
    probe_timeout: Duration,
}

impl CircuitBreaker {
    /// A look of its probe takes `look` at most. Calls take less than that, so that one which was sent before it
    /// opened has ended when the first is let through, unless its runtime stood still.
    pub(super) fn new(look: Duration) -> Self {
        Self {
            consecutive_failures: AtomicU32::new(0),
            last_failure_at: Mutex::default(),
            open: AtomicBool::new(false),
            trial_in_flight: AtomicBool::new(false),
            probe_task: Mutex::default(),
            last_probe_at: Arc::new(Mutex::new(Instant::now())),
            probe_timeout: look.saturating_add(2 * PROBE_INTERVAL),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(super) fn record_success(&self) {
        if self.consecutive_failures.load(Ordering::Relaxed) != 0 {
            self.consecutive_failures.store(0, Ordering::Relaxed);
        }
        if self.trial_in_flight.load(Ordering::Relaxed)
            && self.trial_in_flight.swap(false, Ordering::AcqRel)
        {
            self.close();
        }
    }

    /// True if the breaker is open after this failure.
    pub(super) fn record_failure(&self) -> bool {
        let last = self.last_failure_at.lock().replace(Instant::now());
        if last.is_some_and(|last| last.elapsed() > FAILURE_WINDOW) {
            self.consecutive_failures.store(0, Ordering::Relaxed);
        }
        let failures = self.consecutive_failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.trial_in_flight.store(false, Ordering::Release);
        if failures >= FAILURE_THRESHOLD && !self.is_open() {
            // Before anybody sees it open, who would take what was long ago for silence.
            *self.last_probe_at.lock() = Instant::now();
            if !self.open.swap(true, Ordering::AcqRel) {
                tracing::warn!(failures, "the store is away: calls are refused until it answers");
            }
        }
        self.is_open()
    }

    pub(super) fn close(&self) {
        self.consecutive_failures.store(0, Ordering::Relaxed);
        self.trial_in_flight.store(false, Ordering::Release);
        if self.open.swap(false, Ordering::AcqRel) {
            tracing::info!("the store is back");
        }
    }

    /// As if nobody had given a sign for longer than there may be none.
    #[cfg(test)]
    pub(super) fn stall_probe(&self) {
        *self.last_probe_at.lock() = Instant::now() - self.probe_timeout - PROBE_INTERVAL;
    }

    /// Makes sure a probe runs. `look` says whether the server answers, or nobody asks any more; a probe whose
    /// runtime ended, or stands still, is replaced by the next call. True if that call is to look itself: nobody else
    /// may ever do.
    pub(super) fn ensure_probe<F, L>(&self, look: L) -> bool
    where
        L: Fn() -> F + Send + 'static,
        F: Future<Output = bool> + Send,
    {
        let mut probe = self.probe_task.lock();
        let silent = self.last_probe_at.lock().elapsed() > self.probe_timeout;
        let runs = probe.as_ref().is_some_and(|task| !task.is_finished());
        if runs && !silent {
            return false;
        }
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        let sign = Arc::clone(&self.last_probe_at);
        let task = runtime.spawn(async move {
            for pause in probe_intervals() {
                *sign.lock() = Instant::now();
                if look().await {
                    return;
                }
                // What is due later is no silence before that.
                *sign.lock() = Instant::now() + pause.saturating_sub(PROBE_INTERVAL);
                tokio::time::sleep(pause).await;
            }
        });
        if let Some(before) = probe.replace(task) {
            before.abort();
        }
        if silent {
            // One call in so long: each of them waits for its deadline if the server is still away.
            *self.last_probe_at.lock() = Instant::now();
            self.trial_in_flight.store(true, Ordering::Release);
        }
        silent
    }
}

/// For as long as somebody looks.
fn probe_intervals() -> impl Iterator<Item = Duration> {
    let longer = |pause: &Duration| Some((*pause * 3 / 2).min(MAX_PROBE_INTERVAL));
    let later = std::iter::successors(longer(&PROBE_INTERVAL), longer).map(with_jitter);
    (0..FAST_PROBES).map(|_| PROBE_INTERVAL).chain(later)
}
