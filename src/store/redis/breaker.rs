//! The breaker: after repeated failures calls are answered at once, and a probe in the background
//! looks when the server is back. No request waits for a server that is known to be away.

use std::{
    future::Future,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{runtime::Handle, task::JoinHandle};

/// Failures in a row that open it.
const FAILURES: u32 = 5;

/// Pause between two probes.
const PROBE_EVERY: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Breaker {
    failures: AtomicU32,
    open: AtomicBool,
    probe: Mutex<Option<JoinHandle<()>>>,
}

impl Breaker {
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(super) fn succeeded(&self) {
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// True if the breaker is open after this failure.
    pub(super) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures >= FAILURES && !self.open.swap(true, Ordering::AcqRel) {
            tracing::warn!(failures, "the store is away: calls are refused until it answers");
        }
        self.is_open()
    }

    pub(super) fn close(&self) {
        self.failures.store(0, Ordering::Relaxed);
        if self.open.swap(false, Ordering::AcqRel) {
            tracing::info!("the store is back");
        }
    }

    /// Makes sure a probe runs. `look` says whether the server answers, or nobody asks any more; a probe whose
    /// runtime ended is replaced by the next call.
    pub(super) fn probe<F, L>(&self, look: L)
    where
        L: Fn() -> F + Send + 'static,
        F: Future<Output = bool> + Send,
    {
        let mut probe = self.probe.lock();
        if probe.as_ref().is_some_and(|task| !task.is_finished()) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        *probe = Some(runtime.spawn(async move {
            while !look().await {
                tokio::time::sleep(PROBE_EVERY).await;
            }
        }));
    }
}
