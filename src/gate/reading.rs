//! How long a handler may wait for the body of its request.
//!
//! Counted is the time in which the handler has asked for more and there is nothing: not the time in
//! which it does other things, and nothing once the body has been read to its end. So a client that sends
//! a byte a second is stopped as well as one that sends nothing, and one that has sent all is never taken
//! for slow.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use futures_util::task::AtomicWaker;
use tokio::time::{Instant, Sleep};

/// The driver's end: tells when the client has been too slow. Dropping it ends the count.
pub struct Reading(Arc<Shared>);

/// The body's end: counts. The driver wraps the body in it.
pub struct Patience {
    shared: Arc<Shared>,
    left: Duration,
    /// Since when the handler waits.
    since: Option<Instant>,
    /// Made when it first has to wait: most bodies come at once.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// The client was too slow. What the body yields then, in place of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooSlow;

struct Shared {
    state: AtomicU8,
    driver: AtomicWaker,
}

const COUNTS: u8 = 0;
const TOO_SLOW: u8 = 1;
const OVER: u8 = 2;

impl Reading {
    /// Both ends.
    #[must_use]
    pub fn new(limit: Duration) -> (Self, Patience) {
        let state = AtomicU8::new(COUNTS);
        let shared = Arc::new(Shared { state, driver: AtomicWaker::new() });
        let left = limit.min(crate::clock::LONGEST);
        (Self(Arc::clone(&shared)), Patience { shared, left, since: None, sleep: None })
    }

    /// True from then on.
    #[must_use]
    pub fn is_too_slow(&self) -> bool {
        self.0.state.load(Ordering::Acquire) == TOO_SLOW
    }

    /// Ready when the client has been too slow, in whatever task the body is read.
    pub fn poll_too_slow(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.driver.register(cx.waker());
        if self.is_too_slow() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.0.change(OVER);
    }
}

impl Shared {
    /// Out of counting, once.
    fn change(&self, to: u8) {
        let _ = self.state.compare_exchange(COUNTS, to, Ordering::AcqRel, Ordering::Acquire);
    }
}

impl Patience {
    /// To be called after each poll of the body.
    ///
    /// # Errors
    ///
    /// If the handler has waited too long. The driver knows it too then.
    pub fn check(&mut self, cx: &mut Context<'_>, waits: bool) -> Result<(), TooSlow> {
        if !waits {
            if let Some(since) = self.since.take() {
                self.left = self.left.saturating_sub(since.elapsed());
            }
            return Ok(());
        }
        if self.shared.state.load(Ordering::Acquire) == OVER {
            return Ok(());
        }
        let until = *self.since.get_or_insert_with(Instant::now) + self.left;
        let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(until)));
        if sleep.deadline() != until {
            sleep.as_mut().reset(until);
        }
        if sleep.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        self.shared.change(TOO_SLOW);
        self.shared.driver.wake();
        Err(TooSlow)
    }
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the request's body did not arrive in time")
    }
}

impl std::error::Error for TooSlow {}

impl fmt::Debug for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reading").field("too_slow", &self.is_too_slow()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patience").field("left", &self.left).finish_non_exhaustive()
    }
}
