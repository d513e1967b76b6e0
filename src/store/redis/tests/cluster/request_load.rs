//! Requests that are repeated until they are served, as an application would, and their longest
//! waits.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::retry_while_unavailable;
use crate::error::Error;

#[derive(Default)]
pub(super) struct RequestLoad {
    is_stopped: AtomicBool,
    call_count: AtomicU64,
    served_count: AtomicU64,
    /// Longest single call, in ms.
    longest_call_ms: AtomicU64,
    /// Longest time from the first call of a request to the one that was answered, in ms.
    longest_request_ms: AtomicU64,
}

impl RequestLoad {
    pub(super) fn is_running(&self) -> bool {
        !self.is_stopped.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    pub(super) fn call_count(&self) -> u64 {
        self.call_count.load(Ordering::Relaxed)
    }

    pub(super) fn longest_request(&self) -> Duration {
        Duration::from_millis(self.longest_request_ms.load(Ordering::Relaxed))
    }

    /// Measures a call that is made once.
    pub(super) async fn measure_call<T>(&self, call: impl Future<Output = T>) -> T {
        let started = Instant::now();
        let answer = call.await;
        self.longest_call_ms.fetch_max(elapsed_ms(started), Ordering::Relaxed);
        self.call_count.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// Measures a request, whose call is repeated while the store is unavailable.
    pub(super) async fn measure_request<T>(
        &self,
        mut call: impl AsyncFnMut() -> Result<T, Error>,
    ) -> T {
        let started = Instant::now();
        let answer = retry_while_unavailable(async || self.measure_call(call()).await).await;
        self.longest_request_ms.fetch_max(elapsed_ms(started), Ordering::Relaxed);
        self.served_count.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// Prints the number of requests served a second during `meanwhile`.
    pub(super) async fn measure_rate<T>(
        &self,
        phase: &str,
        meanwhile: impl Future<Output = T>,
    ) -> T {
        let (before, started) = (self.served_count.load(Ordering::Relaxed), Instant::now());
        let output = meanwhile.await;
        let served = self.served_count.load(Ordering::Relaxed) - before;
        let rate = served * 1000 / elapsed_ms(started).max(1);
        println!("figure: lowest requests a second {phase} {rate}");
        output
    }

    pub(super) fn print_figures(&self) {
        println!("figure: longest request {} ms", self.longest_request_ms.load(Ordering::Relaxed));
        println!("figure: longest call {} ms", self.longest_call_ms.load(Ordering::Relaxed));
    }
}

fn elapsed_ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
