//! Requests that are made until they are served, as those of an application would be; and how long each of them waited.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, Instant},
};

use super::insist;
use crate::error::Error;

#[derive(Default)]
pub(super) struct Requests {
    stop: AtomicBool,
    calls: AtomicU64,
    served: AtomicU64,
    /// Of any one call, ms.
    longest_call: AtomicU64,
    /// From the first call of a request to the one that was answered, ms.
    longest: AtomicU64,
}

impl Requests {
    pub(super) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    pub(super) fn longest(&self) -> Duration {
        Duration::from_millis(self.longest.load(Ordering::Relaxed))
    }

    /// A call that is made once.
    pub(super) async fn call<T>(&self, call: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let answer = call.await;
        self.longest_call.fetch_max(ms(began), Ordering::Relaxed);
        self.calls.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// A request whose call is made again while the store is away.
    pub(super) async fn insist<T>(&self, mut step: impl AsyncFnMut() -> Result<T, Error>) -> T {
        let began = Instant::now();
        let answer = insist(async || self.call(step()).await).await;
        self.longest.fetch_max(ms(began), Ordering::Relaxed);
        self.served.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// How many are served a second meanwhile.
    pub(super) async fn rate<T>(&self, phase: &str, meanwhile: impl Future<Output = T>) -> T {
        let (before, began) = (self.served.load(Ordering::Relaxed), Instant::now());
        let output = meanwhile.await;
        let served = self.served.load(Ordering::Relaxed) - before;
        let rate = served * 1000 / ms(began).max(1);
        println!("figure: lowest requests a second {phase} {rate}");
        output
    }

    pub(super) fn tell(&self) {
        println!("figure: longest request {} ms", self.longest.load(Ordering::Relaxed));
        println!("figure: longest call {} ms", self.longest_call.load(Ordering::Relaxed));
    }
}

fn ms(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX)
}
