//! Circuit breaker: after repeated failures calls fail at once, until a background probe finds that
//! the server is back. No request waits for a server that is known to be unavailable.
//!
//! The probe runs on the runtime of the call that started it, and that runtime may be blocked: a
//! handler occupies its thread, or a program awaits its calls one by one with `block_on` and
//! nothing in between. So a probe leaves signs of life. Where they are missing, another probe is
//! started, and one call is let through as a trial. A trial that succeeds closes the breaker.

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

/// Consecutive failures that open the breaker.
const FAILURE_THRESHOLD: u32 = 5;

/// Longest time between two consecutive failures. Successful reads do not end a series, so a
/// process that only reads would otherwise add up failures over days.
const FAILURE_WINDOW: Duration = Duration::from_secs(60);

/// Pause between the first probes.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);

/// Number of probes at `PROBE_INTERVAL`: most outages are over by then.
const FAST_PROBES: u32 = 10;

/// Longest pause between probes, before jitter.
const MAX_PROBE_INTERVAL: Duration = Duration::from_secs(1);

pub(super) struct CircuitBreaker {
    consecutive_failures: AtomicU32,
    last_failure_at: Mutex<Option<Instant>>,
    open: AtomicBool,
    /// A trial call, let through while the breaker was open, is in flight. Cleared by the failure
    /// of another call: a success after that may have been answered before the failure and received
    /// late.
    trial_in_flight: AtomicBool,
    probe_task: Mutex<Option<JoinHandle<()>>>,
    /// Time when the breaker opened, the probe was last active, or a trial was let through.
    last_probe_at: Arc<Mutex<Instant>>,
    /// Time without a sign of life after which the probe counts as stalled.
    probe_timeout: Duration,
}

impl CircuitBreaker {
    /// `max_probe_time` is the longest duration of one probe. Calls take less, so a call sent
    /// before the breaker opened has ended when the first trial is let through, unless its runtime
    /// was blocked.
    pub(super) fn new(max_probe_time: Duration) -> Self {
        Self {
            consecutive_failures: AtomicU32::new(0),
            last_failure_at: Mutex::default(),
            open: AtomicBool::new(false),
            trial_in_flight: AtomicBool::new(false),
            probe_task: Mutex::default(),
            last_probe_at: Arc::new(Mutex::new(Instant::now())),
            probe_timeout: max_probe_time.saturating_add(2 * PROBE_INTERVAL),
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

    /// Returns true if the breaker is open after this failure.
    pub(super) fn record_failure(&self) -> bool {
        let previous_failure = self.last_failure_at.lock().replace(Instant::now());
        if previous_failure.is_some_and(|failed_at| failed_at.elapsed() > FAILURE_WINDOW) {
            self.consecutive_failures.store(0, Ordering::Relaxed);
        }
        let failures = self.consecutive_failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.trial_in_flight.store(false, Ordering::Release);
        if failures >= FAILURE_THRESHOLD && !self.is_open() {
            // Set before the breaker reads as open: a caller would take an old time for a stalled
            // probe.
            *self.last_probe_at.lock() = Instant::now();
            if !self.open.swap(true, Ordering::AcqRel) {
                tracing::warn!(failures, "circuit breaker opened: the store is unavailable");
            }
        }
        self.is_open()
    }

    pub(super) fn close(&self) {
        self.consecutive_failures.store(0, Ordering::Relaxed);
        self.trial_in_flight.store(false, Ordering::Release);
        if self.open.swap(false, Ordering::AcqRel) {
            tracing::info!("circuit breaker closed: the store is available again");
        }
    }

    /// Makes the probe look stalled.
    #[cfg(test)]
    pub(super) fn stall_probe(&self) {
        *self.last_probe_at.lock() = Instant::now() - self.probe_timeout - PROBE_INTERVAL;
    }

    /// Ensures that a probe runs. `probe` resolves to true if the server answers, or if the probe
    /// is no longer needed.
    ///
    /// A probe on a runtime that has ended or is blocked is replaced by the next call. Returns true
    /// if that call is let through as a trial, since there may never be another probe.
    pub(super) fn ensure_probe<F, P>(&self, probe: P) -> bool
    where
        P: Fn() -> F + Send + 'static,
        F: Future<Output = bool> + Send,
    {
        let mut probe_task = self.probe_task.lock();
        let is_stalled = self.last_probe_at.lock().elapsed() > self.probe_timeout;
        let is_running = probe_task.as_ref().is_some_and(|task| !task.is_finished());
        if is_running && !is_stalled {
            return false;
        }
        let Ok(runtime) = Handle::try_current() else {
            return false;
        };
        let last_probe_at = Arc::clone(&self.last_probe_at);
        let task = runtime.spawn(async move {
            for pause in probe_intervals() {
                *last_probe_at.lock() = Instant::now();
                if probe().await {
                    return;
                }
                // A pause longer than `PROBE_INTERVAL` must not count as a stall.
                *last_probe_at.lock() = Instant::now() + pause.saturating_sub(PROBE_INTERVAL);
                tokio::time::sleep(pause).await;
            }
        });
        if let Some(previous) = probe_task.replace(task) {
            previous.abort();
        }
        if is_stalled {
            // One trial per `probe_timeout`: each waits for its deadline if the server is still
            // unavailable.
            *self.last_probe_at.lock() = Instant::now();
            self.trial_in_flight.store(true, Ordering::Release);
        }
        is_stalled
    }
}

/// Pauses between probes, without an end.
fn probe_intervals() -> impl Iterator<Item = Duration> {
    let next_interval = |pause: &Duration| Some((*pause * 3 / 2).min(MAX_PROBE_INTERVAL));
    let slow_intervals =
        std::iter::successors(next_interval(&PROBE_INTERVAL), next_interval).map(with_jitter);
    (0..FAST_PROBES).map(|_| PROBE_INTERVAL).chain(slow_intervals)
}
